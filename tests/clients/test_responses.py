"""The official openai client on /v1/responses."""
import json

import openai
import pytest
from asked import KEY, MODEL

TOOL = {"type": "function", "name": "get_weather", "description": "The weather in a city.", "strict": False,
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}}


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.base_url, api_key=KEY, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def create(client):
    return lambda input, **options: client.responses.create(**dict(model=MODEL, input=input, max_output_tokens=24, temperature=0) | options)


def test_an_answer_and_its_stream_say_the_same(create, client):
    whole = create("What is the capital of France?")
    assert whole.output_text and whole.status in ("completed", "incomplete") and whole.usage.output_tokens > 0
    kinds, text = [], ""
    for event in create("What is the capital of France?", stream=True):
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert text == whole.output_text
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == f"response.{whole.status}"
    with client.responses.stream(model=MODEL, input="What is the capital of France?", max_output_tokens=24, temperature=0) as stream:
        stream.until_done()
        assert stream.get_final_response().output_text == whole.output_text


def test_a_conversation_goes_on_by_the_id_of_its_last_answer(create, client):
    first = create("My name is Ada.")
    second = create("What is my name?", previous_response_id=first.id)
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 1
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert [item.content[0].text for item in client.responses.input_items.list(second.id)] == ["What is my name?"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=first.id):
        create("And now?", previous_response_id=second.id)


def test_a_conversation_goes_on_by_the_ids_of_its_items(create, client):
    asked = {"role": "user", "content": "My name is Ada."}
    first = create([asked])
    references = [{"type": "item_reference", "id": item.id} for item in first.output]
    question = {"role": "user", "content": "What is my name?"}
    sent_whole = create([asked, *first.output, question], store=False)
    assert create([asked, *references, question]).output_text == sent_whole.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        create([asked, *references, question])


def test_tools_are_called_in_a_loop(create):
    history = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = create(history, tools=[TOOL], tool_choice="required", max_output_tokens=80)
    call = next(item for item in answer.output if item.type == "function_call")
    assert call.name == "get_weather" and isinstance(json.loads(call.arguments)["city"], str)
    history += answer.output
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 21 degrees."})
    assert create(history, tools=[TOOL], tool_choice="none").output_text


def test_an_answer_is_held_to_a_schema(create):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "city", "schema": schema}}
    assert isinstance(json.loads(create("Name a city.", text=form, max_output_tokens=60).output_text)["city"], str)


def test_tokens_are_counted_as_they_are_read(create, client):
    counted = client.responses.input_tokens.count(model=MODEL, input="Hello.", instructions="Be brief.")
    assert counted.input_tokens == create("Hello.", instructions="Be brief.").usage.input_tokens


def test_a_conversation_is_compacted_and_goes_on(create, client):
    said = [{"role": role, "content": text} for role, text in (("user", "My name is Ada."), ("assistant", "Noted."))]
    compacted = client.responses.compact(model=MODEL, input=said)
    assert [item.type for item in compacted.output] == ["compaction"]
    item = compacted.output[0].model_dump(exclude_none=True)
    assert create([item, {"role": "user", "content": "What is my name?"}]).output_text is not None
    with pytest.raises(openai.BadRequestError, match="compaction item"):
        create([item | {"encrypted_content": "AAAA" + item["encrypted_content"][4:]}, {"role": "user", "content": "x"}])


def test_tools_that_do_not_run_here_are_left_out_and_named(create):
    answer = create("x", tools=[{"type": "web_search"}], extra_body={"tool_choice": "auto"})
    assert any("web_search" in note for note in answer.model_extra["kvik"]["notes"])


def test_errors_are_those_that_the_client_knows(create):
    image = {"type": "input_image", "image_url": "data:image/png;base64,eA=="}
    with pytest.raises(openai.BadRequestError, match="is an image"):
        create([{"role": "user", "content": [image]}])
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        create("word " * 6000)
    *_, last = create("word " * 6000, stream=True)
    assert last.type == "response.failed" and last.response.error.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        create("x", model="another")
    with pytest.raises(openai.NotFoundError):
        create("x", previous_response_id="resp_0")
