"""Conversations, tools, forms and logits from Python."""
import asyncio
import json
import subprocess
import sys
import time

import numpy
import pytest
from conftest import ENDLESS, MODEL, SMALL

import kvik

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a day",
        "parameters": {
            "type": "object",
            "properties": {"day": {"type": "integer", "minimum": 1, "maximum": 7}},
            "required": ["day"],
            "additionalProperties": False,
        },
    },
}


def user(text):
    return [kvik.Message("user", text)]


def test_a_conversation_goes_on_in_the_next_process(tmp_path):
    with kvik.Model(MODEL, **SMALL, conversations_dir=tmp_path) as model:
        pets = model.conversation("pets")
        pets.say([kvik.Message("system", "Be brief."), *user("My cat is called Minka.")], max_tokens=12).text()
    with kvik.Model(MODEL, **SMALL, conversations_dir=tmp_path) as model:
        pets = model.conversation("pets")
        answer = pets.say(user("What is my cat called?"), max_tokens=24)
        assert "Minka" in answer.text() and answer.report.memory.recent_messages == 3
        assert [message.role for message in pets.messages()] == ["system", "user", "assistant", "user", "assistant"]
        assert pets.info().name == "pets" and [one.messages for one in model.conversations()] == [5]
        pets.take_back(3)
        pets.rename("animals")
        assert len(model.conversation("animals").messages()) == 3 and pets.remembered() is None
        with pytest.raises(kvik.ConversationError):
            pets.correct("A cat.")
        pets.delete()
        with pytest.raises(kvik.ConversationError):
            model.conversation("animals").messages()


def test_a_turn_that_is_not_read_to_its_end_leaves_nothing(model):
    pets = model.conversation("pets")
    pets.say(user("My cat is called Minka."), max_tokens=8).text()

    async def ask():
        async with pets.say(user("Tell me a story."), **ENDLESS | {"max_tokens": 400, "min_tokens": 400}) as answer:
            await answer.__anext__()
        async for _ in answer:
            pass
        return answer.report.finish

    assert asyncio.run(ask()) == kvik.Finish.CANCELLED
    assert len(pets.messages()) == 2


def test_a_turn_is_stored_when_its_end_is_read_and_not_before(model):
    async def ask(cancels):
        answer = model.conversation("pets").say(user("Who are you?"), max_tokens=8)
        await answer.__anext__()
        while model.stats().running:
            await asyncio.sleep(0.01)
        # Whoever reads ahead would be at the end now.
        await asyncio.sleep(0.1)
        assert model.conversations() == []
        if cancels:
            answer.cancel()
        await answer.atext()
        return answer.report.finish == kvik.Finish.CANCELLED, len(model.conversations())

    assert asyncio.run(ask(True)) == (True, 0)
    assert asyncio.run(ask(False)) == (False, 1)


def test_a_conversation_that_could_not_be_deleted_goes_on(model):
    pets = model.conversation("pets")
    pets.say(user("My cat is called Minka."), max_tokens=8).text()
    answer = pets.say(user("Tell me a story."), **ENDLESS | {"max_tokens": 400, "min_tokens": 400})
    next(answer)
    with pytest.raises(kvik.BusyError):
        pets.delete()
    answer.cancel()
    answer.text()
    assert len(pets.messages()) == 2
    pets.delete()
    with pytest.raises(kvik.ConversationError, match="was deleted"):
        pets.messages()


def test_a_second_process_says_that_its_conversations_are_not_stored(model, tmp_path):
    assert not model.conversations_are_stored
    program = (
        "import sys, kvik\n"
        f"with kvik.Model(sys.argv[1], **{SMALL}, conversations_dir=sys.argv[2]) as model:\n"
        "    print(model.conversations_are_stored)\n"
    )
    command = [sys.executable, "-c", program, MODEL, tmp_path]
    with kvik.Model(MODEL, **SMALL, conversations_dir=tmp_path) as first:
        assert first.conversations_are_stored
        assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"
    assert subprocess.run(command, capture_output=True, text=True).stdout == "True\n"


def test_a_tool_is_called_and_its_result_is_read(model):
    asked = user("What is the weather?")
    pieces = list(model.chat(asked, tools=[WEATHER], tool_choice="required", max_tokens=200))
    [call] = [piece.call for piece in pieces if piece.call]
    assert call.name == "weather" and 1 <= json.loads(call.arguments)["day"] <= 7
    asked += [kvik.Message("assistant", "", (call,)), kvik.Message("tool", "It is sunny.", tool_call_id=call.id)]
    expect = model.chat(asked, tools=[WEATHER], tool_choice="none", max_tokens=8).text()
    function = {"name": call.name, "arguments": call.arguments}
    as_openai = [
        {"role": "user", "content": "What is the weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": call.id, "type": "function", "function": function}]},
        {"role": "tool", "content": "It is sunny.", "tool_call_id": call.id},
    ]
    assert model.count_tokens(as_openai) == model.count_tokens(asked)
    assert model.chat(as_openai, tools=[WEATHER], tool_choice="none", max_tokens=8).text() == expect


def test_forms_hold(model):
    schema = {"type": "object", "properties": {"now": {"type": "boolean"}}, "required": ["now"]}
    for seed in range(3):
        drawn = {"max_tokens": 60, "temperature": 0.9, "seed": seed}
        answer = model.chat(user("Is it urgent?"), json_schema=schema | {"additionalProperties": False}, **drawn)
        assert isinstance(json.loads(answer.text())["now"], bool)
        assert model.chat(user("When?"), regex="(now|later)", **drawn).text() in ("now", "later")
        assert model.chat(user("Is it?"), grammar='start: "yes" | "no"', **drawn).text() in ("yes", "no")
    with pytest.raises(kvik.InvalidArgumentError, match="more than one form"):
        model.chat(user("When?"), regex="a", grammar='start: "a"')
    with pytest.raises(kvik.InvalidArgumentError, match="tool_choice"):
        model.chat(user("When?"), tools=[WEATHER], tool_choice="news")


def test_the_largest_logit_is_the_token_that_comes_next(model):
    logits = model.logits("Once upon a time")
    assert logits.dtype == numpy.float32 and not logits.flags.owndata and len(logits) == 4096
    assert model.text_of([int(logits.argmax())]) == model.generate("Once upon a time", max_tokens=1).text()
    some = model.tokens(" there was")
    assert numpy.array_equal(model.logits("Once upon a time", some), logits[some])


def test_what_is_remembered_can_be_read_and_corrected():
    memory = kvik.MemoryOptions(recent_tokens_max=200, summary_tokens_max=128, trigger_tokens=200)
    with kvik.Model(MODEL, **SMALL, memory=memory) as model:
        pets = model.conversation("pets")
        for turn in range(40):
            pets.say(user(f"On day {turn} my cat Minka slept in the garden. " * 8), max_tokens=4).text()
            if pets.remembered():
                break
        remembered = pets.remembered()
        assert remembered.summary and remembered.messages.start == 0 < len(remembered.messages)
        assert not remembered.corrected
        corrected = corrected_when_it_is_made(pets, "The cat is called Minka.")
        assert corrected.summary == "The cat is called Minka." and corrected.corrected
        assert pets.remembered() == corrected


def corrected_when_it_is_made(conversation, summary):
    deadline = time.monotonic() + 300  # an emulated processor writes summaries slowly
    while True:
        try:
            return conversation.correct(summary)
        except kvik.ConversationError as error:
            assert "being made" in str(error) and time.monotonic() < deadline
            time.sleep(0.05)
