"""Messages, options of an answer, and records of prompts and texts."""
from __future__ import annotations

import json
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence, TypedDict, Union

from . import _native
from ._errors import InvalidArgumentError
from ._guesses import ANSWER, refuse_unknown

if TYPE_CHECKING:
    import numpy
    import numpy.typing


@dataclass(frozen=True)
class ToolCall:
    """A tool call."""

    id: str
    """Id that the call's result refers to."""
    name: str
    """Name of the tool."""
    arguments: str
    """Arguments: JSON, as the model wrote it."""


@dataclass(frozen=True)
class Message:
    """A message of a chat. Dictionaries in OpenAI's form are messages too."""

    role: str
    """`system` (the program), `user`, `assistant` (the model), or `tool` (the result of a call)."""
    content: str
    """Text of the message."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls of the model."""
    tool_call_id: str | None = None
    """Id of the call that a tool's result answers."""


Messages = Union[str, Message, Mapping[str, Any], Iterable[Union[Message, Mapping[str, Any]]]]
"""Messages of a chat in their order, a single message, or a text, which is a message of the user."""

Prompt = Union[str, Messages]
"""A text to continue as it is, in which names of control tokens are parsed as these tokens, or messages to answer, in which
nothing is: users' texts belong in messages."""


class AnswerOptions(TypedDict, total=False):
    """Options of an answer. A setting of the sampler that is missing or `None` is the model's: what its makers recommend, else
    kvik's default (`Model.sampling`)."""

    max_tokens: int | None
    """Maximum tokens of the answer; by default the rest of the context."""
    min_tokens: int | None
    """Minimum tokens of the answer: before them the model cannot end it."""
    stop: str | Sequence[str] | None
    """A stop text, or several: the answer ends before the first of these."""
    stop_loops: bool
    """Ends an answer that only repeats itself, as small models do."""
    temperature: float | None
    """Sampling temperature; 0 takes the likeliest token at each position."""
    top_p: float | None
    """Keeps the smallest set of tokens whose probability reaches this; 1 keeps all."""
    top_k: int | None
    """Keeps this many of the likeliest tokens; 0 keeps all."""
    min_p: float | None
    """Drops tokens below this share of the likeliest one's probability; 0 keeps all."""
    repetition_penalty: float | None
    """Divides the logits of tokens that occurred; 1 is off."""
    presence_penalty: float | None
    """Subtracted once from the logits of generated tokens; 0 is off."""
    frequency_penalty: float | None
    """Subtracted per occurrence from the logits of generated tokens; 0 is off."""
    logit_bias: Mapping[int, float] | None
    """Numbers that are added to the logits of tokens, at most 1e9; negative infinity forbids a token."""
    seed: int | None
    """The same seed, from 0 to 2**64 - 1, gives the same text; random by default."""
    reasoning: bool | None
    """Switches reasoning before the answer to a chat on or off, for models that have it."""
    tools: Sequence[Mapping[str, Any]] | None
    """Tools that the answer to a chat may call, in OpenAI's format."""
    tool_choice: str | None
    """Which of them it calls: `none`, `auto`, `required`, or the name of one."""
    parallel_tool_calls: bool | None
    """True if it may call several; by default, a forced call is the only one."""
    json_schema: Mapping[str, Any] | None
    """The answer is JSON that satisfies this schema. At most one of this and the next two is set."""
    regex: str | None
    """The answer matches this regular expression."""
    grammar: str | None
    """The answer is what this Lark grammar accepts."""
    retention: str | None
    """Retention policy of a long prompt, as `keydiff:0.5` (docs/retention.md): the answer reads only the part of it that the
    policy keeps. By default it reads the whole prompt."""


@dataclass(frozen=True)
class FilePart:
    """A GGUF file inside an open file, which is mapped. The descriptor may be closed when the model is open."""

    descriptor: int
    """Descriptor of the enclosing file, from `fileno()`."""
    offset: int = 0
    """Offset of the GGUF file in bytes."""
    bytes: int | None = None
    """Length in bytes; by default up to the end of the enclosing file."""


@dataclass(frozen=True)
class KeptState:
    """State of a pinned prompt."""

    is_known: bool
    """True if the name has a prompt."""
    is_changed: bool = False
    """True if that is another prompt."""
    is_warm: bool = False
    """True if an answer would compute only its last token."""
    tokens: int = 0
    """Tokens of the prompt."""
    ram_tokens: int = 0
    """Tokens of it in RAM."""
    disk_tokens: int = 0
    """Tokens of it that would be read from disk."""


