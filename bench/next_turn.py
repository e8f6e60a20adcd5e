#!/usr/bin/env python3
"""Conversations whose answers begin with thoughts: what is left to compute when the next question comes, and how soon it is answered.

    bench/next_turn.py --model MODEL.gguf [--kvik target/release/kvik] [--turns 10] [--pauses 3 0] [--conversations 1 2]
                       [--rounds 3] [--threads 2]

The model has a template that leaves thoughts out of the history, as Qwen3's. It need not think: a form of the answer makes it
write thoughts of about 300 tokens and an answer of 50, of letters and spaces. The conversation is asked with `--ahead off` and
on, each time of a server of its own, in turns. A row is a pause between answer and question, with so many conversations at
once, and one of the two: the tokens computed of a prompt after its question came (median and maximum, turns 2 and later), the
time to the first token (median and 95th percentile, of the same turns), the time between two pieces of text (median and 99th
percentile), and that of everything without the pauses.
"""
import argparse
import concurrent.futures
import itertools
import json
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "bench"))
from memory.gaps import percentile  # noqa: E402
from server import BINARY, Server  # noqa: E402

# Random weights write four to five letters a token.
FORM = "<think>\n[a-z ]{1300}\n</think>\n\n[a-z ]{220}"
QUESTIONS = ("What does calc.py do?", "Why is that wrong?", "What else could be tested?", "Say it in one sentence.")


def ask(server, messages, seed):
    """The answer, the computed tokens of its prompt, and the seconds until each piece of it."""
    body = {"messages": messages, "regex": FORM, "temperature": 1, "seed": seed, "stream": True, "stream_options": {"include_usage": True}}
    began, times, said, usage = time.monotonic(), [], [], None
    connection, answer = server.open_stream("/v1/chat/completions", body, timeout=600)
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if content := choice["delta"].get("content"):
                times.append(time.monotonic() - began)
                said.append(content)
    connection.close()
    return "".join(said), usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"], times


def conversation(server, number, args, pause):
    """What was computed of each prompt, and when each piece of its answer came."""
    messages, turns = [{"role": "system", "content": f"You are assistant {number}."}], []
    for turn in range(args.turns):
        messages.append({"role": "user", "content": f"{QUESTIONS[turn % len(QUESTIONS)]} ({turn})"})
        said, computed, times = ask(server, messages, 100 * number + turn)
        turns.append((computed, times))
        messages.append({"role": "assistant", "content": said})
        time.sleep(pause)
    return turns


def run(args, switch, pause, at_once):
    """All turns of a round, and its seconds without the pauses."""
    with Server("--model", args.model, "--threads", args.threads, "--ahead", switch, binary=args.kvik) as server:
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            talks = list(pool.map(lambda number: conversation(server, number, args, pause), range(at_once)))
        return talks, time.monotonic() - began - pause * args.turns


def row(rounds):
    """The figures of rounds under the same setting."""
    talks = [talk for found, _ in rounds for talk in found]
    later = [turn for talk in talks for turn in talk[1:]]
    computed, first = [computed for computed, _ in later], [times[0] for _, times in later]
    following = [after - before for talk in talks for _, times in talk for before, after in itertools.pairwise(times)]
    return (
        f"{statistics.median(computed):.0f}, {max(computed)} | {percentile(first, 50):.2f} s, {percentile(first, 95):.2f} s | "
        f"{percentile(following, 50) * 1000:.1f} ms, {percentile(following, 99) * 1000:.1f} ms | "
        f"{statistics.median(seconds for _, seconds in rounds):.1f} s"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--kvik", type=pathlib.Path, default=BINARY)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--pauses", type=float, nargs="+", default=[3, 0], help="seconds")
    parser.add_argument("--conversations", type=int, nargs="+", default=[1, 2], help="at once, one number for each pause")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    print("| pause | at once | `--ahead` | computed after the question | first token | next piece | all |")
    print("| ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    for pause, at_once in zip(args.pauses, args.conversations, strict=True):
        rounds = {"off": [], "on": []}
        for _ in range(args.rounds):
            for switch, found in rounds.items():
                found.append(run(args, switch, pause, at_once))
        for switch, found in rounds.items():
            print(f"| {pause:g} s | {at_once} | {switch} | {row(found)} |", flush=True)


if __name__ == "__main__":
    main()
