#!/usr/bin/env python3
"""kvik beside OpenVINO GenAI in the same cache: what length and how many sequences it holds, and what is answered rightly.

    python openvino_compare.py equal                  greedy answers of both, nothing forgotten
    python openvino_compare.py settings               the peer's settings on a part of the cases
    python openvino_compare.py length                 one sequence in 128, 256, 512 and 1,024 tokens
    python openvino_compare.py turns                  the question in a second turn
    python openvino_compare.py reach                  tokens that follow a prompt
    python openvino_compare.py sequences              16 and 64 conversations in the bytes of 4

The idea is that of OpenVINO's `limit_checker.py`. Python needs openvino-genai and tokenizers. Tables go to standard output.
"""
import argparse
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from openvino_cases import ROOT, TASKS, cases, conversations, first_turn
from openvino_kvik import Kvik
from openvino_peer import BLOCK, OpenVino

TOKEN_BYTES = 3072  # of one position of kvik-tiny in f16
SIZES = (128, 256, 512, 1024)
CONVERSATION = 2048  # tokens of a whole one
TOGETHER = 128
REACH = 8192

# How each engine is asked to stay within a number of tokens; openvino.md says how the settings were found.
PEER = ("norm_sum:{tokens},recent=32", "norm_sum:{tokens},recent=32,crush=1,anchor=mean")
KVIK = ("knorm:{tokens},order=large,budget=all,sinks=4,recent=16,every=32", "snapkv:{tokens},window=8,pool=31,every=2048")


def main():
    args = arguments()
    engines = {"openvino": OpenVino(args.model, args.threads, args.peer_kv, args.peer_prefix_caching)}
    engines["kvik"] = Kvik(args.model, args.threads, args.kvik, args.kv)
    chosen = [engines[name] for name in args.engines]
    print("; ".join(engine.version() for engine in chosen), flush=True)
    args.measure(args, chosen)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measures = {"equal": equal, "settings": settings, "length": length, "turns": turns, "reach": reach, "sequences": sequences}
    parser.add_argument("measure", choices=measures)
    parser.add_argument("--model", type=Path, default=ROOT / "models/tiny/kvik-tiny-f16.gguf", help="the one GGUF file that both read")
    parser.add_argument("--kvik", type=Path, default=ROOT / "target/release/kvik")
    parser.add_argument("--engines", type=lambda text: text.split(","), default=["kvik", "openvino"])
    parser.add_argument("--retain", action="append", help="kvik's retention, `{tokens}` being the size; may be repeated")
    parser.add_argument("--eviction", action="append", help="the peer's settings likewise")
    parser.add_argument("--sizes", type=numbers, default=SIZES, help="tokens of a cache")
    parser.add_argument("--conversations", type=numbers, default=(16, 64))
    parser.add_argument("--together", type=int, default=TOGETHER, help="tokens that each of several conversations generates")
    parser.add_argument("--prompt-max", type=int, default=CONVERSATION, help="tokens of the longest prompt of several")
    parser.add_argument("--kv", default="f16", help="kvik's KV format")
    parser.add_argument("--peer-kv", default="f16", help="the peer's: f16 or u8")
    parser.add_argument("--peer-prefix-caching", action="store_true", help="which its eviction does not bear for long")
    parser.add_argument("--every", type=int, default=1, help="only every so many case")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    args.measure = measures[args.measure]
    args.settings = {"kvik": args.retain or KVIK, "OpenVINO GenAI": args.eviction or PEER}
    return args


def numbers(text):
    return tuple(map(int, text.split(",")))


def equal(args, engines):
    """Whether all engines answer alike when nothing is forgotten."""
    with ExitStack() as stack:
        opened = [stack.enter_context(engine.open("", 2 * CONVERSATION * TOKEN_BYTES)) for engine in engines]
        for task in TASKS:
            answers = [tuple(each.answer(case) for each in opened) for case in cases(task, args.every)]
            alike = sum(len(set(texts)) == 1 for texts in answers)
            print(f"{task}: {alike} of {len(answers)} answers are equal")


def length(args, engines):
    """One sequence: what is answered rightly in a cache of a fixed size, and which lengths are answered at all."""
    print("| cache | engine | retention | pool | " + " | ".join(f"{task} right | answered | longest" for task in TASKS) + " |")
    print("| ---: | --- | --- | --- |" + " ---: | ---: | ---: |" * len(TASKS))
    for size, strict in product(args.sizes, (True, False)):
        rows(args, engines, size, strict)


