"""The reference model, the ways and the tasks, with random weights."""
import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from near import measure  # noqa: E402
from reference import Cache, Model, Shape  # noqa: E402
from ways import Joined, Way, join, known_ways  # noqa: E402
from tables import relative, table, wilson  # noqa: E402
from prompts import TASKS, Prompt, Question  # noqa: E402

WIDTH, VOCAB = 16, 40
QUESTION = Question("code", "abc", "d", "ef")


def encode(text):
    return np.array([ord(c) % VOCAB for c in text], dtype=np.int64)


def random_model(layers, interleaved):
    shape = Shape(layers, heads=4, kv_heads=2, dim=4, epsilon=1e-6, theta=1e4, interleaved=interleaved)
    random = np.random.default_rng(layers)
    weight = lambda *size: random.normal(size=size).astype("f4") / 2
    tensors = {"token_embd.weight": weight(VOCAB, WIDTH), "output_norm.weight": np.ones(WIDTH, "f4")}
    rows = dict(attn_q=16, attn_k=8, attn_v=8, attn_output=16, ffn_gate=24, ffn_up=24)
    for layer in range(layers):
        own = {name: weight(count, WIDTH) for name, count in rows.items()}
        own |= {"ffn_down": weight(WIDTH, 24), "attn_norm": np.ones(WIDTH, "f4"), "ffn_norm": np.ones(WIDTH, "f4")}
        tensors |= {f"blk.{layer}.{name}.weight": values for name, values in own.items()}
        tensors[f"blk.{layer}.attn_k.bias"] = weight(8)
    return Model(shape, tensors)


def logits(model, joined, way):
    """Those of a question behind the prompt."""
    end = len(joined.tokens)
    cache, again = join(model, joined, way, 8)
    tokens = encode("why?")
    return model.logits(model.compute(tokens, np.arange(end, end + len(tokens)), cache)), again


def prompt(segments, earlier, reused):
    return Prompt(segments, frozenset(reused), earlier, (QUESTION,))


RUNS = ("first run of it", "second run")
MOVED = prompt(("head", *RUNS), (("another head, longer", *reversed(RUNS)),), {1, 2})


@pytest.mark.parametrize("interleaved", [False, True])
def test_rows_alone_are_rows_together(interleaved):
    model, tokens = random_model(3, interleaved), encode("some text of a few tokens")
    whole, pieces = Cache(model.shape, len(tokens)), Cache(model.shape, len(tokens))
    expected = model.compute(tokens, np.arange(len(tokens)), whole)
    for at in range(len(tokens)):
        found = model.compute(tokens[at : at + 1], np.array([at]), pieces)
        assert np.allclose(found[0], expected[at], atol=1e-4)
    assert np.allclose(whole.keys, pieces.keys, atol=1e-4)


@pytest.mark.parametrize("interleaved", [False, True])
def test_keys_of_a_layer_depend_on_nothing_before_them_but_their_position(interleaved):
    """So a model of one layer answers behind moved runs as if they had been computed there."""
    model = random_model(1, interleaved)
    joined = Joined(model, encode, MOVED)
    assert np.allclose(logits(model, joined, Way("first"))[0], logits(model, joined, Way("exact"))[0], atol=1e-4)


def test_what_is_computed_again_ends_in_the_exact_answer():
    model = random_model(3, False)
    joined = Joined(model, encode, MOVED)
    exact, every = logits(model, joined, Way("exact"))
    assert every == sum(map(len, RUNS))
    for rule in ("first", "deviation", "both"):
        found, again = logits(model, joined, Way(rule, share=1.0))
        assert again == every and np.allclose(found, exact, atol=1e-4), rule
    none, again = logits(model, joined, Way("first"))
    assert again == 0 and not np.allclose(none, exact, atol=1e-2)


def test_a_run_behind_the_same_text_deviates_nowhere():
    model = random_model(3, True)
    same = prompt(("head", "a run of text"), (("head", "a run of text"),), {1})
    joined = Joined(model, encode, same)
    for way in ("none", "first-8", "deviation-15%", "both-15%"):
        exact = logits(model, joined, Way("exact"))[0]
        assert np.allclose(logits(model, joined, known_ways()[way])[0], exact, atol=1e-4), way


def test_shares_are_of_all_that_is_reused_and_counts_of_each_run():
    model = random_model(2, False)
    runs = ("x" * 40, "y" * 60)
    joined = Joined(model, encode, prompt(("h", *runs), (("other", *runs),), {1, 2}))
    expected = {"none": 0, "first-8": 16, "first-32": 64, "first-15%": 15, "deviation-15%": 15, "both-30%": 30}
    expected |= {"both-5%": 16}
    for way, count in expected.items():
        assert logits(model, joined, known_ways()[way])[1] == count, way


@pytest.mark.parametrize("task", TASKS)
def test_answers_stand_in_what_they_are_asked_about(task):
    for seed in range(20):
        made = TASKS[task](seed)
        assert made == TASKS[task](seed)
        reused = [made.segments[i] for i in made.reused]
        before = ["".join(earlier) for earlier in made.earlier]
        assert all(any(run in text for text in before) for run in reused)
        assert not any("".join(made.segments).startswith(text) for text in before)
        for question in made.questions:
            if question.kind == "changed":
                place = question.answer.strip().split("/src/")[0]
                assert place in "".join(made.segments) and not any(place in text for text in before)
            else:
                assert question.answer.strip() in "".join(reused), question


def test_a_measurement_has_a_row_for_each_question_and_way():
    ways = {name: known_ways()[name] for name in ("exact", "none", "both-15%")}
    rows = list(measure(random_model(2, True), encode, MOVED, ways))
    assert [row["way"] for row in rows] == list(ways)
    assert rows[0]["divergence"] == 0 < rows[1]["divergence"]
    assert table(rows).count("\n") == 4 and "| `none` | 0.0% |" in table(rows)


def test_intervals_are_those_of_the_literature():
    """Newcombe (1998), as in `kvik eval`."""
    for right, cases, low, high in [(81, 263, 0.2553, 0.3662), (0, 20, 0, 0.1611), (29, 29, 0.8830, 1), (0, 0, 0, 1)]:
        assert wilson(right, cases) == pytest.approx((low, high), abs=5e-5)


def test_perplexities_are_compared_question_by_question():
    """Four differences of mean 0.2 and deviation 0.1: half of the interval is 1.96 * 0.1 / 2."""
    spread = 0.1 * 3**0.5 / 2
    assert relative([0.2 - spread, 0.2 + spread, 0.2 - spread, 0.2 + spread]) == "1.22 (1.11 to 1.35)"
    assert relative([0.0] * 5) == "1.00 (1.00 to 1.00)"
