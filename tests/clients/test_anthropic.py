"""The official anthropic client, unchanged, on a real server."""
import json

import anthropic
import pytest
from asked import KEY, MODEL

TOOL = {"name": "get_weather", "description": "The weather in a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key=KEY, max_retries=0)


def ask(client, text="What is the capital of France?", **more):
    fields = {"model": MODEL, "max_tokens": 24, "messages": [{"role": "user", "content": text}]}
    return client.messages.create(**fields | more, extra_body={"temperature": 0})


def test_a_chat_is_answered_and_reuses_what_it_has_computed(client):
    first = ask(client, "Tell me about the sea, please, in one sentence.")
    assert first.type == "message" and first.content[0].text and first.stop_reason in ("end_turn", "max_tokens")
    again = ask(client, "Tell me about the sea, please, in one sentence.")
    usage = again.usage
    assert usage.cache_read_input_tokens > 0 and usage.cache_read_input_tokens + usage.cache_creation_input_tokens + usage.input_tokens \
        == first.usage.cache_read_input_tokens + first.usage.cache_creation_input_tokens + first.usage.input_tokens
    assert again.content[0].text == first.content[0].text


def test_a_stream_gathers_to_the_same_message(client):
    fields = {"model": MODEL, "max_tokens": 24, "messages": [{"role": "user", "content": "Say hello."}]}
    with client.messages.stream(**fields, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == message.content[0].text == ask(client, "Say hello.").content[0].text
    assert message.usage.output_tokens > 0 and message.stop_reason


def test_tools_are_called_in_a_loop(client):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = ask(client, messages=messages, tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=100)
    assert answer.stop_reason == "tool_use", answer
    call = next(block for block in answer.content if block.type == "tool_use")
    assert call.name == "get_weather" and isinstance(call.input["city"], str)
    messages += [{"role": "assistant", "content": answer.content},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny, 21 degrees."}]}]
    assert ask(client, messages=messages, tools=[TOOL]).type == "message"


def test_a_tool_runner_goes_on_from_what_the_server_keeps(client):
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: The name of a city.
        """
        asked.append(city)
        return "Sunny, 21 degrees."

    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=100, max_iterations=3, tools=[get_weather], tool_choice={"type": "tool", "name": "get_weather"},
        system="Be brief.", messages=[{"role": "user", "content": "What is the weather in Paris?"}], extra_body={"temperature": 0})
    answers = list(runner)
    assert len(answers) == 3 and len(asked) >= 2, (answers, asked)
    read = [answer.usage.cache_read_input_tokens for answer in answers]
    assert read == sorted(read) and read[0] < read[2], "each turn is read behind the one before"


def test_tools_that_anthropic_names_are_called(client):
    answer = ask(client, "List the files.", tools=[{"type": "bash_20250124", "name": "bash"}, {"type": "web_search_20250305", "name": "web_search"}],
                 tool_choice={"type": "tool", "name": "bash"}, max_tokens=60)
    assert answer.content[0].name == "bash", answer
    assert any("web_search" in note for note in answer.model_extra["kvik"]["notes"]), answer


def test_an_answer_is_held_to_a_schema(client):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"],
              "additionalProperties": False}
    answer = client.messages.create(model=MODEL, max_tokens=60, messages=[{"role": "user", "content": "Name a city."}],
                                    output_config={"format": {"type": "json_schema", "schema": schema}}, extra_body={"temperature": 0})
    assert isinstance(json.loads(answer.content[0].text)["city"], str)


def test_tokens_are_counted_as_they_are_read(client):
    counted = client.messages.count_tokens(model=MODEL, system="Be brief.", messages=[{"role": "user", "content": "Hello."}])
    usage = ask(client, "Hello.", system="Be brief.").usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens


def test_errors_are_those_that_the_client_knows(client, server):
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        ask(client, max_tokens=-1)
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].type"):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
        ask(client, messages=[{"role": "user", "content": [image]}])
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        ask(client, "word " * 5000)
    with pytest.raises(anthropic.NotFoundError):
        ask(client, model="another")
    stranger = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        ask(stranger)


def test_a_stream_that_is_left_ends(client):
    with client.messages.stream(model=MODEL, max_tokens=1500, messages=[{"role": "user", "content": "Tell me a long story."}]) as stream:
        next(iter(stream))
    assert ask(client).type == "message"
