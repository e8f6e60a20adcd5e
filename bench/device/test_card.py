"""What `card` makes of sections that end, fail, hang and crash, with a kvik that is a script; and its tables."""
import json
import os
import pathlib
import subprocess

import pytest

CARD = pathlib.Path(__file__).with_name("card")

KVIK = r"""#!/bin/bash
case "$*" in
    *"--check"*) {check} ;;
    *"--write"*) : >"$(sed 's/.*--write \([^ ]*\).*/\1/' <<<"$*")" ;;
    devices*) echo '{{"device":"gpu:0","name":"a card","kind":"a card","driver":"1","subgroup_min":32,"subgroup_max":32,"timestamps":true}}' ;;
    bench*) {bench} ;;
    serve*) {serve} ;;
esac
"""
CHECKED = ('{"model":"m","prompts":60,"equal":59,"ties":1,"chunks_equal":true,"batched_equal":true,"cached_equal":false,'
           '"recovered_equal":true,"seconds":1.0}')
BENCH = json.dumps(dict(n_prompt=0, n_gen=64, n_depth=4096, n_sequences=1, n_steps=64, step_submissions=1.0, step_kernels=340.0,
                        step_groups=34000.0, step_weight_bytes_least=4e8, step_kv_bytes_least=1e8, step_weight_bytes=4e8,
                        step_kv_bytes=2e8, kernels=[dict(kernel="matmul/rows q4_k x1", runs=2, groups=8, ns=3000)],
                        avg_ns=64e6, avg_ts=1000.0, stddev_ts=1.5)).replace(": ", ":")


