"""The whole comparison with stand-ins for the programs: which rows, what is asked of whom, which figures count."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from works import by_case, published  # noqa: E402

# Every stand-in is faster by 1 tok/s at every sample, from 100 (kvik: 300).
EVERY_STAND_IN = """#!{python}
import json, pathlib, sys
program = pathlib.Path(sys.argv[0])
with open(program.parent / "calls", "a") as calls:
    calls.write(" ".join([program.name, *sys.argv[1:]]) + "\\n")
flag = lambda name, default=None: sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default
numbers = lambda name: [int(number) for number in flag(name, "0").split(",") if number != "0"]
counter = program.parent / (program.name + ".samples")
def sample():
    taken = len(counter.read_text()) if counter.exists() else 0
    counter.write_text("." * (taken + 1))
    return (300 if program.name == "kvik" else 100) + taken
samples = lambda: [sample() for _ in range(int(flag("-r")))]
"""
# Answers as kvik, as llama-bench, or as llama-batched-bench.
STAND_IN = """
if "--version" in sys.argv:
    sys.exit(print(program.name, "1.2"))
if "--help" in sys.argv:
    sys.exit(print("-d, --n-depth <n>"))
if program.name == "llama-batched-bench":
    print("a line that is no result")
    for pl in numbers("-npl"):
        print(json.dumps({{"pp": numbers("-npp")[0], "tg": numbers("-ntg")[0], "pl": pl, "is_pp_shared": int("-pps" in sys.argv), "speed_tg": sample()}}))
    sys.exit()
kv = {{"type_k": flag("--kv", flag("-ctk")), "type_v": flag("--kv", flag("-ctv")), "n_depth": int(flag("-d"))}}
many = {{"n_sequences": int(flag("--sequences", 1)), "own_prompts": "--own-prompts" in sys.argv}} if program.name == "kvik" else {{}}
one = {{"n_sequences": 1, "own_prompts": False}} if program.name == "kvik" else {{}}
results = [{{"n_prompt": p, "n_gen": 0, "samples_ts": samples()}} | kv | one for p in numbers("-p")]
results += [{{"n_prompt": 0, "n_gen": n, "samples_ts": samples()}} | kv | many for n in numbers("-n")]
print(json.dumps(results))
"""
# Answers as the programs of ik_llama.cpp, which know fewer flags, and write to standard error and to a file beside them.
IK_STAND_IN = """
if "--version" in sys.argv:
    sys.exit(program.name == "llama-bench" or print(program.name, "4", file=sys.stderr))
if "--help" in sys.argv:
    sys.exit(print("-rtr, --run-time-repack <0|1>"))
if unknown := {{"-d", "-kvu", "-no-kvu"}}.intersection(sys.argv):
    sys.exit(f"error: unknown argument: {{unknown}}")
if program.name == "llama-bench":
    same = {{"type_k": flag("-ctk"), "type_v": flag("-ctv"), "flash_attn": flag("-fa") == "1", "repack": flag("-rtr") == "1"}}
    sizes = [(p, 0) for p in numbers("-p")] + [(0, n) for n in numbers("-n")]
    sizes += [tuple(map(int, size.split(","))) for name, size in zip(sys.argv, sys.argv[1:]) if name == "-gp"]
    sys.exit(print(json.dumps([{{"n_prompt": p, "n_gen": n, "samples_ts": samples()}} | same for p, n in sizes])))
answers = ["a line that is no result"]
if program.name == "llama-sweep-bench":
    pp, fa = int(flag("-ub")), int(flag("-fa") == "on")
    for n_kv in range(0, int(flag("-c")), pp):
        answers += [json.dumps({{"pp": pp, "tg": int(flag("-n")), "n_kv": n_kv, "flash_attn": fa, "speed_pp": sample(), "speed_tg": 9}})]
else:
    answers += ["|    PP |     TG |    B |   N_KV | S_PP t/s | S_TG t/s |", "|-------|--------|------|--------|----------|----------|"]
    for pl in numbers("-npl"):
        pp, tg = int(flag("-npp")), int(flag("-ntg"))
        answers += [f"|{{pp:6}} | {{tg:6}} | {{pl:4}} | {{pp + pl * tg:6}} | {{9:8.2f}} | {{sample():8.2f}} |"]
