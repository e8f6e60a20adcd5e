"""A cache that nodes share: what one has computed, the others reuse, and a store that fails costs no answer."""
import concurrent.futures
import contextlib
import hashlib
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

import pytest
from server import BINARY, Server, free_port

CONTEXT = ["--threads", "1", "--context", "2048", "--cache-ram", "64MiB"]
SYSTEM = "You answer questions about a book in which a river, a letter and a garden stand, and you are short. " * 6


class Redis:
    """A Redis that keeps nothing on disk."""

    def __init__(self, port=None):
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}"

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="kvik-redis-")
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.directory.name]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while self.ask("PING") != "PONG":
            assert time.monotonic() < deadline, "Redis does not answer"
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.directory.cleanup()

    def ask(self, *words):
        command = ["redis-cli", "-p", str(self.port), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()


@pytest.fixture(params=["redis", "file"])
def store(request, tmp_path):
    """Where a fleet's store is."""
    if request.param == "file":
        yield f"file://{tmp_path / 'shared'}"
        return
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed")
    with Redis() as redis:
        yield redis.url


@pytest.fixture
def key(tmp_path):
    """The key of a fleet."""
    return write_key(tmp_path / "fleet.key")


def write_key(path):
    made = subprocess.run([BINARY, "cache", "key"], capture_output=True, text=True, timeout=60, check=True)
    path.write_text(made.stdout)
    path.chmod(0o600)
    return path


def fleet_flags(url, key):
    return ["--cache-remote", url, "--cache-remote-key", key]


@contextlib.contextmanager
def nodes(count, url, key, *flags):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Server(*CONTEXT, *fleet_flags(url, key), *flags)) for _ in range(count)]


def ask(server, question, system=SYSTEM, key=None, **options):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = dict(messages=messages, max_tokens=8, temperature=0) | options
    answer = server.post("/v1/chat/completions", body, **headers)
    assert answer.status == 200, answer.text
    return answer.json


def report(answer):
    return answer["kvik"]["cache"]


def wait_until(what, seconds=20):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it does not come to pass"
        time.sleep(0.05)
    return found


def is_up(server, admin=None):
    return server.metric("kvik_remote_up", admin) == 1


def write_twice(server, question="Who wrote the letter?", admin=None, **options):
    """Has a node use a prompt twice, and waits until the store has it."""
    wait_until(lambda: is_up(server, admin))
    metric = lambda name: server.metric(f"kvik_remote_{name}", admin)
    ask(server, question, **options)
    ask(server, question + " Really?", **options)
    wait_until(lambda: metric("blocks_written_total") > 0 and metric("writes_pending") == 0)


# On a machine with other work, a read may be expected to take longer than computing, or come too late.
IN_A_HURRY = ("remote_failed", "remote_slower", "recompute_was_cheaper")
PLACES = ("river", "lake", "hill", "forest", "bridge")


def fetched(one, other, places=PLACES, admin=None, key=None):
    """What a node answers to a prompt of which the store has what another node has used twice; and the prompt."""
    metric = lambda name: one.metric(f"kvik_remote_{name}", admin)
    for place in places:
        # Long, so that computing takes as much longer than reading as it does with a larger model.
        system = SYSTEM.replace("river", place) * 4
        written = metric("blocks_written_total")
        write_twice(one, system=system, admin=admin, key=key)
        wait_until(lambda: metric("blocks_written_total") > written)
        wait_until(lambda: metric("writes_pending") == 0)
        answer = ask(other, "What grows in the garden?", system=system, key=key)
        if report(answer)["reason"] not in IN_A_HURRY:
            break
    return answer, system


def test_what_one_node_has_used_twice_another_does_not_compute(store, key):
    with nodes(2, store, key) as (one, other), Server(*CONTEXT) as alone:
        wait_until(lambda: is_up(one) and is_up(other))
        answer, system = fetched(one, other)
        tokens = report(answer)["by_tier"].get("remote", 0)
        assert tokens >= 0.8 * report(answer)["cached_tokens"] > 64, (report(answer)["reason"], report(answer))
        again, computed = (ask(server, "What grows in the garden?", system=system) for server in (other, alone))
        assert answer["choices"][0]["message"] == computed["choices"][0]["message"]
        assert "remote" not in report(again)["by_tier"], "now it is in memory"
        assert other.metric("kvik_remote_corrupt_total") == 0


