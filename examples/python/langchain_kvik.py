"""kvik as a chat model and as embeddings of LangChain, in this process: langchain_kvik.py MODEL.gguf"""
from __future__ import annotations

import asyncio
import sys
from typing import Any, AsyncIterator, Iterator

import kvik
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from pydantic import ConfigDict

ROLES = {"system": "system", "human": "user", "ai": "assistant"}


class ChatKvik(BaseChatModel):
    """Answers with an open model: streams, is asynchronous, and stops when nobody reads on."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    model: kvik.Model
    max_tokens: int | None = None
    temperature: float | None = None

    @property
    def _llm_type(self) -> str:
        return "kvik"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = self._answer(messages, stop)
        return result(answer.text(), answer)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        async with self._answer(messages, stop) as answer:
            return result(await answer.atext(), answer)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with self._answer(messages, stop) as answer:
            for piece in answer:
                yield chunk(piece)
            yield last_chunk(answer)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        async with self._answer(messages, stop) as answer:
            async for piece in answer:
                yield chunk(piece)
            yield last_chunk(answer)

    def _answer(self, messages: list[BaseMessage], stop: list[str] | None) -> kvik.Answer:
        asked = [kvik.Message(ROLES[message.type], message.text) for message in messages]
        return self.model.chat(
            asked, max_tokens=self.max_tokens, temperature=self.temperature, stop=stop or []
        )


class KvikEmbeddings(Embeddings):
    """Vectors of an open model."""

    def __init__(self, model: kvik.Model) -> None:
        self.model = model

    def embed_query(self, text: str) -> list[float]:
        return list(self.model.embedding(text).numbers)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


def result(text: str, answer: kvik.Answer) -> ChatResult:
    message = AIMessage(content=text, usage_metadata=usage(answer))
    return ChatResult(generations=[ChatGeneration(message=message)])


def chunk(piece: kvik.Piece) -> ChatGenerationChunk:
    text, thought = ("", piece.text) if piece.is_reasoning else (piece.text, "")
    extra = {"reasoning_content": thought} if thought else {}
    return ChatGenerationChunk(message=AIMessageChunk(content=text, additional_kwargs=extra))


def last_chunk(answer: kvik.Answer) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=usage(answer)))


def usage(answer: kvik.Answer) -> UsageMetadata | None:
    report = answer.report
    if report is None:
        return None
    return UsageMetadata(
        input_tokens=report.prompt_tokens,
        output_tokens=report.generated_tokens,
        total_tokens=report.prompt_tokens + report.generated_tokens,
        input_token_details={"cache_read": report.cached_tokens},
    )


async def stream(chain: Any, question: str) -> None:
    async for said in chain.astream({"question": question}):
        print(said.content, end="", flush=True)
    print()


def main() -> None:
    with kvik.Model(sys.argv[1]) as model:
        asks = ChatPromptTemplate.from_messages([("system", "You answer in one sentence."), ("human", "{question}")])
        chain = asks | ChatKvik(model=model, max_tokens=32)
        said = chain.invoke({"question": "Who are you?"})
        print(said.content, said.usage_metadata)
        again = chain.invoke({"question": "Who are you?"})
        print(again.content, again.usage_metadata)
        asyncio.run(stream(chain, "What is a KV cache?"))
        vector = KvikEmbeddings(model).embed_query("A garden in winter")
        print(f"{len(vector)} numbers, the first of them {vector[0]:.4f}")


if __name__ == "__main__":
    main()
