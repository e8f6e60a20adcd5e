"""The script of a conversation, what is sent of it, and the report, with a stand-in for the server."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from turns import CONTROL, DISTANCES, TELLING_TURNS, beside_neighbours, contains, converse, script, table, truncated  # noqa: E402


def stand_in(answer):
    """A server that answers with a function of the messages, and refuses where that is None."""

    def ask(messages):
        text = answer(messages)
        refusal = "context_length_exceeded" if text is None else None
        memory = dict(rebuilt=len(messages) % 20 == 1)
        return dict(text=text or "", refusal=refusal, ttft_ms=1.0, memory=memory, prompt_tokens=len(messages), cached_tokens=0)

    return ask


@pytest.mark.parametrize("turns", [60, 120, 500])
@pytest.mark.parametrize("seed", range(5))
def test_every_fact_is_asked_for_once_at_its_distance(turns, seed):
    said = script(turns, seed)
    questions = [(number, line) for number, line in enumerate(said, 1) if "value" in line]
    assert len(said) >= turns and said == script(turns, seed)
    assert {line["distance"] for _, line in questions} == {CONTROL, *(d for d in DISTANCES if d <= turns)}
    assert len({line["told"] for _, line in questions}) == len(questions)
    for number, line in questions:
        assert number - line["told"] == line["distance"] and line["told"] <= TELLING_TURNS
        assert contains(said[line["told"] - 1]["text"], line["value"])


def test_a_server_that_remembers_everything_recalls_everything():
    everything_told = lambda messages: " ".join(m["content"] for m in messages if m["role"] == "user")
    rows = list(converse(stand_in(everything_told), script(120, 1), list))
    assert all(row["right"] for row in rows if "right" in row)
    lines = table(rows)
    assert "refusals: 0" in lines and any(line.startswith("| 100 |") and "100%" in line for line in lines)


def test_a_refused_exchange_is_not_in_the_history():
    rows = list(converse(stand_in(lambda messages: None if len(messages) > 20 else "ok"), script(60, 1), list))
    assert [row["refusal"] is None for row in rows] == [True] * 10 + [False] * (len(rows) - 10)
    assert {row["prompt_tokens"] for row in rows[10:]} == {21}


@pytest.mark.parametrize("tokens", [0, 10, 55, 1000])
def test_truncation_drops_the_oldest_exchanges(tokens):
    history = [dict(role=role, content="x" * 40) for _ in range(5) for role in ("user", "assistant")]
    messages = history + [dict(role="user", content="y" * 40)]
    kept = truncated(messages, tokens)
    assert kept == messages[-len(kept):] and kept[0]["role"] == "user"
    assert len(kept) == 1 or len(kept) * 10 <= tokens


def test_a_turn_is_compared_with_those_around_it():
    rows = [dict(turn=turn, turn_ms=100.0 + turn) for turn in range(1, 41)]
    assert " 0 of 40," in beside_neighbours(rows)[0]
    rows[19]["turn_ms"] = 240.0
    assert "1 of 40, the worst 2.00 (turn 20)" in beside_neighbours(rows)[0]
    assert beside_neighbours([dict(turn=1, turn_ms=None), dict(turn=2, turn_ms=3.0)]) == []


def test_a_value_is_a_whole_word():
    assert contains("Your parrot is called raven.", "Raven")
    assert not contains("Your code is 47110.", "4711")
