"""A kvik server under test: started on a free port, asked over plain HTTP, stopped by SIGTERM."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TINY = ROOT / "models/tiny"
# KVIK_TARGET is another build than the release's, KVIK_BINARY any binary.
BINARY = pathlib.Path(os.environ.get("KVIK_BINARY", ROOT / os.environ.get("KVIK_TARGET", "target/release") / "kvik"))
# Where a release is proven, tests try as much as they can; with a change, each part once.
FULL = "KVIK_FULL" in os.environ
START_SECONDS = 120
STOP_SECONDS = 30
# After so many lines of a stream some of its answer has come, whatever the dialect announces before it.
BEGUN_LINES = 20


def effort(change, full):
    """How much a test tries: with every change, and where a release is proven."""
    return full if FULL else change


class Server:
    """`kvik serve` with the given flags; a context manager that leaves no process behind.

    `memory_bytes` bounds its address space and `file_bytes` the length of a file that it writes; `wrap` is a
    command that starts it, and `command` stands between the program and its flags. `host` is where it is reached, and
    `port` is given where it must be the one of a server before it.
    """

    def __init__(
        self, *flags, env=None, memory_bytes=None, file_bytes=None, wrap=(), binary=BINARY, command=("serve",),
        host="127.0.0.1", port=None, cwd=None,
    ):
        self.host, self.port = host, port or free_port()
        # A client that fails before that has found something.
        self.is_killed = False
        self.log = tempfile.TemporaryFile(mode="w+", errors="replace")
        self.state = tempfile.TemporaryDirectory(prefix="kvik-state-")
        argv = [*wrap, str(binary), *command, "--port", str(self.port), *map(str, flags)]
        # The commands of this machine's user do not find it: its record is in its state directory.
        clean = {k: v for k, v in os.environ.items() if not k.startswith("KVIK_") and k != "XDG_RUNTIME_DIR"}
        # No model of this machine's user is the default one.
        models = str(pathlib.Path(self.state.name) / "models")
        clean |= {"KVIK_CACHE_DISK": "off", "KVIK_STATE_DIR": self.state.name, "KVIK_MODELS_DIR": models}
        # Nor is a token of that user sent to a hub of the tests.
        clean |= {"HF_HOME": self.state.name}
        # How much is computed behind an answer depends on how soon the next request comes.
        clean |= {"KVIK_AHEAD": "off"}
        # Tests kill servers, and then look for what was computed a moment ago; those of the other policies say so.
        clean |= {"KVIK_CACHE_DISK_WRITE": "all"}
        self.process = subprocess.Popen(
            argv, env=clean | (env or {}), cwd=cwd, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
        )
        for which, most in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_FSIZE, file_bytes)):
            if most is not None:
                resource.prlimit(self.process.pid, which, (most, most))

    def __enter__(self):
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"SIGTERM did not stop the server in {STOP_SECONDS} s; its log:\n{self.logged()}")
        self.log.close()
        self.state.cleanup()

    def wait_until_ready(self, seconds=START_SECONDS):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"kvik ended with {self.process.returncode} at its start:\n{self.logged()}")
            with contextlib.suppress(OSError):
                if self.get("/health").status == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"kvik was not ready after {seconds} s:\n{self.logged()}")

    def client_environment(self):
        """That of a command which finds this server by its record, and has no configuration."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("KVIK_") and k != "XDG_RUNTIME_DIR"}
        own = {"KVIK_STATE_DIR": self.state.name, "XDG_CONFIG_HOME": self.state.name, "TERM": "xterm"}
        return clean | own | {"KVIK_CACHE_DISK": "off", "KVIK_MODELS_DIR": str(pathlib.Path(self.state.name) / "models")}

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def kill(self):
        self.is_killed = True
        self.process.kill()
        self.process.wait()

    @property
    def base_url(self):
        return f"http://{self.host}:{self.port}/v1"

    def get(self, path, **headers):
        return self.request("GET", path, None, headers)

    def post(self, path, body, **headers):
        """Sends JSON, or the bytes themselves where `body` is bytes."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, raw, {"Content-Type": "application/json", **headers})

    def request(self, method, path, body, headers, timeout=120):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers)
            return Response(connection.getresponse())
        finally:
            connection.close()

    def open_stream(self, path, body, timeout=120, key=None):
        """A stream as a (connection, response) pair; the caller reads or closes it."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"} | bearer(key))
        return connection, connection.getresponse()

    def begin_stream(self, path, body, key=None):
        """As `open_stream`, once some of the answer has come."""
        connection, response = self.open_stream(path, body, key=key)
        assert response.status == 200, response.read()
        for _ in range(BEGUN_LINES):
            response.readline()
        return connection, response

    @contextlib.contextmanager
    def stalled(self, stall, begin, key=None):
        """What `begin` returns, an answer that has begun: in the block it stands still in its middle, for no step is taken.

        `stall` is the file of this server's KVIK_TEST_STALL, and `key` reads its metrics. On a fast machine an answer may
        have ended before this process came to stop it, and is begun again then.
        """
        try:
            for _ in range(10):
                begun = begin()
                stall.touch()
                if self.metric("kvik_requests_running", key) == 1:
                    break
                stall.unlink()
            else:
                raise AssertionError("every answer ended before it was looked at")
            yield begun
        finally:
            stall.unlink(missing_ok=True)

    def metrics(self, key=None):
        """Samples of /metrics by name; those of one name with several labels are added up."""
        samples = {}
        for line in self.get("/metrics", **bearer(key)).text.splitlines():
            match = re.match(r"([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)", line)
            if match:
                samples[match[1]] = samples.get(match[1], 0.0) + float(match[2])
        return samples

    def metric(self, name, key=None):
        """The value of one metric."""
        return self.metrics(key)[name]

    def cancelled(self):
        """Requests whose clients left before their end."""
        ended = re.findall(r'^kvik_requests_ended_total\{.*outcome="cancelled"\} (\S+)$', self.get("/metrics").text, re.M)
        return sum(map(float, ended))

    def kv_bytes(self):
        """Bytes of the KV blocks that hold something."""
        return self.metrics()["kvik_kv_used_bytes"]

    def resident_bytes(self):
        """The process's memory in RAM now."""
        return self.status_bytes("VmRSS")

    def peak_bytes(self):
        """The peak of the process's memory in RAM."""
        return self.status_bytes("VmHWM")

    def status_bytes(self, field):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) * 1024

    def logged(self):
        self.log.seek(0)
        return self.log.read()


class Response:
    """A whole answer."""

    def __init__(self, raw):
        self.status = raw.status
        self.headers = dict((k.lower(), v) for k, v in raw.getheaders())
        self.body = raw.read()

    @property
    def text(self):
        return self.body.decode()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The error object of OpenAI's shape."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert error["message"], error
        return error


def bearer(key):
    """The headers of a request with this key, if there is one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def sse(response):
    """The payloads of a stream of server-sent events, `[DONE]` included; comments are skipped."""
    for line in response:
        line = line.decode().rstrip("\r\n")
        if line.startswith("data: "):
            yield line[len("data: ") :]


def eval_cases(name):
    """The cases of a held-out file of kvik-tiny."""
    return [json.loads(line) for line in (TINY / f"eval-{name}.jsonl").read_text().splitlines()]


def chat_prompt(messages):
    """The prompt that kvik-tiny's chat template renders from messages."""
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return turns + "<|im_start|>assistant\n"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
