"""The network between a router, its nodes and a store: namespaces whose links the kernel shapes, or proxies.

`Namespaces` needs root, `ip` and a queueing discipline of the kernel: netem (rate and delay) or tbf (rate only).
`Proxies` needs nothing; all listen on loopback, and a program of this bench shapes what passes.
"""
import contextlib
import ctypes
import dataclasses
import json
import os
import random
import shutil
import socket
import subprocess
import sys

from .paths import ROOT

NODES_MAX = 6
STORE_PORT = 6379
KV_EVENTS_PORT = 5557
HTTP_PORT = 8000
CLONE_NEWNET = 0x40000000


@dataclasses.dataclass(frozen=True)
class Shape:
    """Links of nodes and of the store: bandwidth either way, and delay one way."""

    mbit: float
    delay_ms: float

    @property
    def bytes_per_second(self):
        return self.mbit * 1e6 / 8


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a program listens, what its command is put into, and how others reach it."""

    host: str
    port: int
    wrap: tuple[str, ...]
    reached: tuple[str, int]


class ProxyProgram:
    """A proxy of this bench, running."""

    def __init__(self, spec, wrap=()):
        command = [*wrap, sys.executable, "-m", "bench.fleet.proxy"]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process = subprocess.Popen(command, cwd=ROOT, **pipes)
        self.tell(json.dumps(spec))

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the proxy has ended with {self.process.wait()}")
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


class Network:
    """What both kinds have: they are entered once, and then carry one fleet after the other."""

    proxy_wrap: tuple[str, ...] = ()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @contextlib.contextmanager
    def carrying(self, fault=None):
        """The network of one run, whose store has that fault once it is armed."""
        self.fault = fault
        self.proxy = ProxyProgram(self.spec(), self.proxy_wrap)
        try:
            yield self
        finally:
            self.proxy.close()

    def arm(self):
        """Lets the store's fault begin."""
        self.proxy.tell("arm")

    def struck(self):
        """How often the fault has happened."""
        return self.proxy.tell("count")["struck"]


class Proxies(Network):
    """Every link is a proxy on loopback."""

    how = "user-space proxy (rate and delay)"

    def __init__(self, shape):
        self.shape = shape
        ports = free_ports(5 * NODES_MAX + 1)
        self.own, self.reached, self.own_events, self.reached_events, self.reached_store = (
            ports[i * NODES_MAX:(i + 1) * NODES_MAX] for i in range(5)
        )
        self.own_store = ports[-1]

    def spec(self):
        rate, delay_s = self.shape.bytes_per_second, self.shape.delay_ms / 1000
        ends = [*(f"node {i}" for i in range(NODES_MAX)), "store"]
        wires = {f"{end} {way}": rate for end in ends for way in ("in", "out")}
        links = []
        for i in range(NODES_MAX):
            to, of = [f"node {i} in"], [f"node {i} out"]
            common = dict(delay_s=delay_s, node=i)
            links.append(dict(listen=self.reached[i], target=self.own[i], up=to, down=of, **common))
            links.append(dict(listen=self.reached_events[i], target=self.own_events[i], up=to, down=of, **common))
            up, down = [*of, "store in"], ["store out", *to]
            stored = dict(listen=self.reached_store[i], target=self.own_store, up=up, down=down, store=True)
            links.append(stored | common | {"delay_s": 2 * delay_s})
        return {"wires": wires, "links": links, "fault": self.fault}

    def node(self, i):
        return Place("127.0.0.1", self.own[i], (), ("127.0.0.1", self.reached[i]))

    def events(self, i):
        return Place("127.0.0.1", self.own_events[i], (), ("127.0.0.1", self.reached_events[i]))

    def store(self):
        return Place("127.0.0.1", self.own_store, (), ("127.0.0.1", self.own_store))

    def store_of(self, i):
        """Where a node finds the store."""
        return "127.0.0.1", self.reached_store[i]

    def bytes(self):
        """Bytes that nodes and the store have sent and received so far."""
        counted = self.proxy.tell("count")["bytes"]
        store = counted["store in"] + counted["store out"]
        return {"nodes": sum(counted.values()) - store, "store": store}


