"""An open model, for calls from any thread."""
from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Sequence, Union

from . import _native
from ._answer import Answer
from ._conversation import Conversation
from ._errors import ClosedError, raised_as_own
from ._guesses import MODEL, no_attribute, with_advice
from ._names import path_of
from ._types import (
    AnswerOptions,
    Embedding,
    FilePart,
    KeptState,
    Messages,
    Prompt,
    as_list,
    check_value,
    native_options,
    native_prompt,
    require_numpy,
)

if TYPE_CHECKING:
    import numpy
    import numpy.typing
    from typing_extensions import Unpack

Source = Union[str, "os.PathLike[str]", bytes, FilePart]
"""Source of a model: the path of a GGUF file or of a directory in Hugging Face's layout, a name that the command `kvik`
knows (`qwen3:0.6b`, `hf:Qwen/Qwen3-0.6B-GGUF`), a GGUF file in memory, or a part of an open file."""


class Model:
    """An open model. All of its methods may be called from any number of threads at once; answers are computed together.

    Calls that compute release the GIL; in a coroutine they belong in `asyncio.to_thread`, except for `chat` and
    `generate`, which return before anything is computed.
    """

    @with_advice(MODEL)
    def __init__(
        self,
        source: Source,
        *,
        kv_bytes: int | None = None,
        kv_format: str | None = None,
        context_tokens: int | None = None,
        threads: int | None = None,
        parallel: int | None = None,
        disk_dir: str | os.PathLike[str] | None = None,
        disk_bytes_max: int | None = None,
        conversations_dir: str | os.PathLike[str] | None = None,
        memory: _native.MemoryOptions | None = None,
    ) -> None:
        """Reads a model and starts its threads.

        `source` is a path, a name, bytes, or a part of an open file; a model of a name that is on the hub is downloaded
        first. Defaults: `kv_bytes` of RAM for keys and values are half of the free memory, at most 8 GiB, in the
        `kv_format` `f16` (`q8`, `q4`, or `q8/q4` for keys and values take less). `context_tokens` of a prompt and its
        answer are the model's own, or what fits the memory. `threads` is the number of fast cores, and `parallel`, the
        maximum number of answers computed at the same time, is 4. Computed blocks outlive the process in `disk_dir`,
        a directory for this purpose only, with `disk_bytes_max` of 2 GiB and never more than a tenth of the free space;
        several models and processes may have it open.
        Conversations are stored in `conversations_dir`, which must not be a cache directory, since they cannot be
        recomputed; without it they last as long as the model is open, and so they do where another process stores its
        conversations there (`conversations_are_stored`). `memory` has the bounds of their summaries.
        """
        for name, value in (
            ("kv_bytes", kv_bytes),
            ("context_tokens", context_tokens),
            ("threads", threads),
            ("parallel", parallel),
            ("disk_bytes_max", disk_bytes_max),
        ):
            if value is not None:
                check_value(name, value)
        options = _native.ModelOptions(
            kv_bytes=kv_bytes,
            kv_format=kv_format,
            context_tokens=context_tokens,
            threads=threads,
            parallel=parallel,
            disk_dir=_directory(disk_dir),
            disk_bytes_max=disk_bytes_max,
            conversations_dir=_directory(conversations_dir),
            memory=memory,
        )
        self._source = _shown(source)
        with raised_as_own():
            self._handle = _open(source, options)

    def __repr__(self) -> str:
        try:
            state = f"context_tokens={self.context_tokens}"
        except ClosedError:
            state = "closed"
        return f"Model({self._source}, {state})"

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> _native.Flushed | None:
        """Cancels all answers, waits up to two seconds until computed blocks are on disk, and stops all threads. Later
        calls raise `ClosedError`. Returns `None` if the model was closed before."""
        with raised_as_own():
            return self._handle.shut_down()

    def chat(self, messages: Messages, **options: Unpack[AnswerOptions]) -> Answer:
        """Answers messages, rendered by the model's chat template; a text is a message of the user."""
        return self._answer(as_list(messages), options, "chat")

    def generate(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> Answer:
        """Continues a text, or answers messages. Names of control tokens in a text are parsed as these tokens, so users'
        texts belong in messages."""
        return self._answer(prompt, options, "generate")

    def _answer(self, prompt: Prompt, options: AnswerOptions, call: str) -> Answer:
        with raised_as_own():
            return Answer(self._handle.generate(native_prompt(prompt), native_options(options, call)), self)

    def sampling(self, reasoning: bool | None = None) -> _native.ModelSampling:
        """The sampling of answers whose options set none: what the model's makers recommend, else kvik's defaults, each
        setting with its source. `reasoning` is that of the options: some makers recommend other settings without it."""
        with raised_as_own():
            return self._handle.sampling(reasoning)

    def conversation(self, reference: str) -> Conversation:
        """Opens the conversation with this name or id; if no conversation has the name, a new one is stored once a turn
        was answered in it."""
        with raised_as_own():
            return Conversation(self._handle.conversation(reference), reference, self)

    def conversations(self) -> list[_native.ConversationInfo]:
        """All conversations, the most recently changed first."""
        with raised_as_own():
            return self._handle.conversations()

    @property
    def conversations_are_stored(self) -> bool:
        """True if conversations are stored on the disk. If not, they end with the model: without `conversations_dir`, or
        because another process stores its conversations there."""
        with raised_as_own():
            return self._handle.conversations_are_stored()

    def embed(self, text: str) -> numpy.typing.NDArray[numpy.float32]:
        """Embedding of a text: a vector of length 1, read-only. It needs NumPy (`pip install kvik[numpy]`)."""
        require_numpy("list(model.embedding(text).numbers) works without it")
        return self._embedding(text, "embed").vector

    def embedding(self, text: str) -> Embedding:
        """Embedding of a text as numbers without NumPy, with its token counts."""
        return self._embedding(text, "embedding")

    def _embedding(self, text: str, call: str) -> Embedding:
        if not isinstance(text, str):
            raise TypeError(f"`{call}` takes one text, and not {type(text).__name__}: [model.{call}(text) for text in texts]")
        with raised_as_own():
            native = self._handle.embed(text)
        return Embedding(memoryview(native.vector).cast("f"), native.prompt_tokens, native.cached_tokens)

    def logits(
        self, prompt: Prompt, tokens: Sequence[int] | None = None, **options: Unpack[AnswerOptions]
    ) -> numpy.typing.NDArray[numpy.float32]:
        """Logits of the next token, before sampling: of the whole vocabulary, or of `tokens` in their order; read-only. It
        needs NumPy."""
        require_numpy("answers need none")
        asked = None if tokens is None else list(tokens)
        with raised_as_own():
            native = self._handle.logits(native_prompt(prompt), asked, native_options(options, "logits"))
        import numpy

        return numpy.frombuffer(native.values, dtype=numpy.float32)

    def tokens(self, text: str) -> list[int]:
        """Tokenizes a text on its own. Names of control tokens in it are parsed as these tokens."""
        with raised_as_own():
            return self._handle.tokens(text)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Text of tokens."""
        with raised_as_own():
            return self._handle.text_of(list(tokens))

    def count_tokens(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> int:
        """Number of tokens of a prompt, as an answer with these options reads it."""
        with raised_as_own():
            return self._handle.count_tokens(native_prompt(prompt), native_options(options, "count_tokens"))

    def explain(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> _native.Explanation:
        """Reports what a prompt would find in the cache now, and why not more. Computes and changes nothing."""
        with raised_as_own():
            return self._handle.explain(native_prompt(prompt), native_options(options, "explain"))

    def keep_prompt(self, id: str, prompt: Prompt, **options: Unpack[AnswerOptions]) -> KeptState:
        """Computes the common prefix of future prompts, unless it is cached, and pins it under a name until it is
        forgotten: in RAM, and on disk, where another process finds it. The previous prompt of the name is unpinned. The
        options are those of the answers: a template may write tools and reasoning before the messages."""
        with raised_as_own():
            return _kept(self._handle.keep_prompt(id, native_prompt(prompt), native_options(options, "keep_prompt")))

    def is_kept(self, id: str, prompt: Prompt, **options: Unpack[AnswerOptions]) -> KeptState:
        """Compares a prompt with the one that is pinned under a name, and reports how much of it is cached."""
        with raised_as_own():
            return _kept(self._handle.is_kept(id, native_prompt(prompt), native_options(options, "is_kept")))

    def forget_prompt(self, id: str) -> bool:
        """Unpins the prompt of a name, in RAM and on disk, unless another name has the same tokens. Returns whether the
        name existed."""
        with raised_as_own():
            return self._handle.forget_prompt(id)

    @property
    def context_tokens(self) -> int:
        """Maximum tokens of a prompt and its answer together."""
        with raised_as_own():
            return self._handle.context_tokens()

    def stats(self) -> _native.Stats:
        """Statistics of the engine after its last step."""
        with raised_as_own():
            return self._handle.stats()

    def on_memory_pressure(self, level: _native.MemoryPressure) -> _native.Released:
        """Releases memory to the system: computed blocks get 50 ms to reach the disk, then cached prefixes are evicted, the
        least valuable first. Answers continue."""
        with raised_as_own():
            return self._handle.on_memory_pressure(level)

    def on_background(self) -> _native.Flushed:
        """Prepares for the end of the process: cancels all answers and waits until all computed blocks are on disk, at
        most 100 ms and the running step. After that no thread of the model runs until the next call."""
        with raised_as_own():
            return self._handle.on_background()

    if not TYPE_CHECKING:

        @classmethod
        def from_pretrained(cls, *arguments: Any, **options: Any) -> Any:
            raise TypeError("kvik.Model(source) opens a model, also by a name: `qwen3:0.6b`, or `hf:owner/repo`")

        def __call__(self, *arguments: Any, **options: Any) -> Any:
            raise TypeError("model.chat(messages) answers messages, and model.generate(text) continues a text")

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("Model", name)


def _open(source: Source, options: _native.ModelOptions) -> _native.ModelHandle:
    if isinstance(source, bytes):
        return _native.ModelHandle.open_bytes(source, options)
    if isinstance(source, FilePart):
        return _native.ModelHandle.open_descriptor(source.descriptor, source.offset, source.bytes, options)
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"`source` is a path, a name, bytes or a kvik.FilePart, and not {source!r}")
    return _native.ModelHandle.open(path_of(source), options)


def _shown(source: Source) -> str:
    return f"<{len(source)} bytes>" if isinstance(source, bytes) else repr(source)


def _directory(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.path.expanduser(os.fspath(path))


def _kept(state: _native.KeptState) -> KeptState:
    if not state.is_kept():
        return KeptState(is_known=not state.is_unknown(), is_changed=state.is_changed())
    return KeptState(
        is_known=True,
        is_warm=state.warm,
        tokens=state.tokens,
        ram_tokens=state.ram_tokens,
        disk_tokens=state.disk_tokens,
    )