print("\\n".join(answers), file=sys.stderr)
pathlib.Path("llama.log").touch()
"""
# Answers as a Python that runs genai_bench.py, which does not read BF16.
GENAI_STAND_IN = """
if "--version" in sys.argv:
    sys.exit(print("OpenVINO GenAI 7, computes in bf16"))
if "bf16" in flag("-m"):
    sys.exit("a line before the reason\\nno such weights")
same = {{"type_k": flag("--kv"), "type_v": flag("--kv"), "n_depth": int(flag("-d"))}}
results = [{{"n_prompt": p, "n_gen": 0, "n_sequences": 1, "samples_ts": samples()}} | same for p in numbers("-p")]
results += [{{"n_prompt": 0, "n_gen": n, "n_sequences": int(flag("--sequences")), "samples_ts": samples()}} | same for n in numbers("-n")]
print(json.dumps(results))
"""
# Stands for the packages that genai_bench.py imports. A token that is not in the prefix cache takes a millisecond, an answer's four.
GENAI_PACKAGE = """
import json, os, types
__version__ = "7"
Tensor = lambda rows: rows
TokenizedInputs = lambda ids, mask: ids
SchedulerConfig = GenerationConfig = types.SimpleNamespace
Core = lambda: types.SimpleNamespace(get_property=lambda *_: types.SimpleNamespace(get_type_name=lambda: "bf16"))
class LLMPipeline:
    def __init__(self, model, device, scheduler_config, **settings):
        said = [os.path.basename(model), device, settings, vars(scheduler_config)]
        open(os.path.join(os.path.dirname(model), "loaded"), "a").write(json.dumps(said) + "\\n")
        self.cached = set()
    def get_tokenizer(self):
        return types.SimpleNamespace(get_vocab=lambda: range(10**9))
    def generate(self, prompts, config):
        new = {tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)} - self.cached
        self.cached |= new
        took = {"get_ttft": len(new), "get_tpot": 4 / len(prompts)}
        metrics = {name: lambda mean=mean: types.SimpleNamespace(mean=mean) for name, mean in took.items()}
        tokens = [[0] * config.max_new_tokens for _ in prompts]
        return types.SimpleNamespace(tokens=tokens, perf_metrics=types.SimpleNamespace(**metrics))
