"""Drafts change no answer: text, tokens and log-probabilities are those of a server that draws one token at a time."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server import Server  # noqa: E402

STORY = "The folder is red. The folder is full of letters. The letters are red. The folder is red. The folder is full of "
OPTIONS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.7, "seed": 5},
    "log-probabilities": {"temperature": 0, "n_probs": 5},
    "penalties": {"temperature": 0, "repeat_penalty": 1.3, "frequency_penalty": 0.4},
    "several": {"temperature": 0.5, "seed": 3, "n": 3},
    "stop": {"temperature": 0, "stop": ["red.", "\n\n"]},
    "biases": {"temperature": 0, "logit_bias": [["letters", 2.0], ["red", False]]},
    "grammar": {"temperature": 0, "grammar": 'root ::= ("The folder is " ("red" | "full") ". ")+'},
    "no end": {"temperature": 0, "ignore_eos": True},
    "forgetful": {"temperature": 0, "kvik": {"retain": "sinks:48"}},
}


@pytest.fixture(scope="module")
def servers():
    with Server("--speculate", "none") as without, Server() as with_:
        yield without, with_


def said(server, body):
    answer = server.post("/completion", body)
    assert answer.status == 200, answer.text
    answers = answer.json if isinstance(answer.json, list) else [answer.json]
    fields = ("content", "tokens", "completion_probabilities", "stop_type", "stopping_word", "tokens_predicted")
    return [[answer.get(field) for field in fields] for answer in answers], answers


@pytest.mark.parametrize("name", OPTIONS)
def test_answers_are_the_same(servers, name):
    accepted = 0
    for start in range(4):
        body = {"prompt": STORY[start:] * 2, "n_predict": 60, "return_tokens": True, **OPTIONS[name]}
        (plain, _), (drafted, answers) = (said(server, body) for server in servers)
        assert plain == drafted
        accepted += sum(answer["timings"]["draft_n_accepted"] for answer in answers)
        assert all(answer["timings"]["draft_n"] >= answer["timings"]["draft_n_accepted"] for answer in answers)
    if name in ("greedy", "no end", "grammar"):
        assert accepted > 0, "an answer that repeats itself is drafted"
    if name == "forgetful":
        assert accepted == 0, "nothing is drafted for those"


def test_without_drafts_there_are_none(servers):
    _, answers = said(servers[0], {"prompt": STORY * 2, "n_predict": 40, "temperature": 0})
    assert answers[0]["timings"]["draft_n"] == 0


def test_metrics_count_drafts(servers):
    said(servers[1], {"prompt": STORY * 2, "n_predict": 40, "temperature": 0})
    metrics = servers[1].get("/metrics").text
    counts = {line.split()[0]: float(line.split()[1]) for line in metrics.splitlines() if line.startswith("kvik_draft")}
    drafted, accepted = "kvik_drafted_tokens_total", "kvik_draft_accepted_tokens_total"
    sources = [f'{{source="{source}"}}' for source in ("lookup", "tree", "grammar", "model", "head")]
    assert all(counts[drafted + source] >= counts[accepted + source] for source in sources)
    assert sum(counts[accepted + source] for source in sources) > 0


def test_an_answer_is_drafted_from_the_last_one(servers):
    """In another conversation. What a private request said is not there."""
    # Beside other work a step may cost so much that nothing is drafted for a while.
    for seed in range(5, 10):
        body = {"prompt": "The lighthouse keeper wrote down", "n_predict": 80, "temperature": 0.8, "seed": seed, "ignore_eos": True}
        first, again = (servers[1].post("/completion", body).json for _ in range(2))
        assert first["content"] == again["content"]
        if again["timings"]["draft_n_accepted"] > known_by_itself(first):
            break
    assert again["timings"]["draft_n_accepted"] > known_by_itself(first), again["timings"]
    private = {**body, "prompt": "A second lighthouse keeper said", "cache_prompt": False}
    first, again = (servers[1].post("/completion", private).json for _ in range(2))
    assert first["content"] == again["content"]
    assert again["timings"]["draft_n_accepted"] <= known_by_itself(first)


def known_by_itself(answer):
    """More accepted tokens than this come from an earlier answer. How long drafts are also depends on what steps cost, so two runs differ."""
    return max(20, 2 * answer["timings"]["draft_n_accepted"])


def test_a_draft_model_changes_nothing_but_the_time(servers):
    model = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny" / "kvik-tiny-q8_0.gguf"
    with Server("--draft", str(model)) as server:
        for name, options in OPTIONS.items():
            body = {"prompt": "A letter to the harbour master: " + name, "n_predict": 60, "return_tokens": True, **options}
            (plain, _), (drafted, _) = said(servers[0], body), said(server, body)
            assert plain == drafted, name
        metrics = server.get("/metrics").text
    accepted = [line for line in metrics.splitlines() if line.startswith('kvik_draft_accepted_tokens_total{source="model"}')]
    assert float(accepted[0].split()[1]) > 20


def test_a_prediction_head_changes_nothing_but_the_time():
    """The head of this small model repeats its only layer, so it is nearly always right."""
    model = ["-m", str(pathlib.Path(__file__).resolve().parents[2] / "crates/kvik-model/tests/golden/head-repeats.gguf")]
    with Server(*model, "--speculate", "none") as without, Server(*model, "--speculate", "head") as with_:
        for seed in range(6):
            body = {"prompt": STORY, "n_predict": 60, "return_tokens": True, "ignore_eos": True}
            body |= {"temperature": seed % 2 / 2, "seed": seed, "n": 1 + seed % 3}
            (plain, _), (drafted, _) = said(without, body), said(with_, body)
            assert plain == drafted
        metrics = with_.get("/metrics").text
    accepted = [line for line in metrics.splitlines() if line.startswith('kvik_draft_accepted_tokens_total{source="head"}')]
    assert float(accepted[0].split()[1]) > 0
