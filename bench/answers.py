#!/usr/bin/env python3
"""Conversations whose answers come back as text: how many of their tokens are computed again.

    bench/answers.py --model MODEL.gguf [--kvik target/release/kvik] [--conversations 15] [--turns 6] [--tokens 48]
                     [--temperatures 0 0.7 1] [--threads 2]

Each conversation is sampled with seeds of its own, everything that a temperature allows. It is asked twice, with
`--retokenise on` and off, each time of a server of its own. A row of the table is one temperature and one of the two: tokens
of the answers that came back (all but the last of each conversation); those that were computed again; those of the last
prompts that a tokenizer would have chosen otherwise; and prompt tokens computed in all.
"""
import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from server import BINARY, Server  # noqa: E402

SUBJECTS = [
    "a lighthouse", "a market in the rain", "two rivers", "bread", "a broken clock", "the night train", "a garden in winter",
    "an old map", "sheep", "a harbour", "glass", "a letter that came late", "mountains", "a blue door", "the sea",
]
QUESTIONS = [
    "Tell me something about {}.", "What else is there to say of it?", "Give me a list of three things that go with it.",
    "Write one sentence of code or a formula about it.", "What would a child ask about it?", "And what is your answer?",
    "Say it in other words.", "What did we talk about?",
]


def asked(server, messages, seed, args, temperature):
    body = {"messages": messages, "max_tokens": args.tokens, "temperature": temperature, "seed": seed}
    body |= {"top_k": 0, "top_p": 1, "min_p": 0, "repeat_penalty": 1}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status == 200, answer.text
    return answer.json


def conversation(server, number, args, temperature):
    """Tokens of answers that came back, those computed again, and those that were chosen otherwise in the last prompt."""
    messages, back, lost, known, answered, changed = [], 0, 0, 0, 0, 0
    for turn in range(args.turns):
        question = QUESTIONS[turn % len(QUESTIONS)].format(SUBJECTS[number % len(SUBJECTS)])
        messages.append({"role": "user", "content": question})
        answer = asked(server, messages, 100 * number + turn, args, temperature)
        usage = answer["usage"]
        back += answered
        lost += max(0, known - usage["prompt_tokens_details"]["cached_tokens"])
        # The last token of an answer is never computed.
        answered = usage["completion_tokens"] - 1
        known = usage["prompt_tokens"] + answered
        changed = answer["kvik"]["cache"].get("retokenised", 0)
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""})
    return back, lost, changed


def row(args, temperature, switch):
    flags = ["--model", args.model, "--threads", args.threads, "--retokenise", switch]
    with Server(*flags, binary=args.kvik) as server:
        numbers = [conversation(server, number, args, temperature) for number in range(args.conversations)]
        computed = int(server.metric("kvik_computed_tokens_total"))
    return *map(sum, zip(*numbers)), computed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--kvik", type=pathlib.Path, default=BINARY)
    parser.add_argument("--conversations", type=int, default=15)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=48, help="of an answer at most")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0, 0.7, 1])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    print("| temperature | --retokenise | tokens of answers | computed again | chosen otherwise | computed in all |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for temperature in args.temperatures:
        for switch in ("off", "on"):
            back, lost, changed, computed = row(args, temperature, switch)
            print(f"| {temperature:g} | {switch} | {back} | {lost} | {changed} | {computed} |", flush=True)


if __name__ == "__main__":
    main()
