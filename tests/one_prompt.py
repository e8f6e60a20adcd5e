#!/usr/bin/env python3
"""Many conversations on one 2,000-token prompt: the server's count of KV bytes shows that the cache holds it once."""
import argparse
import concurrent.futures
import sys

from server import Server

PROMPT_TOKENS = 2000
ANSWER_TOKENS = 8
BLOCK_TOKENS = 16
MIB = 1 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=32)
    args = parser.parse_args()
    with Server("--cache-ram", "512MiB", "--threads", "2", "--parallel", args.clients) as server:
        prompt = long_prompt(server)
        own = [server.post("/tokenize", {"content": f" Guest {i}:"}).json["tokens"] for i in range(args.conversations)]
        before = server.kv_bytes()
        converse(server, prompt, own[0])
        one = server.kv_bytes() - before
        with concurrent.futures.ThreadPoolExecutor(args.clients) as clients:
            cached = list(clients.map(lambda tail: converse(server, prompt, tail), own[1:]))
        all_of_them = server.kv_bytes() - before
    sys.exit(judge(args.conversations, own, one, all_of_them, cached))


def long_prompt(server):
    """Token ids of a text, exactly as many as wanted."""
    text = " ".join(f"Room {i} is on floor {i % 9} and its code is {i * 7919 % 1000}." for i in range(400))
    return server.post("/tokenize", {"content": text}).json["tokens"][:PROMPT_TOKENS]


def converse(server, prompt, tail):
    """Runs one conversation; returns the number of its cached prompt tokens."""
    body = dict(prompt=prompt + tail, n_predict=ANSWER_TOKENS, temperature=0, ignore_eos=True)
    answer = server.post("/completion", body)
    assert answer.status == 200, answer.text
    return answer.json["timings"]["cache_n"]


def judge(conversations, own, one, all_of_them, cached):
    blocks = lambda tokens: -(-tokens // BLOCK_TOKENS)
    block_bytes = one / blocks(PROMPT_TOKENS + len(own[0]) + ANSWER_TOKENS)
    # Each conversation may hold one block more than its own tokens fill, where they start inside a block.
    allowed = block_bytes * (blocks(PROMPT_TOKENS) + sum(blocks(len(t) + ANSWER_TOKENS) + 1 for t in own))
    print(f"one conversation: {one / MIB:.2f} MiB of KV; {conversations}: {all_of_them / MIB:.2f} MiB")
    print(f"held {conversations} times it would be {conversations * one / MIB:.0f} MiB; once, at most {allowed / MIB:.2f} MiB")
    problems = []
    if all_of_them > allowed:
        problems.append("the prompt is held more than once")
    if min(cached) < PROMPT_TOKENS:
        problems.append(f"a conversation reused only {min(cached)} of {PROMPT_TOKENS} tokens")
    for problem in problems:
        print("one_prompt: FAILED:", problem)
    return bool(problems)


if __name__ == "__main__":
    main()
