"""The harness of all attacks: servers of bounded memory, a neighbour that sends requests meanwhile, and a verdict.

An attack is a function over a `Trial`. It starts servers with `trial.server`, sends requests with `trial.send`, and
says with `trial.expect` what must be so. One broken expectation, a server that ends by itself, one that SIGTERM does
not end, or a figure beyond `trial.bound` makes the verdict `open`; otherwise the server held. An attack that could not
be tried to its end `failed`.
"""
import contextlib
import dataclasses
import hashlib
import http.client
import json
import pathlib
import random
import statistics
import tempfile
import threading
import time

from server import Server

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# Of a server's address space: far above what it needs, far below the machine.
MEMORY = 4 * GIB
WORDS = "the folder of work holds letters from people who write about plans and bills for next week".split()
# A request that takes longer is given up; every server under attack has to answer or refuse long before.
PATIENCE = 60
NEIGHBOUR_EVERY = 0.1

ATTACKS = {}


def attack(name, claim):
    """Registers an attack; `claim` is what an open server lets it do."""

    def register(run):
        assert name not in ATTACKS, name
        ATTACKS[name] = (claim, run)
        return run

    return register


class Skipped(Exception):
    """This machine lacks what the attack needs."""


@dataclasses.dataclass
class Verdict:
    """The outcome of an attack, and its cost."""

    name: str
    claim: str
    state: str = "held"
    problems: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    worst_request_s: float = 0.0
    peak_mib: float = 0.0
    neighbour_p50_ms: float | None = None
    neighbour_worst_ms: float | None = None
    neighbour_failed: int = 0


