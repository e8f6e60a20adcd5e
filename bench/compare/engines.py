"""Who is measured: the programs, how each is started for a case, and where its answer has the figures."""
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable

from works import DECODE, PREFILL


@dataclass(frozen=True)
class Programs:
    kvik: Path
    peer: Path | None
    """The folder of llama-bench, llama-batched-bench and llama-quantize."""
    threads: int


@dataclass(frozen=True)
class Engine:
    """A program in one of its settings. `measure` gives the samples of each work, in tok/s."""

    name: str
    measure: Callable


def engines(case):
    """kvik, then everything that it is held against in this case."""
    if case.own_prompts:
        return [Engine("kvik", kvik), Engine("kvik, own prompts", partial(kvik, own_prompts=True))]
    # llama.cpp quantises V only under flash attention.
    flash = ("on",) if case.quantised_kv else ("off", "on")
    if case.sequences == 1:
        peers = [Engine(f"peer, fa {fa}", partial(peer, flash=fa)) for fa in flash]
    else:
        peers = [peer_of_sequences(fa, unified) for fa in flash for unified in (False, True)]
    return [Engine("kvik", kvik), *peers]


def peer_of_sequences(flash, unified):
    # One buffer for all sequences reads a shared prompt once per step; one for each reads no tokens of others.
    name = f"peer, fa {flash}{', one buffer' if unified else ''}"
    return Engine(name, partial(peer_sequences, flash=flash, unified=unified))


def kvik(programs, model, case, works, samples, own_prompts=False):
    command = [programs.kvik, "bench", *bench_flags(programs, model, case, works, samples)]
    command += ["--kv", case.kv, "--sequences", case.sequences, "--json"]
    results = json.loads(run(command + ["--own-prompts"] * own_prompts))
    same = {"type_k": case.kv, "type_v": case.kv}
    of_decode = {"n_sequences": case.sequences, "own_prompts": own_prompts}
    return {work: speeds(results, work, same | (of_decode if work.kind == DECODE else {})) for work in works}


def peer(programs, model, case, works, samples, flash):
    kv = peer_kv(case.kv)
    command = [programs.peer / "llama-bench", *bench_flags(programs, model, case, works, samples)]
    command += ["-fa", int(flash == "on"), "-ctk", kv, "-ctv", kv, "-o", "json"]
    results = json.loads(run(command, libraries=programs.peer))
    return {work: speeds(results, work, {"type_k": kv, "type_v": kv}) for work in works}


def bench_flags(programs, model, case, works, samples):
    """Flags that llama-bench and `kvik bench` have in common."""
    tokens = lambda kind: ",".join(str(work.tokens) for work in works if work.kind == kind) or 0
    sizes = ["-p", tokens(PREFILL), "-n", tokens(DECODE), "-d", case.depth]
    return ["-m", model, *sizes, "-t", programs.threads, "-r", samples]


def speeds(results, work, expected):
    """The samples of a work among llama-bench's results, which must be of what was asked for."""
    prompt, generate = (work.tokens, 0) if work.kind == PREFILL else (0, work.tokens)
    expected = expected | {"n_prompt": prompt, "n_gen": generate, "n_depth": work.case.depth}
    return only(results, expected)["samples_ts"]


def peer_sequences(programs, model, case, works, samples, flash, unified):
    """llama-batched-bench with a shared prompt, and its S_TG; decode alone."""
    return {work: shared_prompt(programs, model, case, work, samples, flash, unified) for work in works}


def shared_prompt(programs, model, case, work, samples, flash, unified):
    kv = peer_kv(case.kv)
    prompts = 1 if unified else case.sequences
    context = prompts * case.depth + case.sequences * work.tokens
    # The first does not count, as with kvik: it pays for what later ones find ready.
    sequences = ",".join([str(case.sequences)] * (1 + samples))
    command = [programs.peer / "llama-batched-bench", "-m", model, "-t", programs.threads, "-c", context]
    command += ["-npp", case.depth, "-ntg", work.tokens, "-npl", sequences, "-pps", "-kvu" if unified else "-no-kvu"]
    command += ["-fa", flash, "-ctk", kv, "-ctv", kv, "--output-format", "jsonl"]
    output = run(command, libraries=programs.peer)
    results = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    expected = {"pp": case.depth, "tg": work.tokens, "pl": case.sequences, "is_pp_shared": 1}
    counted = [result["speed_tg"] for result in results if expected.items() <= result.items()][1:]
    if len(counted) != samples:
        sys.exit(f"{' '.join(map(str, command))} did not answer {1 + samples} times:\n{output}")
    return counted


def peer_kv(kv):
    """llama.cpp's name of a KV format."""
    return {"q8": "q8_0", "q4": "q4_0"}.get(kv, kv)


def only(results, expected):
    """The one result that has these fields."""
    found = [result for result in results if expected.items() <= result.items()]
    if len(found) != 1:
        sys.exit(f"{len(found)} results with {expected} in\n{json.dumps(results, indent=1)}")
    return found[0]


def versions(programs):
    """What the programs call themselves."""
    commands = {"kvik": [programs.kvik, "--version"]}
    if programs.peer:
        commands["peer"] = [programs.peer / "llama-bench", "--version"]
    ask = partial(subprocess.run, env=environment(programs.peer), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return {name: ask(command).stdout.strip() for name, command in commands.items()}


def run(command, libraries=None):
    """What a program writes to standard output; an error ends everything."""
    command = [str(part) for part in command]
    done = subprocess.run(command, env=environment(libraries), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def environment(libraries):
    return os.environ | ({"LD_LIBRARY_PATH": str(libraries)} if libraries else {})
