"""instructor, which requests models of pydantic in several ways and parses them."""
from typing import Literal

import instructor
import openai
import pydantic
import pytest
from asked import KEY, LEFT_TOKENS, LONG, MODEL, MODELS, QUESTION, SEEDS, Choice, assert_cancelled, generated_at_rest, whole_ones
from instructor.core import IncompleteOutputException, InstructorRetryException


class Level(pydantic.BaseModel):
    """Without an enum, which instructor's partial models do not take."""

    level: Literal["low", "high"]


class Endless(pydantic.BaseModel):
    """Never ends within the context."""

    text: str = pydantic.Field(min_length=20_000)


MODES = [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA]


@pytest.fixture(scope="module")
def plain(server):
    return openai.OpenAI(base_url=server.base_url, api_key=KEY, max_retries=0, timeout=60)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("shape", MODELS, ids=lambda shape: shape.__name__)
def test_structured_output(plain, shape, mode):
    client = instructor.from_openai(plain, mode=mode)

    def parse(seed):
        try:
            return client.chat.completions.create(
                model=MODEL, messages=QUESTION, response_model=shape, max_retries=0, max_tokens=300, seed=seed, temperature=0.7
            )
        except (IncompleteOutputException, InstructorRetryException) as error:
            assert "incomplete" in str(error).lower() or "max_tokens" in str(error), error
            return None

    assert all(isinstance(parsed, shape) for parsed in whole_ones([parse(seed) for seed in SEEDS]))


def test_a_list_is_streamed_item_by_item(plain):
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    partial = client.chat.completions.create_partial(
        model=MODEL, messages=QUESTION, response_model=Level, max_tokens=100, temperature=0, max_retries=0
    )
    seen = list(partial)
    assert len(seen) > 1 and seen[-1].level in ("low", "high")


def test_giving_up_cancels(server, stall, plain):
    """instructor collects a stream before it returns anything, so only its timeout ends one early: here, of an engine that stands still."""
    client = instructor.from_openai(plain.with_options(timeout=1), mode=instructor.Mode.JSON_SCHEMA)
    generated = generated_at_rest(server)
    stall.touch()
    try:
        with pytest.raises((InstructorRetryException, openai.APITimeoutError), match="timed out"):
            client.chat.completions.create(model=MODEL, messages=QUESTION, response_model=Endless, max_retries=0, max_tokens=LEFT_TOKENS)
    finally:
        stall.unlink()
    assert_cancelled(server, generated)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "gpt-4o"}, openai.NotFoundError),
        ({"extra_body": {"temperature": "hot"}}, openai.BadRequestError),
        ({"messages": LONG}, openai.BadRequestError),
    ],
    ids=["model", "field", "context"],
)
def test_errors_keep_their_class(plain, change, error):
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    asked = dict(model=MODEL, messages=QUESTION, response_model=Choice, max_retries=0) | change
    with pytest.raises((InstructorRetryException, error)) as caught:
        client.chat.completions.create(**asked)
    assert isinstance(caught.value, error) or isinstance(caught.value.__cause__, error) or error.__name__ in repr(caught.value.__cause__)


def test_a_wrong_key(plain):
    client = instructor.from_openai(plain.with_options(api_key="wrong"), mode=instructor.Mode.JSON_SCHEMA)
    with pytest.raises((InstructorRetryException, openai.AuthenticationError)) as caught:
        client.chat.completions.create(model=MODEL, messages=QUESTION, response_model=Choice, max_retries=0)
    assert "key" in str(caught.value)
