"""The engines under measurement: kvik, and the settings of the peers whose programs were given."""
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType

import genai
import ik_llama
import llama
import older_kvik
from llama import bench_flags, speeds
from programs import Engine, about, run
from works import DECODE


@dataclass(frozen=True)
class Peer:
    path: Path
    flavour: ModuleType
    """The module that knows how to ask these programs."""
    number: int
    """1 for the first of its flavour."""

    @property
    def name(self):
        return self.numbered(self.flavour.NAME)

    def numbered(self, name):
        return name if self.number == 1 else f"{name} ({self.number})"


def peers(paths):
    """What was given by `--peer`."""
    flavours = [flavour(path) for path in paths]
    return [Peer(path, module, flavours[: index + 1].count(module)) for index, (path, module) in enumerate(zip(paths, flavours))]


def flavour(peer):
    if genai.is_at(peer):
        return genai
    if older_kvik.is_at(peer):
        return older_kvik
    return ik_llama if ik_llama.is_in(peer) else llama


def engines(programs, peers, case):
    """kvik, then every setting of every peer for this case."""
    mine = Engine("kvik", partial(kvik, programs))
    if case.own_prompts:
        return [mine, Engine("kvik, own prompts", partial(kvik, programs, own_prompts=True))]
    return [mine, *(engine for peer in peers for engine in settings(programs, peer, case))]


def settings(programs, peer, case):
    """The engines of a peer, which know its programs and its name."""
    theirs = replace(programs, peer=peer.path)
    every = [Engine(older_kvik.NAME, older)] if peer.flavour is older_kvik else peer.flavour.engines(case)
    return [Engine(peer.numbered(engine.name), partial(engine.measure, theirs), peer.name) for engine in every]


def older(programs, *work):
    return kvik(replace(programs, kvik=programs.peer), *work)


def kvik(programs, model, case, works, samples, own_prompts=False):
    command = [programs.kvik, "bench", *bench_flags(programs, model, case, works, samples)]
    command += ["--kv", case.kv, "--sequences", case.sequences, "--json", *converted(model, case)]
    results = json.loads(run(command + ["--own-prompts"] * own_prompts))
    same = {"type_k": case.kv, "type_v": case.kv}
    of_decode = {"n_sequences": case.sequences, "own_prompts": own_prompts}
    return {work: speeds(results, work, same | (of_decode if work.kind == DECODE else {})) for work in works}


def converted(model, case):
    """The flag that makes this type of a model file of another one."""
    is_stored = not case.made and model.stem.endswith(case.weights)
    return [] if is_stored else ["--weights", case.made or case.weights]


def versions(programs, peers):
    """The versions that the programs report, those of several peers in one line."""
    said = {"kvik": about([programs.kvik, "--version"])}
    return said | ({"peer": "; ".join(peer.flavour.version(peer.path) for peer in peers)} if peers else {})
