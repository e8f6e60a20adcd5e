"""llama.cpp: runs its programs and parses their figures."""
import json
import sys
from functools import partial

from programs import Engine, about, lengths, only, run
from works import DECODE, PREFILL

NAME = "llama.cpp"


def engines(case):
    """Every setting that could suit this case."""
    if case.sequences == 1:
        return [Engine(f"llama.cpp, fa {fa}", partial(single, flash=fa)) for fa in flash_settings(case)]
    return [of_sequences(fa, unified) for fa in flash_settings(case) for unified in (False, True)]


def flash_settings(case):
    # V is quantised only under flash attention.
    return ("on",) if case.quantised_kv else ("off", "on")


def of_sequences(flash, unified):
    # One buffer for all sequences reads a shared prompt once per step; one for each reads no tokens of others.
    name = f"llama.cpp, fa {flash}{', one buffer' if unified else ''}"
    return Engine(name, partial(several, flash=flash, unified=unified))


def single(programs, model, case, works, samples, flash):
    """llama-bench, which `kvik bench` follows."""
    kv = kv_name(case.kv)
    command = [programs.peer / "llama-bench", *bench_flags(programs, model, case, works, samples)]
    command += ["-fa", int(flash == "on"), "-ctk", kv, "-ctv", kv, "-o", "json"]
    results = json.loads(run(command, libraries=programs.peer))
    return {work: speeds(results, work, {"type_k": kv, "type_v": kv}) for work in works}


def bench_flags(programs, model, case, works, samples):
    """Flags that llama-bench and `kvik bench` have in common."""
    sizes = ["-p", lengths(works, PREFILL), "-n", lengths(works, DECODE), "-d", case.depth]
    return ["-m", model, *sizes, "-t", programs.threads, "-r", samples]


def speeds(results, work, expected):
    """The samples of a work among the results of llama-bench or `kvik bench`, which must be of what was asked for."""
    prompt, generate = (work.tokens, 0) if work.kind == PREFILL else (0, work.tokens)
    expected = expected | {"n_prompt": prompt, "n_gen": generate, "n_depth": work.case.depth}
    return only(results, expected)["samples_ts"]


def several(programs, model, case, works, samples, flash, unified):
    """llama-batched-bench with a shared prompt, and its S_TG; decode alone."""
    return {work: shared_prompt(programs, model, case, work, samples, flash, unified) for work in works}


def shared_prompt(programs, model, case, work, samples, flash, unified):
    kv = kv_name(case.kv)
    prompts = 1 if unified else case.sequences
    context = prompts * case.depth + case.sequences * work.tokens
    command = [programs.peer / "llama-batched-bench", "-m", model, "-t", programs.threads, "-c", context]
    command += ["-npp", case.depth, "-ntg", work.tokens, "-npl", repeated(case, samples), "-pps", "-kvu" if unified else "-no-kvu"]
    command += ["-fa", flash, "-ctk", kv, "-ctv", kv, "--output-format", "jsonl"]
    output = run(command, libraries=programs.peer)
    results = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    expected = {"pp": case.depth, "tg": work.tokens, "pl": case.sequences, "is_pp_shared": 1}
    return counted([result["speed_tg"] for result in results if expected.items() <= result.items()], samples, command, output)


def repeated(case, samples):
    """llama-batched-bench's repetitions. The first does not count, as with kvik: it warms up the later ones."""
    return ",".join([str(case.sequences)] * (1 + samples))


def counted(speeds, samples, command, output):
    """The speeds of all repetitions but the first."""
    if len(speeds) != 1 + samples:
        sys.exit(f"{' '.join(map(str, command))} did not answer {1 + samples} times:\n{output}")
    return speeds[1:]


def kv_name(kv):
    """llama.cpp's name of a KV format."""
    return {"q8": "q8_0", "q4": "q4_0"}.get(kv, kv)


def version(folder):
    return f"{NAME}, {about([folder / 'llama-bench', '--version'], folder)}"
