"""kvik as a language model and as embeddings of LlamaIndex, in this process: llama_index_kvik.py MODEL.gguf"""
from __future__ import annotations

import asyncio
import sys
from typing import Any, Iterable, Iterator, Sequence

import kvik
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback


class KvikLLM(CustomLLM):
    """Answers with an open model, in the form of its own chat template."""

    max_tokens: int = 256
    _model: kvik.Model = PrivateAttr()

    def __init__(self, model: kvik.Model, **fields: Any) -> None:
        super().__init__(**fields)
        self._model = model

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=self._model.context_tokens,
            num_output=self.max_tokens,
            is_chat_model=True,
            model_name="kvik",
        )

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        text = self._answer(messages).text()
        return ChatResponse(message=ChatMessage(role="assistant", content=text))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        def pieces() -> ChatResponseGen:
            text = ""
            with self._answer(messages) as answer:
                for piece in spoken(answer):
                    text += piece.text
                    yield ChatResponse(message=ChatMessage(role="assistant", content=text), delta=piece.text)

        return pieces()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self._continuation(prompt, formatted).text())

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        def pieces() -> CompletionResponseGen:
            text = ""
            with self._continuation(prompt, formatted) as answer:
                for piece in spoken(answer):
                    text += piece.text
                    yield CompletionResponse(text=text, delta=piece.text)

        return pieces()

    def _answer(self, messages: Sequence[ChatMessage]) -> kvik.Answer:
        asked = [kvik.Message(message.role.value, message.content or "") for message in messages]
        return self._model.chat(asked, max_tokens=self.max_tokens)

    def _continuation(self, prompt: str, formatted: bool) -> kvik.Answer:
        # Names of control tokens mean something only in a prompt that was formatted; others may have them from users.
        if formatted:
            return self._model.generate(prompt, max_tokens=self.max_tokens)
        return self._model.chat([kvik.Message("user", prompt)], max_tokens=self.max_tokens)


def spoken(answer: Iterable[kvik.Piece]) -> Iterator[kvik.Piece]:
    """The pieces of an answer without the thoughts before it, which `chat` and `complete` leave out too."""
    return (piece for piece in answer if not piece.is_reasoning)


class KvikEmbedding(BaseEmbedding):
    """Vectors of an open model."""

    _model: kvik.Model = PrivateAttr()

    def __init__(self, model: kvik.Model, **fields: Any) -> None:
        super().__init__(**fields)
        self._model = model

    def _get_text_embedding(self, text: str) -> list[float]:
        return list(self._model.embedding(text).numbers)

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, query)


def main() -> None:
    with kvik.Model(sys.argv[1]) as model:
        llm, vectors = KvikLLM(model, max_tokens=24), KvikEmbedding(model)
        documents = [
            Document(text="Minka is a cat. She sleeps in the garden."),
            Document(text="The bill is due on Friday."),
        ]
        index = VectorStoreIndex.from_documents(documents, embed_model=vectors)
        for found in index.as_retriever(similarity_top_k=2).retrieve("Where does the cat sleep?"):
            print(f"{found.score:.3f} {found.get_content()}")
        print(index.as_query_engine(llm=llm, similarity_top_k=2).query("Where does the cat sleep?"))
        for response in llm.stream_chat([ChatMessage(role="user", content="Who are you?")]):
            print(response.delta, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