def test_a_node_with_another_key_finds_nothing(store, key, tmp_path):
    with nodes(1, store, key) as (one,), nodes(1, store, write_key(tmp_path / "other.key")) as (other,):
        write_twice(one)
        wait_until(lambda: is_up(other))
        answer = ask(other, "What grows in the garden?")
        assert report(answer)["cached_tokens"] == 0
        assert other.metric("kvik_remote_hits_total") == 0


def test_a_node_that_begins_has_what_others_use(store, key):
    with nodes(1, store, key) as (one,):
        wait_until(lambda: is_up(one))
        ask(one, "Who wrote the letter?")
        ask(one, "Where is the river?")
    # It has ended, and left its list.
    with nodes(1, store, key) as (new,):
        answer = ask(new, "Where is the garden?")
        assert report(answer)["cached_tokens"] > 64
        assert "remote" not in report(answer)["by_tier"], "before it was asked"


def test_tenants_of_a_fleet_stay_apart(store, key, tmp_path):
    tenants = tmp_path / "tenants.toml"
    digest = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("acme", "beta")}
    tenants.write_text("".join(f'[tenant.{name}]\nkeys = ["sha256:{of}"]\n' for name, of in digest.items()))
    tenants.chmod(0o600)
    flags = ["--tenants", tenants, "--admin-key", "root"]
    with contextlib.ExitStack() as stack:
        one, other = (stack.enter_context(Server(*CONTEXT, *fleet_flags(store, key), *flags)) for _ in range(2))
        wait_until(lambda: is_up(other, "root"))
        mine, system = fetched(one, other, admin="root", key="acme")
        tokens = report(mine)["by_tier"].get("remote", 0)
        assert tokens > 64, "the same tenant on another node, whose secret comes from the fleet's key"
        # Here and in the store is what another tenant has asked.
        assert report(ask(other, "What grows in the garden?", system=system, key="beta"))["cached_tokens"] == 0


@pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is not installed")
def test_a_store_that_dies_costs_no_answer_and_is_found_again(key):
    port = free_port()
    with contextlib.ExitStack() as stack:
        with Redis(port) as redis:
            one, other = stack.enter_context(nodes(2, redis.url, key))
            write_twice(one)
        wait_until(lambda: not is_up(other) or ask(other, "Is anybody there?", system="Hello.") and False)
        answer = ask(other, "What grows in the garden?")
        assert report(answer)["cached_tokens"] < 16, "what any chat begins with"
        assert report(answer)["reason"] == "remote_down"
        assert one.logged().count("WARN") <= 3, "a node says it once"
        with Redis(port):
            wait_until(lambda: is_up(other), seconds=60)
            write_twice(one, "Where is the river?")
            answer, _ = fetched(one, other, PLACES[1:])
            assert report(answer)["by_tier"].get("remote", 0) > 64, report(answer)


