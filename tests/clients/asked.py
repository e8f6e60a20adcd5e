"""The tasks of every client: ordinary models of pydantic, a tool, and the shape of an error.

The embedded model is tiny and answers badly, so the tests look at shapes: that a schema is obeyed, that a call can be run
and its result sent back, that an error arrives as the class that the client has for it.
"""
import datetime
import decimal
import enum
import json
import time
from typing import Annotated, Literal, Optional

import pydantic
from pydantic import Field

KEY = "secret"
MODEL = "kvik-tiny"
SEEDS = range(4)

QUESTION = [{"role": "system", "content": "Sort the notification."}, {"role": "user", "content": "Your bill of 12.50 is due."}]
LONG = [{"role": "user", "content": "word " * 6000}]
# Of an answer that its client leaves in its middle.
LEFT_TOKENS = 1800
GENERATED = "kvik_generated_tokens_total"


class Kind(enum.Enum):
    BILL = "bill"
    TRIP = "trip"


class Place(pydantic.BaseModel):
    city: str = Field(max_length=12)
    floor: int = Field(ge=0, le=9)


class Nested(pydantic.BaseModel):
    place: Place
    others: list[Place] = Field(max_length=2)


class Maybe(pydantic.BaseModel):
    place: Optional[Place]
    floor: int | None = Field(ge=0, le=9)


class Choice(pydantic.BaseModel):
    level: Literal["low", "high"]
    kind: Kind


class Several(pydantic.BaseModel):
    names: list[Literal["anna", "ben", "carl"]] = Field(max_length=3)
    floors: set[Literal[1, 2, 3]] = Field(max_length=3)


# As pydantic prints it up to 2.12; later ones allow any text.
DECIMAL = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]}


class Money(pydantic.BaseModel):
    amount: Annotated[decimal.Decimal, pydantic.WithJsonSchema(DECIMAL)]
    paid: bool


class Dated(pydantic.BaseModel):
    due: datetime.datetime
    day: datetime.date


class Counted(pydantic.BaseModel):
    counts: dict[str, Literal[1, 2, 3]]


MODELS = [Nested, Maybe, Choice, Several, Money, Dated, Counted]
# OpenAI's own SDK closes every object and refuses what it cannot close.
CLOSED = [Nested, Maybe, Choice, Several, Money, Dated]


class Lookup(pydantic.BaseModel):
    """Looks up what is on a floor."""

    city: Literal["Oslo", "Bergen"]
    floor: int = Field(ge=0, le=9)


TOOL = {
    "type": "function",
    "function": {"name": "lookup", "description": Lookup.__doc__, "parameters": Lookup.model_json_schema()},
}
FORCED = {"type": "function", "function": {"name": "lookup"}}


def run_tool(arguments):
    """The tool's result for arguments as they came, which must be what the schema says."""
    wanted = Lookup.model_validate_json(arguments) if isinstance(arguments, str) else Lookup.model_validate(arguments)
    return json.dumps({"found": f"{wanted.city} {wanted.floor}"})


def whole_ones(answers):
    """The sampled answers that are complete; at least one must be."""
    ended = [answer for answer in answers if answer is not None]
    assert ended, "every answer was cut off at its length"
    return ended


def metric(server, name):
    text = server.get("/metrics", Authorization=f"Bearer {KEY}").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name) and not line.startswith("#"))


def generated_at_rest(server):
    """Tokens generated until nothing runs: those of an answer that was stopped are counted a moment later."""
    deadline = time.monotonic() + 10
    while True:
        before = metric(server, GENERATED)
        time.sleep(0.3)
        if metric(server, "kvik_requests_running") == 0 and metric(server, GENERATED) == before:
            return before
        assert time.monotonic() < deadline, "the answer is still computed"


def assert_cancelled(server, generated):
    """An answer of `LEFT_TOKENS` tokens is computed no further; so many tokens were generated before it."""
    assert generated_at_rest(server) - generated < LEFT_TOKENS, "it was computed to its end"


def assert_cancels(server, stall, leave):
    """`leave(stop)` begins such an answer, stops the engine when some of it has come, and leaves."""
    for _ in range(10):
        generated, stands = generated_at_rest(server), False

        def stop():
            nonlocal stands
            stall.touch()
            # On a fast machine it may have ended before.
            stands = metric(server, "kvik_requests_running") == 1

        try:
            leave(stop)
        finally:
            stall.unlink(missing_ok=True)
        if stands:
            return assert_cancelled(server, generated)
    raise AssertionError("every answer ended before it was left")
