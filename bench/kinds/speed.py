#!/usr/bin/env python3
"""Prefill of 512 tokens and decode of 64 beside llama.cpp, on models whose layers differ.

    bench/kinds/speed.py --kvik target/release/kvik --llama-bench llama.cpp/build/bin/llama-bench MODEL.gguf [...]

Both programs take turns on the same file with the same threads, and the one that starts changes every round. Prints the
medians of the rounds in tokens a second, their ratio, and the share of what the machine would allow: of a prompt, products of
bytes at the peak that the example `kernels` measures; of decode, reading the weights, of experts only those that a token is
given to (attention and states count nothing). Without the example that stays empty. Let nothing else run meanwhile: a neighbour slows llama.cpp, whose threads spin, far more than kvik. `shapes.py` makes the files.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import gguf

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/compare"))
from limits import peaks  # noqa: E402


def measure(command):
    """Tokens a second of prefill and of decode."""
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"prefill" if row["n_prompt"] else "decode": row["avg_ts"] for row in rows}


def touched_by_a_token(model):
    """Bytes of the weights that decoding one token reads; and of a token of a prompt, which needs no logits, the weights."""
    reader = gguf.GGUFReader(model)
    architecture = reader.fields["general.architecture"].contents()
    setting = lambda name: reader.fields[f"{architecture}.{name}"].contents()
    is_tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    read, multiplied = 0, 0
    for tensor in reader.tensors:
        is_matrix, is_output = len(tensor.shape) > 1, tensor.name == "output.weight"
        if "_exps" in tensor.name:
            share = setting("expert_used_count") / setting("expert_count")
            read, multiplied = read + int(tensor.n_bytes) * share, multiplied + int(tensor.n_elements) * share
        elif tensor.name == "token_embd.weight":
            read += int(tensor.n_bytes) * is_tied
        else:
            read += int(tensor.n_bytes)
            multiplied += int(tensor.n_elements) * (is_matrix and not is_output)
    return read, multiplied


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--kvik", required=True)
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--kernels", type=pathlib.Path, default=ROOT / "target/release/kernels")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    machine = peaks(args.kernels, args.threads)
    print("| model | prefill 512 | of limit | llama.cpp | ratio | decode 64 | of limit | llama.cpp | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model in args.models:
        size = ["-t", args.threads, "-p", "512", "-n", "64", "-r", "1"]
        programs = [[args.kvik, "bench", "-m", model, *size, "--json"],
                    [args.llama_bench, "-m", model, *size, "-o", "json"]]
        samples = [[], []]
        for number in range(args.rounds):
            for index in (0, 1) if number % 2 == 0 else (1, 0):
                samples[index].append(measure(programs[index]))
        cells, (read, multiplied) = [], touched_by_a_token(model)
        seconds = {"prefill": (2 * multiplied, machine.get("bytes")), "decode": (read, machine.get("read"))}
        for part, (work, rate) in seconds.items():
            own, peer = (statistics.median(sample[part] for sample in one) for one in samples)
            cells += [f"{own:.1f}", f"{own * work / rate:.0%}" if rate else "", f"{peer:.1f}", f"{own / peer:.2f}"]
        print(f"| {pathlib.Path(model).stem} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
