#!/usr/bin/env python3
"""kvik beside llama.cpp, ik_llama.cpp, OpenVINO GenAI: the same model file, threads and settings, in turns, in one run.

    bench/compare/compare.py --peer llama.cpp/build/bin --vocab ggml-vocab-qwen2.gguf --table

Every round runs each engine once, the order changing from round to round, so that a machine that slows down slows both.
A figure is the median of its samples. A peer runs in every setting that could suit it, and its best median counts.
Every measurement is a line on standard error; what was measured is printed even when a run is interrupted.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import signal
import statistics
import sys

import limits
import older_kvik
from engines import engines, flavour, peers, versions
from programs import Programs, run
from shapes import SHAPES
from works import by_case, combined, published

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Types that make-shape-model.py writes itself; the others come from `llama-quantize`, under its names.
WRITTEN = ("f32", "f16", "bf16")
# Types that kvik makes of others while it loads them; enough where it is measured beside another build of itself.
CONVERTED = ("q8_0", "q4_0")
PEER = """folder with the programs of llama.cpp or ik_llama.cpp, or another build of kvik, or a Python that has openvino_genai
("openvino": the one that runs this); the README names them. Several times for several peers"""

KERNELS = """the program `kernels`, which measures what this machine can do: `cargo build --release -p kvik-examples --bin
kernels`. Without it there is no limit"""


def main():
    args = arguments()
    works = wanted(args)
    if args.list:
        print("\n".join(work.name for work in works))
        return
    programs, others = Programs(args.kvik, None, args.threads), peers(args.peer)
    models = {weights: model_file(args, weights) for weights in dict.fromkeys(work.case.weights for work in works)}
    samples = {work: {} for work in works}
    peaks = limits.peaks(args.kernels, args.threads)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # as an exception, so that the report comes
    try:
        for number in range(args.rounds):
            for case, together in by_case(works).items():
                one_round(engines(programs, others, case), models[case.weights], case, together, number, args.rounds, samples)
    finally:
        measured = [work for work in works if samples[work]]
        size = lambda work: models[work.case.weights].stat().st_size if not work.case.made else None
        limit = lambda work: limits.limit(work, SHAPES[args.shape], size(work), peaks)
        results = [row(work, samples[work], limit(work)) for work in measured]
        report(args, programs, others, peaks, results)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=peer_path, action="append", default=[], help=PEER)
    parser.add_argument("--kvik", type=absolute, default=ROOT / "target/release/kvik")
    parser.add_argument("--kernels", type=absolute, default=ROOT / "target/release/kernels", help=KERNELS)
    parser.add_argument("--vocab", type=pathlib.Path, help="vocabulary-only GGUF for a model file that is not there yet")
    parser.add_argument("--models", type=absolute, default=ROOT / "target/models", help="folder that keeps the model files")
    parser.add_argument("--shape", default="qwen3-0.6b", help="a shape of make-shape-model.py")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="samples of each figure (default 3)")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures here, with every sample")
    parser.add_argument("--table", action="store_true", help="the rows of the table that the project publishes")
    parser.add_argument("--rows", type=names, default=[""], help="of all rows, those whose names contain one of these texts")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and measure nothing")
    flags = row_flags(parser)
    args = parser.parse_args()
    chosen = [flag for flag in flags if getattr(args, flag.dest) != flag.default]
    if args.table and chosen:
        parser.error(f"--table says which rows there are; it does not go with {chosen[0].option_strings[0]}")
    return args


def row_flags(parser):
    """Adds the flags that say which rows there are, and gives them."""
    rows = parser.add_argument_group("rows, every combination of these, where --table is not given")
    return [
        rows.add_argument("--weights", type=names, default=["q8_0"], help="types, such as q8_0,q4_0,q4_k_m,f16,bf16"),
        rows.add_argument("--kv", type=kv_formats, default=["f16"], help="KV formats, such as f16,q8,q4"),
        rows.add_argument("--prompt", type=numbers, default=[512], help="prefill lengths, 0 for none"),
        rows.add_argument("--generate", type=numbers, default=[64], help="tokens to decode, 0 for none"),
        rows.add_argument("--depth", type=numbers, default=[0], help="tokens already in the cache"),
        rows.add_argument("--sequences", type=numbers, default=[], help="also decode this many sequences together, such as 4,16"),
        rows.add_argument("--prefix", type=numbers, default=[512], help="tokens that the --sequences share"),
        rows.add_argument("--own-prompts", action="store_true", help="compare the --sequences with kvik without shared reads"),
    ]


def peer_path(text):
    return pathlib.Path(sys.executable) if text == "openvino" else absolute(text)


def absolute(text):
    """As a program that runs in another folder needs it; and without a folder its name would be looked up in PATH."""
    return pathlib.Path(text).absolute()


def names(text):
    return text.lower().split(",")


def kv_formats(text):
    """By kvik's names; llama.cpp's are understood."""
    return [name.removesuffix("_0") for name in names(text)]


def numbers(text):
    return [int(number) for number in text.split(",")]


def wanted(args):
    """The works of this run. Ends the program where there are none, or no program to hold them against."""
    every = list(published() if args.table else combined(args))
    works = [work for work in every if any(text in work.name for text in args.rows)]
    if not works:
        sys.exit("no row has such a name; there are\n" + "\n".join(work.name for work in every))
    if not args.list and not args.peer and not all(work.case.own_prompts for work in works):
        sys.exit("--peer FOLDER is needed for these rows")
    return works


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
    elif folder := next((peer for peer in args.peer if peer.is_dir()), None):
        source = model_file(args, "f16")
        run([folder / "llama-quantize", source, partial, weights.upper(), args.threads], libraries=folder)
    elif args.peer and weights in CONVERTED and all(flavour(peer) is older_kvik for peer in args.peer):
        return model_file(args, "f16")
    else:
        sys.exit(f"{path} is not there; --peer FOLDER is needed to quantise it")
    partial.rename(path)
    return path


def one_round(every, model, case, works, number, rounds, samples):
    """Each engine once; the one that starts changes every round. Adds to `samples`: work -> engine -> tok/s."""
    if case.in_one_process and number > 0:
        return
    count = rounds if case.in_one_process else 1
    ordered = every if number % 2 == 0 else reversed(every)
    for engine in ordered:
        for work, speeds in engine.measure(model, case, works, count).items():
            samples[work].setdefault(engine, []).extend(speeds)
            figures = " ".join(f"{speed:.1f}" for speed in speeds)
            print(f"{number + 1}/{rounds} {work.name} | {engine.name}: {figures} tok/s", file=sys.stderr, flush=True)


def row(work, samples, limit):
    """The figures of a work; `samples`: engine -> tok/s; `limit`: the most that the machine allows, or none."""
    medians = {engine.name: statistics.median(speeds) for engine, speeds in samples.items()}
    of_peers = {}
    for engine in samples:
        if engine.name != "kvik":
            of_peers.setdefault(engine.peer or engine.name, []).append(engine.name)
    case = work.case
    return {
        "weights": case.shown_weights, "work": work.what, "depth": case.depth, "kv": case.kv,
        "kvik_ts": round(medians["kvik"], 2),
        "limit_ts": limit and round(limit, 1), "share": limit and round(medians["kvik"] / limit, 3),
        **beside(medians, sum(of_peers.values(), [])),
        "in_one_process": case.in_one_process, "medians": medians, "samples": {engine.name: speeds for engine, speeds in samples.items()},
        "peers": {peer: beside(medians, names) for peer, names in of_peers.items()},
    }  # fmt: skip


def beside(medians, names):
    """The best of these engines, and kvik's ratio to it."""
    best = max(names, key=medians.get, default=None)
    return {"beside": best, "beside_ts": best and round(medians[best], 2), "ratio": best and round(medians["kvik"] / medians[best], 3)}


