"""The official ollama client, unchanged, on a real server."""
import json

import ollama
import pytest
from asked import KEY, MODEL

COLD = {"temperature": 0, "num_predict": 24}


@pytest.fixture(scope="module")
def client(server):
    return ollama.Client(host=f"http://127.0.0.1:{server.port}", headers={"Authorization": f"Bearer {KEY}"})


def chat(client, text="What is the capital of France?", **more):
    return client.chat(**{"model": MODEL, "messages": [{"role": "user", "content": text}], "options": COLD} | more)


def test_a_chat_streams_what_it_says(client):
    whole = chat(client)
    assert whole.done and whole.done_reason in ("stop", "length") and whole.message.content
    parts = list(chat(client, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].done and parts[-1].prompt_eval_count == whole.prompt_eval_count


def test_generate_goes_on_from_its_context(client):
    first = client.generate(model=MODEL, prompt="My name is Ada.", options=COLD)
    assert first.response and len(first.context) > first.eval_count
    second = client.generate(model=MODEL, prompt="What is my name?", context=first.context, options=COLD)
    assert second.prompt_eval_count > first.prompt_eval_count
    assert second.model_dump().get("context")[: len(first.context)] == list(first.context)


def test_tools_are_offered_and_their_results_read(client):
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: the city
        """
        return f"Sunny in {city}."

    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = chat(client, messages=messages, tools=[get_weather], options=COLD | {"num_predict": 80})
    messages.append(answer.message)
    for call in answer.message.tool_calls or []:
        messages.append({"role": "tool", "tool_name": call.function.name, "content": get_weather(**call.function.arguments)})
    assert chat(client, messages=messages, tools=[get_weather]).done


def test_an_answer_is_held_to_a_schema(client):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
    answer = chat(client, "Name a city.", format=schema, options=COLD | {"num_predict": 80})
    assert isinstance(json.loads(answer.message.content)["city"], str)


def test_texts_are_embedded(client):
    both = client.embed(model=MODEL, input=["Your parcel arrives.", "Heavy rain on Friday."])
    assert len(both.embeddings) == 2 and abs(sum(x * x for x in both.embeddings[0]) - 1) < 1e-3 and both.prompt_eval_count > 5
    assert len(client.embed(model=MODEL, input="Rain.", dimensions=8).embeddings[0]) == 8
    assert len(client.embeddings(model=MODEL, prompt="Rain.").embedding) == len(both.embeddings[0])
    with pytest.raises(ollama.ResponseError, match=r"`input\[1\]`"):
        client.embed(model=MODEL, input=["Rain.", ""])


def test_the_model_is_listed_shown_and_running(client):
    assert [model.model for model in client.list().models] == [MODEL]
    assert [model.model for model in client.ps().models] == [MODEL]
    assert "completion" in client.show(MODEL).capabilities


def test_what_it_cannot_do_is_said(client):
    with pytest.raises(ollama.ResponseError, match="one model that it was started with") as refused:
        client.pull("llama3")
    assert refused.value.status_code == 501
    with pytest.raises(ollama.ResponseError, match="does not exist here") as missing:
        chat(client, model="another")
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="maximum context length"):
        chat(client, "word " * 5000)
    with pytest.raises(ollama.ResponseError, match="images"):
        chat(client, messages=[{"role": "user", "content": "x", "images": [b"\x89PNG"]}])
