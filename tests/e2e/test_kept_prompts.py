"""Kept prompts, which are computed ahead and survive a restart; and the routes that show the cache."""
import json
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server import BINARY, Server  # noqa: E402

JSON = {"Content-Type": "application/json"}
FOLDERS = ["Work", "Family", "Bills", "Travel", "News"]


def system(folders):
    """The system prompt of an app that sorts notifications: 184 tokens or so of this model's."""
    names = ", ".join(folders)
    return (
        "You sort the notifications of a phone into folders. Answer with the name of one folder and nothing else. "
        f"The folders are: {names}. Work is for colleagues and meetings, Family for people at home, Bills for money "
        "that is due, Travel for trips and tickets. When nothing fits, answer None. Be quick and never explain. "
    ) * 2


def start(folder, *flags):
    env = {"KVIK_CACHE_DISK": str(folder / "kv"), "KVIK_STATE_DIR": str(folder / "state")}
    return Server("--cache-ram", "64MiB", *flags, env=env)


def classify(server, folders, text):
    messages = [{"role": "system", "content": system(folders)}, {"role": "user", "content": text}]
    body = dict(messages=messages, max_tokens=4, temperature=0)
    answer = server.post("/v1/chat/completions", body).json
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def keep(server, folders):
    body = {"messages": [{"role": "system", "content": system(folders)}]}
    answer = server.request("PUT", "/v1/prompts/notify", json.dumps(body).encode(), JSON)
    assert answer.status == 200, answer.text
    return answer.json


def test_a_system_prompt_is_there_before_the_first_request_after_a_restart(tmp_path):
    with start(tmp_path) as server:
        first = keep(server, FOLDERS)
        assert first["built"] and first["computed_tokens"] == first["tokens"] >= 150
        assert not keep(server, FOLDERS)["built"], "nothing has changed"
        said, cached = classify(server, FOLDERS, "Your electricity bill is due on Friday.")
        assert cached >= first["tokens"], "the first classification reuses all of it"

        changed = keep(server, FOLDERS + ["Sport"])
        assert changed["built"] and changed["sha256"] != first["sha256"]
        assert not keep(server, FOLDERS + ["Sport"])["built"], "rebuilt once"
        shown = server.get("/v1/prompts/notify").json
        assert shown["cached"] and shown["builds"] == 2 and shown["tokens"] == changed["tokens"]
        settle(server)
        server.kill()

    with start(tmp_path) as server:
        said_then, cached = classify(server, FOLDERS + ["Sport"], "The match begins at eight.")
        assert cached >= changed["tokens"], "the first classification after the restart"
        uncached = server.post(
            "/v1/chat/completions",
            dict(
                messages=[
                    {"role": "system", "content": system(FOLDERS + ["Sport"])},
                    {"role": "user", "content": "The match begins at eight."},
                ],
                max_tokens=4,
                temperature=0,
                cache_prompt=False,
            ),
        ).json["choices"][0]["message"]["content"]
        assert said_then == uncached
        assert server.request("DELETE", "/v1/prompts/notify", None, {}).status == 200
        assert server.get("/v1/prompts/notify").status == 404


def settle(server):
    import time

    deadline = time.monotonic() + 20
    while server.metric("kvik_disk_writes_pending") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_prompt_of_another_shape_is_refused_with_its_place(tmp_path):
    with start(tmp_path) as server:
        for body, at in [({}, "prompt"), ({"messages": 5}, "messages"), ({"prompt": ["a", "b"]}, "prompt")]:
            answer = server.request("PUT", "/v1/prompts/x", json.dumps(body).encode(), JSON)
            assert answer.status == 400 and answer.error["param"] == at, answer.text
        assert server.get("/v1/prompts/unknown").error["code"] == "prompt_not_found"


def test_the_cache_is_listed_and_cleared(tmp_path):
    with start(tmp_path) as server:
        classify(server, FOLDERS, "Hello.")
        kept = keep(server, ["Work"])
        cache = server.get("/v1/cache").json
        assert cache["ram"]["used_bytes"] > 0
        assert any("You sort the notifications" in prefix["text"] for prefix in cache["prefixes"])
        assert any(prefix["pinned"] for prefix in cache["prefixes"])
        settle(server)
        assert server.get("/v1/cache").json["disk"]["used_blocks"] > 0
        assert server.request("DELETE", "/v1/cache", None, {}).status == 200
        assert server.get("/v1/prompts/notify").json["ram"] >= kept["tokens"] - 15, "pinned prefixes stay"
        assert classify(server, FOLDERS, "Hello.")[1] < kept["tokens"], "the rest has gone"


@pytest.mark.parametrize(
    "arguments", [["prompt", "ls"], ["cache", "ls"], ["cache", "show"], ["prompt", "check", "greet"]]
)
def test_commands_print_what_the_server_keeps(tmp_path, arguments):
    with start(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        run = lambda *words: subprocess.run([BINARY, *words, "--url", url], capture_output=True, text=True)
        added = run("prompt", "add", "greet", "--system", "You greet people in every language there is, politely.")
        assert added.returncode == 0, added.stderr
        shown = run(*arguments)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.strip()
        assert run("prompt", "check", "nothing").returncode == 1
        assert "removed" in run("prompt", "rm", "greet").stdout
