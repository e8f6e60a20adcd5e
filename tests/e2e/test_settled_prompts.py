"""What changes in the system messages of an agent is read behind what does not."""
import json
import pathlib
import sys
import uuid

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server import Server  # noqa: E402

TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"{name} a file of the project.", "parameters": {"type": "object", "properties": {}}}}
    for name in ("read", "write")
]


def system(agent, directory):
    """What an agent sends first; two agents have no sentence in common."""
    rules = "".join(f"Rule {number} of {agent}: a test shows what the change is for.\n" for number in range(8))
    return f"You are agent {agent}.\nWorking directory: {directory}\n{rules}"


def session(text, directory, **kvik):
    """The first request of a session of an agent."""
    body = {"messages": [{"role": "system", "content": text}, {"role": "user", "content": f"Look at {directory}."}]}
    return body | {"tools": TOOLS, "max_tokens": 1, "kvik": kvik}


def ask(server, text, directory, **kvik):
    """A new session of an agent; what it computed, and what was moved."""
    body = session(text, directory, **kvik)
    explained = server.post("/v1/cache/explain", body).json["kvik"]["cache"]
    kvik = server.post("/v1/chat/completions", body).json["kvik"]
    assert kvik["cache"]["cached_tokens"] == explained["cached_tokens"]
    computed = kvik["cache"]["prompt_tokens"] - kvik["cache"]["cached_tokens"]
    return computed, kvik["cache"]["prompt_tokens"], kvik.get("settled", [])


def test_another_directory_costs_what_names_it(server):
    agent = uuid.uuid4().hex[:8]
    sessions = {at: ask(server, system(agent, at), at, settle=True) for at in ("/shop", "/bank", "/farm")}
    assert sessions["/shop"][2] == [], "the first is compared with none"
    for at in ("/bank", "/farm"):
        [moved] = sessions[at][2]
        assert moved["text"] == f"Working directory: {at}"
    computed, tokens, _ = sessions["/farm"]
    assert computed <= 48 < tokens // 4, sessions
    # A running session goes on with the form that it had.
    assert ask(server, system(agent, "/shop"), "/shop", settle=True)[0] == 1


def test_prompts_are_as_written_where_nobody_wants_it_otherwise(server):
    agent = uuid.uuid4().hex[:8]
    for at in ("/shop", "/bank", "/farm"):
        computed, tokens, moved = ask(server, system(agent, at), at)
        assert computed > tokens // 2 and moved == []


def test_a_private_request_teaches_nothing(server):
    agent = uuid.uuid4().hex[:8]
    ask(server, system(agent, "/shop"), "/shop", settle=True, cache="private")
    assert ask(server, system(agent, "/bank"), "/bank", settle=True)[2] == []


def test_what_was_learned_outlives_a_restart_and_not_a_deletion(tmp_path):
    agent, env, found = uuid.uuid4().hex[:8], {"KVIK_STATE_DIR": str(tmp_path)}, []
    is_kept = lambda: any(agent.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for directories in (("/shop", "/bank"), ("/bank", "/farm"), ("/mill",)):
        with Server(env=env) as server:
            found += [ask(server, system(agent, at), at, settle=True)[2] for at in directories]
            if "/farm" in directories:
                assert is_kept()
                assert server.request("DELETE", "/v1/cache", None, {}).status == 200
                assert not is_kept()
    note = lambda at: f"Working directory: {at}"
    assert [[moved["text"] for moved in pieces] for pieces in found] == [[], [note("/bank")], [note("/bank")], [note("/farm")], []]


def test_what_is_kept_or_pinned_is_found_by_its_own_text():
    with Server("--settle-prompts", "--threads", "2") as server:
        agent = uuid.uuid4().hex[:8]
        for at in ("/shop", "/bank"):
            ask(server, system(agent, at), at)
        assert ask(server, system(agent, "/farm"), "/farm")[2], "it is settled"
        kept = session(system(agent, "/mill"), "/mill")
        kept = {"messages": kept["messages"][:1], "tools": TOOLS, "retain": "kvzip:0.5"}
        kept = server.request("PUT", "/v1/prompts/agent", json.dumps(kept).encode(), {"Content-Type": "application/json"})
        assert kept.status == 200, kept.text
        named = server.post("/v1/chat/completions", session(system(agent, "/mill"), "/mill", kept_prefix="agent"))
        assert named.status == 200 and "settled" not in named.json["kvik"], named.text
        pinned = session(system(agent, "/dock"), "/dock", pin=True)
        assert "settled" not in server.post("/v1/chat/completions", pinned).json["kvik"]
        assert server.post("/v1/cache/evict", pinned).json["pins"] == 1
        # What was computed as a settled prompt is evicted by the text that was sent.
        ask(server, system(agent, "/farm"), "/farm")
        assert ask(server, system(agent, "/farm"), "/farm")[0] == 1
        server.post("/v1/cache/evict", session(system(agent, "/farm"), "/farm"))
        assert ask(server, system(agent, "/farm"), "/farm")[0] > 1


def test_what_is_remembered_is_explained_as_it_is_read():
    with Server("--settle-prompts", "--memory", "on", "--threads", "2") as server:
        agent = uuid.uuid4().hex[:8]
        for at in ("/shop", "/bank"):
            ask(server, system(agent, at), at, memory=False)
        assert ask(server, system(agent, "/farm"), "/farm", memory=False)[2], "it is settled"
        assert ask(server, system(agent, "/mill"), "/mill")[2] == []


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_every_dialect_is_settled(server, path):
    agent = uuid.uuid4().hex[:8]
    for at in ("/shop", "/bank"):
        fields = {"messages": "input", "system": "instructions", "max_tokens": "max_output_tokens"}
        body = {"system": system(agent, at), "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 1}
        body |= {"kvik": {"settle": True}, "model": "any"}
        if path == "/v1/responses":
            body = {fields.get(name, name): value for name, value in body.items()} | {"max_output_tokens": 16, "store": False}
        answer = server.post(path, body, **{"anthropic-version": "2023-06-01"}).json
    assert [moved["text"] for moved in answer["kvik"]["settled"]] == [f"Working directory: {at}"]
