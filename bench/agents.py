#!/usr/bin/env python3
"""Agents that ask one after the other, several at a time: how long each waits for its first token.

    bench/agents.py --model MODEL.gguf --kvik target/release/kvik [--kvik OTHER] [--openvino PYTHON] [--rounds 3] [--agents 4]

Sessions of tool calls: a long prompt of tools that all share, then turns that add a question or what a tool said, most of
them short and some long. Each agent goes through its sessions one by one; the agents run at the same time. Made of this
repository's own texts, always the same. Several programs take turns. Prints the time to the first token (median and 95th
percentile), from one piece of text to the next (99th percentile), of everything, and how many prompt tokens were computed,
medians over the rounds; OpenVINO GenAI, of a Python that has it, does not say how many.
"""
import argparse
import concurrent.futures
import itertools
import json
import pathlib
import random
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from memory.gaps import percentile  # noqa: E402
from server import Server  # noqa: E402

TURNS, ANSWER_TOKENS = 6, 24
# As much as kvik takes by itself, where it is there; with half of it prompts of some sessions are evicted and computed again.
OPENVINO_CACHE_GIB = 8


def tools():
    text = (ROOT / "docs/http.md").read_text()
    return "You are an agent. These are your tools:\n" + text[:3000]


def turns(seed):
    """What is added to the conversation in each turn: characters from a few words to some pages."""
    dice = random.Random(seed)
    text = (ROOT / "docs/performance-history/2026-11-26.md").read_text()
    for turn in range(TURNS):
        length = dice.choice([80, 150, 300, 600, 1500, 4000])
        start = dice.randrange(len(text) - length)
        yield f"Turn {turn} of {seed}: " + text[start:start + length]


def ask(server, messages):
    """The answer, and the seconds until each piece of it."""
    body = {"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": True, "ignore_eos": True}
    request = urllib.request.Request(server.base_url + "/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    began, times, said = time.monotonic(), [], []
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                if content := choice["delta"].get("content"):
                    times.append(time.monotonic() - began)
                    said.append(content)
    return "".join(said), times or [time.monotonic() - began]


def session(server, seed):
    """When each piece of each answer came."""
    messages, answers = [{"role": "system", "content": tools()}], []
    for text in turns(seed):
        messages.append({"role": "user", "content": text})
        said, times = ask(server, messages)
        messages.append({"role": "assistant", "content": said})
        answers.append(times)
    return answers


class OpenVino:
    """OpenVINO GenAI as a server."""

    def __init__(self, python, args):
        flags = ["-m", args.model, "-t", args.threads, "--parallel", args.agents, "--cache-gib", OPENVINO_CACHE_GIB]
        command = [python, ROOT / "bench/compare/genai_server.py", *flags]
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        self.base_url = self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def metrics(self):
        return {"kvik_computed_tokens_total": float("nan")}


def started(program, args):
    if program == args.openvino:
        return OpenVino(program, args)
    flags = ["--model", str(args.model), "--parallel", str(args.agents), "--threads", str(args.threads), *args.flags.split()]
    return Server(*flags, binary=program)


def run(program, args):
    with started(program, args) as server:
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(args.agents) as pool:
            answers = sum(pool.map(lambda seed: session(server, seed), range(args.sessions)), [])
        total = time.monotonic() - began
        computed = server.metrics()["kvik_computed_tokens_total"]
    first = [times[0] for times in answers]
    following = [after - before for times in answers for before, after in itertools.pairwise(times)]
    return percentile(first, 50), percentile(first, 95), percentile(following, 99), total, computed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvik", type=pathlib.Path, action="append", help="a program; several take turns")
    parser.add_argument("--openvino", type=pathlib.Path, metavar="PYTHON", help="takes turns as well")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="one with a context of 16,000 tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--flags", default="", help="more flags of the servers")
    args = parser.parse_args()
    programs = (args.kvik or [ROOT / "target/release/kvik"]) + ([args.openvino] if args.openvino else [])
    results = {program: [] for program in programs}
    for _ in range(args.rounds):
        for program in programs:
            results[program].append(run(program, args))
            print(f"{program.name}: {results[program][-1]}", file=sys.stderr, flush=True)
    print(f"{args.model.name}, {args.agents} agents, {args.sessions * TURNS} requests, medians of {args.rounds} rounds\n")
    print(f"{'':24}{'first token p50':>17}{'p95':>9}{'next p99':>11}{'all':>9}{'computed':>10}")
    for program, measured in results.items():
        p50, p95, following, total, computed = (statistics.median(values) for values in zip(*measured))
        name = "OpenVINO GenAI" if program == args.openvino else program.name
        print(f"{name:24}{p50:15.2f} s{p95:7.2f} s{following:9.2f} s{total:7.1f} s{computed:10.0f}")


if __name__ == "__main__":
    main()
