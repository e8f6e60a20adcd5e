"""A log that nobody reads stops nobody; an engine that stands still is not healthy."""
import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest
from server import BINARY, STOP_SECONDS, Server, effort, free_port

ANSWERS = effort(200, 1000)
# No answer takes nearly so long; one that waits for a reader takes for ever.
LATE = 20
LOUD = {"KVIK_LOG": "debug"}
# Reads what it is given until its end.
READER = [sys.executable, "-c", "import os\nwhile os.read(0, 1 << 16): pass"]


class Piped(Server):
    """A server whose two outputs are the caller's file descriptors."""

    def __init__(self, *flags, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=None):
        self.host, self.port = "127.0.0.1", free_port()
        self.log = tempfile.TemporaryFile(mode="w+")
        self.state = tempfile.TemporaryDirectory(prefix="kvik-state-")
        argv = [str(BINARY), "serve", "--port", str(self.port), "--threads", "2", *flags]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("KVIK_")}
        clean |= {"KVIK_CACHE_DISK": "off", "KVIK_STATE_DIR": self.state.name} | (env or {})
        self.process = subprocess.Popen(argv, env=clean, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)


def answer_all(server, answers=ANSWERS):
    """The longest time that one of so many answers took."""
    longest = 0
    for number in range(answers):
        started = time.monotonic()
        body = json.dumps({"prompt": f"Number {number}", "n_predict": 2, "temperature": 0})
        headers = {"Content-Type": "application/json"}
        assert server.request("POST", "/completion", body, headers, timeout=LATE).status == 200
        longest = max(longest, time.monotonic() - started)
    return longest


def fill(server):
    """Requests until the log has no room: 64 KiB with its reader, 8,192 lines in the queue, a line for each."""
    ask, asked = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 500
    with socket.create_connection((server.host, server.port), timeout=LATE) as connection:
        while server.metric("kvik_log_lines_dropped_total") == 0:
            connection.sendall(ask * asked)
            answered = b""
            while answered.count(b"HTTP/1.1 200") < asked or not answered.endswith(b"}"):
                answered += connection.recv(1 << 16)


def stop_in_time(server):
    """Nor does the end wait for the reader."""
    server.terminate()
    assert server.process.wait(STOP_SECONDS) == 0


def read_until(fd, pattern, seconds=20):
    """What is read up to the text that matches."""
    read, deadline = "", time.monotonic() + seconds
    while not re.search(pattern, read):
        assert select.select([fd], [], [], max(0, deadline - time.monotonic()))[0], f"no {pattern} in {read[-2000:]}"
        read += os.read(fd, 1 << 16).decode(errors="replace")
    return read


@contextlib.contextmanager
def pipe():
    """Its two ends."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)


def test_an_unread_log_stops_nobody_and_says_later_what_is_missing():
    with pipe() as (read, write), Piped(stderr=write, env=LOUD) as server:
        assert answer_all(server) < LATE
        fill(server)
        assert server.get("/health").json == {"status": "ok"}
        assert re.search(r"\d+ lines of the log were dropped", read_until(read, r"lines of the log were dropped"))
        # Unread again, the end does not wait.
        answer_all(server, 100)
        stop_in_time(server)


def test_a_terminal_whose_reader_is_stopped_stops_nobody():
    main, terminal = pty.openpty()
    reader = subprocess.Popen(READER, stdin=main)
    os.close(main)
    try:
        with Piped(stdout=terminal, stderr=terminal, env=LOUD) as server:
            reader.send_signal(signal.SIGSTOP)
            assert answer_all(server) < LATE
            fill(server)
            answer_all(server, 100)
            stop_in_time(server)
    finally:
        reader.send_signal(signal.SIGCONT)
        reader.kill()
        reader.wait()
        os.close(terminal)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full disk at hand")
def test_a_full_disk_under_the_log_stops_nobody():
    with open("/dev/full", "wb") as full, Piped(stdout=full, stderr=full, env=LOUD) as server:
        assert answer_all(server) < LATE
        assert server.metric("kvik_log_lines_dropped_total") >= ANSWERS
        stop_in_time(server)


def test_an_unread_standard_output_stops_nobody():
    with pipe() as (_, write):
        os.set_blocking(write, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write, b"x" * 4096)
        os.set_blocking(write, True)
        with Piped(stdout=write) as server:
            assert answer_all(server, 10) < LATE
            stop_in_time(server)


def wait_for(seconds, done):
    """How long it took."""
    started = time.monotonic()
    while not done():
        assert time.monotonic() - started < seconds, f"not in {seconds} s"
        time.sleep(0.05)
    return time.monotonic() - started


def test_a_stuck_engine_is_unhealthy_within_ten_seconds_and_healthy_when_it_goes_on(tmp_path):
    stall, supervisor = tmp_path / "stall", socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    supervisor.bind(str(tmp_path / "notify"))
    supervisor.settimeout(20)
    env = {"KVIK_TEST_STALL": str(stall), "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}

    def heard():
        return supervisor.recv(64).decode()

    def heard_within(seconds):
        """What comes now, older signs left aside."""
        supervisor.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                heard()
        supervisor.settimeout(seconds)
        try:
            return heard()
        except TimeoutError:
            return None
        finally:
            supervisor.settimeout(20)

    with contextlib.closing(supervisor), Server("--threads", "2", env=env) as server:
        assert (heard(), heard()) == ("READY=1", "WATCHDOG=1")
        assert server.get("/ready").json == {"status": "ready"}
        assert server.metric("kvik_engine_last_step_seconds") == 0
        stall.touch()
        asked = threading.Thread(target=answer_all, args=(server, 1))
        asked.start()
        took = wait_for(10, lambda: server.get("/health").status == 503)
        assert took > 4, "a step may take a while"
        stuck = server.get("/health").json
        assert stuck["error"]["code"] == "engine_stuck" and stuck["seconds"] >= 5 and stuck["phase"] == "call"
        assert server.get("/ready").status == 503
        assert server.metric("kvik_engine_last_step_seconds") >= 5
        wait_for(3, lambda: "the engine is stuck" in server.logged())
        assert heard_within(2) is None, "the supervisor is to see it"
        stall.unlink()
        wait_for(3, lambda: server.get("/health").json == {"status": "ok"})
        asked.join(LATE)
        assert not asked.is_alive()
        assert heard_within(5) == "WATCHDOG=1"
        wait_for(3, lambda: "the engine goes on after" in server.logged())
        logged = server.logged()
        assert logged.count("the engine is stuck") == 1 and "stands in `call`" in logged
        assert not sys.platform.startswith("linux") or "syscall" in logged or "wchan" in logged
        server.terminate()
        wait_for(5, lambda: heard() == "STOPPING=1")
        assert server.process.wait(STOP_SECONDS) == 0
