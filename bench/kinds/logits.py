#!/usr/bin/env python3
"""The distributions behind prompts of 1, 100, 1,000 and 3,000 tokens beside llama.cpp's, on quantised files in real shapes.

    pip install numpy llama-cpp-python        # LLAMA_CPP_LIB_PATH=BUILD/bin for a llama.cpp that is built
    cargo build --release -p kvik-examples --bin logits
    bench/kinds/logits.py --kvik target/release/logits MODEL.gguf [...]

One random prompt is computed by kvik and by llama.cpp, with keys and values in F32. Both quantise the inputs of products to 8
bits, each in its way. So kvik also computes it with weights brought to F32 and inputs as they are, which is exact but for
rounding, and llama.cpp with keys and values in F16: these are the yardsticks.

Each row of the table compares two of these at the last positions of one length: Kullback-Leibler divergence, mean and largest,
and at how many positions both choose the same token. `entropy` and `margin`, between the two likeliest tokens, say what kind of
distribution it is: files of `shapes.py` have random weights.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/golden"))
import peer  # noqa: E402

LENGTHS = [1, 100, 1000, 3000]
# Positions compared behind each length, as far as there are so many.
LAST = 8


def positions():
    """Of each length its last positions."""
    return {length: list(range(max(0, length - LAST), length)) for length in LENGTHS}


def kvik_rows(program, model, kv, tokens, wanted, scratch):
    prompt, out = scratch / "tokens", scratch / "rows"
    prompt.write_text(" ".join(map(str, tokens)))
    subprocess.run([program, model, kv, prompt, ",".join(map(str, wanted)), out], check=True)
    rows = np.fromfile(out, "<f4").reshape(len(wanted), -1)
    return dict(zip(wanted, rows))


def llama_rows(model, kv, tokens, wanted):
    llama = peer.Peer(model, kv, context=len(tokens) + 64, flash=kv != peer.F32)
    rows = dict(llama.rows(tokens, wanted=set(wanted)))
    llama.close()
    return rows


def log_probabilities(row):
    row = row.astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


def compare(expected, found, at):
    """Mean and largest divergence, positions with the same choice."""
    divergences, same = [], 0
    for position in at:
        p, q = log_probabilities(expected[position]), log_probabilities(found[position])
        divergences.append(float((np.exp(p) * (p - q)).sum()))
        same += int(p.argmax() == q.argmax())
    return np.mean(divergences), max(divergences), same


def character(rows, at):
    """Mean entropy in nats, mean difference of the two greatest logits."""
    entropies, margins = [], []
    for position in at:
        p = log_probabilities(rows[position])
        entropies.append(float(-(np.exp(p) * p).sum()))
        second, first = np.partition(p, -2)[-2:]
        margins.append(first - second)
    return np.mean(entropies), np.mean(margins)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--kvik", required=True, help="the example `logits` of kvik-engine")
    parser.add_argument("--ids", type=int, default=30000, help="tokens of the prompt are drawn from the first so many")
    args = parser.parse_args()
    lengths = positions()
    wanted = sorted({position for at in lengths.values() for position in at})
    tokens = np.random.default_rng(7).integers(0, args.ids, LENGTHS[-1]).tolist()
    print("| model | tokens | entropy | margin | what | mean KL | largest KL | same choice |")
    print("| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |")
    for model in args.models:
        with tempfile.TemporaryDirectory() as scratch:
            own, exact = (kvik_rows(args.kvik, model, kv, tokens, wanted, pathlib.Path(scratch)) for kv in ("f32", "exact"))
        llama, halves = (llama_rows(model, kv, tokens, wanted) for kv in (peer.F32, peer.F16))
        pairs = [("kvik beside llama.cpp", own, llama), ("kvik beside exact", own, exact),
                 ("llama.cpp beside exact", llama, exact), ("llama.cpp in F16 beside F32", halves, llama)]
        for length, at in lengths.items():
            entropy, margin = character(exact, at)
            for name, found, expected in pairs:
                mean, largest, same = compare(expected, found, at)
                print(f"| {pathlib.Path(model).stem} | {length} | {entropy:.2f} | {margin:.2f} | {name} | {mean:.1e} "
                      f"| {largest:.1e} | {same} of {len(at)} |", flush=True)


if __name__ == "__main__":
    main()
