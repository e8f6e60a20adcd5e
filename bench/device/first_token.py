#!/usr/bin/env python3
"""Time to first token of a long prefix on a GPU: computed, and found on the device, in the machine's memory and on disk.

    cargo build --release --features gpu
    bench/device/first_token.py --device gpu:0

The device has room for one prefix and a little, so the next prefix evicts the one before; the machine's memory has room
for all of them, or, where the disk is measured, for none. Each prefix is asked with a short question behind it that nobody
has asked yet. Fails unless the prefix was found whole, 19 parts of 20 in the tier of the row, and answers equal those that
reuse nothing.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from machine import machine  # noqa: E402
from server import BINARY, Server  # noqa: E402

BLOCK = 16
# Tokens of the question and the answer, and what blocks of them leave empty.
BESIDE = 32
WAIT_SECONDS = 900
TIERS = {"cold": None, "device": "ram", "memory": "host", "disk": "disk"}


class Asked:
    """Prefixes of a length, each with questions of its own."""

    def __init__(self, server, tokens):
        self.server, self.tokens = server, tokens
        text = (ROOT / "models/tiny/eval-text.txt").read_text().split()
        self.words = server.post("/tokenize", {"content": " ".join(text * 4)}).json["tokens"]
        assert len(self.words) >= tokens + 64, f"the text has {len(self.words)} tokens"
        self.questions = 0

    def prompt(self, prefix):
        """Prefix number `prefix`, and a question that nobody has asked."""
        start = 7 * (prefix + 1)
        self.questions += 1
        ask = self.server.post("/tokenize", {"content": f" Question {self.questions}: which folder?"}).json["tokens"]
        # The first tokens set prefixes apart.
        return self.words[start:start + 8] + self.words[:self.tokens - 8] + ask

    def first_token(self, prompt, **options):
        body = dict(prompt=prompt, n_predict=1, temperature=0, ignore_eos=True)
        started = time.perf_counter()
        answer = self.server.request("POST", "/completion", json.dumps(body | options).encode(),
                                     {"Content-Type": "application/json"}, timeout=WAIT_SECONDS)
        seconds = time.perf_counter() - started
        assert answer.status == 200, answer.text
        return seconds, answer.json["content"], answer.json["kvik"]["cache"]["by_tier"]


class Rows:
    """Seconds by tier, each from a request whose prefix was there."""

    def __init__(self, asked):
        self.asked, self.seconds = asked, {}

    def add(self, tier, prefix):
        prompt = self.asked.prompt(prefix)
        seconds, content, by_tier = self.asked.first_token(prompt)
        found, whole = sum(by_tier.values()), self.asked.tokens // BLOCK * BLOCK
        if TIERS[tier]:
            assert found >= whole and by_tier.get(TIERS[tier], 0) >= 0.95 * whole, f"{tier}: {by_tier} of {whole}"
        else:
            assert found < BLOCK, f"{by_tier} of a prefix that is new"
        self.seconds.setdefault(tier, []).append(seconds)
        print(f"{tier:7} {seconds * 1e3:10.1f} ms  {by_tier}", file=sys.stderr, flush=True)
        return prompt, content


def serve(options, folder, memory):
    context, token_bytes = options.tokens + BESIDE, block_bytes(options) // BLOCK
    of_prefix = -(-context // BLOCK) * BLOCK * token_bytes
    flags = [*options.flags, "--device", options.device, "--gpu-layers", options.gpu_layers,
             "--threads", options.threads, "--context", context, "--parallel", 1, "--speculate", "none", "--kv", options.kv,
             "--cache-device", f"{of_prefix}B",
             "--cache-ram", f"{of_prefix * (options.rounds + 2) if memory else 1}B",
             "--cache-disk-size", f"{of_prefix * (options.rounds + 4)}B"]
    return Server(*flags, env={"KVIK_CACHE_DISK": str(folder)}, binary=options.kvik)


def block_bytes(options):
    """Bytes of a block of the model, as its own server tells them."""
    with Server(*options.flags, "--device", "cpu", "--kv", options.kv, "--context", 256, "--cache-ram", "64MiB",
                binary=options.kvik) as server:
        ram = server.get("/v1/cache").json["ram"]
        return ram["bytes"] // ram["blocks"]


def forget_pages(folder):
    """Has the system drop what it has of the files in memory, so that reading them reads the disk."""
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(options):
    """Seconds by tier."""
    seconds = {}
    for memory in (True, False):
        with tempfile.TemporaryDirectory(dir=options.disk) as folder, serve(options, folder, memory) as server:
            rows = Rows(Asked(server, options.tokens))
            rows.add("cold", 0)
            for number in range(1, options.rounds + 1):
                rows.add("cold", number)
                rows.add("device", number)
                # The one before is no longer on the device.
                settle(server)
                forget_pages(folder)
                answer = rows.add("memory" if memory else "disk", number - 1)
            check(rows.asked, answer)
            for tier, found in rows.seconds.items():
                seconds.setdefault(tier, []).extend(found)
    return seconds


def settle(server):
    """Waits until blocks are written."""
    before = None
    for _ in range(100):
        cache = server.get("/v1/cache").json
        now = [(cache.get(tier) or {}).get("used_blocks") for tier in ("host", "disk")]
        if now == before:
            return
        before = now
        time.sleep(0.2)


def check(asked, answer):
    """An answer from a tier is the one that is computed."""
    prompt, content = answer
    _, computed, by_tier = asked.first_token(prompt, cache_prompt=False)
    assert not sum(by_tier.values()) and computed == content, (computed, content, by_tier)


def table(options, seconds):
    cold = statistics.median(seconds["cold"])
    print(f"\n{options.tokens} tokens, {options.rounds} rounds, median; {machine()}, {device_name(options)}\n")
    print("| prefix found | first token, ms | of computing |\n| --- | ---: | ---: |")
    for tier in TIERS:
        found = statistics.median(seconds[tier])
        print(f"| {'nowhere: computed' if tier == 'cold' else tier} | {found * 1e3:,.0f} | {found / cold:.1%} |")


def device_name(options):
    """What `kvik devices` calls it."""
    listed = subprocess.run([options.kvik, "devices"], capture_output=True, text=True, check=True).stdout
    return next((line.split(None, 1)[1] for line in listed.splitlines() if line.startswith(f"{options.device} ")), options.device)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvik", type=pathlib.Path, default=BINARY)
    parser.add_argument("--device", default="gpu:0")
    parser.add_argument("--gpu-layers", default="all")
    parser.add_argument("-m", "--model", type=pathlib.Path, help="default: the embedded model")
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--disk", help="where the disk cache is made [default: the system's folder of temporary files]")
    options = parser.parse_args()
    options.flags = ["-m", options.model] if options.model else []
    table(options, measure(options))


if __name__ == "__main__":
    main()
