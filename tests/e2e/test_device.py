"""A GPU of software: device, the machine's memory and disk as tiers, of a kvik that was built with GPUs.

`KVIK_GPU_BINARY` is that kvik, which then must find one; by default it is what `cargo test --features kvik/gpu` leaves
behind, if that does.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server import ROOT, Server, effort  # noqa: E402

BINARY = pathlib.Path(os.environ.get("KVIK_GPU_BINARY", ROOT / "target/debug/kvik"))
PROMPTS = [f"Story number {i}. " + "Once upon a time there was a folder full of letters. " * 6 for i in range(6)]

# Where keys and values stand in a bench.
RESIDENT = effort(["off"], ["on", "off"])


def devices():
    """The numbers of the GPUs; none without such a kvik or a driver."""
    if not BINARY.exists():
        return []
    found = subprocess.run([BINARY, "devices"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^gpu:(\d+)", found, re.MULTILINE)


needs_device = pytest.mark.skipif("KVIK_GPU_BINARY" not in os.environ and not devices(), reason=f"{BINARY} finds no GPU, nor one of software")


def start(folder, *flags):
    """A kvik whose device has room for one prompt and a little."""
    flags = ("--device", "gpu:0", "--threads", "2", "--context", "256", "--parallel", "1", "--speculate", "none",
             "--cache-device", "1MiB", *flags)
    return Server(*flags, env={"KVIK_CACHE_DISK": str(folder)}, binary=BINARY)


def ask(server, prompt):
    answer = server.post("/completion", dict(prompt=prompt, n_predict=6, temperature=0, ignore_eos=True))
    assert answer.status == 200, answer.text
    return answer.json["content"], answer.json["kvik"]["cache"]


def said(asked):
    return [text for text, _ in asked]


def tokens(asked, tier):
    return [cache["by_tier"].get(tier, 0) for _, cache in asked]


@needs_device
def test_blocks_move_between_three_tiers(tmp_path):
    folder = tmp_path / "kv"
    with start(folder, "--cache-ram", "4MiB") as server:
        assert "of RAM" in server.logged() and "gpu" not in server.get("/v1/models").text
        cold = [ask(server, prompt) for prompt in PROMPTS]
        again = [ask(server, prompt) for prompt in PROMPTS]
        assert said(again) == said(cold)
        assert all(host >= 64 for host in tokens(again, "host")), again
        held = server.get("/v1/cache").json
        assert held["host"]["used_blocks"] > 0 and held["host"]["bytes_per_second"] > 0 and held["disk"]["used_blocks"] > 0
        assert server.metric("kvik_host_blocks_used") == held["host"]["used_blocks"]
    with start(folder, "--cache-ram", "4MiB") as server:
        restarted = [ask(server, prompt) for prompt in PROMPTS]
        assert said(restarted) == said(cold)
        assert sum(tokens(restarted, "disk")) > 64, restarted


@needs_device
@pytest.mark.full
def test_two_processes_share_a_device(tmp_path):
    """Both answer as one alone does, and one that is killed takes nothing with it."""
    with start(tmp_path / "alone", "--cache-ram", "4MiB") as server:
        alone = [ask(server, prompt)[0] for prompt in PROMPTS]
    with start(tmp_path / "a", "--cache-ram", "4MiB") as one, start(tmp_path / "b", "--cache-ram", "4MiB") as other:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            both = [pool.submit(lambda server: [ask(server, prompt)[0] for prompt in PROMPTS], server) for server in (one, other)]
            assert [asked.result() for asked in both] == [alone, alone]
            left = pool.submit(lambda: [ask(other, prompt)[0] for prompt in PROMPTS])
            one.kill()
            assert left.result() == alone


@needs_device
@pytest.mark.full
def test_the_machines_memory_alone_is_a_tier(tmp_path):
    with start("off", "--cache-ram", "4MiB") as server:
        cold = [ask(server, prompt) for prompt in PROMPTS]
        again = [ask(server, prompt) for prompt in PROMPTS]
        assert said(again) == said(cold) and all(host >= 64 for host in tokens(again, "host")), again
        held = server.get("/v1/cache").json
        assert held["disk"] is None and held["host"]["used_blocks"] > 0
    with start("off", "--cache-ram", "1B") as server:
        cold = [ask(server, prompt) for prompt in PROMPTS]
        again = [ask(server, prompt) for prompt in PROMPTS]
        assert said(again) == said(cold) and sum(tokens(again, "host")) == 0
        assert "host" not in server.get("/v1/cache").json


@needs_device
@pytest.mark.full
def test_the_first_layers_of_a_model_may_stay_with_the_processor(tmp_path):
    """Blocks are whole in every tier; another split reads none of them."""
    folder = tmp_path / "kv"
    with start(folder, "--cache-ram", "4MiB", "--gpu-layers", "2") as server:
        assert "first 4 layers" in server.logged()
        cold = [ask(server, prompt) for prompt in PROMPTS]
        again = [ask(server, prompt) for prompt in PROMPTS]
        assert said(again) == said(cold)
        assert all(host >= 64 for host in tokens(again, "host")), again
    with start(folder, "--cache-ram", "4MiB", "-ngl", "2") as server:
        restarted = [ask(server, prompt) for prompt in PROMPTS]
        assert said(restarted) == said(cold)
        assert sum(tokens(restarted, "disk")) > 64, restarted
    for other in ("3", "99"):
        with start(folder, "--cache-ram", "4MiB", "--n-gpu-layers", other) as server:
            elsewhere = ask(server, PROMPTS[0])
            assert not sum(tokens([elsewhere], "disk") + tokens([elsewhere], "ram")), elsewhere


@needs_device
def test_a_device_says_what_it_cannot_do(tmp_path):
    for flags, words in (
        (("--device", "gpu:9"), "gpu 9"),
        (("--device", "gpu:0", "--retain", "snapkv:0.5"), "--retain"),
        (("--device", "gpu:0", "--cache-device", "1KiB"), "--cache-device"),
        (("--device", "cpu", "--gpu-layers", "2"), "--gpu-layers 2"),
        (("--device", "gpu:0", "--gpu-layers", "most"), "number of layers"),
    ):
        ended = subprocess.run([BINARY, "serve", "--port", "0", *flags], capture_output=True, text=True, timeout=120,
                               env=os.environ | {"KVIK_CACHE_DISK": "off", "KVIK_STATE_DIR": str(tmp_path)})
        assert ended.returncode != 0 and words.lower() in ended.stderr.lower(), (flags, ended.stderr)


@needs_device
@pytest.mark.parametrize(
    "flags", ((), *(pytest.param(flags, marks=pytest.mark.full) for flags in (("--gpu-layers", "2"), ("--repeat-depth",)))), ids=" ".join
)
def test_a_bench_says_what_keys_and_values_cost_that_do_not_stay(flags):
    """What is copied is what the formula says, also of a part of the layers; without a word they stay."""
    rows = {}
    for resident in RESIDENT:
        ended = subprocess.run([BINARY, "bench", "--device", "gpu:0", "--kv-resident", resident, "-p", "32", "-n", "4", "-d", effort("64", "640"),
                                "-r", "1", "--json", *flags], capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        rows[resident] = json.loads(ended.stdout)
    moved = {resident: [row["kv_bytes_moved"] for row in found] for resident, found in rows.items()}
    assert moved["off"] == [row["kv_bytes_formula"] for row in rows["off"]] and all(moved["off"])
    assert not any(moved.get("on", ()))
    assert all(0 < row["preparing_ns"] < row["avg_ns"] for row in rows.get("on", ()))
