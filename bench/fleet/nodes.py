"""A fleet: nodes with small caches, a router before them and a store behind them."""
import contextlib
import dataclasses
import pathlib
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time

from .paths import Server
from .routers import Router

STORE_BYTES = 1 << 30
MODEL = "kvik-node"


@dataclasses.dataclass(frozen=True)
class Setup:
    """How many nodes of which size, and how they are found."""

    kvik: pathlib.Path
    nodes: int
    cache_bytes: int
    threads: int
    placement: str
    tier: bool
    flags: tuple[str, ...] = ()

    @property
    def ideal(self):
        """One node with the memory of all, and the threads that the fleet's cores can run."""
        return dataclasses.replace(
            self, nodes=1, cache_bytes=self.cache_bytes * self.nodes, threads=2, placement="round_robin", tier=False
        )


def tier_flags(host, port, key_file):
    """Flags of a node for the store that all share."""
    return ["--cache-remote", f"redis://{host}:{port}", "--cache-remote-key", str(key_file)]


def has_tier(kvik):
    """Whether this program knows a store, and there is one to be had."""
    described = subprocess.run([kvik, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    return "--cache-remote " in described and shutil.which("redis-server") is not None


class Store:
    """Redis, without files."""

    def __init__(self, place):
        self.place = place
        command = ["redis-server", "--bind", place.host, "--port", str(place.port), "--save", "", "--appendonly", "no"]
        command += ["--protected-mode", "no", "--maxmemory", str(STORE_BYTES), "--maxmemory-policy", "allkeys-lru"]
        self.process = subprocess.Popen([*place.wrap, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                assert self.command("PING") == "+PONG"
                return self
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("redis-server does not answer")
            time.sleep(0.05)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def command(self, *words):
        """The answer to a command: a line, or the text that its first line gives the length of."""
        with socket.create_connection(self.place.reached, timeout=10) as connection:
            parts = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
            connection.sendall(f"*{len(words)}\r\n{parts}".encode())
            answer = connection.makefile("rb")
            line = answer.readline().decode().strip()
            return answer.read(int(line[1:])).decode() if line.startswith("$") else line

    def refused(self):
        """Commands that were refused because its memory was full."""
        counted = re.search(r"errorstat_OOM:count=(\d+)", self.command("INFO", "errorstats"))
        return int(counted[1]) if counted else 0

    def fill(self):
        """No key is taken any more, and none is evicted."""
        assert self.command("CONFIG", "SET", "maxmemory-policy", "noeviction") == "+OK"
        assert self.command("CONFIG", "SET", "maxmemory", "1") == "+OK"


class Fleet:
    """Nodes, router and store on a network; a context manager that leaves nothing behind."""

    def __init__(self, setup, network):
        self.setup, self.network = setup, network
        self.nodes, self.closing = [], contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvik-fleet-")))
            self.key = directory / "key"
            self.key.write_text(secrets.token_hex(32))
            self.store = stack.enter_context(Store(self.network.store())) if self.setup.tier else None
            stack.callback(self._end_nodes)
            for index in range(self.setup.nodes):
                self.nodes.append(self._start(index))
            for node in self.nodes:
                node.wait_until_ready()
            urls = [self.url(index) for index in range(self.setup.nodes)]
            events = [f"tcp://{'{}:{}'.format(*self.network.events(i).reached)}" for i in range(self.setup.nodes)]
            self.router = stack.enter_context(Router(self.setup.placement, urls, events))
            self.began_bytes = self.network.bytes()
            self.closing = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.closing.close()

    def url(self, index):
        host, port = self.network.node(index).reached
        return f"http://{host}:{port}"

    def _start(self, index):
        place, events = self.network.node(index), self.network.events(index)
        setup = self.setup
        flags = ["--host", place.host, "--allow-no-key", "--alias", MODEL, "--context", "2048", *setup.flags]
        flags += ["--threads", str(setup.threads), "--cache-ram", f"{setup.cache_bytes}B"]
        if setup.placement.startswith("events"):
            flags += ["--kv-events", f"tcp://{events.host}:{events.port}"]
        if setup.tier:
            flags += tier_flags(*self.network.store_of(index), self.key)
        return Server(*flags, binary=setup.kvik, wrap=place.wrap, host=place.host, port=place.port)

    def add(self):
        """One more node, started and made known to the router."""
        node = self._start(len(self.nodes))
        self.nodes.append(node)
        node.wait_until_ready()
        self.router.add(self.url(len(self.nodes) - 1))

    def restart(self, index):
        """Ends a node as a deployment does, and starts it anew at the same address when its process is gone."""
        ended = self.nodes[index]
        ended.terminate()
        ended.process.wait(120)
        ended.__exit__()
        self.nodes[index] = self._start(index)
        self.nodes[index].wait_until_ready()

    def computed_tokens(self):
        """Tokens of prompts that the nodes have computed."""
        return sum(node.metric("kvik_computed_tokens_total") for node in self.nodes)

    def asked_tokens(self):
        """Prompt tokens that each node was asked since it started."""
        return [node.metric("kvik_prompt_tokens_total") for node in self.nodes]

    def bytes(self):
        """Bytes that nodes and the store have sent and received for the traffic."""
        now = self.network.bytes()
        return {end: now[end] - self.began_bytes[end] for end in now}

    def _end_nodes(self):
        for node in self.nodes:
            node.__exit__()
