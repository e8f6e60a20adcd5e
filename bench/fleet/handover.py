"""What it takes to compute a prompt on one node and go on with it on another, through the store that both share.

    python -m bench.fleet.handover [--model FILE] [--tokens 256,512,1024]

One node computes the prompt and writes all of it (`--cache-remote-write all`); when that is written, the other is asked for the
same prompt and one token. Beside it the second node computes a prompt of the same length. Nothing of the network is shaped, so
`at 1 Gbit/s` and `at 10 Gbit/s` are arithmetic: the bytes there and back over that link.
"""
import argparse
import contextlib
import pathlib
import random
import statistics
import tempfile
import time

from .figures import machine
from .nodes import Store, tier_flags
from .paths import BINARY, Server, free_port


class Place:
    """Where the store listens, on this machine."""

    def __init__(self, port):
        self.host, self.port, self.wrap = "127.0.0.1", port, ()
        self.reached = (self.host, port)


def ask(node, tokens, **fields):
    """One token after a prompt: seconds, and what of the prompt came from the store."""
    began = time.monotonic()
    answer = node.post("/v1/completions", dict(prompt=tokens, max_tokens=1, temperature=0) | fields)
    assert answer.status == 200, answer.text
    return time.monotonic() - began, answer.json["kvik"]["cache"]["by_tier"].get("remote", 0)


def write_all(node, blocks):
    """Waits until so many blocks more were written; seconds."""
    began = time.monotonic()
    while node.metric("kvik_remote_blocks_written_total") < blocks:
        assert time.monotonic() - began < 60, "it is not written"
        time.sleep(0.005)
    return time.monotonic() - began


def measure(first, second, count, seed):
    """Seconds to compute, to write and to go on, seconds that the second takes to compute, and bytes."""
    random.seed(seed)
    prompt, other = ([random.randrange(1000, 5000) for _ in range(count)] for _ in range(2))
    before = first.metric("kvik_remote_blocks_written_total")
    bytes_before = first.metric("kvik_remote_bytes_written_total")
    computed, _ = ask(first, prompt)
    written = write_all(first, before + count // 16)
    fetched, remote = ask(second, prompt)
    assert remote >= count - 32, f"{remote} of {count} tokens came from the store"
    alone, _ = ask(second, other)
    return computed, written, fetched, alone, first.metric("kvik_remote_bytes_written_total") - bytes_before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model [default: the embedded one]")
    parser.add_argument("--tokens", default="256,512,1024", help="lengths of prompts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kvik", type=pathlib.Path, default=BINARY)
    parser.add_argument("--flags", default="", help="more flags of the nodes")
    args = parser.parse_args()
    flags = ["-m", args.model] if args.model else []
    flags += ["--context", "2048", "--cache-ram", "1GiB", "--threads", "2", "--cache-remote-write", "all", *args.flags.split()]
    print(f"{machine()}; Redis over loopback, {args.model or 'the embedded model'} {args.flags}, medians of {args.rounds}\n")
    print("| tokens | MB | computed, s | written, s | fetched and one token, s | the same computed, s | at 10 Gbit/s | at 1 Gbit/s |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with contextlib.ExitStack() as stack:
        key = stack.enter_context(tempfile.NamedTemporaryFile("w"))
        key.write("5a" * 32)
        key.flush()
        store = stack.enter_context(Store(Place(free_port())))
        remote = tier_flags(*store.place.reached, key.name)
        first, second = (stack.enter_context(Server(*flags, *remote, binary=args.kvik)) for _ in range(2))
        for count in map(int, args.tokens.split(",")):
            rounds = [measure(first, second, count, f"{count} {round}") for round in range(args.rounds)]
            computed, written, fetched, alone, size = map(statistics.median, zip(*rounds))
            there_and_back = [f"{2 * size * 8 / rate:.2f}" for rate in (10e9, 1e9)]
            figures = [f"{size / 1e6:.1f}", *(f"{s:.3f}" for s in (computed, written, fetched, alone)), *there_and_back]
            print(f"| {count} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