def report(args, programs, others, peaks, results):
    print(table_of_peers(results) if len(args.peer) > 1 else table(results))
    if args.json:
        date = f"{datetime.datetime.now():%Y-%m-%d %H:%M}"
        about = {"date": date, "machine": machine(), "versions": versions(programs, others), "settings": vars(args), "peaks": peaks}
        args.json.write_text(json.dumps(about | {"results": results}, indent=1, default=str) + "\n")


def table(results):
    """The best setting of the one peer, with its name."""
    head = ["| weights | work | depth | KV | kvik tok/s | limit | share | beside it | tok/s | ratio |"]
    head += ["| --- | --- | ---: | --- | ---: | ---: | ---: | --- | ---: | ---: |"]
    return "\n".join(head + [line(r, [r["beside"] or "", *figures(r)]) for r in results])


def table_of_peers(results):
    """Of each peer its best; an empty cell where it took no part."""
    peers = list(dict.fromkeys(peer for r in results for peer in r["peers"]))
    head = ["| weights | work | depth | KV | kvik tok/s | limit | share |" + "".join(f" {peer} tok/s | ratio |" for peer in peers)]
    head += ["| --- | --- | ---: | --- | ---: | ---: | ---: |" + " ---: | ---: |" * len(peers)]
    return "\n".join(head + [line(r, sum((figures(r["peers"].get(peer)) for peer in peers), [])) for r in results])


def line(result, cells):
    cells = [result["weights"], result["work"], result["depth"], result["kv"], f"{result['kvik_ts']:.1f}", *of_limit(result), *cells]
    return "| " + " | ".join(map(str, cells)) + " |"


def of_limit(result):
    """The limit, and how much of it was reached."""
    return [f"{result['limit_ts']:.0f}", f"{result['share']:.0%}"] if result["limit_ts"] else ["", ""]


def figures(best):
    return [f"{best['beside_ts']:.1f}", f"{best['ratio']:.2f}x"] if best and best["beside"] else ["", ""]


def machine():
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


if __name__ == "__main__":
    main()
