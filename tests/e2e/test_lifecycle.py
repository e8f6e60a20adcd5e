"""Start, cancellation, keys and stop."""
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import openai
import pytest
from server import BINARY, TINY, Server, sse

LONG = {"prompt": "Once upon a time", "n_predict": 1500, "temperature": 0, "ignore_eos": True, "stream": True}


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def running(server):
    return server.metrics()["kvik_requests_running"]


@pytest.fixture
def stall(tmp_path):
    return tmp_path / "stall"


def stalling(stall):
    """A server that stands still while the file is there."""
    return Server("--threads", "2", env={"KVIK_TEST_STALL": str(stall)})


def test_a_closed_connection_ends_its_work(stall):
    with stalling(stall) as server:
        with server.stalled(stall, lambda: server.begin_stream("/completion", LONG)) as (connection, response):
            connection.sock.close()
            response.close()
            connection.close()
        wait_for(lambda: running(server) == 0)
        # Others, if there were any, were.
        assert server.metric("kvik_generated_tokens_total") % LONG["n_predict"] != 0, "it was not computed to its end"
        assert server.post("/completion", {"prompt": "Hello", "n_predict": 2}).status == 200


def test_sigterm_ends_streams_whole(stall):
    """A running stream ends in order: its last event and `[DONE]` arrive, nothing is cut in half."""
    with stalling(stall) as server:
        body = {"messages": [{"role": "user", "content": "Tell me a story."}], "stream": True, "max_tokens": 400,
                "temperature": 0, "ignore_eos": True}
        whole = server.post("/v1/chat/completions", {**body, "stream": False}).json["choices"][0]

        def begin():
            connection, response = server.open_stream("/v1/chat/completions", body)
            events = sse(response)
            return connection, events, [next(events) for _ in range(3)]

        with server.stalled(stall, begin) as (connection, events, first):
            stop(server)
        rest = list(events)
        connection.close()
        assert rest[-1] == "[DONE]"
        chunks = [json.loads(event) for event in first + rest[:-1]]
        text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
        reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
        assert (text, reasons) == (whole["message"]["content"], [whole["finish_reason"]])
        assert server.process.wait(20) == 0, server.logged()


def stop(server):
    """Has it stop, and waits until it does."""
    server.terminate()
    wait_for(lambda: "stopping: " in server.logged())


def test_new_requests_are_refused_while_stopping(stall):
    with stalling(stall) as server, concurrent.futures.ThreadPoolExecutor(1) as other:
        with server.stalled(stall, lambda: server.begin_stream("/completion", LONG)) as (connection, response):
            stop(server)
            refused = other.submit(ask_until_refused, server)
        rest = list(sse(response))
        connection.close()
        assert json.loads(rest[-1] if rest[-1] != "[DONE]" else rest[-2])["stop"] is True
        assert refused.result() in (503, "connection refused")


def ask_until_refused(server):
    """The signal takes a moment to arrive; what is accepted before it is answered."""
    while True:
        try:
            status = server.post("/completion", {"prompt": "Hello", "n_predict": 2}).status
        except OSError:
            return "connection refused"
        if status != 200:
            return status


def test_a_node_that_leaves_says_so_before_it_refuses_anybody():
    with Server("--threads", "1", "--drain", "4") as server:
        assert (server.get("/ready").status, server.get("/health").status) == (200, 200)
        server.terminate()
        wait_for(lambda: server.get("/ready").status != 200, 3)
        assert server.get("/health").status == 503
        for _ in range(2):
            assert server.post("/completion", {"prompt": "Hello", "n_predict": 2}).status == 200
        assert ask_until_refused(server) in (503, "connection refused")
        assert server.process.wait(20) == 0, server.logged()


def test_keys_are_asked_for():
    with Server("--api-key", "sesame") as server:
        assert server.get("/health").status == 200, "health needs no key"
        for key in ("wrong", ""):
            stranger = openai.OpenAI(base_url=server.base_url, api_key=key or "x", max_retries=0)
            with pytest.raises(openai.AuthenticationError):
                stranger.models.list()
        refused = server.post("/completion", {"prompt": "Hello", "n_predict": 2})
        assert refused.status == 401 and refused.error["code"] == "invalid_api_key"
        friend = openai.OpenAI(base_url=server.base_url, api_key="sesame", max_retries=0)
        assert friend.models.list().data


def test_the_first_lines_say_where_and_what_to_paste():
    with Server() as server:
        logged = server.logged()
        assert f"http://127.0.0.1:{server.port}" in logged
        assert "curl" in logged


def test_the_time_that_a_start_took_was_measured():
    with Server() as server:
        took = re.search(r"loaded in ([0-9.]+) (ms|s)\b", server.logged())
        assert took and float(took[1]) > 0, server.logged()


def test_a_plan_says_what_fits_this_machine_where_no_memory_is_named():
    planned = subprocess.run([BINARY, "plan"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert re.search(r"fits [0-9.]+ [GMT]iB", planned) and "fits -" not in planned, planned


def test_the_embedded_model_says_that_it_is_a_demonstration(tmp_path):
    home = {name: str(tmp_path) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "KVIK_MODELS_DIR")}
    env = {**os.environ, **home, "KVIK_CACHE_DISK": "off"}
    run = lambda *words: subprocess.run(
        [BINARY, *words], capture_output=True, text=True, timeout=120, env=env, stdin=subprocess.DEVNULL
    )
    told = "is a demonstration that knows little; `kvik pull qwen3:0.6b`"
    alone = run("run", "hi")
    assert alone.returncode == 0 and told in alone.stderr and "\x1b" not in alone.stderr, alone.stderr
    assert run("pull", TINY / "kvik-tiny-q8_0.gguf", "--name", "smol").returncode == 0
    beside = run("run", "hi there, you")
    assert beside.returncode == 0 and told not in beside.stderr, "the model that was pulled answers"
    asked = run("run", "embedded", "hi there, you")
    assert asked.returncode == 0 and told in asked.stderr, asked.stderr
    assert asked.stdout == beside.stdout, "it is the same model"


def test_sigterm_ends_answers_with_many_log_probabilities_within_the_grace():
    with Server("--threads", "2", "--grace", "3", "--parallel", "4") as server:
        body = {"prompt": "Hello", "n_predict": 128, "n_probs": 2000, "ignore_eos": True, "stream": True}
        unread = [server.open_stream("/completion", body) for _ in range(6)]
        server.terminate()
        assert server.process.wait(15) == 0, server.logged()
        for connection, _ in unread:
            connection.close()


def test_an_unreadable_model_is_a_clear_error(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 16)
    server = Server("-m", bad)
    assert server.process.wait(30) != 0
    assert "bad.gguf" in server.logged() and "panicked" not in server.logged()


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_first_process_of_a_container_ends_while_its_model_loads(tmp_path, number, status):
    """To such a process Linux delivers only signals that it takes."""
    wrap = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    try:
        made = subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        made = False
    if not made:
        pytest.skip("no container can be made here")
    model = tmp_path / "never.gguf"
    # Whoever opens it waits for a writer.
    os.mkfifo(model)
    server = Server("-m", model, wrap=wrap)
    try:
        wait_for(lambda: "until the model is loaded" in server.logged())
        outer = server.process.pid
        [first] = pathlib.Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        os.kill(int(first), number)
        assert server.process.wait(20) == status, server.logged()
    finally:
        server.kill()
