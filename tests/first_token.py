#!/usr/bin/env python3
"""Time to first token with a shared system prompt of 184 tokens and user messages of about 35, cold and warm.

Every round uses a new system prompt: the first request with it computes everything, the second only the new tokens.
Fails unless the warm request computes only the new tokens, is at least 76% faster and answers like an uncached request.

    tests/first_token.py -m qwen3-0.6b-q8_0.gguf
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

from server import Server

SYSTEM_TOKENS = 184
USER_TOKENS = 35
LESS = 0.76
WORDS = "the folder of work holds letters from people who write about plans and bills for next week".split()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=pathlib.Path, help="default: the embedded model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    flags = ["-m", args.model] if args.model else []
    with Server(*flags, "--threads", args.threads, "--context", 2048, "--cache-ram", "1GiB") as server:
        rounds = [one_round(server, i) for i in range(args.rounds + 1)][1:]  # the first one warms the machine up
    sys.exit(judge(rounds))


def one_round(server, i):
    system = text_of(server, f"Round {i}:", SYSTEM_TOKENS, "system")
    users = [text_of(server, f"Message {i} {which}", USER_TOKENS, "user") for which in ("one", "two")]
    cold, warm = (first_token(server, system, user) for user in users)
    uncached = first_token(server, system, users[1], cache_prompt=False)
    return dict(cold=cold, warm=warm, uncached=uncached)


def text_of(server, start, tokens, role):
    """Text whose whole turn in the template is `tokens` long."""
    turn = lambda text: f"<|im_start|>{role}\n{text}<|im_end|>\n"
    count = lambda text: len(server.post("/tokenize", {"content": turn(text)}).json["tokens"])
    text = start
    while count(text) < tokens:
        text += " " + WORDS[len(text) % len(WORDS)]
    assert count(text) - tokens <= 1, "a word is a token or two"
    return text


def first_token(server, system, user, **options):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    body = dict(messages=messages, max_tokens=1, temperature=0, ignore_eos=True, logprobs=True, top_logprobs=20)
    started = time.perf_counter()
    answer = server.post("/v1/chat/completions", body | options)
    ms = (time.perf_counter() - started) * 1000
    assert answer.status == 200, answer.text
    timings, choice = answer.json["timings"], answer.json["choices"][0]
    return dict(ms=ms, cache_n=timings["cache_n"], prompt_n=timings["prompt_n"], logprobs=json.dumps(choice["logprobs"]))


def judge(rounds):
    median = lambda which: statistics.median(r[which]["ms"] for r in rounds)
    counts = lambda which: sorted({(r[which]["cache_n"], r[which]["prompt_n"]) for r in rounds})
    less = 1 - median("warm") / median("cold")
    for which in ("cold", "warm", "uncached"):
        print(f"{which:9} {median(which):8.1f} ms to the first token, (cache_n, prompt_n) in {counts(which)}")
    print(f"warm is {less:.1%} below cold ({LESS:.0%} wanted)")
    problems = []
    if less < LESS:
        problems.append("the warm request is not fast enough")
    if any(r["warm"]["cache_n"] < SYSTEM_TOKENS for r in rounds):
        problems.append("part of the system prompt was computed again")
    if any(r["warm"]["logprobs"] != r["uncached"]["logprobs"] for r in rounds):
        problems.append("the warm answer's probabilities differ from the uncached ones")
    for problem in problems:
        print("first_token: FAILED:", problem)
    return bool(problems)


if __name__ == "__main__":
    main()
