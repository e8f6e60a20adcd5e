#!/usr/bin/env python3
"""kvik beside llama.cpp (or ik_llama.cpp): the same model file, threads and settings, in turns, in one run.

    bench/compare/compare.py --peer llama.cpp/build/bin --vocab ggml-vocab-qwen2.gguf

Every round runs each engine once, the order changing from round to round, so that a machine that slows down slows both.
A figure is the median of its rounds. The peer is run with flash attention on and off, and its better median counts.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# What `llama-quantize` calls them; unquantised types are written by make-shape-model.py itself.
WRITTEN = ("f32", "f16", "bf16")


def main():
    args = arguments()
    models = {weights: model_file(args, weights) for weights in args.weights}
    samples = {}
    for number in range(args.rounds):
        for weights, path in models.items():
            for work in works(args):
                one_round(args, number, weights, path, work, samples)
    results = [row(weights, work, samples) for weights in models for work in works(args)]
    print(table(results))
    record = {"date": f"{datetime.datetime.now():%Y-%m-%d %H:%M}", "machine": machine(), "settings": settings(args), "results": results}
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=pathlib.Path, required=True, help="folder with llama-bench and llama-quantize")
    parser.add_argument("--kvik", type=pathlib.Path, default=ROOT / "target/release/kvik")
    parser.add_argument("--vocab", type=pathlib.Path, help="vocabulary-only GGUF for a model file that is not there yet")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "target/models", help="folder that keeps the model files")
    parser.add_argument("--shape", default="qwen3-0.6b", help="a shape of make-shape-model.py")
    parser.add_argument("--weights", type=names, default=["q8_0"], help="types, such as q8_0,q4_0,q4_k_m,f16")
    parser.add_argument("--kv", type=names, default=["f16"], help="KV formats: f16, q8_0")
    parser.add_argument("--prompt", type=numbers, default=[512], help="prefill lengths, 0 for none")
    parser.add_argument("--generate", type=numbers, default=[64], help="tokens to decode, 0 for none")
    parser.add_argument("--depth", type=numbers, default=[0], help="tokens already in the cache")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures here")
    return parser.parse_args()


def names(text):
    return text.lower().split(",")


def numbers(text):
    return [int(number) for number in text.split(",")]


def works(args):
    """Each a (kind, tokens, depth, KV format); kind is llama-bench's `pp` or `tg`."""
    for depth in args.depth:
        for kv in args.kv:
            yield from (("pp", tokens, depth, kv) for tokens in args.prompt if tokens)
            yield from (("tg", tokens, depth, kv) for tokens in args.generate if tokens)


def model_file(args, weights):
    """The model of the wanted shape and type, made when it is not there."""
    path = args.models / f"{args.shape}-{weights}.gguf"
    if path.exists():
        return path
    args.models.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    if weights in WRITTEN:
        if not args.vocab:
            sys.exit(f"{path} is not there; --vocab FILE is needed to make it")
        maker = [sys.executable, HERE / "make-shape-model.py", "--shape", args.shape, "--dtype", weights]
        run([*maker, "--vocab", args.vocab, "--out", partial])
    else:
        source = model_file(args, "f16")
        run([args.peer / "llama-quantize", source, partial, weights.upper(), args.threads], peer=args.peer)
    partial.rename(path)
    return path


def one_round(args, number, weights, path, work, samples):
    """Each engine once; the one that starts changes every round."""
    engines = ["kvik", "peer, fa off", "peer, fa on"]
    for engine in engines if number % 2 == 0 else reversed(engines):
        speed = bench(args, engine, path, work)
        if speed is not None:
            samples.setdefault((weights, work, engine), []).append(speed)


def bench(args, engine, path, work):
    """Tokens per second of one run, or None where the engine has no such setting."""
    kind, tokens, depth, kv = work
    flags = ["-m", path, "-p", tokens if kind == "pp" else 0, "-n", tokens if kind == "tg" else 0]
    flags += ["-d", depth, "-t", args.threads, "-r", 1]
    if engine == "kvik":
        output = run([args.kvik, "bench", *flags, "--kv", kv.removesuffix("_0"), "--json"])
    elif engine == "peer, fa off" and kv != "f16":
        return None  # llama.cpp quantises V only under flash attention
    else:
        flash = "1" if engine == "peer, fa on" else "0"
        output = run([args.peer / "llama-bench", *flags, "-fa", flash, "-ctk", kv, "-ctv", kv, "-o", "json"], peer=args.peer)
    (result,) = json.loads(output)
    assert (result["n_prompt"], result["n_gen"], result["n_depth"]) == (flags[3], flags[5], depth), result
    return result["avg_ts"]


def run(command, peer=None):
    env = os.environ | ({"LD_LIBRARY_PATH": str(peer)} if peer else {})
    done = subprocess.run([str(part) for part in command], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def row(weights, work, samples):
    kind, tokens, depth, kv = work
    median = {engine: statistics.median(speeds) for (w, k, engine), speeds in samples.items() if (w, k) == (weights, work)}
    kvik = median.pop("kvik")
    best = max(median, key=median.get)
    return {
        "weights": weights, "work": f"{kind}{tokens}", "depth": depth, "kv": kv,
        "kvik_ts": round(kvik, 2), "peer_ts": round(median[best], 2), "peer_setting": best, "ratio": round(kvik / median[best], 3),
        "samples": {engine: speeds for (w, k, engine), speeds in samples.items() if (w, k) == (weights, work)},
    }  # fmt: skip


def table(results):
    lines = ["| weights | work | depth | KV | kvik tok/s | peer tok/s | ratio |", "| --- | --- | ---: | --- | ---: | ---: | ---: |"]
    for r in results:
        cells = (r["weights"], r["work"], r["depth"], r["kv"], f"{r['kvik_ts']:.1f}", f"{r['peer_ts']:.1f} ({r['peer_setting'][6:]})", f"{r['ratio']:.2f}x")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def settings(args):
    return {name: str(value) if isinstance(value, pathlib.Path) else value for name, value in vars(args).items()}


def machine():
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


if __name__ == "__main__":
    main()
