"""Who is measured: kvik, and the settings of the peer whose programs were given."""
import json
from functools import cache, partial

import ik_llama
import llama
from llama import bench_flags, speeds
from programs import Engine, about, run
from works import DECODE


def engines(programs, case):
    """kvik, then everything that it is held against in this case."""
    if case.own_prompts:
        return [Engine("kvik", kvik), Engine("kvik, own prompts", partial(kvik, own_prompts=True))]
    return [Engine("kvik", kvik), *flavour(programs.peer).engines(case)]


@cache
def flavour(folder):
    """The module that knows how to ask the programs of this folder."""
    return ik_llama if ik_llama.is_in(folder) else llama


def kvik(programs, model, case, works, samples, own_prompts=False):
    command = [programs.kvik, "bench", *bench_flags(programs, model, case, works, samples)]
    command += ["--kv", case.kv, "--sequences", case.sequences, "--json"]
    results = json.loads(run(command + ["--own-prompts"] * own_prompts))
    same = {"type_k": case.kv, "type_v": case.kv}
    of_decode = {"n_sequences": case.sequences, "own_prompts": own_prompts}
    return {work: speeds(results, work, same | (of_decode if work.kind == DECODE else {})) for work in works}


def versions(programs):
    """What the programs call themselves."""
    said = {"kvik": about([programs.kvik, "--version"])}
    return said | ({"peer": flavour(programs.peer).version(programs.peer)} if programs.peer else {})