class Namespaces(Network):
    """A network namespace for each node and the store, and one for the router and for this process.

    Entered once a process, which stays in that namespace: all fleets of a run follow each other in it.
    """

    def __init__(self, shape, qdisc):
        self.shape, self.qdisc = shape, qdisc
        self.how = f"network namespaces ({qdisc}{'' if qdisc == 'netem' else ', rate only'})"
        self.prefix = f"kvik-fleet-{os.getpid()}"
        self.ends = [*(f"n{i}" for i in range(NODES_MAX)), "store"]
        self.proxy_wrap = self._inside("store")

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.callback(self._delete)
            ip("netns", "add", f"{self.prefix}-hub")
            enter_namespace(f"{self.prefix}-hub")
            ip("link", "set", "lo", "up")
            ip("link", "add", "bridge", "type", "bridge")
            ip("address", "add", "10.210.0.1/24", "dev", "bridge")
            ip("link", "set", "bridge", "up")
            for index, end in enumerate(self.ends):
                self._attach(end, self.address(index))
            stack.pop_all()
        return self

    def __exit__(self, *_):
        self._delete()

    def _delete(self):
        for end in [*self.ends, "hub"]:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "delete", f"{self.prefix}-{end}")

    def _attach(self, end, address):
        name = f"{self.prefix}-{end}"
        ip("netns", "add", name)
        ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", end, "master", "bridge", "up")
        ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", name, "link", "set", device, "up")
        subprocess.run(["tc", "qdisc", "add", "dev", end, "root", *shaping(self.qdisc, self.shape)], check=True)
        inside = ["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", *shaping(self.qdisc, self.shape)]
        subprocess.run(inside, check=True)

    def spec(self):
        """Faults are in front of the store, inside its namespace; there is one port for each node."""
        common = dict(host="0.0.0.0", target=STORE_PORT, up=[], down=[], delay_s=0.0, store=True)
        links = [dict(listen=STORE_PORT + 1 + i, node=i, **common) for i in range(NODES_MAX)]
        return {"wires": {}, "links": links, "fault": self.fault}

    def address(self, index):
        return f"10.210.0.{10 + index}"

    def _inside(self, end):
        return "ip", "netns", "exec", f"{self.prefix}-{end}"

    def node(self, i):
        return Place(self.address(i), HTTP_PORT, self._inside(f"n{i}"), (self.address(i), HTTP_PORT))

    def events(self, i):
        return Place(self.address(i), KV_EVENTS_PORT, (), (self.address(i), KV_EVENTS_PORT))

    def store(self):
        return Place("0.0.0.0", STORE_PORT, self._inside("store"), (self.address(NODES_MAX), STORE_PORT))

    def store_of(self, i):
        return self.address(NODES_MAX), STORE_PORT + (1 + i if self.fault else 0)

    def bytes(self):
        links = json.loads(ip("-json", "-statistics", "link", "show"))
        counted = {link["ifname"]: sum(link["stats64"][way]["bytes"] for way in ("rx", "tx")) for link in links}
        return {"nodes": sum(counted[end] for end in self.ends[:-1]), "store": counted["store"]}


def free_ports(count):
    """Ports that nobody listens on, below those that the kernel gives to connections, which might take them."""
    found = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 2_000):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} ports are free")


def shaping(qdisc, shape):
    """Arguments of `tc` after the device."""
    rate = f"{shape.mbit:g}mbit"
    if qdisc == "netem":
        return ["netem", "delay", f"{shape.delay_ms:g}ms", "rate", rate, "limit", "20000"]
    return ["tbf", "rate", rate, "burst", "256kb", "latency", "200ms"]


def ip(*arguments):
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def enter_namespace(name):
    """Moves this thread, and what it starts from now on, into a network namespace."""
    with open(f"/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")


def choose(wanted, shape):
    """The network that is asked for, or with `auto` the best one here: delay is worth more than namespaces."""
    how = available() if wanted == "auto" else wanted
    return Proxies(shape) if how == "proxy" else Namespaces(shape, how)


def available():
    """Whether the kernel can shape rate and delay for us."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        return "proxy"
    return "netem" if _has("netem") else "proxy"


def _has(qdisc):
    """Whether the kernel has network namespaces and a discipline; tried out in a namespace that goes away at once."""
    script = f"ip link set lo up && tc qdisc add dev lo root {' '.join(shaping(qdisc, Shape(1000, 1)))}"
    return subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True).returncode == 0