def card(folder, *words, check=f"echo '{CHECKED}'", bench=f"echo '{BENCH}'", serve=":", limit=20, around=None):
    """Runs it, and returns its status, rows by section, and table."""
    kvik = folder / "kvik"
    kvik.write_text(KVIK.format(check=check, bench=bench, serve=serve))
    kvik.chmod(0o755)
    env = os.environ | {"CARD_KVIK": str(kvik), "CARD_LIMIT": str(limit)} | (around or {})
    ended = subprocess.run([CARD, "--out", folder / "out", *words], env=env, capture_output=True, text=True, check=False, timeout=60)
    rows = {}
    for line in (folder / "out" / "results.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows.setdefault(row["section"], []).append(row)
    return ended.returncode, rows, ended.stdout


def test_rows_are_written_and_shown(tmp_path):
    status, rows, table = card(tmp_path, "--only", "devices,check,speed,step", "--peak", "4800,989")
    assert status == 0 and set(rows) == {"devices", "check", "speed", "step"}
    assert all(found[-1]["what"] == "end" and found[-1]["status"] == 0 for found in rows.values())
    assert "| embedded | 59 of 60 | 1 | same | same | OTHER | same |" in table
    # 0.5 GB a step in a millisecond, of 4,800 GB/s; the peer is not there.
    assert "| qwen3-0.6b:q4_k_m | decode 64 at 4096 | 1000.0 | 1.5 | - | - | 500.0 | 10.4% | - | - |" in table
    assert "Not measured: llama.cpp is not in the pack." in table
    assert "| decode | 1.0 | 340.0 | 100 | - | - | 1.00 | 2.00 |".replace("- | -", "0.00 | 0.00") in table
    assert "| decode | matmul/rows q4_k x1 | 2 | 4 | 1.5 | 100.0% |" in table


@pytest.mark.parametrize("work, told", ((f"echo '{CHECKED}'; sleep 60", "it took more than 1 s"), ("kill -SEGV $$", "ended with status"),
                                        (f"printf '{CHECKED[:20]}'; exit 3", "ended with status")))
def test_a_section_that_hangs_or_crashes_is_told_and_the_rest_goes_on(tmp_path, work, told):
    status, rows, table = card(tmp_path, "--only", "check,step", check=work, limit=1 if "sleep" in work else 20)
    assert status == 1
    assert told in rows["check"][-1]["failed"] and told in table
    assert rows["step"][-1]["status"] == 0 and any(row["what"] == "decode" for row in rows["step"])


def test_a_table_is_made_again_of_what_was_written(tmp_path):
    _, _, table = card(tmp_path, "--only", "devices,step")
    again = subprocess.run([CARD, "--table", tmp_path / "out" / "results.jsonl"], capture_output=True, text=True, check=True).stdout
    assert again == table and "a card" in table


@pytest.mark.parametrize("device, told", (("", "Not measured: llama.cpp found no device."), ("a card", "| 1000.0 | 1.5 | 500.0 | 2.00 |")))
def test_a_peer_that_computes_on_the_processor_is_not_compared(tmp_path, device, told):
    peer = tmp_path / "out/work/bin/llama-bench"
    peer.parent.mkdir(parents=True)
    row = json.dumps({"gpu_info": device, "n_prompt": 0, "n_gen": 64, "n_depth": 4096, "avg_ts": 500.0})
    peer.write_text(f"#!/bin/bash\necho '{row}'\n")
    peer.chmod(0o755)
    _, _, table = card(tmp_path, "--only", "speed")
    assert told in table


def test_no_server_is_left(tmp_path):
    serve = f"echo $$ >>{tmp_path}/served; exec sleep 600"
    status, _, said = card(tmp_path, "--only", "first_token", "--small", serve=serve)
    assert status == 0, said
    served = (tmp_path / "served").read_text().split()
    assert len(served) == 2 and not [pid for pid in served if pathlib.Path(f"/proc/{pid}/cmdline").exists()]


def test_a_disk_cache_is_empty_before_it_is_measured(tmp_path):
    serve = r"""folder=$(sed 's/.*--cache-disk \([^ ]*\) .*/\1/' <<<"$*"); ls "$folder" >>"$HOME/found"; : >"$folder"/block"""
    for _ in range(2):
        # A server ends with what is measured.
        status, rows, _ = card(tmp_path, "--only", "first_token", "--small", serve=serve, bench=f"sleep 1; echo '{BENCH}'")
        assert status == 0 and rows["first_token"][-1]["status"] == 0, rows
    work = tmp_path / "out" / "work"
    assert (work / "home" / "found").read_text() == ""
    assert (work / "host" / "block").exists() and (work / "disk" / "block").exists(), "where a server was to write"


@pytest.mark.parametrize("described, needs_x11, used", (
    ({}, [], "libGLX_nvidia.so.0"),
    ({"lvp_icd": "/usr/lib/libvulkan_lvp.so"}, ["libGLX_nvidia.so.0"], "libEGL_nvidia.so.0"),
    ({"nvidia_icd": "libGLX_nvidia.so.0"}, ["libGLX_nvidia.so.0"], "libEGL_nvidia.so.0"),
    ({"nvidia_icd": "libGLX_nvidia.so.0", "lvp_icd": "/usr/lib/libvulkan_lvp.so"}, [], None),
    ({"nvidia_icd": "{libraries}/libGLX_nvidia.so.0"}, [], None),
    ({"nvidia_icd": "{libraries}/gone/libGLX_nvidia.so.0"}, ["libGLX_nvidia.so.0"], "libEGL_nvidia.so.0"),
    ({}, ["libGLX_nvidia.so.0", "libEGL_nvidia.so.0"], None)))
def test_a_driver_is_described_unless_a_file_does_that_can_be_loaded(tmp_path, described, needs_x11, used):
    tools, libraries, icds = (tmp_path / name for name in ("tools", "libraries", "icd.d"))
    for folder in (tools, libraries, icds):
        folder.mkdir()
    names = ["libvulkan.so.1", "libGLX_nvidia.so.0", "libEGL_nvidia.so.0"]
    for name in names:
        (libraries / name).touch()
    for name, library in described.items():
        library = library.format(libraries=libraries)
        (icds / f"{name}.json").write_text(json.dumps(dict(ICD=dict(library_path=library, api_version="1.3")), indent=4))
    listed = "".join(f"\t{name} (libc6,x86-64) => {libraries}/{name}\n" for name in names)
    lacking = "|".join(f"*/{name}" for name in needs_x11) or "none"
    for name, text in (("ldconfig", f"cat <<'END'\n{listed}END\n"),
                       ("ldd", f"case $1 in {lacking}) echo '\tlibX11.so.6 => not found' ;; esac\n")):
        (tools / name).write_text(f"#!/bin/bash\n{text}")
        (tools / name).chmod(0o755)
    around = {"PATH": f"{tools}:{os.environ['PATH']}", "CARD_ICD_FILES": f"{icds}/*.json", "VK_DRIVER_FILES": ""}
    card(tmp_path, "--only", "check", check='echo "$VK_DRIVER_FILES" >"$HOME/driver"', around=around)
    driver = (tmp_path / "out" / "work" / "home" / "driver").read_text().strip()
    found = json.loads(pathlib.Path(driver).read_text())["ICD"]["library_path"] if driver else None
    assert found == (used and str(libraries / used))
