"""ik_llama.cpp, a fork of llama.cpp: runs its programs and parses their figures, where they differ from llama.cpp's."""
import json
import math
import sys
import tempfile
from functools import partial

from llama import counted, flash_settings, kv_name, repeated
from programs import Engine, about, finished, lengths, only, run
from works import DECODE, PREFILL

NAME = "ik_llama.cpp"
# It rounds its context up to a multiple of this.
CONTEXT_STEP = 256


def is_in(folder):
    """Whether the programs of this folder are ik_llama.cpp's, by a flag that only they have."""
    return "--run-time-repack" in about([folder / "llama-bench", "--help"], folder)


def engines(case):
    """Every setting that could suit this case; each also with weights repacked for the processor while they are loaded."""
    measure = single if case.sequences == 1 else several
    settings = [(fa, repacked) for fa in flash_settings(case) for repacked in (False, True)]
    return [Engine(name(*setting), partial(measure, flash=setting[0], repacked=setting[1])) for setting in settings]


def name(flash, repacked):
    return f"ik, fa {flash}{', repacked' if repacked else ''}"


def single(programs, model, case, works, samples, flash, repacked):
    """llama-bench, but for prefill at a depth, which it does not know."""
    # A sweep could give both, but only by decoding as much at every step on the way.
    swept = [work for work in works if work.kind == PREFILL and case.depth > 0]
    benched = [work for work in works if work not in swept]
    speeds = bench(programs, model, case, benched, samples, flash, repacked) if benched else {}
    for work in filter(reached, swept):
        speeds[work] = [sweep(programs, model, work, flash, repacked) for _ in range(samples)]
    return {work: speeds[work] for work in works if work in speeds}


def reached(work):
    """Whether llama-sweep-bench comes past the depth: it fills its context by one prefill after another. Says so if not."""
    depth, tokens = work.case.depth, work.tokens
    if depth % tokens:
        print(f"{work.name} | {NAME}: left out, {depth} is no multiple of {tokens}", file=sys.stderr)
    return depth % tokens == 0


def bench(programs, model, case, works, samples, flash, repacked):
    kv = kv_name(case.kv)
    command = [programs.peer / "llama-bench", "-m", model, *sizes(case, works), "-t", programs.threads, "-r", samples]
    command += ["-fa", int(flash == "on"), "-rtr", int(repacked), "-ctk", kv, "-ctv", kv, "-o", "json"]
    results = json.loads(run(command, libraries=programs.peer))
    same = {"flash_attn": flash == "on", "repack": repacked, "type_k": kv, "type_v": kv}
    return {work: only(results, same | answered_sizes(work))["samples_ts"] for work in works}


def sizes(case, works):
    if case.depth == 0:
        return ["-p", lengths(works, PREFILL), "-n", lengths(works, DECODE)]
    # Decode after a prompt of that depth, which is not timed.
    at_depth = [part for work in works for part in ("-gp", f"{case.depth},{work.tokens}")]
    return ["-p", 0, "-n", 0, *at_depth]


def answered_sizes(work):
    if work.kind == PREFILL:
        return {"n_prompt": work.tokens, "n_gen": 0}
    return {"n_prompt": work.case.depth, "n_gen": work.tokens}


def sweep(programs, model, work, flash, repacked):
    """One sample of llama-sweep-bench. It fills the context by one prefill after another; the one that starts at the depth counts."""
    depth, tokens, kv = work.case.depth, work.tokens, kv_name(work.case.kv)
    # Its last prefill must fit. It also decodes before every prefill, at least one token, and forgets it.
    context = round_up(depth + tokens, math.lcm(tokens, CONTEXT_STEP))
    command = [programs.peer / "llama-sweep-bench", "-m", model, "-t", programs.threads, "-c", context, "-ub", tokens, "-n", 1]
    command += ["-fa", flash, *["-rtr"] * repacked, "-ctk", kv, "-ctv", kv, "--output-format", "jsonl"]
    results = [json.loads(line) for line in logged(programs, command).splitlines() if line.startswith("{")]
    return only(results, {"pp": tokens, "n_kv": depth, "flash_attn": int(flash == "on")})["speed_pp"]


def round_up(number, step):
    return -(-number // step) * step


def several(programs, model, case, works, samples, flash, repacked):
    """llama-batched-bench with a shared prompt, and its S_TG; decode alone. All sequences are in one buffer."""
    return {work: shared_prompt(programs, model, case, work, samples, flash, repacked) for work in works}


def shared_prompt(programs, model, case, work, samples, flash, repacked):
    kv = kv_name(case.kv)
    context = case.depth + case.sequences * work.tokens
    command = [programs.peer / "llama-batched-bench", "-m", model, "-t", programs.threads, "-c", context]
    command += ["-npp", case.depth, "-ntg", work.tokens, "-npl", repeated(case, samples), "-pps"]
    command += ["-fa", flash, *["-rtr"] * repacked, "-ctk", kv, "-ctv", kv]
    output = logged(programs, command)
    # N_KV counts the prompt once, so that it also says that the prompt was shared.
    expected = {"PP": str(case.depth), "TG": str(work.tokens), "B": str(case.sequences), "N_KV": str(context)}
    answers = [float(row["S_TG t/s"]) for row in rows(output) if expected.items() <= row.items()]
    return counted(answers, samples, command, output)


def rows(output):
    """The rows of a table in Markdown, each column name -> cell."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in output.splitlines() if line.startswith("|")]
    return [dict(zip(lines[0], cells)) for cells in lines[2:]]


def logged(programs, command):
    """What llama-sweep-bench or llama-batched-bench answers on standard error. Its llama.log goes with a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return finished(command, libraries=programs.peer, folder=folder).stderr


def version(folder):
    # Its llama-bench does not know --version.
    return f"{NAME}, {about([folder / 'llama-batched-bench', '--version'], folder)}"
