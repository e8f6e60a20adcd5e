"""Models by the names that people type: short names, a default, a search, a server that is told to end."""
import contextlib
import json
import os
import subprocess
import sys
import pathlib
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from hub import Hub  # noqa: E402
from server import BINARY, TINY, Server, sse  # noqa: E402

FILE = (TINY / "kvik-tiny-q8_0.gguf").read_bytes()
QWEN = "unsloth/Qwen3-0.6B-GGUF"
REPOSITORIES = {
    QWEN: {"Qwen3-0.6B-Q8_0.gguf": FILE, "Qwen3-0.6B-Q4_K_M.gguf": FILE},
    "someone/Qwen3-odd-GGUF": {"m.gguf": FILE},
}
FAST = ("--max-tokens", "8", "--cache-ram", "64MiB", "--temperature", "0")


class User:
    """A user with a home directory and a hub."""

    def __init__(self, home, url):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("KVIK_", "HF_"))}
        places = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")
        self.env = clean | {name: str(home) for name in places}
        self.env |= {"HF_ENDPOINT": url, "KVIK_CACHE_DISK": "off", "KVIK_MODELS_DIR": str(home / "models")}

    def run(self, *words, stdin=None, **env):
        given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        return subprocess.run(
            [BINARY, *words], capture_output=True, text=True, timeout=120, env=self.env | env, **given
        )

    def prints(self, *words, **more):
        done = self.run(*words, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *words, **more):
        done = self.run(*words, **more)
        assert done.returncode != 0 and not done.stdout, done.stdout
        return done.stderr


@pytest.fixture
def user(tmp_path):
    with Hub(REPOSITORIES) as hub:
        yield User(tmp_path, hub.url)


def test_a_short_name_is_fetched_once_and_asked(user):
    first = user.prints("run", "qwen3:0.6b", "Who are you?", *FAST)
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:1"}
    assert user.prints("run", "Qwen3:0.6B", "Who", "are", "you?", *FAST, **nowhere) == first
    assert user.prints("run", "-m", "qwen3:0.6b", "Who are you?", *FAST, **nowhere) == first
    assert user.prints("run", "Who are you?", *FAST, **nowhere) == first, "the last one is the default"
    listed = user.prints("list")
    assert "qwen3:0.6b" in listed and f"hf:{QWEN}" in listed
    assert "Q8_0.gguf" in user.prints("show", "qwen3:0.6b"), "the best one that fits"
    pulled = user.prints("pull", "qwen3:0.6b-q4_k_m")
    assert pulled.startswith("qwen3:0.6b-q4_k_m  ") and "Q4_K_M.gguf" in pulled
    with Server("qwen3:0.6b", "--cache-ram", "64MiB", env=user.env | nowhere) as server:
        assert server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 1}).status == 200
        assert "qwen3:0.6b" in server.logged()
        model = server.get("/v1/shelf").json["models"][0]
        assert (model["name"], model["aliases"]) == ("qwen3:0.6b", ["kvik-tiny"]), "as it was pulled, and as its file says"


def test_a_word_that_looks_like_a_name_is_no_prompt(user):
    user.prints("pull", TINY / "kvik-tiny-q8_0.gguf", "--name", "smol")
    for word in ("smoll:1b", "a/smol", "gone.gguf", "hf:nobody/nothing"):
        error = user.refused("run", word, "hi")
        assert word.removeprefix("hf:") in error and "panicked" not in error, error
    assert "did you mean `smol`" in user.refused("run", "smoll:1b")
    assert "qwen3:0.6b" in user.refused("chat", "qwen3:0.7b")
    assert "`smol` is the name of a model" in user.refused("run", "smol")
    assert "two models" in user.refused("chat", "smol", "-m", "embedded")
    alone = user.run("run", "smoll", *FAST)
    assert alone.returncode == 0 and "the model is called `smol`" in alone.stderr, alone.stderr


def test_what_is_piped_in_follows_the_prompt(user):
    user.prints("pull", TINY / "kvik-tiny-q8_0.gguf", "--name", "smol")
    whole = user.prints("run", "smol", "Say this:\n\nSun", *FAST)
    assert user.prints("run", "smol", "Say this:", *FAST, stdin="Sun") == whole
    assert "the prompt is empty" in user.refused("run", "smol", "")
    image = pathlib.Path(user.env["HOME"]) / "dog.png"
    image.write_bytes(b"")
    assert "text alone" in user.refused("run", "smol", f"What is on {image}?")