def rows(args, engines, size, strict):
    """A row for each setting, every case being asked of all of them in turn."""
    wanted = [(engine, text.format(tokens=size)) for engine in engines for text in args.settings[engine.name]]
    pool = size + BLOCK if strict else 2 * CONVERSATION
    with ExitStack() as stack:
        opened = [stack.enter_context(engine.open(text, pool * TOKEN_BYTES)) for engine, text in wanted]
        found = [[] for _ in wanted]
        for task in TASKS:
            asked = cases(task, args.every)
            answers = zip(*([each.answer(case) for each in opened] for case in asked))
            for cells, texts in zip(found, answers):
                cells += counted(asked, texts)
    for (engine, text), cells in zip(wanted, found):
        print(f"| {size} | {engine.name} | {named(text)} | {f'{pool} tokens' if strict else 'open'} | {' | '.join(cells)} |", flush=True)


def counted(asked, texts):
    """How many answers are right, how many there are, and the longest prompt among them."""
    texts = list(texts)
    right = sum(case.right(text) for case, text in zip(asked, texts))
    held = [len(case.tokens) for case, text in zip(asked, texts) if text is not None]
    return f"{right} of {len(asked)}", str(len(held)), str(max(held, default=0))


def turns(args, engines):
    """The question in a second turn, after one that had everything before it."""
    print("| cache | engine | retention | right |\n| ---: | --- | --- | ---: |")
    for size, engine in product(args.sizes, engines):
        asked = [case for case in cases("recall", args.every) if len(case.tokens) > size]
        for text in ("", *(text.format(tokens=size) for text in args.settings[engine.name])):
            with engine.open(text, 2 * CONVERSATION * TOKEN_BYTES) as opened:
                right = sum(case.right(after_first_turn(opened, case)) for case in asked)
            print(f"| {size} | {engine.name} | {named(text)} | {right} of {len(asked)} |", flush=True)


def after_first_turn(opened, case):
    opened.answer(first_turn(case))
    return opened.answer(case)


def reach(args, engines):
    """How many tokens follow a short prompt in a pool of a fixed size."""
    short = min(cases("recall"), key=lambda case: len(case.tokens))
    print("| pool | engine | retention | tokens |\n| ---: | --- | --- | ---: |")
    for size, engine in product(args.sizes, engines):
        for text in ("", *args.settings[engine.name]):
            text, pool = text.format(tokens=size), size + BLOCK
            with engine.open(text, pool * TOKEN_BYTES) as opened:
                print(f"| {pool} | {engine.name} | {named(text)} | {opened.reach(short, REACH)} |", flush=True)


def sequences(args, engines):
    """Conversations at the same time in the bytes of four whole ones."""
    print("| conversations | engine | retention | at the same time | right |\n| ---: | --- | --- | ---: | ---: |")
    for count, engine in product(args.conversations, engines):
        asked = conversations(count, args.prompt_max)
        for text in kept(args, engine):
            with engine.open(text, 4 * CONVERSATION * TOKEN_BYTES) as opened:
                texts, running = opened.together(asked, args.together)
            right = sum(case.right(answer) for case, answer in zip(asked, texts))
            print(f"| {count} | {engine.name} | {named(text)} | {max(running, default=0)} | {right} |", flush=True)


def kept(args, engine):
    """Nothing forgotten, then every setting in every size."""
    return ["", *(text.format(tokens=size) for size in args.sizes for text in args.settings[engine.name])]


def named(text):
    return f"`{text}`" if text else "nothing forgotten"


def settings(args, engines):
    """The peer's settings on a part of the cases, the pool open."""
    args.settings["OpenVINO GenAI"] = ["", *tried()]
    for size in args.sizes:
        rows(args, [engine for engine in engines if engine.name == "OpenVINO GenAI"], size, strict=False)


def tried():
    """One setting after the other varied from its documented defaults, the recent area fitting the smallest cache."""
    plain = "norm_sum:{tokens}"
    areas = [f"{plain},start={start},recent={recent}" for start in (32, 64) for recent in (32, 64, 96)]
    modes = [f"{mode}:{{tokens}},recent=64{rotate}" for mode, rotate in (("sum", ""), ("norm_sum", ",rotate"))]
    windows = [f"{plain},recent=64,window={window}" for window in (1, 4, 16, 32)]
    crush = [f"{plain},recent=32,crush={blocks},anchor={anchor}" for blocks in (1, 2) for anchor in ANCHORS]
    return [*areas, *modes, *windows, *crush]


ANCHORS = ("random", "zeros", "ones", "mean", "alternating")


if __name__ == "__main__":
    main()
