"""The examples run as they are, and what others make of them: chains, streams, an index."""
import asyncio
import contextlib
import subprocess
import sys

import pytest
from conftest import MODEL, ROOT

import kvik

EXAMPLES = ROOT / "examples/python"
sys.path.insert(0, str(EXAMPLES))


@pytest.mark.parametrize("name, says", [("langchain_kvik.py", "256 numbers"), ("llama_index_kvik.py", "Minka is a cat.")])
def test_an_example_runs(name, says):
    ran = subprocess.run([sys.executable, "-B", EXAMPLES / name, MODEL], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and says in ran.stdout, ran.stdout + ran.stderr


def test_langchain_streams_counts_and_stops(model):
    from langchain_core.messages import HumanMessage, SystemMessage
    from langchain_kvik import ChatKvik

    asked = [SystemMessage("Be brief."), HumanMessage("Who are you?")]
    expect = model.chat([kvik.Message("system", "Be brief."), kvik.Message("user", "Who are you?")], max_tokens=16)
    text, chat = expect.text(), ChatKvik(model=model, max_tokens=16)
    assert chat.invoke(asked).content == text
    chunks = list(chat.stream(asked))
    assert len(chunks) > 3 and "".join(chunk.content for chunk in chunks) == text
    used = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert [use["input_token_details"]["cache_read"] for use in used] == [expect.report.prompt_tokens - 1]
    assert text.startswith(cut := chat.invoke(asked, stop=[text[5:8]]).content) and len(cut) < 8

    async def stream():
        return [chunk.content async for chunk in chat.astream(asked)], await chat.ainvoke(asked)

    streamed, answered = asyncio.run(stream())
    assert "".join(streamed) == text == answered.content


def test_langchain_cancels_what_is_not_read(model):
    from langchain_kvik import ChatKvik

    stream = ChatKvik(model=model, max_tokens=1500, temperature=0.9).stream("Tell me a very long story.")
    next(stream)
    stream.close()
    assert model.generate("A letter", max_tokens=4).text() and model.stats().running == 0


class Thinking:
    """A model whose every answer has a thought before it."""

    context_tokens = 64

    def chat(self, *_, **__):
        thought = kvik.Piece("Who am I? ", is_reasoning=True)
        return contextlib.nullcontext([thought, kvik.Piece("A small "), kvik.Piece("model.")])

    generate = chat


def test_llama_index_streams_no_thoughts():
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index_kvik import KvikLLM

    llm = KvikLLM(Thinking())
    said = list(llm.stream_chat([ChatMessage(role="user", content="Who are you?")]))
    assert [response.delta for response in said] == ["A small ", "model."]
    assert said[-1].message.content == "A small model."
    for formatted in (False, True):
        said = list(llm.stream_complete("Who are you?", formatted=formatted))
        assert [response.delta for response in said] == ["A small ", "model."] and said[-1].text == "A small model."


def test_llama_index_streams_and_embeds(model):
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index_kvik import KvikEmbedding, KvikLLM

    llm, asked = KvikLLM(model, max_tokens=16), [ChatMessage(role="user", content="Who are you?")]
    text = model.chat([kvik.Message("user", "Who are you?")], max_tokens=16).text()
    assert llm.chat(asked).message.content == text == llm.complete("Who are you?").text
    streamed = list(llm.stream_chat(asked))
    assert "".join(response.delta for response in streamed) == text == streamed[-1].message.content
    assert llm.metadata.context_window == model.context_tokens
    vectors = KvikEmbedding(model)
    assert vectors.get_text_embedding("A garden") == model.embed("A garden").tolist()
    assert asyncio.run(vectors.aget_query_embedding("A garden")) == vectors.get_text_embedding("A garden")
