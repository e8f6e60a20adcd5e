"""Chat and completions through the official `openai` client."""
import json

import openai
import pytest
from server import eval_cases

NOTIFICATION = eval_cases("notify")[0]


def greedy(client, model, messages, **options):
    return client.chat.completions.create(model=model, messages=messages, temperature=0, **options)


def say(text, system="You are a helpful assistant."):
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def collect(stream):
    """Text per choice, finish reason per choice, and the usage of a stream."""
    texts, reasons, usage = {}, {}, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                assert choice.index not in reasons, "a choice ends once"
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, usage


def test_models_are_listed(client, model):
    listed = client.models.list().data
    assert [m.object for m in listed] == ["model"]
    assert client.models.retrieve(model).id == model


def test_a_notification_is_triaged(client, model):
    """The first answer a newcomer sees is a right one."""
    answer = greedy(client, model, NOTIFICATION["messages"])
    assert answer.object == "chat.completion"
    assert answer.model == model
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.role == "assistant"
    assert json.loads(choice.message.content) == NOTIFICATION["expected"]
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_stream_says_the_same_as_a_whole_answer(client, model):
    for case in eval_cases("recall")[:3] + eval_cases("summary")[:2]:
        whole = greedy(client, model, case["messages"])
        stream = greedy(client, model, case["messages"], stream=True, stream_options={"include_usage": True})
        texts, reasons, usage = collect(stream)
        assert texts == {0: whole.choices[0].message.content}
        assert reasons == {0: whole.choices[0].finish_reason}
        assert usage.completion_tokens == whole.usage.completion_tokens
        assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_usage_is_streamed_only_when_asked_for(client, model):
    plain = greedy(client, model, say("Hello."), stream=True)
    assert all(chunk.usage is None for chunk in plain)
    asked = list(greedy(client, model, say("Hello."), stream=True, stream_options={"include_usage": True}))
    assert asked[-1].usage.completion_tokens > 0 and asked[-1].choices == []
    assert all(chunk.usage is None for chunk in asked[:-1])


def test_the_second_request_on_a_prompt_reuses_it(client, model):
    system = "You are a helpful assistant. " + " ".join(f"Fact {i}: the code of room {i} is {i * 37}." for i in range(20))
    first = greedy(client, model, say("Who are you?", system))
    second = greedy(client, model, say("How are you today?", system))
    cached = lambda answer: answer.usage.prompt_tokens_details.cached_tokens
    assert cached(second) > cached(first)
    assert cached(second) > 0.8 * second.usage.prompt_tokens
    for answer in (first, second):
        timings = answer.model_extra["timings"]
        assert timings["cache_n"] == cached(answer)
        assert timings["cache_n"] + timings["prompt_n"] == answer.usage.prompt_tokens
        assert timings["predicted_n"] == answer.usage.completion_tokens
        assert timings["prompt_ms"] > 0 and timings["predicted_ms"] >= 0
    again = greedy(client, model, say("Who are you?", system))
    assert again.choices[0].message.content == first.choices[0].message.content
    assert cached(again) == again.usage.prompt_tokens - 1, "only the last token is computed again"


def test_several_choices_share_a_prompt(client, model):
    answer = greedy(client, model, say("Hello."), n=3, max_tokens=8)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert len({c.message.content for c in answer.choices}) == 1, "greedy choices are equal"
    texts, reasons, _ = collect(greedy(client, model, say("Hello."), n=3, max_tokens=8, stream=True))
    assert texts == {c.index: c.message.content for c in answer.choices}
    assert set(reasons) == {0, 1, 2}
    hot = client.chat.completions.create(
        model=model, messages=say("Tell me a story."), n=4, max_tokens=24, temperature=1.5, seed=5
    )
    assert len({c.message.content for c in hot.choices}) > 1, "choice i uses seed + i"


