#!/usr/bin/env python3
"""Writes the golden files: small models, and what llama.cpp answers on them. See README.md."""
import argparse
import json
import math
import pathlib
import tempfile

import numpy as np

import long
import peer
import shapes

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "crates/kvik-model/tests/golden"
TINY = ROOT / "models/tiny"

# llama.cpp's numbers of file types whose every matrix is of one tensor type, and the shape they are made from.
TYPES = {
    "f16": (1, shapes.NARROW),
    "bf16": (32, shapes.NARROW),
    "q8_0": (7, shapes.NARROW),
    "q4_0": (2, shapes.NARROW),
    "q4_1": (3, shapes.NARROW),
    "q5_0": (8, shapes.NARROW),
    "q5_1": (9, shapes.NARROW),
    "iq4_nl": (25, shapes.NARROW),
    "q2_k": (10, shapes.WIDE),
    "q3_k": (11, shapes.WIDE),
    "q4_k": (14, shapes.WIDE),
    "q5_k": (16, shapes.WIDE),
    "q6_k": (18, shapes.WIDE),
}

# Tokens of a random prompt: those that are not special.
RANDOM_IDS = len(shapes.TOKENS) - 3
GREEDY_STEPS = 200
PROBE_STEPS = {0, 1, 2, 5, 20, 60, 120, 199}
# Beyond this many, probabilities are lumped into the rest.
PROBE_TOKENS = 128
# The held-out files and the longest answer each allows.
EVALS = {"notify": 120, "recall": 120, "passkey": 120, "summary": 250}
CASES_PER_EVAL = 16


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--stories", type=pathlib.Path, help="stories260K.gguf, which is not in the repository")
    args.add_argument("--only", nargs="+", metavar="NAME", help="these random models alone, as shapes.py names them")
    args.add_argument("--long", action="store_true", help="answers to long prompts alone, on the models that are there")
    args = args.parse_args()
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for shape in shapes.ARCHITECTURES:
        if shape.name in (args.only or [shape.name]):
            if not args.long:
                write_architecture(shape)
            write_long(shape)
    if args.only or args.long:
        return
    with tempfile.TemporaryDirectory() as scratch:
        for name, (file_type, shape) in TYPES.items():
            write_type(name, file_type, shape, pathlib.Path(scratch))
    write_tiny()
    if args.stories:
        write_continuation("stories260K", args.stories, [1], peer.F32)


def write_architecture(shape):
    path = GOLDEN / f"arch-{shape.name}.gguf"
    shapes.write(path, shape)
    write_continuation(path.stem, path, random_prompt(), peer.F32)


def write_long(shape):
    """The answers to a long prompt; of Llama 4, whose layers see chunks, to one that is longer than a chunk."""
    model = GOLDEN / f"arch-{shape.name}.gguf"
    long.write(model.with_suffix(".long.json"), model, shape.seed, RANDOM_IDS, chunks=shape.arch == "llama4")


def write_type(name, file_type, shape, scratch):
    """The other narrow types are made from the F16 file, so tests can convert as llama.cpp did."""
    path, f16 = GOLDEN / f"type-{name}.gguf", GOLDEN / "type-f16.gguf"
    source = f16 if shape is shapes.NARROW and path != f16 else scratch / f"{shape.name}.gguf"
    if not source.exists():
        shapes.write(source, shape)
    peer.quantize(source, path, file_type)
    write_continuation(path.stem, path, random_prompt(), peer.F32)


def write_tiny():
    """64 held-out cases as llama-server answers them: KV in F16, flash attention."""
    model = TINY / "kvik-tiny-q8_0.gguf"
    llama = peer.Peer(model, peer.F16, context=2560, flash=True)
    answers = [answer(llama, name, i, case) for name in EVALS for i, case in cases(name)]
    (GOLDEN / "kvik-tiny-answers.jsonl").write_text("".join(json.dumps(a, ensure_ascii=False) + "\n" for a in answers))
    prompt = llama.tokenize(chat(next(cases("notify"))[1]["messages"]))
    llama.close()
    write_continuation("kvik-tiny", model, prompt, peer.F32)


def cases(name):
    """Cases spread over one held-out file, with their line numbers."""
    lines = (TINY / f"eval-{name}.jsonl").read_text().splitlines()
    step = len(lines) // CASES_PER_EVAL
    return ((i, json.loads(lines[i])) for i in range(0, step * CASES_PER_EVAL, step))


def answer(llama, name, line, case):
    prompt = llama.tokenize(chat(case["messages"]))
    tokens = [token for token, _ in llama.greedy(prompt, EVALS[name], stop_at_end=True)]
    return dict(eval=name, line=line, prompt_tokens=len(prompt), tokens=tokens, text=llama.text(tokens))


def chat(messages):
    """The model's chat template, as its card gives it."""
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return turns + "<|im_start|>assistant\n"


def random_prompt():
    """Longer than two blocks of 16 and ending inside a third."""
    return np.random.default_rng(7).integers(0, RANDOM_IDS, 37).tolist()


def write_continuation(name, model, prompt, kv_type):
    llama = peer.Peer(model, kv_type)
    tokens, probes, margins = [], [], []
    for step, (token, logits) in enumerate(llama.greedy(prompt, GREEDY_STEPS)):
        top = np.sort(logits)[-2:]
        margins.append(float(top[1] - top[0]))
        tokens.append(token)
        if step in PROBE_STEPS:
            probes.append(probe(step, logits))
    llama.close()
    golden = dict(prompt=prompt, greedy=tokens, probes=probes)
    (GOLDEN / f"{name}.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    spread = np.std(probes[0]["logits"])
    print(f"{name:24} distinct {len(set(tokens)):3}  smallest margin {min(margins):.5f}  spread {spread:.2f}")


def probe(step, logits):
    """The likeliest tokens with their logits, and the logarithm of the sum of all exponentials."""
    order = np.argsort(-logits, kind="stable")[:PROBE_TOKENS]
    top = float(logits.max())
    log_sum = top + math.log(float(np.exp(logits.astype(np.float64) - top).sum()))
    rounded = [float(f"{logits[i]:.7g}") for i in order]
    return dict(step=step, log_sum=float(f"{log_sum:.8g}"), tokens=order.tolist(), logits=rounded)


if __name__ == "__main__":
    main()
