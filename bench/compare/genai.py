"""OpenVINO GenAI: runs genai_bench.py with the Python that has it, and takes its figures."""
import json
import sys
from functools import cache, partial
from pathlib import Path

from llama import bench_flags, speeds
from programs import Engine, about, started
from works import DECODE

NAME = "OpenVINO"
PROGRAM = Path(__file__).with_name("genai_bench.py")


def is_at(peer):
    """Whether this is a Python, by its name. One that cannot import openvino_genai ends everything."""
    return peer.is_file() and peer.name.startswith("python") and bool(version(peer))


def engines(case):
    """By its own choice, and in f32: with AMX it chooses bf16, which was faster at prefill and slower at decode."""
    return [Engine(NAME, measure), Engine(f"{NAME}, f32", partial(measure, precision="f32"))]


def measure(programs, model, case, works, samples, precision=None):
    """Nothing where it cannot, since it does not read every type of weights, or where this is its own choice."""
    if precision and version(programs.peer).endswith(f" {precision}"):
        return {}
    command = [programs.peer, PROGRAM, *bench_flags(programs, model, case, works, samples), "--kv", case.kv]
    command += ["--sequences", case.sequences, *(["--precision", precision] if precision else [])]
    done = started(command, None, capture_output=True)
    if done.returncode:
        names = ", ".join(work.name for work in works)
        print(f"{NAME} takes no part in {names}: {last_line(done.stderr)}", file=sys.stderr, flush=True)
        return {}
    results = json.loads(done.stdout)
    same = {"type_k": case.kv, "type_v": case.kv}
    return {work: speeds(results, work, same | {"n_sequences": case.sequences if work.kind == DECODE else 1}) for work in works}


def last_line(text):
    return (text.strip().splitlines() or ["it does not say why"])[-1]


@cache
def version(python):
    said = about([python, PROGRAM, "--version"])
    if not said.startswith(NAME):
        sys.exit(f"{python} cannot import openvino_genai: {last_line(said)}")
    return said
