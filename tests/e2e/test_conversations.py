"""Conversations that the server keeps: the official client sends what is new, and what was answered outlives a kill."""
import threading
import time

import openai
import pytest

from server import Server


def connect(server):
    return openai.OpenAI(base_url=server.base_url, api_key="unused", max_retries=0, timeout=120)


def say(client, name, text, **more):
    messages = [{"role": "user", "content": text}]
    body = {"kvik": {"conversation": name}}
    return client.chat.completions.create(
        model="kvik", messages=messages, temperature=0, max_tokens=24, extra_body=body, **more)


def kept(answer):
    return answer.model_extra["kvik"]["conversation"]


def contents(server, name):
    shown = server.get(f"/v1/conversations/{name}")
    if shown.status == 404:
        return []
    assert shown.status == 200, shown.text
    return [(message["role"], message["content"]) for message in shown.json["messages"]]


def test_the_client_sends_only_what_is_new(server, client):
    say(client, "dog", "Please remember that my dog is called Bolt.")
    answer = say(client, "dog", "What is my dog called?")
    assert "Bolt" in answer.choices[0].message.content
    assert kept(answer)["name"] == "dog" and kept(answer)["messages"] == 4
    streamed = [chunk.model_extra["kvik"]["conversation"] for chunk in say(client, "dog", "Thank you.", stream=True)
                if "kvik" in (chunk.model_extra or {})]
    assert streamed == [{"id": kept(answer)["id"], "name": "dog", "messages": 6}]
    with pytest.raises(openai.NotFoundError, match="conv_0"):
        say(client, "conv_0", "Hello.")
    assert server.request("DELETE", "/v1/conversations/dog", None, {}).json["deleted"]
    assert contents(server, "dog") == []


def test_what_clients_keep_beside_a_conversation_is_read_back(server, client):
    beside = {"topic": "dogs", "given": "by the client"}
    begun = client.conversations.create(items=[{"type": "message", "role": "user", "content": "My dog is Bolt."}], metadata=beside)
    assert client.conversations.retrieve(begun.id).metadata == beside
    client.conversations.update(begun.id, metadata={"topic": "cats"})
    assert client.conversations.retrieve(begun.id).metadata == {"topic": "cats"}
    said = client.conversations.items.list(begun.id).data
    assert [(item.role, item.content[0].text) for item in said] == [("user", "My dog is Bolt.")]
    added = client.conversations.items.create(begun.id, items=[{"type": "message", "role": role, "content": text}
                                                               for role, text in (("assistant", "Noted."), ("user", "Thanks."))])
    assert [item.content[0].text for item in added.data] == ["Noted.", "Thanks."] and not added.has_more
    last = client.conversations.items.retrieve(added.last_id, conversation_id=begun.id)
    assert (last.role, last.content[0].text) == ("user", "Thanks.")
    assert client.conversations.items.delete(last.id, conversation_id=begun.id).id == begun.id
    with pytest.raises(openai.NotFoundError, match=last.id):
        client.conversations.items.retrieve(last.id, conversation_id=begun.id)
    with pytest.raises(openai.BadRequestError, match="last message"):
        client.conversations.items.delete(said[0].id, conversation_id=begun.id)
    assert client.conversations.delete(begun.id).deleted


def test_a_client_that_leaves_gives_the_conversation_back_and_leaves_nothing(tmp_path):
    stall = tmp_path / "stall"
    with Server("--threads", "2", env={"KVIK_TEST_STALL": str(stall)}) as server:
        client = connect(server)

        def begin():
            # An answer that came to its end is part of it.
            server.request("DELETE", "/v1/conversations/left", None, {})
            stream = client.chat.completions.create(
                model="kvik", messages=[{"role": "user", "content": "Tell me a long story."}], stream=True, max_tokens=1500,
                extra_body={"kvik": {"conversation": "left"}, "ignore_eos": True})
            pieces = iter(stream)
            for _ in range(3):
                next(pieces)
            return stream

        with server.stalled(stall, begin) as stream:
            with pytest.raises(openai.ConflictError, match="by another request"):
                say(client, "left", "Hello.")
            stream.close()
        assert kept(said_when_free(client, "left"))["messages"] == 2


def said_when_free(client, name):
    """The answer in a conversation once nobody else asks in it."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return say(client, name, "Hello.")
        except openai.ConflictError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_what_was_answered_outlives_a_kill_between_turns(tmp_path):
    env = {"KVIK_STATE_DIR": str(tmp_path / "state")}
    with Server(env=env) as server:
        answer = say(connect(server), "trip", "I am in Oslo.")
        before = contents(server, "trip")
        server.kill()
    assert before == [("user", "I am in Oslo."), ("assistant", answer.choices[0].message.content)]
    with Server(env=env) as server:
        assert contents(server, "trip") == before
        assert kept(say(connect(server), "trip", "Where am I?"))["messages"] == 4


@pytest.mark.parametrize("after", [0.02, 0.1, 0.3, 0.7])
def test_no_turn_that_was_answered_is_lost_by_a_kill_in_the_middle_of_others(tmp_path, after):
    env = {"KVIK_STATE_DIR": str(tmp_path / "state")}
    answered, failed = {}, []

    def talk(server, who):
        client = connect(server)
        for number in range(1000):
            # A conversation that goes on does not fit into the context.
            name, text = f"{who}-{number // 8}", f"This is turn {number} of {who}."
            turns = answered.setdefault(name, [])
            try:
                said = "".join(chunk.choices[0].delta.content or "" for chunk in say(client, name, text, stream=True))
            except Exception as error:
                # How the client hears that the server is gone does not matter.
                if not server.is_killed:
                    failed.append(error)
                return
            turns += [("user", text), ("assistant", said)]

    with Server(env=env) as server:
        threads = [threading.Thread(target=talk, args=(server, who)) for who in ("a", "b", "c")]
        [thread.start() for thread in threads]
        time.sleep(1 + after)
        server.kill()
        [thread.join() for thread in threads]
    assert failed == [] and any(answered.values())
    with Server(env=env) as server:
        for name, expect in answered.items():
            found = contents(server, name)
            # One turn more may have been written whose end did not reach the client any more.
            assert found[:len(expect)] == expect and len(found) - len(expect) in (0, 2), (name, expect, found)


def test_an_answer_that_cannot_be_written_down_is_none(tmp_path):
    """On a full disk nobody is told of a turn that would not be there tomorrow."""
    env = {"KVIK_STATE_DIR": str(tmp_path / "state")}
    with Server(env=env, file_bytes=8 << 20) as server:
        say(connect(server), "trip", "I am in Oslo.")
        before, filling = contents(server, "trip"), {"messages": [{"role": "user", "content": "x" * (1 << 19)}]}
        statuses = [server.post("/v1/conversations", filling).status for _ in range(20)]
        assert statuses[-1] == 503, statuses
        body = {"messages": [{"role": "user", "content": "Where am I?"}], "max_tokens": 4, "kvik": {"conversation": "trip"}}
        assert server.post("/v1/chat/completions", body).status == 503
        streamed = server.post("/v1/chat/completions", body | {"stream": True}).text
        assert "error" in streamed and "[DONE]" not in streamed
    with Server(env=env) as server:
        assert contents(server, "trip") == before
        assert kept(say(connect(server), "trip", "Where am I?"))["messages"] == 4
