#!/usr/bin/env python3
"""Agents on models whose layers differ: how much of their prompts is reused, and how long they wait.

    bench/kinds/agents.py --kvik target/release/kvik --llama llama.cpp/build/bin/llama-server --model MODEL.gguf [...]

Several agents share a system prompt and take turns. In each turn an agent asks, asks again for another answer, and goes on
from the second; now and then it edits what it said before, which forks the conversation in its middle. Prompts are plain
text and the same for every program, but for the answers, which are each program's own. Programs take turns on each model.

Prints for each model and program: tokens of the prompts, the share of them that was reused, the time to the first token
(median and 95th percentile), and the memory at the end. `--rounds` takes medians of several runs.
"""
import argparse
import json
import pathlib
import random
import socket
import statistics
import subprocess
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = "".join(c if " " <= c <= "~" else " " for c in (ROOT / "docs/performance-history/2026-11-26.md").read_text())


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """One program with one model."""

    def __init__(self, kind, program, model, args):
        self.port = free_port()
        common = ["--port", str(self.port), "--parallel", str(args.agents)]
        if kind == "kvik":
            command = [program, "serve", "-m", model, "--context", str(args.context), "--threads", str(args.threads),
                       *common]
        else:
            # One buffer for all slots, as kvik has one, and what it keeps of prompts beside its slots.
            command = [program, "-m", model, "-c", str(args.context * args.agents), "-t", str(args.threads),
                       "-tb", str(args.threads), "--kv-unified", *common]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(1200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health")
                return
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit(f"{command} ended with {self.process.returncode}")
                time.sleep(0.1)
        raise SystemExit(f"{command} does not start")

    def ask(self, prompt, tokens):
        """The answer, prompt tokens, those of them that were reused, and seconds until the first token."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}, "timings_per_token": True}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        began, first, said, prompt_tokens, cached = time.monotonic(), None, [], 0, 0
        with urllib.request.urlopen(request) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                for choice in event.get("choices", []):
                    first = first or time.monotonic() - began
                    said.append(choice.get("text") or "")
                if usage := event.get("usage"):
                    prompt_tokens = usage["prompt_tokens"]
                    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", cached)
                if timings := event.get("timings"):
                    cached = timings["cache_n"]
        return "".join(said), prompt_tokens, cached, first

    def memory(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024

    def stop(self):
        self.process.terminate()
        self.process.wait()


def turn_text(dice):
    length = dice.choice([60, 120, 240, 600])
    start = dice.randrange(len(TEXT) - length)
    return TEXT[start:start + length]


def sessions(server, args):
    """What each question took; agents take turns."""
    system = "You are an agent.\n" + TEXT[:args.system]
    agents = [{"dice": random.Random(seed), "said": []} for seed in range(args.agents)]
    asked = []

    def prompt(said):
        return system + "".join(f"\n[user] {question}\n[agent] {answer}" for question, answer in said)

    for turn in range(args.turns):
        for agent in agents:
            dice, said = agent["dice"], agent["said"]
            if turn % 4 == 3:
                # It takes a question back and asks it otherwise: all that came after it is gone.
                at = len(said) // 2
                del said[at:]
            said.append((turn_text(dice), ""))
            for _ in range(2):
                answer, *took = server.ask(prompt(said), args.answer)
                asked.append(took)
            said[-1] = (said[-1][0], answer)
    return asked


def run(kind, program, model, args):
    server = Server(kind, program, model, args)
    try:
        asked = sessions(server, args)
        waits = sorted(first for _, _, first in asked)
        prompt, cached = sum(a[0] for a in asked), sum(a[1] for a in asked)
        return {"tokens": prompt, "share": cached / prompt, "p50": waits[len(waits) // 2],
                "p95": waits[len(waits) * 95 // 100], "mib": server.memory()}
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvik", required=True)
    parser.add_argument("--llama")
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--answer", type=int, default=16)
    parser.add_argument("--system", type=int, default=1500, metavar="CHARACTERS")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    programs = [("kvik", args.kvik)] + ([("llama-server", args.llama)] if args.llama else [])
    print("| model | program | prompt tokens | reused | first token p50 | p95 | memory |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for model in args.model:
        rows = {kind: [] for kind, _ in programs}
        for number in range(args.rounds):
            for kind, program in programs if number % 2 == 0 else programs[::-1]:
                rows[kind].append(run(kind, program, model, args))
        for kind, runs in rows.items():
            row = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            print(f"| {pathlib.Path(model).stem} | {kind} | {row['tokens']:.0f} | {row['share']:.1%} "
                  f"| {row['p50'] * 1e3:.0f} ms | {row['p95'] * 1e3:.0f} ms | {row['mib']:.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()
