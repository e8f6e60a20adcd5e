"""What changes in the system messages of an agent is read behind what does not."""
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


def ask(server, text, directory, **kvik):
    """A new session of an agent; what it computed, and what was moved."""
    body = {"messages": [{"role": "system", "content": text}, {"role": "user", "content": f"Look at {directory}."}]}
    body |= {"tools": TOOLS, "max_tokens": 1, "kvik": kvik}
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
