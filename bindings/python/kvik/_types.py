"""What a model is asked with, and what it says of kept prompts and texts."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Iterable, Mapping, Sequence, TypedDict, Union

from . import _native
from ._errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy
    import numpy.typing


@dataclass(frozen=True)
class Message:
    """A message of a chat. Dictionaries with these two keys are messages too."""

    role: str
    """Who says it: `system` (the program), `user`, or `assistant` (the model)."""
    content: str
    """What is said."""


Messages = Iterable[Union[Message, Mapping[str, str]]]
"""Messages of a chat, in their order."""

Prompt = Union[str, Messages]
"""A text to continue as it is, in which names of control tokens stand for these tokens, or messages to answer, in which
nothing is taken for a control token: what users write belongs into messages."""


class AnswerOptions(TypedDict, total=False):
    """What an answer is asked for with: the likeliest tokens up to the end of the context, where nothing else is said."""

    max_tokens: int | None
    """Tokens of the answer at most."""
    min_tokens: int
    """Tokens that it has before the model may end it."""
    stop: Sequence[str]
    """The answer ends before the first of these."""
    temperature: float
    """How far from the likeliest tokens it may go; 0 takes these."""
    top_p: float
    """Keeps the smallest set of tokens whose probability reaches this; 1 keeps all."""
    top_k: int
    """Keeps so many of the likeliest tokens; 0 keeps all."""
    min_p: float
    """Drops tokens below this share of the likeliest; 0 keeps all."""
    repetition_penalty: float
    """Divides the logits of tokens that were seen; 1 is off."""
    seed: int
    """The same seed, from 0 to 2**64 - 1, gives the same text."""
    reasoning: bool | None
    """Switches reasoning before the answer to a chat on or off, for models that have it."""


@dataclass(frozen=True)
class FilePart:
    """A GGUF file inside an open file, which is mapped. The descriptor may be closed when the model is open."""

    descriptor: int
    """The file around it: what `fileno()` says."""
    offset: int = 0
    """Byte at which it begins."""
    bytes: int | None = None
    """Its length; up to the end of the file around it where nothing is said."""


@dataclass(frozen=True)
class KeptState:
    """What is known of a kept prompt."""

    is_known: bool
    """Whether something is kept under the name."""
    is_changed: bool = False
    """Whether that is something else."""
    is_warm: bool = False
    """Whether an answer would compute nothing of it, but for its last token."""
    tokens: int = 0
    """Its tokens."""
    ram_tokens: int = 0
    """Of these, tokens in RAM."""
    disk_tokens: int = 0
    """Of these, tokens that would be read from disk."""


@dataclass(frozen=True)
class Embedding:
    """What a text means to the model."""

    numbers: memoryview[float]
    """Numbers of type `f`, as many as the model is wide; their Euclidean norm is 1."""
    prompt_tokens: int
    """Tokens of the text."""
    cached_tokens: int
    """Of these, tokens that came from the cache."""

    @property
    def vector(self) -> numpy.typing.NDArray[numpy.float32]:
        """The numbers as NumPy has them: read where they are, and read-only."""
        import numpy  # Only those who want its arrays need it.

        return numpy.asarray(self.numbers, dtype=numpy.float32)


def native_prompt(prompt: Prompt) -> _native.Prompt:
    if isinstance(prompt, str):
        return _native.Prompt.TEXT(text=prompt)
    return _native.Prompt.MESSAGES(messages=[_native_message(message) for message in prompt])


def _native_message(message: Message | Mapping[str, str]) -> _native.Message:
    if isinstance(message, Message):
        role, content = message.role, message.content
    else:
        role, content = message["role"], message["content"]
    if role not in _ROLES:
        raise InvalidArgumentError(f"`role` {role!r} is none of {', '.join(_ROLES)}")
    return _native.Message(role=_ROLES[role], content=content)


_ROLES = {role.name.lower(): role for role in _native.Role}
