"""The official Python client."""
import openai
import pytest
from asked import CLOSED, FORCED, KEY, LEFT_TOKENS, LONG, MODEL, QUESTION, SEEDS, TOOL, assert_cancels, run_tool, whole_ones


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.base_url, api_key=KEY, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def create(client):
    return lambda **options: client.chat.completions.create(**dict(model=MODEL, messages=QUESTION, max_tokens=60) | options)


def test_chat_and_stream_say_the_same(create):
    whole = create(temperature=0).choices[0]
    pieces = [chunk.choices[0].delta.content or "" for chunk in create(temperature=0, stream=True) if chunk.choices]
    assert whole.message.content and "".join(pieces) == whole.message.content


@pytest.mark.parametrize("choice", [FORCED, "required"], ids=["named", "required"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_tools_in_a_loop(client, create, choice, stream):
    """Two calls, each answered, then words."""
    messages = list(QUESTION)
    for round in range(3):
        last = round == 2
        message, reason = ask(create, messages, "none" if last else choice, stream)
        messages.append(message)
        if last:
            assert not message.get("tool_calls") and message["content"] and reason in ("stop", "length")
            return
        assert reason == "tool_calls" and len(message["tool_calls"]) >= 1
        for call in message["tool_calls"]:
            assert call["function"]["name"] == "lookup" and call["id"]
            result = run_tool(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def ask(create, messages, choice, stream):
    """The message and why it ended, put together from the pieces of a stream where there is one."""
    options = dict(messages=messages, tools=[TOOL], tool_choice=choice, temperature=0, max_tokens=80)
    if not stream:
        answer = create(**options).choices[0]
        return answer.message.model_dump(exclude_none=True), answer.finish_reason
    message, calls, reason = {"role": "assistant", "content": ""}, {}, None
    for chunk in create(**options, stream=True):
        for piece in chunk.choices:
            reason = piece.finish_reason or reason
            message["content"] += piece.delta.content or ""
            for call in piece.delta.tool_calls or []:
                whole = calls.setdefault(call.index, {"type": "function", "function": {"name": "", "arguments": ""}})
                whole["id"] = call.id or whole.get("id")
                whole["function"]["name"] += call.function.name or ""
                whole["function"]["arguments"] += call.function.arguments or ""
    return message | ({"tool_calls": list(calls.values())} if calls else {}), reason


@pytest.mark.parametrize("shape", CLOSED, ids=lambda shape: shape.__name__)
def test_structured_output(client, shape):
    """The SDK sends the schema as `strict` and reads the answer into the model."""

    def parse(seed):
        try:
            answer = client.chat.completions.parse(
                model=MODEL, messages=QUESTION, response_format=shape, max_tokens=300, seed=seed, temperature=0.7
            )
        except openai.LengthFinishReasonError:
            return None
        return answer.choices[0].message.parsed

    assert all(isinstance(parsed, shape) for parsed in whole_ones([parse(seed) for seed in SEEDS]))


def test_cancel_in_mid_stream(server, stall, create):
    def leave(stop):
        stream = create(stream=True, max_tokens=LEFT_TOKENS, extra_body={"ignore_eos": True})
        for _, _ in zip(range(3), stream):
            pass
        stop()
        stream.close()

    assert_cancels(server, stall, leave)


def test_a_wrong_model(create):
    with pytest.raises(openai.NotFoundError) as caught:
        create(model="gpt-4o")
    assert caught.value.code == "model_not_found"


def test_a_wrong_field(create):
    with pytest.raises(openai.BadRequestError) as caught:
        create(temperature="hot")
    assert caught.value.param == "temperature"


def test_a_prompt_beyond_the_context(create):
    with pytest.raises(openai.BadRequestError) as caught:
        create(messages=LONG)
    assert caught.value.code == "context_length_exceeded"


def test_a_wrong_key(client):
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_arguments_of_a_call_stream_as_they_come(create):
    options = dict(tools=[TOOL], tool_choice=FORCED, temperature=0, max_tokens=80)
    whole = create(**options).choices[0].message.tool_calls[0].function
    parts = [part.function for chunk in create(**options, stream=True) for choice in chunk.choices for part in choice.delta.tool_calls or []]
    assert parts[0].name == whole.name and "".join(part.arguments or "" for part in parts) == whole.arguments
    assert len(parts) > 3 and all(part.name is None for part in parts[1:])