"""


def stand_in(folder, answers, *names):
    for name in names:
        (folder / name).write_text((EVERY_STAND_IN + answers).format(python=sys.executable))
        (folder / name).chmod(0o755)


@pytest.fixture
def compare(tmp_path):
    """Runs compare.py on stand-ins; gives standard output, standard error, the JSON and the calls of programs."""
    stand_in(tmp_path, STAND_IN, "kvik", "llama-bench", "llama-batched-bench")
    for weights in ("q8_0", "q4_0", "q4_k_m", "f16", "bf16"):
        (tmp_path / f"qwen3-0.6b-{weights}.gguf").touch()

    def run(*flags, status=0):
        command = [sys.executable, "-B", HERE / "compare.py", "--kvik", tmp_path / "kvik", "--models", tmp_path, "--kernels", tmp_path / "kernels"]
        done = subprocess.run([*map(str, command), "--json", tmp_path / "out.json", *flags], capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        calls = (tmp_path / "calls").read_text().replace(f"{tmp_path}{os.sep}", "").splitlines() if (tmp_path / "calls").exists() else []
        out = json.loads((tmp_path / "out.json").read_text()) if (tmp_path / "out.json").exists() else None
        return done.stdout, done.stderr, out, calls

    run.peer = ("--peer", str(tmp_path))
    return run


@pytest.fixture
def compare_ik(compare, tmp_path):
    """The same where the peer's programs are ik_llama.cpp's."""
    stand_in(tmp_path, IK_STAND_IN, "llama-bench", "llama-batched-bench", "llama-sweep-bench")
    return compare


def test_the_table_has_every_row_with_a_figure_and_a_ratio(compare):
    stdout, stderr, out, calls = compare(*compare.peer, "--table")
    assert [(r["weights"], r["work"], r["depth"], r["kv"]) for r in out["results"]] == [
        ("q8_0", "prefill 512", 0, "f16"),
        ("q4_0", "prefill 512", 0, "f16"),
        ("q4_k_m", "prefill 512", 0, "f16"),
        ("f16", "prefill 512", 0, "f16"),
        ("bf16", "prefill 512", 0, "f16"),
        ("f16 exactly", "prefill 512", 0, "f16"),
        ("f16 as bf16", "prefill 512", 0, "f16"),
        ("f16 as bf16", "prefill 512", 0, "bf16"),
        ("q8_0", "prefill 32", 190, "f16"),
        ("q8_0", "prefill 512", 4096, "f16"),
        ("q8_0", "prefill 512", 4096, "bf16"),
        ("q8_0", "prefill 512", 4096, "q8"),
        ("q8_0", "decode 64", 0, "f16"),
        ("q4_0", "decode 64", 0, "f16"),
        ("q4_k_m", "decode 64", 0, "f16"),
        ("f16", "decode 64", 0, "f16"),
        ("f16 exactly", "decode 64", 0, "f16"),
        ("q8_0", "decode 64", 4096, "f16"),
        ("q8_0", "decode 64", 4096, "bf16"),
        ("q8_0", "decode 64", 4096, "q8"),
        ("q8_0", "decode 64", 4096, "q4"),
        ("q8_0", "decode 32 x3", 512, "f16"),
        ("q8_0", "decode 32 x4", 512, "f16"),
        ("q8_0", "decode 32 x16", 512, "f16"),
        ("q8_0", "decode 32 x16", 4096, "f16"),
    ]
    assert all(len(speeds) == 3 for r in out["results"] for speeds in r["samples"].values())
    assert all(r["ratio"] == round(r["kvik_ts"] / r["beside_ts"], 3) for r in out["results"])
    assert [r["beside"] == "kvik, own prompts" for r in out["results"]] == [False] * 24 + [True]
    assert out["versions"] == {"kvik": "kvik 1.2", "peer": "llama.cpp, llama-bench 1.2"}
    assert len(stdout.splitlines()) == 2 + 25
    measured = sum(len(r["samples"]) * (1 if r["in_one_process"] else 3) for r in out["results"])
    assert len(stderr.splitlines()) == measured


def test_a_limit_is_operations_over_peaks_and_bytes_over_bandwidth(compare, tmp_path):
    peaks = {"read": 10e9, "bytes": 1e12, "floats": 2e11}
    (tmp_path / "kernels").write_text(f"#!{sys.executable}\nprint({json.dumps(json.dumps(peaks))})\n")
    (tmp_path / "kernels").chmod(0o755)
    with open(tmp_path / "qwen3-0.6b-q8_0.gguf", "wb") as file:
        file.truncate(500_000_000)
    stdout, _, out, _ = compare(*compare.peer, "--weights", "q8_0,bf16", "--rounds", "1")
    of_layers = 28 * (1024 * 128 * (2 * 16 + 2 * 8) + 3 * 1024 * 3072)
    prompt = 2 * of_layers * 512 / 1e12 + 4 * 28 * 16 * 128 * 512 * 256 / 2e11
    token = (500e6 + 2 * 28 * 8 * 128 * 2 * 32) / 10e9
    q8_prefill, q8_decode, bf16_prefill, bf16_decode = out["results"]
    assert q8_prefill["limit_ts"] == round(512 / prompt, 1) and q8_decode["limit_ts"] == round(1 / token, 1)
    assert q8_prefill["share"] == round(300 / (512 / prompt), 3) and f"{q8_prefill['share']:.0%}" in stdout
    assert bf16_prefill["limit_ts"] is None and bf16_decode["limit_ts"], "no peak of bfloats, but a bandwidth"
    assert out["peaks"] == peaks


def test_prefill_and_decode_share_a_process_and_a_filling_of_the_depth():
    cases = by_case(published())
    assert sum(len(works) for works in cases.values()) == 25
    shared = [(case.shown_weights, case.depth, case.kv) for case, works in cases.items() if len(works) == 2]
    assert shared == [("q8_0", 0, "f16"), ("q4_0", 0, "f16"), ("q4_k_m", 0, "f16"), ("f16", 0, "f16"), ("f16 exactly", 0, "f16"), ("q8_0", 4096, "f16"), ("q8_0", 4096, "bf16"), ("q8_0", 4096, "q8")]


def test_engines_take_turns_and_the_best_median_of_the_peer_counts(compare):
    _, _, out, calls = compare(*compare.peer, "--prompt", "0", "--rounds", "2")
    flags = "-m qwen3-0.6b-q8_0.gguf -p 0 -n 64 -d 0 -t 2 -r 1"
    kvik = f"kvik bench {flags} --kv f16 --sequences 1 --json"
    off, on = (f"llama-bench {flags} -fa {fa} -ctk f16 -ctv f16 -o json" for fa in (0, 1))
    assert calls[:-2] == ["llama-bench --help", kvik, off, on, on, off, kvik]
    (row,) = out["results"]
    assert row["samples"] == {"kvik": [300, 301], "llama.cpp, fa off": [100, 103], "llama.cpp, fa on": [101, 102]}
    assert (row["kvik_ts"], row["beside_ts"]) == (300.5, 101.5)


def test_quantised_kv_at_a_depth_is_one_process_with_all_samples(compare):
    _, _, out, calls = compare(*compare.peer, "--kv", "q8_0", "--depth", "4096")
    flags = "-m qwen3-0.6b-q8_0.gguf -p 512 -n 64 -d 4096 -t 2 -r 3"
    assert calls[1:-2] == [
        f"kvik bench {flags} --kv q8 --sequences 1 --json",
        f"llama-bench {flags} -fa 1 -ctk q8_0 -ctv q8_0 -o json",
    ]
    prefill, decode = out["results"]
    assert (prefill["samples"]["kvik"], decode["samples"]["kvik"]) == ([300, 301, 302], [303, 304, 305])


def test_sequences_are_those_of_batched_bench_and_its_first_does_not_count(compare):
    _, _, out, calls = compare(*compare.peer, "--sequences", "4", "--generate", "32", "--rows", " x4", "--rounds", "1")
    batched = "llama-batched-bench -m qwen3-0.6b-q8_0.gguf -t 2 -c {} -npp 512 -ntg 32 -npl 4,4 -pps {} -fa {} -ctk f16 -ctv f16 --output-format jsonl"
    assert calls[1:-2] == [
        "kvik bench -m qwen3-0.6b-q8_0.gguf -p 0 -n 32 -d 512 -t 2 -r 1 --kv f16 --sequences 4 --json",
        batched.format(4 * 544, "-no-kvu", "off"),
        batched.format(512 + 4 * 32, "-kvu", "off"),
        batched.format(4 * 544, "-no-kvu", "on"),
        batched.format(512 + 4 * 32, "-kvu", "on"),
    ]
    (row,) = out["results"]
    assert (row["work"], row["depth"], row["beside"], row["beside_ts"]) == ("decode 32 x4", 512, "llama.cpp, fa on, one buffer", 107)


IK_SETTINGS = [("off", False), ("off", True), ("on", False), ("on", True)]


def test_ik_is_recognised_and_its_best_median_counts_repacked_or_not(compare_ik):
    _, _, out, calls = compare_ik(*compare_ik.peer, "--rounds", "1")
    flags = "-m qwen3-0.6b-q8_0.gguf -p 512 -n 64 -t 2 -r 1"
    assert calls == [
        "llama-bench --help",
        "kvik bench -m qwen3-0.6b-q8_0.gguf -p 512 -n 64 -d 0 -t 2 -r 1 --kv f16 --sequences 1 --json",
        *(f"llama-bench {flags} -fa {int(fa == 'on')} -rtr {int(rtr)} -ctk f16 -ctv f16 -o json" for fa, rtr in IK_SETTINGS),
        "kvik --version",
        "llama-batched-bench --version",
    ]
    prefill, decode = out["results"]
    assert list(prefill["samples"]) == ["kvik", "ik, fa off", "ik, fa off, repacked", "ik, fa on", "ik, fa on, repacked"]
    assert [(r["beside"], r["beside_ts"]) for r in (prefill, decode)] == [("ik, fa on, repacked", 106), ("ik, fa on, repacked", 107)]
    assert out["versions"] == {"kvik": "kvik 1.2", "peer": "ik_llama.cpp, llama-batched-bench 4"}


def test_ik_sweeps_to_the_depth_for_prefill_and_benches_decode_after_a_prompt(compare_ik):
    _, _, out, calls = compare_ik(*compare_ik.peer, "--kv", "q8", "--depth", "1024", "--rounds", "2")
    sweep = "llama-sweep-bench -m qwen3-0.6b-q8_0.gguf -t 2 -c 1536 -ub 512 -n 1 -fa on {}-ctk q8_0 -ctv q8_0 --output-format jsonl"
    bench = "llama-bench -m qwen3-0.6b-q8_0.gguf -p 0 -n 0 -gp 1024,64 -t 2 -r 2 -fa 1 -rtr {} -ctk q8_0 -ctv q8_0 -o json"
    assert calls[2:-2] == [bench.format(0), sweep.format(""), sweep.format(""), bench.format(1), sweep.format("-rtr "), sweep.format("-rtr ")]
    prefill, decode = out["results"]
    # Of each sweep the third step, the one that starts at the depth.
    assert prefill["samples"] == {"kvik": [300, 301], "ik, fa on": [102, 105], "ik, fa on, repacked": [108, 111]}
    assert decode["samples"] == {"kvik": [302, 303], "ik, fa on": [100, 101], "ik, fa on, repacked": [102, 103]}


def test_ik_takes_sequences_in_one_buffer_and_answers_in_markdown(compare_ik):
    _, _, out, calls = compare_ik(*compare_ik.peer, "--sequences", "4", "--generate", "32", "--rows", " x4", "--rounds", "1")
    batched = "llama-batched-bench -m qwen3-0.6b-q8_0.gguf -t 2 -c 640 -npp 512 -ntg 32 -npl 4,4 -pps -fa {} {}-ctk f16 -ctv f16"
    assert calls[2:-2] == [batched.format(fa, "-rtr " * rtr) for fa, rtr in IK_SETTINGS]
    (row,) = out["results"]
    assert (row["work"], row["depth"], row["beside"], row["beside_ts"]) == ("decode 32 x4", 512, "ik, fa on, repacked", 107)


def test_a_depth_that_ik_cannot_reach_is_said(compare_ik):
    _, stderr, out, _ = compare_ik(*compare_ik.peer, "--depth", "1000")
    assert "left out, 1000 is no multiple of 512" in stderr
    prefill, decode = out["results"]
    assert list(prefill["samples"]) == ["kvik"] and prefill["ratio"] is None
    assert "ik, fa on" in decode["samples"]


def test_ik_leaves_no_log_behind(compare_ik, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compare_ik("--peer", ".", "--sequences", "4", "--depth", "512", "--rounds", "1")
    assert not (tmp_path / "llama.log").exists()


def test_a_program_that_is_not_there_is_named(compare, tmp_path):
    (tmp_path / "llama-bench").unlink()
    _, stderr, _, _ = compare(*compare.peer, status=1)
    assert "llama-bench is not there" in stderr


def test_kvik_without_shared_reads_needs_no_peer(compare):
    flags = ("--sequences", "16", "--prefix", "4096", "--own-prompts", "--rows", "own prompts", "--rounds", "2")
    _, _, out, calls = compare(*flags)
    shared = "kvik bench -m qwen3-0.6b-q8_0.gguf -p 0 -n 64 -d 4096 -t 2 -r 2 --kv f16 --sequences 16 --json"
    assert calls == [shared, f"{shared} --own-prompts", "kvik --version"]
    assert out["results"][0]["samples"] == {"kvik": [300, 301], "kvik, own prompts": [302, 303]}


def test_an_older_kvik_is_a_peer_and_converts_the_same_file(compare, tmp_path):
    (tmp_path / "qwen3-0.6b-q8_0.gguf").unlink()
    (tmp_path / "before").mkdir()
    stand_in(tmp_path / "before", STAND_IN, "kvik")
    _, _, out, calls = compare("--peer", str(tmp_path / "before" / "kvik"), "--rounds", "2", "--prompt", "0")
    mine = "kvik bench -m qwen3-0.6b-f16.gguf -p 0 -n 64 -d 0 -t 2 -r 1 --kv f16 --sequences 1 --json --weights q8_0"
    assert calls[:2] == [mine, mine]
    assert out["results"][0]["samples"] == {"kvik": [300, 301], "older kvik": [300, 301]}
    assert out["results"][0]["ratio"] == 1
    assert out["versions"]["peer"].startswith("older kvik")


@pytest.fixture
def python(tmp_path):
    """The path of a stand-in for a Python that has OpenVINO GenAI."""
    (tmp_path / "venv").mkdir()
    stand_in(tmp_path / "venv", GENAI_STAND_IN, "python3")
    return tmp_path / "venv" / "python3"


def test_openvino_is_asked_like_kvik(compare, python):
    _, _, out, calls = compare("--peer", str(python), "--kv", "q8", "--rounds", "2")
    flags, in_f32 = "-m qwen3-0.6b-q8_0.gguf -p 512 -n 64 -d 0 -t 2 -r 1 --kv q8 --sequences 1", " --precision f32"
    assert calls[0] == f"kvik bench {flags} --json"
    asked = (python.parent / "calls").read_text().replace(f"{python.parent.parent}{os.sep}", "").splitlines()
    bench = f"python3 {HERE}/genai_bench.py"
    assert asked == [f"{bench} --version", *(f"{bench} {flags}{setting}" for setting in ("", in_f32, in_f32, ""))]
    prefill, decode = out["results"]
    assert prefill["samples"] == {"kvik": [300, 302], "OpenVINO": [100, 106], "OpenVINO, f32": [102, 104]}
    assert decode["samples"] == {"kvik": [301, 303], "OpenVINO": [101, 107], "OpenVINO, f32": [103, 105]}
    assert out["versions"]["peer"] == "OpenVINO GenAI 7, computes in bf16"


def test_openvino_in_f32_is_measured_once(compare, python):
    python.write_text(python.read_text().replace("computes in bf16", "computes in f32"))
    _, _, out, _ = compare("--peer", str(python), "--rounds", "1")
    assert [list(row["samples"]) for row in out["results"]] == [["kvik", "OpenVINO"]] * 2


def test_openvino_takes_sequences_together(compare, python):
    _, _, out, _ = compare("--peer", str(python), "--sequences", "4", "--rows", " x4", "--rounds", "1")
    (row,) = out["results"]
    assert (row["work"], row["depth"], row["beside"]) == ("decode 64 x4", 512, "OpenVINO, f32")


def test_what_openvino_cannot_read_is_an_empty_cell(compare, python):
    stdout, stderr, out, _ = compare("--peer", str(python), "--weights", "bf16,f16", "--prompt", "0", "--rounds", "1")
    assert [(r["weights"], r["beside"], r["ratio"]) for r in out["results"]] == [("bf16", None, None), ("f16", "OpenVINO, f32", round(301 / 101, 3))]
    assert "OpenVINO takes no part in bf16 decode 64 @0 kv f16: no such weights\n" in stderr
    assert "| bf16 | decode 64 | 0 | f16 | 300.0 |  |  |  |  |  |" in stdout


def test_a_python_without_openvino_ends_the_run(compare, python):
    python.write_text(f"#!{sys.executable}\nimport no_such_package")
    _, stderr, _, calls = compare("--peer", str(python), status=1)
    assert "cannot import openvino_genai: ModuleNotFoundError" in stderr and not calls


def test_openvino_times_what_is_behind_the_depth(compare, tmp_path, monkeypatch):
    (tmp_path / "packages").mkdir()
    for name in ("openvino", "openvino_genai"):
        (tmp_path / "packages" / f"{name}.py").write_text(GENAI_PACKAGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    _, _, out, _ = compare("--peer", "openvino", "--depth", "64", "--sequences", "4", "--prefix", "96", "--rounds", "1")
    assert [(r["work"], r["depth"], r["beside_ts"]) for r in out["results"]] == [("prefill 512", 64, 1000), ("decode 64", 64, 250), ("decode 64 x4", 96, 1000)]
    settings = {"INFERENCE_NUM_THREADS": 2, "KV_CACHE_PRECISION": "f16"}
    scheduler = {"enable_prefix_caching": True, "max_num_batched_tokens": sys.maxsize}
    loaded = [json.loads(line) for line in (tmp_path / "loaded").read_text().splitlines()]
    both = settings, settings | {"INFERENCE_PRECISION_HINT": "f32"}
    assert loaded == [["qwen3-0.6b-q8_0.gguf", "CPU", each, scheduler | {"num_kv_blocks": blocks}] for blocks in (42, 40) for each in both]


def test_several_peers_take_turns_and_each_has_its_figures(compare, python, tmp_path):
    for folder in ("before", "long before"):
        (tmp_path / folder).mkdir()
        stand_in(tmp_path / folder, STAND_IN, "kvik")
    older = [flag for folder in ("before", "long before") for flag in ("--peer", str(tmp_path / folder / "kvik"))]
    stdout, stderr, out, _ = compare(*compare.peer, "--peer", str(python), *older, "--prompt", "0", "--weights", "q8_0,bf16", "--rounds", "2")
    order = [line.split(" | ")[1].split(":")[0] for line in stderr.splitlines() if "/2 q8_0" in line]
    engines = ["kvik", "llama.cpp, fa off", "llama.cpp, fa on", "OpenVINO", "OpenVINO, f32", "older kvik", "older kvik (2)"]
    assert order == engines + engines[::-1]
    q8_0, bf16 = out["results"]
    assert list(q8_0["samples"]) == engines and (q8_0["beside"], q8_0["ratio"]) == ("older kvik", 1)
    assert q8_0["peers"]["llama.cpp"]["beside"] == "llama.cpp, fa off" and list(q8_0["peers"]) == ["llama.cpp", "OpenVINO", "older kvik", "older kvik (2)"]
    assert "OpenVINO" not in bf16["peers"]
    assert "| kvik tok/s | limit | share | llama.cpp tok/s | ratio | OpenVINO tok/s | ratio | older kvik tok/s | ratio | older kvik (2) tok/s | ratio |" in stdout
    assert [line.count("|") for line in stdout.splitlines()] == [16] * 4 and " |  |  | " in stdout.splitlines()[3]
    assert out["versions"]["peer"].startswith("llama.cpp, llama-bench 1.2; OpenVINO GenAI 7, computes in bf16; older kvik, ")


@pytest.mark.parametrize(
    "flags, complaint",
    [
        (("--table", "--rows", "q9"), "no row has such a name"),
        (("--table",), "--peer FOLDER is needed"),
        (("--table", "--sequences", "4"), "does not go with --sequences"),
    ],
)
def test_what_cannot_be_measured_is_said(compare, flags, complaint):
    _, stderr, _, calls = compare(*flags, status=2 if "--sequences" in flags else 1)
    assert complaint in stderr and not calls


def test_an_answer_to_another_question_ends_the_run_and_keeps_what_there_is(compare, tmp_path):
    (tmp_path / "llama-bench").write_text(f"#!{sys.executable}\nprint('[]')\n")
    stdout, stderr, out, _ = compare(*compare.peer, "--prompt", "0", status=1)
    assert "0 results with" in stderr
    assert out["results"][0]["samples"] == {"kvik": [300]} and "| 300.0 |" in stdout
