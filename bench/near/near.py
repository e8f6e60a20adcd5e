"""Measures reuse behind another prefix: `python near.py MODEL.gguf TASK --cases 64 --out FILE`; tables: `tables.py`."""
import argparse
import json
import time

import numpy as np

from ways import Joined, join, known_ways
from prompts import TASKS

# Positions behind a prompt for a question and its answer.
ROOM = 160
WAYS = "exact,none,first-8,first-16,first-32,first-15%,deviation-15%,both-15%"


def main():
    from gguf_reference import load

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--cases", type=int, default=64, help="questions about what is reused, at least")
    parser.add_argument("--ways", default=WAYS, help="separated by commas, `exact` first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", required=True, help="a line of JSON for each question and way is added")
    args = parser.parse_args()
    ways = {name: known_ways()[name] for name in args.ways.split(",")}
    model, encode = load(args.model)
    done, seed = 0, args.seed
    with open(args.out, "a") as out:
        while done < args.cases:
            for row in measure(model, encode, TASKS[args.task](seed), ways):
                out.write(json.dumps(dict(task=args.task, seed=seed, **row)) + "\n")
                done += row["way"] == "exact" and row["kind"] != "changed"
            out.flush()
            seed += 1


def measure(model, encode, prompt, ways):
    """One row for each question and way."""
    joined = Joined(model, encode, prompt)
    exact = None
    for name, way in ways.items():
        start = time.process_time()
        cache, again = join(model, joined, way, ROOM)
        seconds = time.process_time() - start
        answers = [answer(model, encode, cache, len(joined.tokens), question) for question in prompt.questions]
        exact = exact or answers
        for question, found, expected in zip(prompt.questions, answers, exact):
            yield dict(
                way=name,
                kind=question.kind,
                tokens=len(joined.tokens),
                reused=int(joined.reused.sum()),
                again=again,
                seconds=round(seconds, 3),
                right=found["right"],
                nll=found["nll"],
                divergence=divergence(expected["first"], found["first"]),
            )


def answer(model, encode, cache, end, question):
    """Whether the greedy answer is the expected one, and how likely the expected one is."""
    asked = encode(f"{question.text}<|im_end|>\n<|im_start|>assistant\n{question.begin}")
    expected = encode(question.answer)
    tokens = np.concatenate([asked, expected])[:-1]
    hidden = model.compute(tokens, np.arange(end, end + len(tokens)), cache)[-len(expected) :]
    logits = model.logits(hidden)
    log = logits - logits.max(1, keepdims=True)
    log -= np.log(np.exp(log).sum(1, keepdims=True))
    nll = -float(log[np.arange(len(expected)), expected].mean())
    return dict(right=bool((log.argmax(1) == expected).all()), nll=nll, first=log[0])


def divergence(exact, other):
    """Kullback-Leibler divergence in nats."""
    return float((np.exp(exact) * (exact - other)).sum())


if __name__ == "__main__":
    main()
