#!/usr/bin/env python3
"""Prefill of 512 tokens and decode of 64 beside llama.cpp, on models whose layers differ.

    bench/kinds/speed.py --kvik target/release/kvik --llama-bench llama.cpp/build/bin/llama-bench MODEL.gguf [...]

Both programs take turns on the same file with the same threads, and the one that starts changes every round. Prints the
medians of the rounds in tokens a second, and their ratio; the last column is what decoding reads of the weights, of experts
only those that a token is given to, times tokens a second: the limit is what the machine reads. Let nothing else run
meanwhile: a neighbour slows llama.cpp, whose threads spin, far more than kvik. `shapes.py` makes the files.
"""
import argparse
import json
import pathlib
import statistics
import subprocess

import gguf


def measure(command):
    """Tokens a second of prefill and of decode."""
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"prefill" if row["n_prompt"] else "decode": row["avg_ts"] for row in rows}


def bytes_a_token(model):
    """Bytes of the weights that decoding one token reads."""
    reader = gguf.GGUFReader(model)
    architecture = reader.fields["general.architecture"].contents()
    setting = lambda name: reader.fields[f"{architecture}.{name}"].contents()
    is_tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    touched = 0
    for tensor in reader.tensors:
        if "_exps" in tensor.name:
            touched += int(tensor.n_bytes) * setting("expert_used_count") // setting("expert_count")
        elif tensor.name != "token_embd.weight" or is_tied:
            touched += int(tensor.n_bytes)
    return touched


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--kvik", required=True)
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print("| model | prefill 512 | llama.cpp | ratio | decode 64 | llama.cpp | ratio | GB/s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model in args.models:
        size = ["-t", args.threads, "-p", "512", "-n", "64", "-r", "1"]
        programs = [[args.kvik, "bench", "-m", model, *size, "--json"],
                    [args.llama_bench, "-m", model, *size, "-o", "json"]]
        samples = [[], []]
        for number in range(args.rounds):
            for index in (0, 1) if number % 2 == 0 else (1, 0):
                samples[index].append(measure(programs[index]))
        cells = []
        for part in ("prefill", "decode"):
            own, peer = (statistics.median(sample[part] for sample in one) for one in samples)
            cells += [f"{own:.1f}", f"{peer:.1f}", f"{own / peer:.2f}"]
        cells.append(f"{own * bytes_a_token(model) / 1e9:.1f}")
        print(f"| {pathlib.Path(model).stem} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