def test_a_seed_fixes_the_text(client, model):
    sample = lambda seed: client.chat.completions.create(
        model=model, messages=say("Tell me a story."), temperature=1.2, seed=seed, max_tokens=40
    )
    texts = [sample(seed).choices[0].message.content for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


def test_logprobs_are_those_of_the_answer(client, model):
    answer = greedy(client, model, say("Hello."), logprobs=True, top_logprobs=4)
    content = answer.choices[0].logprobs.content
    text = b"".join(bytes(token.bytes) for token in content if not token.token.startswith("<|"))
    assert text.decode() == answer.choices[0].message.content
    for token in content:
        assert len(token.top_logprobs) == 4
        ordered = [top.logprob for top in token.top_logprobs]
        assert ordered == sorted(ordered, reverse=True)
        assert token.logprob == ordered[0] <= 0, "greedy takes the likeliest"


def test_a_stop_string_ends_the_answer_before_it(client, model):
    whole = greedy(client, model, say("Hello.")).choices[0].message.content
    stop = whole[len(whole) // 2 :][:6]
    for stream in (False, True):
        answer = greedy(client, model, say("Hello."), stop=[stop, "never said"], stream=stream)
        text, reason = (
            (lambda c: (c[0][0], c[1][0]))(collect(answer))
            if stream
            else (answer.choices[0].message.content, answer.choices[0].finish_reason)
        )
        assert text == whole[: whole.index(stop)]
        assert reason == "stop"


def test_max_tokens_ends_the_answer(client, model):
    answer = greedy(client, model, say("Tell me a story."), max_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5
    newer = greedy(client, model, say("Tell me a story."), max_completion_tokens=5)
    assert newer.choices[0].message.content == answer.choices[0].message.content
    nothing = greedy(client, model, say("Tell me a story."), max_tokens=0)
    assert nothing.usage.completion_tokens == 0 and not nothing.choices[0].message.content


SCHEMA = {
    "type": "object",
    "properties": {
        "folder": {"type": "string", "enum": ["Work", "Home", "Travel"]},
        "priority": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["folder", "priority"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_schema_is_obeyed(client, model, temperature):
    wanted = {"type": "json_schema", "json_schema": {"name": "triage", "schema": SCHEMA, "strict": True}}
    for seed in range(3):
        answer = client.chat.completions.create(
            model=model, messages=say("Tell me a story."), response_format=wanted,
            temperature=temperature, seed=seed, max_tokens=60,
        )
        got = json.loads(answer.choices[0].message.content)
        assert got["folder"] in SCHEMA["properties"]["folder"]["enum"]
        assert got["priority"] in range(1, 6) and set(got) == {"folder", "priority"}
        assert answer.choices[0].finish_reason == "stop"


def test_json_mode_gives_an_object(client, model):
    answer = greedy(client, model, NOTIFICATION["messages"], response_format={"type": "json_object"})
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_tool_definitions_are_accepted(client, model):
    tool = {
        "type": "function",
        "function": {
            "name": "move_to_folder",
            "description": "Moves a notification.",
            "parameters": {"type": "object", "properties": {"folder": {"type": "string"}}},
        },
    }
    call = {"id": "call_1", "type": "function", "function": {"name": "move_to_folder", "arguments": '{"folder": "Work"}'}}
    turns = say("Move it to Work.") + [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "moved"},
    ]
    for messages in (say("Hello."), turns):
        answer = greedy(client, model, messages, tools=[tool], tool_choice="auto", max_tokens=16)
        assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_completions_continue_text(client, model):
    whole = client.completions.create(model=model, prompt="Once upon a time", max_tokens=24, temperature=0)
    assert whole.object == "text_completion" and whole.choices[0].text
    stream = client.completions.create(model=model, prompt="Once upon a time", max_tokens=24, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == whole.choices[0].text
    assert whole.usage.completion_tokens == 24


def test_another_models_name_is_answered_under_our_own(client, model):
    """As every local server does; `--strict-model`, which tests/clients uses, refuses it."""
    assert client.chat.completions.create(model="gpt-none", messages=say("Hello."), max_tokens=2).model == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-none")


def test_overflow_says_both_numbers(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=say("word " * 6000))
    error = caught.value.body
    numbers = [int(word) for word in error["message"].replace(";", " ").replace(",", " ").split() if word.isdigit()]
    assert len(numbers) >= 2 and max(numbers) > 6000, error
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"top_p": 7}, "top_p"),
        ({"stop": [1]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"logit_bias": {"5": 1000}}, "logit_bias"),
        ({"tools": {}}, "tools"),
    ],
)
def test_a_wrong_field_is_named(server, model, options, field):
    body = {"model": model, "messages": say("Hello.")} | options
    answer = server.post("/v1/chat/completions", body)
    assert answer.status == 400, answer.text
    assert answer.error["param"].startswith(field), answer.error
    assert field in answer.error["message"]
    assert answer.error["type"] == "invalid_request_error"


def test_unknown_fields_do_no_harm(client, model):
    plain = greedy(client, model, say("Hello."))
    odd = greedy(client, model, say("Hello."), extra_body={"never_heard_of": [1, {"x": None}]})
    assert odd.choices[0].message.content == plain.choices[0].message.content
