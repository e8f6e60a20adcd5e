#!/usr/bin/env python3
"""Arithmetic of a machine with two sockets: one kvik over both, rows of weights divided between them, or one kvik each.

    python3 bench/domains.py

prints the tables of docs/decisions/2026-11-26-memory-domains.md. Nothing is measured here.
"""

SOCKETS = 2
# Two Xeon Platinum 8269CY, by Intel's Memory Latency Checker (the decision names the source).
CORES = 26
NEAR_BYTES, LINK_BYTES = 113.1e9, 50.9e9
NEAR_LINE, FAR_LINE = 51.6e-9, (111.3e-9 + 175.8e-9) / 2
# A core's byte products, by docs/performance.md.
OPS = 360e9
# A thread joins a round, takes a task, learns that there is none left, and leaves: each moves a line of cache to it.
LINES_PER_THREAD = 4
# Keys and values of each sequence, and prompts.
DEPTH, PROMPT = 2048, 512

# Bytes read a token, parameters multiplied, rounds of the pool, bytes of keys and values a position in f16.
MODELS = {
    "0.6B Q8_0": (0.64e9, 0.44e9, 200, 28 * 2 * 8 * 128 * 2),
    "1.7B Q8_0": (1.8e9, 1.7e9, 200, 28 * 2 * 8 * 128 * 2),
    "8B Q8_0": (8.2e9, 7.6e9, 260, 36 * 2 * 8 * 128 * 2),
    "70B Q4_K_M": (42e9, 70e9, 570, 80 * 2 * 8 * 128 * 2),
}
# Bytes a second of all its threads, seconds a round, sockets of a process. Pages that lie in either domain by chance are
# read from the other one half of the time: of what the threads read a quarter crosses the link each way.
ROUND_NEAR = LINES_PER_THREAD * CORES * NEAR_LINE
ROUND_BOTH = LINES_PER_THREAD * CORES * SOCKETS * (NEAR_LINE + FAR_LINE) / 2
LAYOUTS = {
    "one process, all memory in one domain": (NEAR_BYTES, ROUND_BOTH, 2),
    "one process, pages in both": (min(2 * NEAR_BYTES, 4 * LINK_BYTES), ROUND_BOTH, 2),
    "rows divided, a gate each": (2 * NEAR_BYTES, ROUND_NEAR + LINES_PER_THREAD * FAR_LINE, 2),
    "a process each": (NEAR_BYTES, ROUND_NEAR, 1),
}


def step(model, layout, sequences, tokens=1):
    """Seconds of a step of so many sequences in one process, each with so many tokens."""
    weights, parameters, rounds, position = MODELS[model]
    rate, per_round, sockets = LAYOUTS[layout]
    read = (weights + sequences * DEPTH * position) / rate
    computed = 2 * parameters * sequences * tokens / (sockets * CORES * OPS)
    return max(read, computed) + rounds * per_round


def decode(model, layout, sequences):
    """Tokens a second of all sequences; two processes have half of them each."""
    processes = SOCKETS // LAYOUTS[layout][2]
    share = -(-sequences // processes)
    return sequences / step(model, layout, share)


def prefill(model, layout):
    """Tokens a second of prompts that come one after the other."""
    return SOCKETS // LAYOUTS[layout][2] * PROMPT / step(model, layout, 1, PROMPT)


def break_even():
    """Bytes of weights from which one process over both is as fast for one sequence as one in its domain."""
    near, both = LAYOUTS["a process each"], LAYOUTS["one process, pages in both"]
    return 200 * (both[1] - near[1]) / (1 / near[0] - 1 / both[0])


def table(title, figure):
    print(f"\n| {title} | " + " | ".join(MODELS) + " |\n| --- |" + " ---: |" * len(MODELS))
    for layout in LAYOUTS:
        cells = [figure(model, layout) for model in MODELS]
        print(f"| {layout} | " + " | ".join(f"{cell:,.3g}" if cell < 100 else f"{cell:,.0f}" for cell in cells) + " |")


def main():
    print(f"a round: {ROUND_NEAR * 1e6:.1f} us in one socket, {ROUND_BOTH * 1e6:.1f} us over both")
    print(f"pages in both are read at {LAYOUTS['one process, pages in both'][0] / 1e9:.0f} GB/s")
    for sequences in (1, 16, 64):
        table(f"decode of {sequences}, tok/s", lambda model, layout: decode(model, layout, sequences))
    table("prompts of 512, tok/s", prefill)
    table("first token of such a prompt, ms", lambda model, layout: 1e3 * step(model, layout, 1, PROMPT))
    print(f"\none sequence is as fast either way with {break_even() / 1e9:.2f} GB of weights")


if __name__ == "__main__":
    main()
