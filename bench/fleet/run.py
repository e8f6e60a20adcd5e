"""One run: a fleet, traffic on it, and what came of it."""
import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import sys

from . import figures, load, network, traffic
from .nodes import Fleet, Setup, has_tier
from .paths import Server


class Bench:
    """What all runs of a command have in common: its arguments, the network, and traffic with its right answers."""

    def __init__(self, args):
        self.args = args
        self.shape = network.Shape(args.mbit, args.delay_ms)
        self.has_tier = has_tier(args.kvik)
        self.setup = Setup(args.kvik, args.nodes, args.cache, 1, "cache_aware", False, tuple(args.flags.split()))

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.network = stack.enter_context(network.choose(self.args.network, self.shape))
            self.describe()
            self.traffics = {name: self._prepared(name) for name in traffic_names(self.args.traffic)}
            self.closing = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.closing.close()

    def describe(self):
        """On what, and how; the first lines of every report."""
        args = self.args
        shape = f"{args.mbit:g} Mbit/s and {args.delay_ms:g} ms one way"
        print(f"{figures.machine()}; network: {self.network.how}, {shape}")
        print(f"{args.nodes} nodes with {args.cache / 2**20:g} MiB each, seed {args.seed}, {args.rounds} rounds")
        store = "Redis" if self.has_tier else "none, as kvik has no --cache-remote or Redis is missing"
        print(f"shared tier: {store}\n")

    def _prepared(self, name):
        sessions = sessions_of(name, self.args)
        with Server("--threads", "2", "--context", "2048", "--cache-ram", "64MiB", binary=self.args.kvik) as server:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                prepared = traffic.prepare(pool, server, sessions)
        tokens = sum(len(request.tokens) for session in prepared for request in session)
        count = sum(map(len, prepared))
        print(f"{name}: {count} requests in {len(prepared)} sessions, {tokens} prompt tokens", flush=True)
        return prepared

    def run(self, setup, sessions, happening=lambda fleet: (), fault=None):
        """Outcomes of the traffic on a fresh fleet, and what the fleet counted. `happening` makes events of a fleet."""
        with self.network.carrying(fault) as carried, Fleet(setup, carried) as fleet:
            replayed = load.replay(fleet.router.url, sessions, fleet.router.as_ids, happening(fleet))
            outcomes = asyncio.run(replayed)
            counted = {
                "computed_tokens": fleet.computed_tokens(),
                "asked_tokens": fleet.asked_tokens(),
                "bytes": fleet.bytes(),
                "struck": carried.struck() + (fleet.store.refused() if fleet.store else 0),
            }
        for error in sorted({one.error for one in outcomes if one.error})[:3]:
            print(f"  failed: {error}", file=sys.stderr)
        return outcomes, counted

    def record(self, **what):
        """A line of the JSON file, if there is one."""
        shared = {"network": self.network.how, "mbit": self.args.mbit, "delay_ms": self.args.delay_ms}
        figures.append(self.args.json, shared | {"nodes": self.args.nodes, "cache_bytes": self.args.cache} | what)


def traffic_names(which):
    """The traffics that are asked for and can be had here."""
    names = ("recorded", "conversations") if which == "both" else (which,)
    if "recorded" in names and not traffic.trace_path():
        print(f"no recorded traffic: KVIK_DATA names no directory with {traffic.TRACE}")
        return [name for name in names if name != "recorded"]
    return names


def sessions_of(name, args):
    """The sessions of one kind of traffic, without answers."""
    if name == "recorded":
        path = traffic.trace_path()
        return traffic.recorded(path, args.requests, args.per_second, args.block_tokens, args.seed)
    return traffic.conversations(args.requests, args.per_second, args.seed)


def in_thread(work, *arguments):
    """A coroutine function for something that blocks, so that requests go on meanwhile."""
    async def waited():
        await asyncio.get_running_loop().run_in_executor(None, work, *arguments)

    return waited


def plain(outcomes):
    """Outcomes for the JSON file, without texts."""
    return [json.loads(json.dumps(dataclasses.asdict(one) | {"text": None})) for one in outcomes]
