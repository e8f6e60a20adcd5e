"""Plain questions at temperature 0, each of which the model answers rightly with nearly all seeds too, at the temperature that
its makers recommend: so the rounding of another processor does not decide."""
import concurrent.futures
import re

import pytest

# With what a right answer has in it.
QUESTIONS = [
    ("What is the opposite of hot?", r"\bcold\b"),
    ("How many days are in a week?", r"\b7\b|\bseven\b"),
    ("Who wrote Romeo and Juliet?", r"\bShakespeare\b"),
    ("What is the first month of the year?", r"\bJanuary\b"),
    ("What is the capital of Japan?", r"\bTokyo\b"),
    ("What is 2+2?", r"\b4\b|\bfour\b"),
    ("What is the capital of Germany?", r"\bBerlin\b"),
    ("What is the last month of the year?", r"\bDecember\b"),
    ("What is the opposite of big?", r"\bsmall\b"),
    ("Which star does the Earth orbit?", r"\bSun\b"),
]
TOKENS = 32


def ask(server, *messages, **options):
    messages = [dict(role=role, content=content) for role, content in messages]
    answer = server.post("/v1/chat/completions", dict(messages=messages, max_tokens=TOKENS) | options)
    assert answer.status == 200, answer.text
    return answer.json["choices"][0]


def ask_all(server, **options):
    """The answers to all questions, in their order."""
    with concurrent.futures.ThreadPoolExecutor(len(QUESTIONS)) as pool:
        return list(pool.map(lambda asked: ask(server, ("user", asked[0]), **options), QUESTIONS))


def text(choice):
    return choice["message"]["content"]


@pytest.fixture(scope="module")
def choices(server):
    return ask_all(server, temperature=0)


@pytest.mark.parametrize("number", range(len(QUESTIONS)), ids=lambda number: QUESTIONS[number][0])
def test_an_answer_is_right(choices, number):
    said = text(choices[number])
    assert re.search(QUESTIONS[number][1], said, re.I), said
    assert "<|" not in said, "signs of the template are not text"


def test_answers_end_by_themselves(choices):
    ends = [choice["finish_reason"] for choice in choices]
    assert ends.count("stop") >= 6, ends


def test_a_fact_is_known_in_the_next_turn(server):
    told = [("user", "My name is Alice."), ("assistant", "Nice to meet you, Alice!"), ("user", "What is my name?")]
    assert "Alice" in text(ask(server, *told, temperature=0))


@pytest.mark.full
def test_nearly_all_seeds_are_right_at_the_recommended_temperature(server):
    right = [
        bool(re.search(expected, text(choice), re.I))
        for seed in range(1, 6)
        for (_, expected), choice in zip(QUESTIONS, ask_all(server, seed=seed))
    ]
    assert sum(right) >= 40, f"{sum(right)} of {len(right)}"
