"""What was deleted is gone: a text that nobody else said is looked for, as text and as tokens, in all files of the state and
the cache, and in what the server shows. In the store that nodes share values are sealed: there the files are looked for that
came with it."""
import json
import pathlib
import resource
import struct
import time

import pytest
from server import TINY, Server

from test_remote import fleet_flags, is_up, key, report, wait_until, write_key  # noqa: F401  (a fixture)

MARKER = "The heron Wolfram keeps seventeen purple umbrellas under the lighthouse."
SYSTEM = "You answer questions about a harbour in which boats, nets and letters lie, and you are short. " * 6
FLAGS = ["--cache-ram", "32MiB", "--context", "2048", "--threads", "2"]


class Place:
    """Where a server keeps its files, and what is looked for in them."""

    def __init__(self, folder):
        self.state, self.cache, self.store = folder / "state", folder / "kv", folder / "store"
        self.needles = {}

    def start(self, *flags, **env):
        places = {"KVIK_STATE_DIR": str(self.state), "KVIK_CACHE_DISK": str(self.cache)}
        return Server(*FLAGS, *flags, env=places | env)

    def learn(self, server, text):
        """Pieces of a text: words as they are, and tokens as files have them."""
        # The tokens in the middle do not depend on what stands around the text.
        tokens = server.post("/tokenize", {"content": text}).json["tokens"]
        words = [text[at:at + 24].encode() for at in range(0, len(text) - 24, 4)]
        runs = [struct.pack("<4I", *tokens[at:at + 4]) for at in range(2, len(tokens) - 6)]
        self.needles[text] = words + runs
        assert len(runs) > 8

    def files_with(self, text):
        found = []
        for folder in (self.state, self.cache):
            for path in folder.rglob("*"):
                if path.is_file():
                    held = path.read_bytes()
                    found += [str(path) for needle in self.needles[text] if needle in held][:1]
        return found

    def runs(self):
        """The values in the store, which are named by the blocks that they end with."""
        return {path for path in self.store.glob("kvik1-*/b/**/*") if path.is_file()}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def say(server, conversation, text, system=None, **more):
    messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": text}]
    body = {"messages": messages, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    body |= {"kvik": {"conversation": conversation}} if conversation else {}
    answer = server.post("/v1/chat/completions", body | more)
    assert answer.status == 200, answer.text
    return answer.json


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def delete(server, path, wait=30):
    """Deletes, and asks until nothing is pending."""
    deadline = time.monotonic() + wait
    while True:
        answer = server.request("DELETE", path, None, {})
        if answer.status == 404:
            return
        assert answer.status == 200, answer.text
        if not answer.json.get("pending"):
            assert answer.json["deleted"]
            return
        assert not answer.json["deleted"] and time.monotonic() < deadline, answer.text
        time.sleep(0.2)


def settle(server):
    deadline = time.monotonic() + 20
    while server.metric("kvik_disk_writes_pending") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def shown(server):
    """All that is shown of the cache."""
    texts = [server.get(path).text for path in ("/v1/cache?limit=1000", "/v1/conversations?search=umbrellas", "/slots")]
    return " ".join(texts)


def check_gone(place, server, text=MARKER):
    assert "umbrellas" not in shown(server)
    assert place.files_with(text) == []


def test_a_deleted_conversation_is_nowhere(place):
    with place.start() as server:
        place.learn(server, MARKER)
        say(server, "secret", MARKER)
        say(server, "secret", "And who counts them?")
        settle(server)
        assert place.files_with(MARKER) and "umbrellas" in server.get("/v1/cache?limit=1000").text
        delete(server, "/v1/conversations/secret")
        check_gone(place, server)
        assert server.get("/v1/conversations/secret").status == 404
    assert place.files_with(MARKER) == []
    with place.start() as server:
        check_gone(place, server)


@pytest.mark.parametrize("cache", ["off", "another"])
def test_a_disk_cache_of_earlier_settings_forgets_it_too(place, tmp_path, cache):
    with place.start() as server:
        place.learn(server, MARKER)
        say(server, "secret", MARKER)
        settle(server)
    assert place.files_with(MARKER)
    with place.start("--cache-disk", cache if cache == "off" else str(tmp_path / cache)) as server:
        delete(server, "/v1/conversations/secret")
    assert place.files_with(MARKER) == []


def test_a_disk_cache_of_earlier_settings_is_waited_for_while_another_server_writes_it(place, tmp_path):
    with place.start() as server:
        place.learn(server, MARKER)
        say(server, "secret", MARKER)
        settle(server)
    with place.start("--cache-disk", str(tmp_path / "another")) as server:
        with place.start(KVIK_STATE_DIR=str(tmp_path / "state of another")):
            assert server.request("DELETE", "/v1/conversations/secret", None, {}).json["pending"]
        delete(server, "/v1/conversations/secret")
    assert place.files_with(MARKER) == []


def test_a_draft_model_forgets_it_too(place):
    with place.start("--draft", str(TINY / "kvik-tiny-q8_0.gguf")) as server:
        place.learn(server, MARKER)
        say(server, "secret", MARKER)
        assert server.metric("kvik_drafted_tokens_total") > 0, "it drafted nothing"
        settle(server)
        delete(server, "/v1/conversations/secret")
        check_gone(place, server)
    assert place.files_with(MARKER) == []


def test_what_others_share_stays(place):
    with place.start() as server:
        place.learn(server, MARKER)
        say(server, "one", MARKER, SYSTEM)
        say(server, "two", "What lies in the harbour?", SYSTEM)
        fork = server.post("/v1/conversations", {"name": "fork", "from": "one"})
        assert fork.status == 200
        say(server, "fork", "And who counts them?")
        delete(server, "/v1/conversations/two")
        assert cached(say(server, None, "What lies in the harbour?", SYSTEM)) > 100, "the system prompt is another's too"
        delete(server, "/v1/conversations/one")
        assert cached(say(server, "fork", "Thank you.")) > 150, "the fork has all that it began with"
        assert place.files_with(MARKER), "it is the fork's"
        delete(server, "/v1/conversations/fork")
        check_gone(place, server)
        assert cached(say(server, None, "Where are the nets?", SYSTEM)) > 100


@pytest.mark.parametrize("after", [0.0, 0.002, 0.01, 0.05])
def test_a_kill_in_the_middle_of_a_deletion_leaves_nothing_for_long(place, after):
    import threading
    with place.start() as server:
        place.learn(server, MARKER)
        say(server, "secret", MARKER, SYSTEM)
        settle(server)
        asked = threading.Thread(target=lambda: quietly(server))
        asked.start()
        time.sleep(after)
        server.kill()
        asked.join()
    with place.start() as server:
        # Either it was not begun, and it is there as it was, or it is done without being asked again.
        if server.get("/v1/conversations/secret").status == 200:
            delete(server, "/v1/conversations/secret")
        deadline = time.monotonic() + 30
        while place.files_with(MARKER):
            assert time.monotonic() < deadline, place.files_with(MARKER)
            time.sleep(0.2)
        check_gone(place, server)


def quietly(server):
    try:
        server.request("DELETE", "/v1/conversations/secret", None, {})
    except OSError:
        pass
    except Exception:  # the connection broke in the middle of the answer
        pass


def test_what_a_killed_turn_has_computed_goes_with_its_conversation(place):
    with place.start() as server:
        place.learn(server, MARKER)
        say(server, "secret", "Good morning.", SYSTEM)
        body = {"messages": [{"role": "user", "content": MARKER}], "max_tokens": 1500, "ignore_eos": True, "stream": True,
                "kvik": {"conversation": "secret"}}
        connection, response = server.open_stream("/v1/chat/completions", body)
        response.readline()
        settle(server)
        server.kill()
        connection.close()
    assert place.files_with(MARKER), "the turn was never written, its blocks were"
    with place.start() as server:
        delete(server, "/v1/conversations/secret")
        check_gone(place, server)


def test_a_first_turn_that_its_client_left_keeps_nothing_of_a_later_one(place, tmp_path):
    stall = tmp_path / "stall"
    with place.start(KVIK_TEST_STALL=str(stall)) as server:
        place.learn(server, MARKER)
        body = {"messages": [{"role": "user", "content": MARKER}], "max_tokens": 1500, "ignore_eos": True, "stream": True,
                "kvik": {"conversation": "secret"}}

        def begin():
            # An answer that came to its end is a turn of it.
            delete(server, "/v1/conversations/secret")
            return server.begin_stream("/v1/chat/completions", body)

        with server.stalled(stall, begin) as (connection, response):
            response.close()
            connection.close()
        deadline = time.monotonic() + 20
        while server.metric("kvik_requests_running") > 0 or any(place.state.glob("computed/*/*")):
            assert time.monotonic() < deadline, list(place.state.glob("computed/*/*"))
            time.sleep(0.02)
        assert server.get("/v1/conversations/secret").status == 404
        say(server, "secret", MARKER)
        settle(server)
        assert place.files_with(MARKER)
        delete(server, "/v1/conversations/secret")
        check_gone(place, server)


def test_a_deleted_response_and_a_deleted_prompt_are_nowhere(place):
    with place.start() as server:
        place.learn(server, MARKER)
        answer = server.post("/v1/responses", {"input": MARKER, "max_output_tokens": 8, "store": True}).json
        settle(server)
        assert place.files_with(MARKER)
        delete(server, f"/v1/responses/{answer['id']}")
        check_gone(place, server)
        kept = server.request("PUT", "/v1/prompts/secret", json.dumps({"prompt": MARKER * 3}).encode(),
                              {"Content-Type": "application/json"})
        assert kept.status == 200, kept.text
        settle(server)
        assert place.files_with(MARKER)
        delete(server, "/v1/prompts/secret")
        check_gone(place, server)


def test_summaries_go_whatever_the_context_is_by_then(place):
    with place.start("--memory-recent", "128", "--memory-summary", "96", "--memory-trigger", "96") as server:
        place.learn(server, MARKER)
        for turn in range(8):
            say(server, "secret", f"{turn}: {MARKER} Tell me more about all of this, and about the boats.")
        settle(server)
    with Server("--cache-ram", "32MiB", "--context", "256", "--threads", "2",
                env={"KVIK_STATE_DIR": str(place.state), "KVIK_CACHE_DISK": str(place.cache)}) as server:
        delete(server, "/v1/conversations/secret")
    assert place.files_with(MARKER) == []
    with place.start() as server:
        check_gone(place, server)


def test_a_deletion_does_not_wait_for_a_model_that_is_loaded_and_goes_on_behind_it(place, tmp_path):
    """A model that cannot be loaded for long keeps back its part, and the answer says so."""
    from test_shelf import start as shelf
    with shelf(tmp_path, "--shelf-ram", "1GiB", env={"KVIK_STATE_DIR": str(place.state)}) as server:
        place.learn(server, MARKER)
        say(server, "secret", MARKER, SYSTEM, model="small")
        answer = server.post("/v1/shelf/unload", {"model": "small"})
        assert answer.status == 200, answer.text
        began = time.monotonic()
        answer = server.request("DELETE", "/v1/conversations/secret", None, {})
        assert answer.status == 200 and time.monotonic() - began < 10, answer.text
        delete(server, "/v1/conversations/secret")
        # Its blocks are erased though the model is not in memory.
        place.cache = tmp_path / "kv"
        assert place.files_with(MARKER) == []
        assert "umbrellas" not in shown(server)


def test_a_kept_conversation_keeps_its_model(tmp_path):
    from test_shelf import start as shelf
    with shelf(tmp_path, "--shelf-ram", "1GiB") as server:
        assert say(server, "talk", "Hello.", model="wide")["model"] == "wide"
        assert say(server, None, "Hello.", model="small")["model"] == "small"
        assert say(server, "talk", "And again.", model="")["model"] == "wide"
        body = {"messages": [{"role": "user", "content": "Once more."}], "max_tokens": 4, "kvik": {"conversation": "talk"}}
        assert server.post("/v1/chat/completions", body).json["model"] == "wide"
        assert server.get("/v1/conversations/talk").json["model"] == "wide"
        assert say(server, "talk", "Now you.", model="small")["model"] == "small"
        assert server.post("/v1/chat/completions", body).json["model"] == "small"


def test_a_conversation_that_nodes_shared_is_nowhere(place, tmp_path, key):  # noqa: F811
    fleet = fleet_flags(f"file://{place.store}", key) + ["--cache-remote-write", "all"]
    with place.start(*fleet) as one:
        other = Place(tmp_path / "other")
        other.store = place.store
        with other.start(*fleet) as two:
            for node in (place, other):
                node.learn(one, MARKER)
            for node in (one, two):
                wait_until(lambda node=node: is_up(node))
            say(one, "secret", MARKER, SYSTEM)
            say(two, "secret", "And who counts them?")
            settle(one), settle(two)
            for node in (one, two):
                wait_until(lambda node=node: node.metric("kvik_remote_writes_pending") == 0)
            # Nobody has asked for anything else.
            runs = wait_until(place.runs)
            delete(two, "/v1/conversations/secret")
            check_gone(other, two)
            assert one.get("/v1/conversations/secret").status == 404
            deadline = time.monotonic() + 30
            while place.files_with(MARKER) or runs & place.runs():
                one.get("/v1/conversations")
                assert time.monotonic() < deadline, f"the node that heard of it: {len(runs & place.runs())} runs are left"
                time.sleep(0.3)
            check_gone(place, one)


@pytest.mark.parametrize("turns", [1, 2])
def test_a_node_that_leaves_writes_nothing_back_of_what_another_has_deleted(place, tmp_path, key, turns):  # noqa: F811
    """Nobody tells it of the deletion, and it has the conversation in memory, used once or twice."""
    fleet = fleet_flags(f"file://{place.store}", key)
    other, third = Place(tmp_path / "other"), Place(tmp_path / "third")
    with other.start(*fleet) as two:
        with place.start(*fleet) as one:
            for node in (one, two):
                wait_until(lambda node=node: is_up(node))
            say(one, "secret", MARKER, SYSTEM)
            if turns > 1:
                say(one, "secret", "And who counts them?")
            say(two, "secret", "Thank you.")
            for node in (one, two):
                wait_until(lambda node=node: node.metric("kvik_remote_writes_pending") == 0)
            delete(two, "/v1/conversations/secret")
    with third.start(*fleet) as three:
        wait_until(lambda: is_up(three))
        cache = report(say(three, None, MARKER, SYSTEM))
        assert cache["by_tier"].get("remote", 0) == 0, cache
        assert cache["cached_tokens"] < 16, "nor was it fetched at the start"


def test_a_cleared_cache_gives_its_memory_and_disk_back(place):
    import subprocess
    from server import BINARY

    def taken():
        # A cleared disk was written to all the same: that count stays.
        files = [path for path in place.cache.rglob("*") if path.is_file() and path.suffix != ".written"]
        return sum(path.stat().st_blocks * 512 for path in files)

    def fill(server):
        for number in range(12):
            say(server, None, f"{number} " + "Once upon a time there was a folder full of letters. " * 20)
        settle(server)

    with place.start() as server:
        fill(server)
        disk, memory = taken(), server.resident_bytes()
        assert disk > 4 << 20
        url = f"http://127.0.0.1:{server.port}"
        subprocess.run([BINARY, "cache", "--url", url, "clear"], check=True, timeout=60)
        assert taken() < disk / 8, (disk, taken())
        assert server.resident_bytes() < memory - (4 << 20), (memory, server.resident_bytes())
        fill(server)
    assert taken() > 4 << 20
    nowhere = ["--url", "http://127.0.0.1:1"]
    done = subprocess.run([BINARY, "cache", *nowhere, "clear", "--cache-disk", str(place.cache)], capture_output=True, text=True)
    assert done.returncode == 0 and "no server answers" in done.stdout, done
    assert taken() == 0


def test_a_full_disk_refuses_turns_until_there_is_room_again(place):
    with place.start() as server:
        say(server, "talk", "Hello.")
        everything = resource.RLIM_INFINITY
        # As on a full disk, no file grows.
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, everything))
        body = {"messages": [{"role": "user", "content": "Hello again."}], "max_tokens": 4, "kvik": {"conversation": "talk"}}
        refused = [server.post("/v1/chat/completions", body) for _ in range(12)]
        assert {answer.status for answer in refused} <= {200, 503}
        full = [answer for answer in refused if answer.status == 503]
        assert full and all(int(answer.headers["retry-after"]) > 0 for answer in full)
        assert server.get("/health").status == 200 and say(server, None, "Hello.")
        assert "WARN" in server.logged() and "cannot be read or written" in server.logged()
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (everything, everything))
        deadline = time.monotonic() + 20
        while server.post("/v1/chat/completions", body).status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        before = server.get("/v1/conversations/talk").json["messages"]
        server.kill()
    with place.start() as server:
        assert server.get("/v1/conversations/talk").json["messages"] == before


def test_files_with_a_key_or_tokens_are_their_owners_alone(place, tmp_path):
    key_file = write_key(tmp_path / "fleet.key")
    key_file.chmod(0o644)
    with place.start(*fleet_flags(f"file://{place.store}", key_file)) as server:
        assert "fleet.key is open to other users" in server.logged()
        say(server, "secret", MARKER)
    for path in pathlib.Path(place.state).rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
