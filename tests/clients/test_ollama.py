"""The official ollama client, unchanged, on a real server."""
import json

import ollama
import pytest
from asked import KEY, MODEL
from hub import Hub
from server import TINY, Server

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
    with pytest.raises(ollama.ResponseError, match="kvik serve --shelf") as refused:
        client.pull("hf.co/o/r")
    assert refused.value.status_code == 501
    with pytest.raises(ollama.ResponseError, match="does not exist here") as missing:
        chat(client, model="another")
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="maximum context length"):
        chat(client, "word " * 5000)
    with pytest.raises(ollama.ResponseError, match="images"):
        chat(client, messages=[{"role": "user", "content": "x", "images": [b"\x89PNG"]}])


def test_models_are_pulled_listed_run_and_deleted(tmp_path):
    """What `ollama`'s users do, on a shelf that is empty at first."""
    model = (TINY / "kvik-tiny-q8_0.gguf").read_bytes()
    with Hub({"o/tiny": {"tiny-Q8_0.gguf": model}, "o/other": {"other-Q8_0.gguf": model}}) as hub:
        env = {"KVIK_MODELS_DIR": str(tmp_path), "HF_ENDPOINT": hub.url}
        with Server("--shelf", "--context", "2048", "--cache-ram", "64MiB", "--shelf-ram", "100MiB", env=env) as server:
            client = ollama.Client(host=f"http://127.0.0.1:{server.port}")
            assert client.list().models == []
            steps = list(client.pull("hf.co/o/tiny", stream=True))
            assert steps[-1].status == "success" and any(step.completed == len(model) for step in steps)
            assert client.pull("hf.co/o/other").status == "success"
            assert [listed.model for listed in client.list().models] == ["o/other", "o/tiny"]
            assert "completion" in client.show("hf.co/o/tiny").capabilities
            said = [chat(client, model=name).message.content for name in ("hf.co/o/tiny", "o/other", "hf.co/o/tiny")]
            assert said[0] and len(set(said)) == 1
            assert [running.model for running in client.ps().models] == ["o/tiny"], "one fits"
            assert client.embed(model="o/other", input="Rain.").embeddings
            assert client.copy("o/tiny", "mine").status == "success" and chat(client, model="mine").message.content == said[0]
            for name in ("o/tiny", "o/other", "mine"):
                assert client.delete(name).status == "success"
            assert client.list().models == []
            with pytest.raises(ollama.ResponseError, match="does not exist") as gone:
                client.delete("mine")
            assert gone.value.status_code == 404
            with pytest.raises(ollama.ResponseError, match="hf.co/OWNER/REPO"):
                client.pull("mixtral")
