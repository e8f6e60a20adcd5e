"""`kvik run` and `kvik chat` beside a server: they are its clients, and load nothing."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server import BINARY, TINY, Server  # noqa: E402
from terminals import LONG, SECONDS, STATUS, Keyboard, Terminal  # noqa: E402

# The embedded model under another name, which no server here has.
OTHER = TINY / "kvik-tiny-q8_0.gguf"
SYSTEM = "You answer questions about a shop that sells bicycles, and about nothing else. " * 8
SHORT = ("--max-tokens", "8")


def kvik(server, *words, stdin=None, **env):
    """What a command of the server's user ends with."""
    given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    env = server.client_environment() | env
    return subprocess.run([BINARY, *map(str, words)], env=env, capture_output=True, text=True, timeout=120, **given)


def printed(server, *words, **more):
    done = kvik(server, *words, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(server, *words, **more):
    done = kvik(server, *words, **more)
    assert done.returncode == 1 and not done.stdout, (done.returncode, done.stdout)
    return done.stderr


def answered(server):
    """How many requests the server has answered."""
    return server.get("/v1/stats").json["requests"]["answered"]


def status(text):
    """Tokens of the prompt, and those that were reused."""
    found = re.search(r"([\d,]+) prompt tokens: ([\d,]+) reused", text)
    return tuple(int(number.replace(",", "")) for number in found.groups())


def ask(server, question):
    body = {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}], "max_tokens": 8}
    usage = server.post("/v1/chat/completions", body).json["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def is_idle(server):
    return server.get("/v1/stats").json["queue"]["running"] == 0


def test_a_prompt_is_reused_whoever_asked_first(server):
    run = lambda question: status(kvik(server, "run", "--system", SYSTEM, *SHORT, question).stderr)
    # The last token of a prompt is always computed: the answer begins with what comes of it.
    tokens, _ = ask(server, "How much is the red one?")
    assert run("How much is the red one?") == (tokens, tokens - 1), "run after the API"
    tokens, cached = run("Do you have a blue one?")
    assert cached >= tokens // 2, "the beginning is known"
    assert ask(server, "Do you have a blue one?") == (tokens, tokens - 1), "the API after run"


@pytest.mark.parametrize("words", [("Who are you?",), ("--raw", "Once upon a time"), ("--system", "Say yes.", "Is it?")])
def test_an_answer_is_the_one_of_a_model_that_is_loaded_here(server, words):
    before = answered(server)
    remote = kvik(server, "run", "--max-tokens", "24", *words)
    assert remote.returncode == 0 and answered(server) == before + 1, remote.stderr
    local = kvik(server, "run", "--local", "--max-tokens", "24", *words)
    assert local.stdout == remote.stdout and answered(server) == before + 1, local.stderr
    # A driver for GPUs may complain where there is no screen.
    told = lambda done: re.sub(r"error: XDG_RUNTIME_DIR is .*\n|\d+ reused.*", "", done.stderr)
    assert told(remote) == told(local)


def test_flags_of_the_answer_reach_the_server(server):
    hot = ("run", "--temperature", "2", "--min-p", "0", "--top-k", "0", "--top-p", "1", "--max-tokens", "16")
    said = {seed: printed(server, *hot, "--seed", seed, "Tell me a story.") for seed in (6, 7)}
    assert printed(server, *hot, "--seed", "6", "Tell me a story.") == said[6] != said[7]
    verbose = kvik(server, "run", "--verbose", "--top-k", "3", *SHORT, "Hi").stderr
    assert "temperature 0 (family kvik-tiny), top_k 3 (flag)" in verbose, verbose
    assert "the prompt is empty" in refused(server, "run", "")
    assert printed(server, "run", "Say this:", *SHORT, stdin="Sun") == printed(server, "run", "Say this:\n\nSun", *SHORT)


def test_an_open_terminal_has_no_model_in_memory(server):
    env = server.client_environment()
    with Terminal("--max-tokens", "24", env=env) as remote:
        assert STATUS in remote.type("Who are you?")
        with Terminal("--local", "--cache-ram", "64MiB", "--max-tokens", "24", env=env) as local:
            assert STATUS in local.type("Who are you?")
            # The weights and the buffers of a step; debug builds and their symbols are in both.
            assert remote.peak_bytes() + (4 << 20) < local.peak_bytes(), (remote.peak_bytes(), local.peak_bytes())


def test_conversations_of_terminals_and_of_the_page_are_one_list(server):
    env = server.client_environment()
    with Terminal("--max-tokens", "24", env=env) as terminal:
        terminal.type("Please remember that my dog is called Bolt.")
        terminal.type("/save of a terminal", end="kept as: of a terminal")
    listed = server.get("/v1/conversations?limit=1").json["data"][0]
    assert (listed["name"], listed["messages"]) == ("of a terminal", 2), "as the page lists it"
    # As the page begins a conversation, and asks in it.
    begun = server.post("/v1/conversations", {"name": "of the page"}).json["id"]
    turn = {"messages": [{"role": "user", "content": "My cat is called Luna."}], "max_tokens": 24, "kvik": {"conversation": begun}}
    assert server.post("/v1/chat/completions", turn).status == 200
    with Terminal("--max-tokens", "24", "--continue", env=env) as terminal:
        assert "of the page: 2 messages" in terminal.greeting and "> My cat is called Luna." in terminal.greeting
        shown = terminal.type("/list", end="of a terminal")
        assert "* of the page  (2 messages" in shown, shown
        assert "Luna" in terminal.type("What is my cat called?")
        terminal.type("/load of a terminal", end="> Please remember")
        assert "Bolt" in terminal.type("What is my dog called?")
        terminal.type("/delete of a terminal", end="deleted")
    assert len(server.get(f"/v1/conversations/{begun}").json["messages"]) == 4
    assert server.get("/v1/conversations/of%20a%20terminal").status == 404
    assert server.request("DELETE", f"/v1/conversations/{begun}", None, {}).status == 200


def wait_until_idle(server):
    """Waits until nothing runs."""
    deadline = time.monotonic() + SECONDS
    while not is_idle(server):
        assert time.monotonic() < deadline, "the server computes for nobody"
        time.sleep(0.02)


def generated(server):
    return server.get("/v1/stats").json["tokens"]["generated"]


def generated_at_rest(server):
    """Tokens generated so far: those of an answer that was stopped are counted a moment after nothing runs."""
    while True:
        wait_until_idle(server)
        before = generated(server)
        time.sleep(0.3)
        if is_idle(server) and generated(server) == before:
            return before


def test_ctrl_c_stops_what_the_server_computes(server):
    # An answer that goes on for nobody would be counted when it ends.
    before = answered(server)
    run = subprocess.Popen(
        [BINARY, "run", *LONG, "Tell me a story."], env=server.client_environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )
    assert run.stdout.read(1), "an answer has begun"
    run.send_signal(signal.SIGINT)
    assert run.wait(SECONDS) == 130
    run.stdout.close(), run.stderr.close()
    wait_until_idle(server)
    with Terminal(*LONG, env=server.client_environment()) as terminal:
        terminal.begin("Tell me a story.")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("stopped; the question is not part of the conversation")
        stopped_at = generated_at_rest(server)
        terminal.send("/set max_tokens 4")
        assert STATUS in terminal.type("Hello there!")
        assert generated(server) - stopped_at <= 4
    assert answered(server) == before + 1


def test_a_person_is_told_where_answers_come_from(server):
    with Keyboard("run", *SHORT, "Who are you?", env=server.client_environment()) as keys:
        keys.wait_for(f"kvik-tiny answers, of the kvik at http://127.0.0.1:{server.port}; --local loads it here")
        keys.wait_for(STATUS)
    with Keyboard("run", *SHORT, "-m", OTHER, "Who are you?", env=server.client_environment()) as keys:
        keys.wait_for(f"loaded here: the kvik at http://127.0.0.1:{server.port} has kvik-tiny")
        keys.wait_for(STATUS)
    with Keyboard("run", *SHORT, "--context", "512", "Who are you?", env=server.client_environment()) as keys:
        keys.wait_for("loaded here, for --context")
        keys.wait_for(STATUS)
    assert "answers, of" not in kvik(server, "run", *SHORT, "Who are you?").stderr, "scripts are told nothing"


def test_a_model_that_the_server_lacks_is_loaded_here(server):
    before = answered(server)
    assert printed(server, "run", *SHORT, "-m", OTHER, "Who are you?")
    assert printed(server, "run", *SHORT, "--context", "512", "Who are you?")
    assert answered(server) == before
    url = f"http://127.0.0.1:{server.port}"
    assert printed(server, "run", *SHORT, "--url", url, "embedded", "Who are you?", KVIK_STATE_DIR="/nowhere")
    assert "has no model" in refused(server, "run", "--url", url, "-m", OTHER, "Who are you?")
    assert "--context is for a model that is loaded here" in refused(server, "run", "--url", url, "--context", "512", "Hi")
    assert printed(server, "run", *SHORT, "--url", url, "-m", "kvik-tiny", "Who are you?", KVIK_STATE_DIR="/nowhere")
    assert printed(server, "run", *SHORT, "Who are you?", KVIK_URL=url, KVIK_STATE_DIR="/nowhere")
    assert printed(server, "run", *SHORT, "Who are you?", KVIK_PORT=str(server.port), KVIK_STATE_DIR="/nowhere")
    assert answered(server) == before + 4


def test_other_commands_find_the_server_too(server):
    assert "kvik-tiny" in printed(server, "ps")
    assert printed(server, "health") == "ok\n"
    assert "memory " in printed(server, "cache", "show")
    assert printed(server, "prompt", "ls")
    body = pathlib.Path(server.state.name) / "body.json"
    body.write_text(json.dumps({"prompt": "Once upon a time"}))
    assert "prompt tokens" in printed(server, "explain", body)
    assert printed(server, "ps", KVIK_URL=f"http://127.0.0.1:{server.port}", KVIK_STATE_DIR="/nowhere")


def test_a_server_that_is_named_and_does_not_answer_is_an_error(server):
    for words in (("run", "Hi"), ("chat",)):
        error = refused(server, *words, "--url", "http://127.0.0.1:1")
        assert "http://127.0.0.1:1 does not answer" in error and "--local" in error, error
    assert "does not answer" in refused(server, "run", "Hi", KVIK_URL="http://127.0.0.1:1")
    assert "http://127.0.0.1:1 does not answer" in refused(server, "run", "Hi", "--url", "127.0.0.1:1/v1")
    assert "is no address of a server" in refused(server, "run", "Hi", "--url", "ftp://127.0.0.1:1")
    # A port of the configuration is where a server would be; there need not be one.
    assert printed(server, "run", *SHORT, "Hi", KVIK_PORT="1")


KEY = {"KVIK_KEY": "sesame"}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A server of a shelf that wants a key; the shelf has one model when it starts."""
    models = {"KVIK_MODELS_DIR": str(tmp_path_factory.mktemp("models"))}
    pull = [BINARY, "pull", OTHER, "--name", "one"]
    subprocess.run(pull, env=os.environ | models, capture_output=True, timeout=60, check=True)
    flags = ("--shelf", "--shelf-ram", "256MiB", "--threads", "2", "--api-key", "sesame")
    with Server(*flags, env=models) as running:
        running.models = models
        yield running


def test_a_key_is_asked_for(shelf):
    error = refused(shelf, "run", "one", "Hi", **shelf.models)
    assert "--key or KVIK_KEY gives it" in error and "--local" in error, error
    assert "--key or KVIK_KEY" in refused(shelf, "chat", "one", **shelf.models, KVIK_KEY="wrong")
    for name in ("KVIK_KEY", "KVIK_API_KEY"):
        assert printed(shelf, "run", "one", "Hi", *SHORT, **shelf.models, **{name: "sesame"})
    assert printed(shelf, "run", "one", "Hi", "--local", *SHORT, **shelf.models)


def test_a_shelf_loads_the_model_that_is_asked_for(shelf):
    env = shelf.models | KEY
    loads = lambda: {
        model["name"]: model["loads"]
        for model in shelf.get("/v1/shelf", Authorization="Bearer sesame").json["models"]
    }
    # It is pulled while the server runs.
    printed(shelf, "pull", OTHER, "--name", "two", **env)
    assert printed(shelf, "run", "two", "Hi", *SHORT, **env) == printed(shelf, "run", "one", "Hi", *SHORT, **env)
    assert loads() == {"one": 1, "two": 1}
    with Terminal("one", "--max-tokens", "24", env=shelf.client_environment() | env) as terminal:
        terminal.type("My dog is called Bolt.")
        assert "* one\n  two\n" in terminal.type("/model", end="/model NAME goes on")
        terminal.type("/model two", end="two, context")
        assert "Bolt" in terminal.type("What is my dog called?")
        terminal.type("/stats", end="prompt tokens so far")
        terminal.type("/model three", end="has no model `three`")
    assert loads() == {"one": 1, "two": 1}
    table = printed(shelf, "bench", "--server", "-m", "two", "-p", "16", "-n", "4", "-r", "1", **env)
    assert "pp16" in table and "tg4" in table, table
    assert "--kv is for a model that is loaded here" in refused(shelf, "bench", "--server", "--kv", "q8", **env)


def test_speeds_are_of_what_a_server_computes(server):
    bench = lambda *words: printed(server, "bench", "--server", *words, "-r", "1")
    for run in ("first", "second"):
        rows = {row["prefix"]: row for row in map(json.loads, bench("--prefix", "64", "--jsonl").splitlines())}
        found = {prefix: sum(row["by_tier"].values()) for prefix, row in rows.items()}
        assert found["new"] < 16 and found["again"] >= 48 and found["before"] >= 48, (run, found)
    rows = json.loads(bench("--prefix", "64", "--json"))
    assert [row["prefix"] for row in rows] == ["new", "again", "before"], "one array"
    for tokens in (1, 4):
        before = generated_at_rest(server)
        row, = json.loads(bench("-p", "0", "-n", tokens, "--json"))
        assert row["n_gen"] == tokens and row["avg_ts"] > 0
        # The time of so many steps: the first token comes with the prompt. One repetition is not counted.
        assert generated_at_rest(server) - before == 2 * (tokens + 1)


def test_flags_that_a_measurement_would_drop_are_refused(server):
    for flag, value in (("--device", "cpu"), ("--gpu-layers", "1")):
        assert f"{flag} is for a model that is loaded here" in refused(server, "bench", "--server", flag, value)
    assert printed(server, "bench", "--server", "-p", "8", "-n", "0", "-r", "1", KVIK_DEVICE="cpu"), "a setting is no flag"
    for flag in ("-p", "-n"):
        done = kvik(server, "bench", "--server", "--prefix", "64", flag, "8")
        assert done.returncode == 2 and not done.stdout and "cannot be used with" in done.stderr, done


def test_a_server_may_end_at_any_time(shelf):
    run = subprocess.Popen(
        [BINARY, "run", "one", *LONG, "Tell me a story."], env=shelf.client_environment() | shelf.models | KEY,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )
    assert run.stdout.read(1), "an answer has begun"
    shelf.kill()
    _, error = run.communicate(timeout=SECONDS)
    assert run.returncode == 1 and b"was cut off" in error and b"--local" in error, error
    # Its record is still there, and names nobody.
    assert list(pathlib.Path(shelf.state.name).glob("run/serve-*.pid"))
    alone = kvik(shelf, "run", "one", "Hi", *SHORT, **shelf.models)
    assert alone.returncode == 0 and str(shelf.port) not in alone.stderr, alone.stderr
