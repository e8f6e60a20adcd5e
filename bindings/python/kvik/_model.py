"""An open model, and what can be asked of it from any thread."""
from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Sequence, Union

from . import _native
from ._answer import Answer
from ._conversation import Conversation
from ._errors import ModelNotFoundError, raised_as_own
from ._types import (
    AnswerOptions,
    Embedding,
    FilePart,
    KeptState,
    Messages,
    Prompt,
    as_list,
    native_options,
    native_prompt,
    require_numpy,
)

if TYPE_CHECKING:
    import numpy
    import numpy.typing
    from typing_extensions import Unpack

Source = Union[str, "os.PathLike[str]", bytes, FilePart]
"""Where a model comes from: the path of a GGUF file or of a directory as Hugging Face lays it out, a GGUF file in memory,
or a part of an open file."""


class Model:
    """An open model. All of its methods may be called from any number of threads at once; answers are computed together.

    Calls that compute release the GIL; in a coroutine they belong into `asyncio.to_thread`, but for `chat` and
    `generate`, which return before anything is computed.
    """

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

        Where nothing is said: `kv_bytes` of RAM for keys and values are half of the free memory, at most 8 GiB; they are
        stored as `kv_format` `f16` (smaller are `q8`, `q4`, or `q8/q4` for keys and values). `context_tokens` of a prompt
        and its answer are the model's own, or what fits. `threads` are the fast cores, and `parallel` answers, 4, are
        computed at the same time. Computed blocks outlive the process in `disk_dir`, a directory of their own, which
        takes `disk_bytes_max`, 2 GiB, and never more than a tenth of the free space. Conversations are kept in
        `conversations_dir`, which is no cache: nobody makes them again; without it they last as long as the model is open.
        `memory` says how they go on beyond the context, and has bounds that are scaled to it.
        """
        options = _native.ModelOptions(
            kv_bytes=kv_bytes,
            kv_format=kv_format,
            context_tokens=context_tokens,
            threads=threads,
            parallel=parallel,
            disk_dir=None if disk_dir is None else os.fspath(disk_dir),
            disk_bytes_max=disk_bytes_max,
            conversations_dir=None if conversations_dir is None else os.fspath(conversations_dir),
            memory=memory,
        )
        with raised_as_own():
            self._handle = _open(source, options)

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> _native.Flushed | None:
        """Cancels all answers, gives the disk up to two seconds for what was computed, and stops all threads. Other calls
        raise `ClosedError` from then on; none is returned where it was closed before."""
        with raised_as_own():
            return self._handle.shut_down()

    def chat(self, messages: Messages, **options: Unpack[AnswerOptions]) -> Answer:
        """Answers messages, in the form of the model's chat template; a text is a message of the user."""
        return self._answer(as_list(messages), options)

    def generate(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> Answer:
        """Continues a text, or answers messages. Names of control tokens in a text stand for these tokens: what users
        write belongs into messages."""
        return self._answer(prompt, options)

    def _answer(self, prompt: Prompt, options: AnswerOptions) -> Answer:
        with raised_as_own():
            return Answer(self._handle.generate(native_prompt(prompt), native_options(options)), self)

    def conversation(self, reference: str) -> Conversation:
        """The conversation of this name or id; a new one, where nothing has the name, that is kept once something was
        answered in it."""
        with raised_as_own():
            return Conversation(self._handle.conversation(reference), self)

    def conversations(self) -> list[_native.ConversationInfo]:
        """All conversations, those that were changed last first."""
        with raised_as_own():
            return self._handle.conversations()

    def embed(self, text: str) -> numpy.typing.NDArray[numpy.float32]:
        """What a text means to the model: a vector of length 1, read-only. It takes NumPy (`pip install kvik[numpy]`)."""
        require_numpy("`embedding` works without it")
        return self.embedding(text).vector

    def embedding(self, text: str) -> Embedding:
        """The same without NumPy, and what it took."""
        with raised_as_own():
            native = self._handle.embed(text)
        return Embedding(memoryview(native.vector).cast("f"), native.prompt_tokens, native.cached_tokens)

    def logits(self, prompt: Prompt, tokens: Sequence[int] | None = None) -> numpy.typing.NDArray[numpy.float32]:
        """How likely each token of the vocabulary is to come next, or each of these: logits, before sampling; read-only.
        It takes NumPy."""
        require_numpy("answers need none")
        with raised_as_own():
            native = self._handle.logits(native_prompt(prompt), None if tokens is None else list(tokens))
        import numpy

        return numpy.frombuffer(native.values, dtype=numpy.float32)

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text by itself. Names of control tokens in it stand for these tokens."""
        with raised_as_own():
            return self._handle.tokens(text)

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        with raised_as_own():
            return self._handle.text_of(list(tokens))

    def count_tokens(self, prompt: Prompt) -> int:
        """Tokens of a prompt."""
        with raised_as_own():
            return self._handle.count_tokens(native_prompt(prompt))

    def explain(self, prompt: Prompt) -> _native.Explanation:
        """What a prompt would find in the cache now, and why not more. Computes and changes nothing."""
        with raised_as_own():
            return self._handle.explain(native_prompt(prompt))

    def keep_prompt(self, id: str, prompt: Prompt) -> KeptState:
        """Computes what other prompts begin with, as far as it is not known, and keeps it under a name until it is
        forgotten: in RAM, and on disk, where another process finds it. What the name stood for before is unpinned."""
        with raised_as_own():
            return _kept(self._handle.keep_prompt(id, native_prompt(prompt)))

    def is_kept(self, id: str, prompt: Prompt) -> KeptState:
        """Whether this is what is kept under a name, and how much of it need not be computed."""
        with raised_as_own():
            return _kept(self._handle.is_kept(id, native_prompt(prompt)))

    def forget_prompt(self, id: str) -> bool:
        """Unpins what is kept under a name, in RAM and on disk, unless something else needs it. Whether there was such a
        name."""
        with raised_as_own():
            return self._handle.forget_prompt(id)

    @property
    def context_tokens(self) -> int:
        """Tokens of a prompt and its answer together."""
        with raised_as_own():
            return self._handle.context_tokens()

    def stats(self) -> _native.Stats:
        """The engine's numbers after its last step."""
        with raised_as_own():
            return self._handle.stats()

    def on_memory_pressure(self, level: _native.MemoryPressure) -> _native.Released:
        """Releases memory to the system: first what is computed goes to the disk, for which it has 50 ms, then cached
        prefixes are evicted, those worth least first. Answers go on."""
        with raised_as_own():
            return self._handle.on_memory_pressure(level)

    def on_background(self) -> _native.Flushed:
        """Gets ready to be killed: cancels all answers and waits up to 100 ms, and for the step that runs, until all that
        was computed is on disk. Then no thread of the model runs until something is asked again."""
        with raised_as_own():
            return self._handle.on_background()


def _open(source: Source, options: _native.ModelOptions) -> _native.ModelHandle:
    if isinstance(source, bytes):
        return _native.ModelHandle.open_bytes(source, options)
    if isinstance(source, FilePart):
        return _native.ModelHandle.open_descriptor(source.descriptor, source.offset, source.bytes, options)
    path = os.fspath(source)
    if not os.path.exists(path):
        raise ModelNotFoundError(path)
    return _native.ModelHandle.open(path, options)


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
