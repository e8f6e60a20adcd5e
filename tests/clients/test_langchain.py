"""langchain-openai."""
import openai
import pytest
from asked import KEY, LEFT_TOKENS, LONG, MODEL, MODELS, QUESTION, SEEDS, Lookup, assert_cancels, run_tool, whole_ones
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@pytest.fixture(scope="module")
def chat(server):
    def make(**options):
        options = dict(model=MODEL, api_key=KEY, max_tokens=60, temperature=0, max_retries=0, timeout=60) | options
        return ChatOpenAI(base_url=server.base_url, use_responses_api=False, **options)

    return make


@tool(args_schema=Lookup)
def lookup(city, floor):
    """Looks up what is on a floor."""
    return run_tool(dict(city=city, floor=floor))


def test_chat_and_stream_say_the_same(chat):
    whole = chat().invoke(QUESTION)
    assert whole.content and whole.usage_metadata["total_tokens"] > 0
    assert "".join(chunk.content for chunk in chat().stream(QUESTION)) == whole.content


@pytest.mark.parametrize("choice", ["any", "lookup"])
def test_tools_in_a_loop(chat, choice):
    messages = list(QUESTION)
    for _ in range(2):
        message = chat().bind_tools([lookup], tool_choice=choice).invoke(messages)
        assert message.tool_calls and not message.invalid_tool_calls
        messages.append(message)
        for call in message.tool_calls:
            result = lookup.invoke(call)
            assert isinstance(result, ToolMessage)
            messages.append(result)
    last = chat().bind_tools([lookup], tool_choice="none").invoke(messages)
    assert last.content and not last.tool_calls


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("shape", MODELS, ids=lambda shape: shape.__name__)
def test_structured_output(chat, shape, method):
    def parse(seed):
        asked = chat(seed=seed, temperature=0.7, max_tokens=300).with_structured_output(shape, method=method, include_raw=True)
        try:
            answer = asked.invoke(QUESTION)
        except openai.LengthFinishReasonError:
            return None
        if answer["raw"].response_metadata["finish_reason"] == "length":
            return None
        assert answer["parsing_error"] is None, answer
        return answer["parsed"]

    assert all(isinstance(parsed, shape) for parsed in whole_ones([parse(seed) for seed in SEEDS]))


def test_cancel_in_mid_stream(server, stall, chat):
    def leave(stop):
        stream = chat(max_tokens=LEFT_TOKENS, extra_body={"ignore_eos": True}).stream(QUESTION)
        for _, _ in zip(range(3), stream):
            pass
        stop()
        stream.close()

    assert_cancels(server, stall, leave)


@pytest.mark.parametrize(
    ("options", "messages", "error"),
    [
        ({"model": "gpt-4o"}, QUESTION, openai.NotFoundError),
        ({"extra_body": {"temperature": "hot"}}, QUESTION, openai.BadRequestError),
        ({}, LONG, ContextOverflowError),
        ({"api_key": "wrong"}, QUESTION, openai.AuthenticationError),
    ],
    ids=["model", "field", "context", "key"],
)
def test_errors_have_their_class(chat, options, messages, error):
    with pytest.raises(error):
        chat(**options).invoke(messages)
