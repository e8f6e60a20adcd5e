"""The engines under measurement: kvik, and the settings of the peer whose programs were given."""
import json
from dataclasses import replace
from functools import cache, partial

import ik_llama
import llama
import older_kvik
from llama import bench_flags, speeds
from programs import Engine, about, run
from works import DECODE


def engines(programs, case):
    """kvik, then every peer setting of this case."""
    if case.own_prompts:
        return [Engine("kvik", kvik), Engine("kvik, own prompts", partial(kvik, own_prompts=True))]
    if older_kvik.is_at(programs.peer):
        older = replace(programs, kvik=programs.peer)
        return [Engine("kvik", kvik), Engine("older kvik", lambda _, *work: kvik(older, *work))]
    return [Engine("kvik", kvik), *flavour(programs.peer).engines(case)]


@cache
def flavour(peer):
    """The module that knows how to ask these programs."""
    if older_kvik.is_at(peer):
        return older_kvik
    return ik_llama if ik_llama.is_in(peer) else llama


def kvik(programs, model, case, works, samples, own_prompts=False):
    command = [programs.kvik, "bench", *bench_flags(programs, model, case, works, samples)]
    command += ["--kv", case.kv, "--sequences", case.sequences, "--json", *converted(model, case)]
    results = json.loads(run(command + ["--own-prompts"] * own_prompts))
    same = {"type_k": case.kv, "type_v": case.kv}
    of_decode = {"n_sequences": case.sequences, "own_prompts": own_prompts}
    return {work: speeds(results, work, same | (of_decode if work.kind == DECODE else {})) for work in works}


def converted(model, case):
    """The flag that makes this type of a model file of another one."""
    return [] if model.stem.endswith(case.weights) else ["--weights", case.weights]


def versions(programs):
    """The versions that the programs report."""
    said = {"kvik": about([programs.kvik, "--version"])}
    return said | ({"peer": flavour(programs.peer).version(programs.peer)} if programs.peer else {})