def test_a_default_is_shown_and_chosen(user):
    assert user.prints("default").startswith("embedded  (a demonstration")
    for name in ("one", "two"):
        user.prints("pull", TINY / "kvik-tiny-q8_0.gguf", "--name", name)
    assert user.prints("default", "one") == "one  (chosen)\n"
    assert user.prints("default") == "one  (chosen)\n"
    assert user.prints("default", KVIK_MODEL="x").startswith("x  (KVIK_MODEL")
    assert "there is no model at three" in user.refused("default", "three")
    assert "(pulled last" in user.prints("default", "--last")
    user.prints("rm", "two", "one")
    assert user.prints("default").startswith("embedded")


def test_a_search_lists_short_names_and_the_hub(user):
    found = user.prints("search", "qwen3")
    assert f"hf:{QWEN}" in found and "qwen3:0.6b " in found and "hf:someone/Qwen3-odd-GGUF" in found, found
    assert "phi4-mini" in user.prints("search") and "on the hub" not in user.prints("search")
    assert "nothing with GGUF files" in user.prints("search", "no-such-word")
    offline = user.run("search", "qwen3", HF_ENDPOINT="http://127.0.0.1:1")
    assert offline.returncode == 0 and "qwen3:0.6b" in offline.stdout and "was not searched" in offline.stderr
    assert "cannot be reached" in user.refused("search", "no-such-word", HF_ENDPOINT="http://127.0.0.1:1")


def test_a_server_is_told_to_end(user):
    runtime = {"XDG_RUNTIME_DIR": user.env["XDG_RUNTIME_DIR"]}
    with Server("--cache-ram", "64MiB", env=runtime) as server:
        port = str(server.port)
        stopped = user.prints("stop", "--port", port)
        assert stopped == f"stopped http://127.0.0.1:{port}, process {server.process.pid}\n"
        assert server.process.wait(10) == 0
    assert f"port {port}" in user.refused("stop", "--url", f"http://127.0.0.1:{port}")
    assert "kvik ps --unload smol" in user.refused("stop", "smol")
    assert "another machine" in user.refused("stop", "--url", "http://192.0.2.1:8080")


def test_the_file_of_a_killed_server_stops_nobody(user):
    runtime = {"XDG_RUNTIME_DIR": user.env["XDG_RUNTIME_DIR"]}
    with Server("--cache-ram", "64MiB", env=runtime) as server:
        server.kill()
        written = next(pathlib.Path(runtime["XDG_RUNTIME_DIR"]).glob("kvik/serve-*.pid"))
        written.write_text(str(os.getpid()))
        assert "no `kvik serve`" in user.refused("stop", "--port", str(server.port))


def refuses_connections(server):
    try:
        server.get("/health")
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def test_a_server_that_ends_is_not_cut_off_and_the_next_on_its_port_is_found(user, tmp_path):
    runtime = {"XDG_RUNTIME_DIR": user.env["XDG_RUNTIME_DIR"]}
    stall = tmp_path / "stall"
    asked = {"prompt": "Once upon a time", "n_predict": 600, "temperature": 0, "ignore_eos": True, "stream": True}
    deadline = time.monotonic() + 120
    with contextlib.ExitStack() as servers:
        stalling = runtime | {"KVIK_TEST_STALL": str(stall)}
        before = servers.enter_context(Server("--cache-ram", "64MiB", "--grace", "100", env=stalling))
        stop = ("stop", "--port", str(before.port))
        with before.stalled(stall, lambda: before.begin_stream("/completion", asked)) as (connection, response):
            before.terminate()
            while not refuses_connections(before):
                assert time.monotonic() < deadline, "it goes on listening"
            after = servers.enter_context(Server("--cache-ram", "64MiB", env=runtime, port=before.port))
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            stopping = subprocess.Popen([BINARY, *stop], env=user.env, **pipes)
            said = stopping.stderr.readline()
            assert f"process {before.process.pid} lets its running answers finish" in said, said
        events = [event for event in sse(response) if event != "[DONE]"]
        assert json.loads(events[-1])["stop"] is True, "its answer comes to its end"
        connection.close()
        assert before.process.wait(60) == 0, before.logged()
        told, _ = stopping.communicate(timeout=60)
        assert stopping.returncode == 0 and told.startswith("stopped "), told
        # It may have looked for the next one before that was written down.
        while after.process.poll() is None:
            assert time.monotonic() < deadline, "it is never found"
            user.run(*stop)
        assert after.process.wait(10) == 0
