"""TLS in front: the files of docs/operations.md before a server, streams included."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import time

import pytest
from server import FULL, ROOT, Server, free_port, sse

PROXY = ROOT / "packaging/proxy"
NAME = "llm.example.org"
KEY = "a-key-of-the-test"
SECONDS = 30
# Where CI unpacks proxies that it does not install.
PROGRAMS = [ROOT / "target/ci-proxies/usr" / folder for folder in ("sbin", "bin")] + ["/usr/sbin", "/usr/bin"]


def need(program):
    found = shutil.which(program, path=":".join(map(str, PROGRAMS)))
    if not found:
        # A release is not proven without its TLS.
        (pytest.fail if FULL else pytest.skip)(f"there is no {program}; `.ci/run full` fetches it")
    return found


def changed(file, *changes):
    """The text of a packaged file with what an operator changes in it."""
    text = (PROXY / file).read_text()
    for written, here in changes:
        assert written in text, f"{file} has no {written}"
        text = text.replace(written, here)
    return text


def nginx(folder, port, server):
    """The command that runs nginx with the packaged file."""
    program, key, chain = need("nginx"), folder / "privkey.pem", folder / "fullchain.pem"
    certify = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}"]
    subprocess.run([need("openssl"), *certify, "-keyout", key, "-out", chain], check=True, capture_output=True)
    text = changed(
        "nginx.conf", ("127.0.0.1:8080", f"127.0.0.1:{server.port}"), ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/ssl/kvik/fullchain.pem", str(chain)), ("/etc/ssl/kvik/privkey.pem", str(key)),
    )
    places = [f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
    # As root it would work as a user that may not write here.
    user = "user root; " if os.geteuid() == 0 else ""
    whole = f"{user}daemon off; pid {folder}/pid; error_log {folder}/log; events {{}}\n"
    (folder / "conf").write_text(f"{whole}http {{ access_log off; {' '.join(places)}\n{text}\n}}\n")
    return [program, "-p", folder, "-c", folder / "conf"]


def caddy(folder, port, server):
    """The command that runs Caddy with the packaged file, and a certificate of its own making."""
    program = need("caddy")
    subprocess.run([program, "validate", "--adapter", "caddyfile", "--config", PROXY / "Caddyfile"], check=True)
    own = f"https://{NAME}:{port} {{\n\ttls internal\n"
    text = changed("Caddyfile", ("127.0.0.1:8080", f"127.0.0.1:{server.port}"), (f"{NAME} {{\n", own))
    options = f"admin off\nskip_install_trust\nauto_https disable_redirects\nstorage file_system {folder}\n"
    (folder / "conf").write_text(f"{{\n{options}}}\n{text}")
    return [program, "run", "--adapter", "caddyfile", "--config", folder / "conf"]


@pytest.fixture(scope="module")
def server():
    flags = ("--threads", "2", "--cache-ram", "64MiB", "--api-key", KEY, "--allow-host", NAME)
    with Server(*flags) as running:
        yield running


@pytest.fixture(scope="module", params=[nginx, caddy], ids=["nginx", "caddy"])
def port(request, server, tmp_path_factory):
    """The port of a proxy before the server."""
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    command = request.param(folder, port, server)
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_for(port, process, folder / "log")
            yield port
        finally:
            process.terminate()


def wait_for(port, process, log):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError):
            return connect(port).connect()
        time.sleep(0.05)
    raise AssertionError(f"nothing listened in {SECONDS} s: {log.read_text()}")


def connect(port):
    """A connection to the proxy under its name, which no DNS knows; nobody has signed its certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(NAME, port, timeout=60, context=context)
    connection._create_connection = lambda _, *more: socket.create_connection(("127.0.0.1", port), *more)
    return connection


def ask(port, path, body=None, key=KEY, **headers):
    connection = connect(port)
    headers |= {"Host": NAME, "Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    connection.request("POST" if body else "GET", path, body and json.dumps(body), headers)
    return connection.getresponse()


@pytest.mark.parametrize("full, outcome", [(False, pytest.skip.Exception), (True, pytest.fail.Exception)])
def test_a_missing_program_fails_where_a_release_is_proven(full, outcome, monkeypatch):
    monkeypatch.setitem(globals(), "FULL", full)
    with pytest.raises(outcome, match="no kvik-proxy;"):
        need("kvik-proxy")


def test_ci_fetches_the_programs_that_are_needed():
    needed = set(re.findall(r'need\("(\w+)"\)', pathlib.Path(__file__).read_text()))
    fetched = re.findall(r"^ +(?:missing command|unpack_package) (\S+)", (ROOT / ".ci/setup.sh").read_text(), re.M)
    assert needed == {"nginx", "openssl", "caddy"} and needed <= set(fetched)


@pytest.mark.full
def test_a_proxy_passes_streams_keys_and_long_bodies_on(port):
    messages = [{"role": "user", "content": "Count to twenty."}]
    body = {"messages": messages, "stream": True, "max_tokens": 300, "ignore_eos": True, "temperature": 0}
    answer = ask(port, "/v1/chat/completions", body)
    assert answer.status == 200
    # The first event is here before the last: nothing collects them on the way.
    assert b"[DONE]" not in answer.read1(1 << 16)
    assert list(sse(answer))[-1] == "[DONE]"
    assert ask(port, "/v1/chat/completions", body, key="another").status == 401
    # Longer than what proxies take unless they are told.
    long = ask(port, "/tokenize", {"content": "x", "unknown": "x" * 4_000_000})
    assert long.status == 200, long.read()


@pytest.mark.full
def test_the_page_is_served_under_the_name_of_the_proxy(port):
    page = ask(port, "/", key="none")
    assert page.status == 200 and b"kvik" in page.read()
    assert ask(port, "/tokenize", {"content": "x"}, Origin=f"https://{NAME}").status == 200
    assert ask(port, "/tokenize", {"content": "x"}, Origin="https://elsewhere.example").status == 403