@dataclass(frozen=True)
class Embedding:
    """Embedding of a text; `list(embedding.numbers)` needs no NumPy."""

    numbers: memoryview[float]
    """Numbers of type `f`, as many as the model is wide; their Euclidean norm is 1."""
    prompt_tokens: int
    """Tokens of the text."""
    cached_tokens: int
    """Tokens that came from the cache."""

    def __repr__(self) -> str:
        counts = f"prompt_tokens={self.prompt_tokens}, cached_tokens={self.cached_tokens}"
        return f"Embedding(numbers=<{len(self.numbers)} numbers>, {counts})"

    @property
    def vector(self) -> numpy.typing.NDArray[numpy.float32]:
        """The numbers as a NumPy array, read in place, and read-only."""
        require_numpy("`numbers` has them without it")
        import numpy

        return numpy.asarray(self.numbers, dtype=numpy.float32)


def require_numpy(otherwise: str) -> None:
    """Raises an error that says how to install NumPy where it is missing, and what works without it."""
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


def native_options(options: AnswerOptions, call: str) -> _native.AnswerOptions:
    refuse_unknown(options, AnswerOptions.__annotations__, ANSWER, call)
    own = ("seed", "stop", "tools", "logit_bias", "json_schema", "regex", "grammar")
    rest: dict[str, Any] = {}
    for name, value in options.items():
        if name not in own and value is not None:
            rest[name] = check_value(name, value)
    tools, seed = options.get("tools"), options.get("seed")
    return _native.AnswerOptions(
        seed=None if seed is None else _signed(seed),
        stop=_texts(options.get("stop")),
        logit_bias=_biases(options.get("logit_bias")),
        tools=json.dumps(list(tools)) if tools else None,
        constraint=_constraint(options),
        **rest,
    )


_COUNTS = {
    "max_tokens", "min_tokens", "top_k", "seed",
    "kv_bytes", "context_tokens", "threads", "parallel", "disk_bytes_max",
}
_REALS = {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}
_FLAGS = {"stop_loops", "reasoning", "parallel_tool_calls"}


def check_value(name: str, value: Any) -> Any:
    """The value of an argument, which is a `TypeError` where it has to be a number or a flag and is none."""
    if name in _COUNTS and not isinstance(value, numbers.Integral):
        raise TypeError(f"`{name}` is a whole number, and not {value!r}")
    if name in _REALS and not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` is a number, and not {value!r}")
    if name in _FLAGS and not isinstance(value, bool):
        raise TypeError(f"`{name}` is True or False, and not {value!r}")
    if name in _COUNTS and name != "seed" and not -(1 << 63) <= value < 1 << 63:
        raise InvalidArgumentError(f"`{name}` is less than 2**63, and not {value}")
    return value


def _texts(stop: str | Sequence[str] | None) -> list[str]:
    if isinstance(stop, str):
        return [stop]
    texts = list(stop or ())
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"`stop` is a text or a list of texts, and not {stop!r}")
    return texts


def _biases(biases: Any) -> list[_native.LogitBias]:
    if biases is None:
        return []
    if not isinstance(biases, Mapping):
        raise TypeError(f"`logit_bias` has a number for each token, as {{7: -1.5}}, and is not {biases!r}")
    read = []
    for token, bias in biases.items():
        if not isinstance(token, numbers.Integral) or not isinstance(bias, numbers.Real):
            raise TypeError(f"`logit_bias` has a number for each token, as {{7: -1.5}}, and not {token!r}: {bias!r}")
        # Also numbers of NumPy.
        number = int(token)
        if not 0 <= number < 1 << 31:
            raise InvalidArgumentError(f"a token of `logit_bias` is 0 to 2**31 - 1, and not {token}")
        read.append(_native.LogitBias(token=number, bias=float(bias)))
    return read


def _signed(seed: int) -> int:
    check_value("seed", seed)
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
        raise InvalidArgumentError("`json_schema`, `regex` and `grammar` say more than one form: set one of them")
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
    if message.get("reasoning_content") or message.get("reasoning"):
        raise TypeError(f"a message holds no reasoning, and this one does: {dict(message)!r}")
    try:
        functions = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
        calls = tuple(ToolCall(id, function["name"], function["arguments"]) for id, function in functions)
        role = "system" if message["role"] == "developer" else message["role"]
        return Message(role, message.get("content") or "", calls, message.get("tool_call_id"))
    except KeyError as missing:
        raise InvalidArgumentError(f"a message lacks its {missing}: {dict(message)!r}") from None


_ROLES = {role.name.lower(): role for role in _native.Role}