class Trial:
    """One run of one attack."""

    def __init__(self, name, claim, sample):
        self.verdict = Verdict(name, claim)
        self.sample = sample
        self.waits = []
        self.neighbours_want = None
        folder = tempfile.TemporaryDirectory(prefix="kvik-attack-")
        self.cleanup = folder.cleanup
        self.folder = pathlib.Path(folder.name)

    def expect(self, condition, problem):
        if not condition:
            self.verdict.problems.append(problem[:300])

    def note(self, text):
        self.verdict.notes.append(text)

    def bound(self, seconds=None, peak_mib=None, neighbour_ms=None):
        """Bounds of the worst request, the server's memory and the neighbour's worst wait.

        Called when the attack is over; times leave room for a busy machine.
        """
        v = self.verdict
        self.expect(seconds is None or v.worst_request_s <= seconds, f"a request took {v.worst_request_s:.1f} s, at most {seconds}")
        self.expect(peak_mib is None or v.peak_mib <= peak_mib, f"the server took {v.peak_mib:.0f} MiB, at most {peak_mib}")
        if neighbour_ms is not None:
            worst = max(self.waits, default=float("inf"))
            self.expect(worst <= neighbour_ms, f"a neighbour waited {worst:.0f} ms, at most {neighbour_ms}")
        self.expect(not v.neighbour_failed, f"{v.neighbour_failed} requests of a neighbour failed")

    @contextlib.contextmanager
    def server(self, *flags, memory=MEMORY, disk=None, state=None, env=None, patience=PATIENCE, **options):
        """A server whose peak memory counts; its death and a refusal to stop are findings."""
        env = dict(env or {})
        if disk:
            env["KVIK_CACHE_DISK"] = str(disk)
        if state:
            env["KVIK_STATE_DIR"] = str(state)
        flags = ["--threads", 2, "--grace", 3, *([] if "--cache-ram" in flags else ["--cache-ram", "128MiB"]), *flags]
        server = Server(*flags, memory_bytes=memory, env=env, **options)
        with contextlib.ExitStack() as stack:
            stack.callback(self.stop, server)
            server.wait_until_ready(patience)
            watch = stack.enter_context(Every(0.05, lambda: self.weigh(server)))
            watch.first()
            yield server

    def weigh(self, server):
        with contextlib.suppress(OSError, TypeError):
            self.verdict.peak_mib = max(self.verdict.peak_mib, server.peak_bytes() / MIB)

    def resident_mib(self, server):
        """Memory it keeps now; nothing where it is gone, which `stop` will say."""
        try:
            return server.resident_bytes() / MIB
        except (OSError, TypeError):
            return 0.0

    def stop(self, server):
        code = server.process.poll()
        if code is not None:
            last = [line for line in server.logged().splitlines() if line.strip()][-1:]
            self.expect(False, f"the server ended by itself with {code}: {' '.join(last)[:200]}")
        try:
            server.__exit__()
        except AssertionError:
            self.expect(False, "SIGTERM did not end the server within 30 s")

    def send(self, server, path, body=None, method="POST", key=None, patience=PATIENCE, **headers):
        """Sends a request and takes its time; an answer that does not come has the status 0."""
        if key:
            headers["Authorization"] = f"Bearer {key}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        started = time.monotonic()
        try:
            return server.request(method, path, body, headers, timeout=patience)
        except (OSError, http.client.HTTPException) as error:
            return NoAnswer(error)
        finally:
            took = time.monotonic() - started
            self.verdict.worst_request_s = max(self.verdict.worst_request_s, took)

    def together(self, *calls):
        """Runs calls at the same time and gives their results."""
        results = [None] * len(calls)

        def run(i, call):
            results[i] = call()

        threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    @contextlib.contextmanager
    def neighbour(self, server, key=None):
        """A client that asks for one token every 100 ms; its waits are figures of the verdict."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        body = json.dumps({"prompt": "Hello there", "n_predict": 1, "temperature": 0}).encode()

        def ask():
            started = time.monotonic()
            try:
                status = server.request("POST", "/completion", body, headers, timeout=PATIENCE).status
            except (OSError, http.client.HTTPException):
                status = 0
            self.waits.append((time.monotonic() - started) * 1000)
            self.verdict.neighbour_failed += status != 200

        with Every(NEIGHBOUR_EVERY, ask) as asking:
            asking.first()
            yield

    def finish(self, seconds):
        v = self.verdict
        v.seconds = round(seconds, 2)
        if self.waits:
            v.neighbour_p50_ms = round(statistics.median(self.waits), 1)
            v.neighbour_worst_ms = round(max(self.waits), 1)
        if v.problems and v.state == "held":
            v.state = "open"
        v.worst_request_s, v.peak_mib = round(v.worst_request_s, 3), round(v.peak_mib)
        return v


class NoAnswer:
    """Stands for a response when the connection broke or timed out."""

    status, headers, body, text = 0, {}, b"", ""

    def __init__(self, error):
        self.reason = repr(error)

    @property
    def json(self):
        return {}

    @property
    def error(self):
        return {"message": self.reason, "code": None, "type": None, "param": None}


class Every(threading.Thread):
    """Repeats a call until the block ends, which fails where the call did."""

    def __init__(self, seconds, what):
        super().__init__(daemon=True)
        self.seconds, self.what = seconds, what
        self.ended, self.began = threading.Event(), threading.Event()
        self.error = None

    def run(self):
        try:
            self.what()
            self.began.set()
            while not self.ended.wait(self.seconds):
                self.what()
        except Exception as error:  # noqa: BLE001  (whatever it is, nobody measures from then on)
            self.error = error
            self.began.set()

    def first(self):
        """Waits until it was done once."""
        self.began.wait(PATIENCE)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join(PATIENCE)
        assert self.error is None, f"what is repeated every {self.seconds} s has failed: {self.error!r}"


def run(name, sample):
    """Runs one attack and gives its verdict."""
    claim, act = ATTACKS[name]
    trial = Trial(name, claim, sample)
    started = time.monotonic()
    try:
        act(trial)
    except Skipped as reason:
        trial.verdict.state = "skipped"
        trial.note(str(reason))
    except AssertionError as error:
        trial.verdict.state = "failed"
        trial.expect(False, f"not tried to its end: {str(error)[:300]}")
    finally:
        trial.cleanup()
    return trial.finish(time.monotonic() - started)


def ids(count, seed):
    """A prompt of that many tokens that begins like no other."""
    dice = random.Random(f"ids {seed}")
    return [dice.randrange(300, 1000) for _ in range(count)]


def words(count, seed):
    dice = random.Random(f"words {seed}")
    return " ".join(dice.choice(WORDS) for _ in range(count))


def tenants(folder, **settings):
    """Flags for tenants whose keys are their names; the admin's key is `root`."""
    text = ""
    for name, lines in settings.items():
        digest = hashlib.sha256(name.encode()).hexdigest()
        text += f'[tenant.{name}]\nkeys = ["sha256:{digest}"]\n{lines}\n'
    path = folder / "tenants.toml"
    path.write_text(text)
    path.chmod(0o600)
    return ["--tenants", path, "--admin-key", "root"]


def settle(server, key=None, patience=20):
    """Waits until no block waits for the disk."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    last, deadline = None, time.monotonic() + patience
    while time.monotonic() < deadline:
        disk = server.get("/v1/cache", **headers).json.get("disk") or {}
        now = disk.get("written_blocks")
        if now and now == last:
            return
        last = now
        time.sleep(0.25)
    raise AssertionError("the disk is never done")


def cache_of(answer):
    """`kvik.cache` of an answer."""
    return answer.json.get("kvik", {}).get("cache", {})


def is_ours(answer):
    """Whether an error has the one shape that all have."""
    try:
        return set(answer.json["error"]) >= {"message", "type", "param", "code"}
    except (ValueError, KeyError, TypeError):
        return False

