"""The .deb: what it installs, its units, and a server that is started as systemd would start it."""
import contextlib
import http.client
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import time

import pytest
from conftest import ROOT, UNITS, as_root

# Of 100: what is left is that a server talks to the network and is not bound to a directory of its own as root.
EXPOSURE_MAX = 15
SECONDS = 30


def test_it_installs_the_command_with_its_pages_and_completions(installed):
    # A package has its pages compressed.
    listed = [str(path).removesuffix(".gz") for path in installed]
    # What messages name as docs/shelf.md.
    page = "share/doc/kvik/docs/shelf.md"
    for path in ("bin/kvik", "share/man/man1/kvik-serve.1", "share/zsh/vendor-completions/_kvik", page):
        assert f"/usr/{path}" in listed, listed
    assert subprocess.run(["/usr/bin/kvik", "--version"], check=False).returncode == 0
    source = "source /usr/share/bash-completion/completions/kvik && complete -p kvik"
    subprocess.run(["bash", "-c", source], check=True, capture_output=True)
    linked = subprocess.run(["ldd", "/usr/bin/kvik"], capture_output=True, text=True, check=True).stdout
    assert "not found" not in linked, linked


@pytest.mark.full
def test_settings_survive_a_second_installation(deb):
    config = pathlib.Path("/etc/kvik/config.toml")
    was = config.read_text()
    as_root("sh", "-c", f"echo 'parallel = 3' >> {config}")
    as_root("dpkg", "--install", deb)
    assert config.read_text() == was + "parallel = 3\n"
    as_root("sh", "-c", f"sed -i '$d' {config}")


def test_the_units_are_valid_and_closed(installed):
    """Where there is a systemd to ask; it need not run."""
    names = [str(UNITS / name) for name in ("kvik.service", "kvik.socket")]
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    asked = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", names[0]]
    closed = subprocess.run(asked, capture_output=True, text=True, env=os.environ | {"SYSTEMD_COLORS": "0"})
    assert closed.returncode == 0, closed.stdout[-3000:]


def test_the_command_that_shows_what_the_service_uses_has_the_variables_of_its_unit():
    unit = (ROOT / "packaging/systemd/kvik.service").read_text()
    variables = set(" ".join(re.findall(r"^Environment=(.*)", unit, re.MULTILINE)).split())
    assert len(variables) == 3, variables
    for page in ("packaging/systemd/config.toml", "docs/operations.md"):
        commands = re.findall(r"sudo env (.*) kvik doctor$", (ROOT / page).read_text(), re.MULTILINE)
        assert [set(command.split()) for command in commands] == [variables], page


class Service:
    """The server, started as the unit says, with what systemd gives it: `sockets` open, and ears for its words."""

    def __init__(self, tmp_path, sockets):
        lines = (UNITS / "kvik.service").read_text().splitlines()
        command = next(line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart="))
        environment = " ".join(line.removeprefix("Environment=") for line in lines if line.startswith("Environment="))
        env = dict(pair.split("=", 1) for pair in shlex.split(environment))
        # The directories of StateDirectory= and CacheDirectory=.
        for name, folder in (("KVIK_STATE_DIR", "state"), ("KVIK_CACHE_DIR", "cache")):
            env[name] = str(tmp_path / folder)
        self.words = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.words.bind(str(tmp_path / "notify"))
        self.words.settimeout(SECONDS)
        env |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000", "LISTEN_FDS": str(len(sockets))}
        self.log = (tmp_path / "log").open("w+")
        self.process = self.start(shlex.split(command), env | {"PATH": "/usr/bin"}, sockets)

    def start(self, command, env, sockets):
        """The sockets become descriptors from 3 on, and the variable names the process that runs in the end."""
        def place():
            kept = [os.dup(one.fileno()) for one in sockets]
            high = [os.dup2(one, 100 + index) for index, one in enumerate(kept)]
            for index, one in enumerate(high):
                os.dup2(one, 3 + index, inheritable=True)
        argv = ["/bin/sh", "-c", 'export LISTEN_PID=$$; exec "$@"', "sh", *command]
        return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                preexec_fn=place, close_fds=False)

    def logged(self):
        self.log.seek(0)
        return self.log.read()

    def hears(self, word):
        """Waits for this word; others may come before."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                if self.words.recv(256).decode() == word:
                    return
        raise AssertionError(f"{word} was not said in {SECONDS} s; the log:\n{self.logged()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)
        self.words.close()
        self.log.close()


def tcp():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(16)
    return listener


def test_it_serves_on_the_socket_that_it_is_given_and_says_how_it_is(installed, tmp_path):
    with tcp() as listener:
        # The request is there before the server is, which is what activation is for.
        early = http.client.HTTPConnection(*listener.getsockname(), timeout=SECONDS)
        early.connect()
        with Service(tmp_path, [listener]) as service:
            service.hears("READY=1")
            early.request("GET", "/health")
            assert early.getresponse().read() == b'{"status":"ok"}'
            service.hears("WATCHDOG=1")
            url = "http://%s:%s" % listener.getsockname()
            assert subprocess.run(["/usr/bin/kvik", "health", "--url", url], check=False).returncode == 0
            service.process.send_signal(signal.SIGTERM)
            service.hears("STOPPING=1")
            assert service.process.wait(SECONDS) == 0, service.logged()
            assert (tmp_path / "state").is_dir() and (tmp_path / "cache").is_dir()
    assert subprocess.run(["/usr/bin/kvik", "health", "--url", url], check=False, capture_output=True).returncode == 1


def udp():
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.bind(("127.0.0.1", 0))
    return bound


@pytest.mark.parametrize("make, words", [((tcp, tcp), "2 sockets"), ((udp,), "cannot listen on the socket")])
def test_sockets_that_it_cannot_serve_on_are_refused(installed, tmp_path, make, words):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(one()) for one in make]
        with Service(tmp_path, sockets) as service:
            assert service.process.wait(SECONDS) == 1
            assert re.search(f"error: .*{words}", service.logged()), service.logged()