def test_nothing_of_a_prompt_is_readable_in_the_store(key, tmp_path):
    shared = tmp_path / "shared"
    with nodes(1, f"file://{shared}", key) as (one,):
        write_twice(one)
    files = [path for path in shared.rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes() + str(path).encode()
        for word in (b"river", b"garden", b"letter"):
            assert word not in content


def test_flags_that_cannot_be_right_are_refused_before_the_model_is_loaded(tmp_path, key):
    (tmp_path / "short.key").write_text("c2hvcnQ=")
    for flags, word in [
        (["--cache-remote", "redis://127.0.0.1"], "--cache-remote-key"),
        (["--cache-remote", "http://127.0.0.1", "--cache-remote-key", key], "redis://"),
        (["--cache-remote", "redis://127.0.0.1", "--cache-remote-key", tmp_path / "none.key"], "none.key"),
        (["--cache-remote", "redis://127.0.0.1", "--cache-remote-key", tmp_path / "short.key"], "32 bytes"),
    ]:
        ended = subprocess.run([BINARY, "serve", *map(str, flags)], capture_output=True, text=True, timeout=60)
        assert ended.returncode != 0
        assert word in ended.stderr, ended.stderr


def test_a_password_is_not_logged(key):
    url = f"redis://user:hunter2@127.0.0.1:{free_port()}"
    with Server(*CONTEXT, *fleet_flags(url, key)) as server:
        ask(server, "Who is there?")
        assert "hunter2" not in server.logged()
        assert pathlib.Path(key).read_text().strip() not in server.logged()


def say(server, name, text):
    body = dict(messages=[{"role": "user", "content": text}], max_tokens=24, temperature=0, kvik={"conversation": name})
    return server.post("/v1/chat/completions", body)


def test_a_client_that_alternates_between_nodes_has_one_conversation_while_others_ask(store, key):
    """What others compute slows the lookups of blocks, and never keeps a turn from the one before it."""
    with nodes(2, store, key) as pair, concurrent.futures.ThreadPoolExecutor(4) as others:
        for server in pair:
            wait_until(lambda: is_up(server))
        ends = threading.Event()

        def asks(number):
            while not ends.is_set():
                ask(pair[number % 2], f"Who is in garden {number}?", system=SYSTEM + str(number) * 40)

        asking = [others.submit(asks, number) for number in range(4)]
        try:
            for turn in range(12):
                answer = say(pair[turn % 2], "walk", f"This is step {turn}.")
                assert answer.status == 200, answer.text
                assert answer.json["kvik"]["conversation"]["messages"] == 2 * turn + 2
        finally:
            ends.set()
        for done in asking:
            done.result(120)
        listed = [server.get("/v1/conversations").json["data"] for server in pair]
        assert [len(conversations) for conversations in listed] == [1, 1], listed


@contextlib.contextmanager
def shelves(count, url, key, folder):
    """Nodes with several models each, of which one is in memory."""
    from test_shelf import start
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(count):
            own = folder / f"shelf-{number}"
            own.mkdir()
            servers.append(stack.enter_context(start(own, *fleet_flags(url, key), "--shelf-ram", "1GiB")))
            ask(servers[-1], "Who is there?", system="Hello.")
        yield servers


@pytest.mark.parametrize("models", ["one model", "a shelf"])
def test_any_node_goes_on_with_a_conversation(store, key, tmp_path, models):
    fleet = nodes(3, store, key) if models == "one model" else shelves(3, store, key, tmp_path)
    with fleet as (one, other, third):
        for server in (one, other, third):
            wait_until(lambda: is_up(server))
        assert say(one, "dog", "Please remember that my dog is called Bolt.").status == 200
        answer = say(other, "dog", "What is my dog called?")
        assert answer.status == 200, answer.text
        assert "Bolt" in answer.json["choices"][0]["message"]["content"]
        assert answer.json["kvik"]["conversation"]["messages"] == 4
        assert [len(server.get("/v1/conversations/dog").json["messages"]) for server in (one, other, third)] == [4, 4, 4]
        one.kill()
        assert say(third, "dog", "Thank you.").json["kvik"]["conversation"]["messages"] == 6
        assert other.request("DELETE", "/v1/conversations/dog", None, {}).json["deleted"]
        assert third.get("/v1/conversations/dog").status == 404


@pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is not installed")
def test_a_node_that_ends_writes_what_a_slow_store_has_not_taken_yet(key):
    """A turn does not wait for the store, and its node does at its end."""
    with Redis() as redis, nodes(2, redis.url, key, "--grace", "1") as (one, other):
        for server in (one, other):
            wait_until(lambda: is_up(server))
        assert say(one, "dog", "Please remember that my dog is called Bolt.").status == 200
        # Longer than the node needs to stop its engine, and shorter than a request to the store may take.
        assert redis.ask("CLIENT", "PAUSE", "4400") == "OK"
        answer = say(one, "dog", "What is my dog called?")
        assert answer.status == 200, answer.text
        one.terminate()
        assert one.process.wait(30) == 0, one.logged()
        assert len(other.get("/v1/conversations/dog").json["messages"]) == 4
