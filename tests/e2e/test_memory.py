"""Conversations without end: a client that sends its whole history is answered beyond the context, also after a kill."""
import time

import openai
import pytest

from server import Server

FLAGS = ("--memory", "on", "--context", 1024, "--memory-recent", 300, "--memory-summary", 64, "--memory-trigger", 120)
# Quotes stand in one turn only: what it computes is more than its question then.
FLAGS += ("--memory-quotes", 0)
SECONDS = 90
# What a reader takes at the least before the next turn.
PAUSE = 0.1


def connect(server):
    return openai.OpenAI(base_url=server.base_url, api_key="unused", max_retries=0, timeout=120)


class Conversation:
    """What a program with the official client does that knows nothing of memory."""

    def __init__(self):
        self.messages = [{"role": "system", "content": "You are a helpful assistant."}]

    def say(self, client, text):
        self.messages.append({"role": "user", "content": text})
        answer = client.chat.completions.create(model="kvik", messages=self.messages, temperature=0, max_tokens=24)
        message = answer.choices[0].message
        self.messages.append(message.model_dump(exclude_none=True))
        return message.content, answer

    def talk(self, client, covered):
        """Small talk until a summary of so many messages is read."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            _, answer = self.say(client, f"The bus number {len(self.messages)} was late again. I had noodles for lunch.")
            if memory(answer)["messages"]["summarised"] >= covered:
                return answer
            time.sleep(PAUSE)
        raise AssertionError(f"no summary of {covered} messages in {SECONDS} s: {memory(answer)}")


def memory(answer):
    return answer.model_extra["kvik"]["memory"]


@pytest.fixture(scope="module")
def remembering():
    with Server(*FLAGS) as running:
        yield connect(running)


def test_turns_after_a_rebuild_are_as_warm_as_any(remembering):
    conversation = Conversation()
    conversation.say(remembering, "Please remember that my dog is called Bolt.")
    rebuilt = 0
    for covered in (2, 20, 40, 60):
        answer = conversation.talk(remembering, covered)
        assert answer.usage.prompt_tokens <= 1024
        if memory(answer)["rebuilt"]:
            rebuilt += 1
            computed = answer.usage.prompt_tokens - answer.usage.prompt_tokens_details.cached_tokens
            assert memory(answer)["computed_ahead"] and computed < 96, answer
    assert rebuilt > 0
    text, _ = conversation.say(remembering, "What is my dog called?")
    assert "Bolt" in text


def test_a_stream_says_what_was_remembered_in_its_last_chunk(remembering):
    messages = [{"role": "user", "content": "Hello."}]
    stream = remembering.chat.completions.create(model="kvik", messages=messages, stream=True, max_tokens=4)
    reports = [chunk.model_extra["kvik"]["memory"] for chunk in stream if "kvik" in (chunk.model_extra or {})]
    assert len(reports) == 1 and reports[0]["messages"] == {"prefix": 0, "summarised": 0, "let_go": 0, "recent": 1}


def test_summaries_and_branches_outlive_a_kill(tmp_path):
    env = {"KVIK_STATE_DIR": str(tmp_path / "state"), "KVIK_CACHE_DISK": str(tmp_path / "disk")}
    conversation = Conversation()
    with Server(*FLAGS, env=env) as server:
        client = connect(server)
        conversation.say(client, "Please remember that my dog is called Bolt.")
        before = memory(conversation.talk(client, 2))
        server.kill()
    with Server(*FLAGS, env=env) as server:
        text, answer = conversation.say(connect(server), "What is my dog called?")
        assert memory(answer)["messages"]["summarised"] >= before["messages"]["summarised"]
        assert "Bolt" in text


def test_bounds_that_do_not_fit_the_context_are_refused_at_the_start():
    with pytest.raises(AssertionError, match="recent_max 900"):
        with Server("--memory", "on", "--context", 1024, "--memory-recent", 900):
            pass
