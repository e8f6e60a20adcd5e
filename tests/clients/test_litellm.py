"""litellm, which maps errors by their words."""
import asyncio

import litellm
import pytest
from asked import FORCED, KEY, LEFT_TOKENS, LONG, MODEL, MODELS, QUESTION, SEEDS, TOOL, assert_cancels, run_tool, whole_ones

litellm.suppress_debug_info = True
litellm.telemetry = False


@pytest.fixture(scope="module")
def target(server):
    return dict(model=f"openai/{MODEL}", api_base=server.base_url, api_key=KEY, num_retries=0, max_tokens=60, timeout=60)


def test_chat_and_stream_say_the_same(target):
    whole = litellm.completion(**target, messages=QUESTION, temperature=0).choices[0].message.content
    stream = litellm.completion(**target, messages=QUESTION, temperature=0, stream=True)
    assert whole and "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole


def test_tools_in_a_loop(target):
    messages = list(QUESTION)
    for choice in (FORCED, "required", "none"):
        answer = litellm.completion(**target, messages=messages, tools=[TOOL], tool_choice=choice, temperature=0).choices[0]
        messages.append(answer.message.model_dump(exclude_none=True))
        if choice == "none":
            assert answer.message.content and not answer.message.tool_calls
            return
        assert answer.finish_reason == "tool_calls"
        for call in answer.message.tool_calls:
            result = run_tool(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


@pytest.mark.parametrize("shape", MODELS, ids=lambda shape: shape.__name__)
def test_structured_output(target, shape):
    def parse(seed):
        asked = target | dict(max_tokens=300, seed=seed, temperature=0.7)
        choice = litellm.completion(**asked, messages=QUESTION, response_format=shape).choices[0]
        return shape.model_validate_json(choice.message.content) if choice.finish_reason == "stop" else None

    whole_ones([parse(seed) for seed in SEEDS])


def test_cancel_in_mid_stream(server, stall, target):
    async def some(stop):
        asked = target | dict(max_tokens=LEFT_TOKENS)
        stream = await litellm.acompletion(**asked, messages=QUESTION, stream=True, extra_body={"ignore_eos": True})
        count = 0
        async for _ in stream:
            count += 1
            if count == 3:
                stop()
                await stream.completion_stream.close()
                break
        assert count == 3

    assert_cancels(server, stall, lambda stop: asyncio.run(some(stop)))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "openai/gpt-4o"}, litellm.NotFoundError),
        ({"extra_body": {"temperature": "hot"}}, litellm.BadRequestError),
        ({"messages": LONG}, litellm.ContextWindowExceededError),
        ({"api_key": "wrong"}, litellm.AuthenticationError),
    ],
    ids=["model", "field", "context", "key"],
)
def test_errors_have_their_class(target, change, error):
    with pytest.raises(error):
        litellm.completion(**dict(target, messages=QUESTION) | change)
