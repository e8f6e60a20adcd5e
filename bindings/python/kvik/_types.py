"""What a model is asked with, and what it says of kept prompts and texts."""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence, TypedDict, Union

from . import _native
from ._errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy
    import numpy.typing


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool."""

    id: str
    """What its result names it by."""
    name: str
    """The tool."""
    arguments: str
    """Its arguments: JSON, as the model wrote it."""


@dataclass(frozen=True)
class Message:
    """A message of a chat. Dictionaries in OpenAI's form are messages too."""

    role: str
    """Who says it: `system` (the program), `user`, `assistant` (the model), or `tool`, which the model called."""
    content: str
    """What is said."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of the model."""
    tool_call_id: str | None = None
    """The call that the result of a tool answers."""


Messages = Union[str, Message, Mapping[str, Any], Iterable[Union[Message, Mapping[str, Any]]]]
"""Messages of a chat, in their order; one alone, or a text, which is a message of the user."""

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
    tools: Sequence[Mapping[str, Any]]
    """Tools that the answer to a chat may call, as OpenAI writes them."""
    tool_choice: str | None
    """Which of them it calls: `none`, `auto`, `required`, or the name of one."""
    parallel_tool_calls: bool | None
    """Whether it may call several; one, where one has to be called, if nothing is said."""
    json_schema: Mapping[str, Any] | None
    """The answer is JSON that satisfies this schema. One of this and the next two at most."""
    regex: str | None
    """The answer matches this regular expression."""
    grammar: str | None
    """The answer is what this Lark grammar accepts."""


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
        require_numpy("`numbers` has them without it")
        import numpy

        return numpy.asarray(self.numbers, dtype=numpy.float32)


def require_numpy(otherwise: str) -> None:
    """Only those need NumPy who want its arrays; the others are told how to get it, and what works without it."""
    try:
        import numpy  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"arrays need NumPy: pip install 'kvik[numpy]'; {otherwise}", name=error.name) from None


def native_prompt(prompt: Prompt) -> _native.Prompt:
    if isinstance(prompt, str):
        return _native.Prompt.TEXT(text=prompt)
    return _native.Prompt.MESSAGES(messages=native_messages(prompt))


def native_messages(messages: Messages) -> list[_native.Message]:
    return [_native_message(message) for message in as_list(messages)]


def as_list(messages: Messages) -> list[Message | Mapping[str, Any]]:
    if isinstance(messages, str):
        return [Message("user", messages)]
    if isinstance(messages, (Message, Mapping)):
        return [messages]
    if not isinstance(messages, Iterable):
        raise TypeError(f"messages are a list of kvik.Message, or a text, and not {messages!r}")
    return list(messages)


def own_message(message: _native.Message) -> Message:
    calls = tuple(own_call(call) for call in message.tool_calls)
    return Message(message.role.name.lower(), message.content, calls, message.tool_call_id)


def own_call(call: _native.ToolCall) -> ToolCall:
    return ToolCall(call.id, call.name, call.arguments)


def native_options(options: AnswerOptions) -> _native.AnswerOptions:
    own = ("seed", "stop", "tools", "json_schema", "regex", "grammar")
    rest: dict[str, Any] = {name: value for name, value in options.items() if name not in own}
    tools = options.get("tools")
    return _native.AnswerOptions(
        seed=_signed(options.get("seed", 0)),
        stop=list(options.get("stop", ())),
        tools=json.dumps(list(tools)) if tools else None,
        constraint=_constraint(options),
        **rest,
    )


def _signed(seed: int) -> int:
    if not 0 <= seed < 1 << 64:
        raise InvalidArgumentError(f"`seed` is 0 to 2**64 - 1, and not {seed}")
    # The same bits.
    return seed - (1 << 64) if seed >> 63 else seed


def _constraint(options: AnswerOptions) -> _native.Constraint | None:
    schema, regex, grammar = options.get("json_schema"), options.get("regex"), options.get("grammar")
    forms: list[_native.Constraint] = []
    if schema is not None:
        forms.append(_native.Constraint.JSON_SCHEMA(schema=json.dumps(schema)))
    if regex is not None:
        forms.append(_native.Constraint.REGEX(regex=regex))
    if grammar is not None:
        forms.append(_native.Constraint.LARK(grammar=grammar))
    if len(forms) > 1:
        raise InvalidArgumentError("`json_schema`, `regex` and `grammar` say more than one form")
    return forms[0] if forms else None


def _native_message(message: Message | Mapping[str, Any]) -> _native.Message:
    if not isinstance(message, (Message, Mapping)):
        raise TypeError(f"a message is a kvik.Message, or a dictionary in OpenAI's form, and not {message!r}")
    if not isinstance(message, Message):
        message = _read_message(message)
    if not isinstance(message.content, str):
        raise TypeError(f"`content` of a message is a text, and not {message.content!r}")
    if message.role not in _ROLES:
        raise InvalidArgumentError(f"`role` {message.role!r} is none of {', '.join(_ROLES)}")
    calls = [_native.ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in message.tool_calls]
    return _native.Message(
        role=_ROLES[message.role], content=message.content, tool_calls=calls, tool_call_id=message.tool_call_id
    )


def _read_message(message: Mapping[str, Any]) -> Message:
    try:
        functions = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
        calls = tuple(ToolCall(id, function["name"], function["arguments"]) for id, function in functions)
        return Message(message["role"], message.get("content") or "", calls, message.get("tool_call_id"))
    except KeyError as missing:
        raise InvalidArgumentError(f"a message lacks its {missing}: {dict(message)!r}") from None


_ROLES = {role.name.lower(): role for role in _native.Role}
