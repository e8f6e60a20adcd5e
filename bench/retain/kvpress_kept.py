#!/usr/bin/env python3
"""Writes which positions kvpress keeps of some prompts: the golden files. See README.md."""
import argparse
import importlib.metadata
import json
import pathlib
import tempfile

import torch

import hf_model
import presses

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "crates/kvik-model/tests/golden/retain"
TINY = ROOT / "models/tiny"
MODEL = TINY / "kvik-tiny-q8_0.gguf"
# A held-out file and a line of it.
CASES = ["summary:109", "notify:27", "recall:92"]
REMOVED = [0.25, 0.5, 0.7, 0.8]
# Scores that differ by no more than this share are equal: eight units in the last place.
TIE = 2.0**-21


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, default=MODEL, help="a GGUF file of a Qwen3 model, or a Hugging Face directory")
    parser.add_argument("--cases", nargs="+", default=CASES, help="held-out cases of kvik-tiny as FILE:LINE, or text files")
    parser.add_argument("--out", type=pathlib.Path, default=GOLDEN)
    parser.add_argument("--double", action="store_true", help="compute in f64, to see what rounding decides")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = hf_model.directory(args.model, scratch)
        model, tokenizer = hf_model.load(folder)
        if args.double:
            torch.set_default_dtype(torch.float64)
            model.double()
        for case in args.cases:
            ids = tokenizer.encode(prompt(case), add_special_tokens=False).ids
            golden = dict(origin=origin(model.dtype), model=model_path(args.model), case=case)
            golden.update(kept_of(presses.Prompt(model, ids)))
            name = pathlib.Path(case.replace(":", "-")).stem + ".json"
            (args.out / name).write_text(pretty(golden))
            print(f"{name}: {len(ids)} tokens, {len(golden['presses'])} presses", flush=True)


def prompt(case):
    """The text of a held-out case in the chat template of kvik-tiny, or of a file."""
    name, _, line = case.partition(":")
    if not line:
        return pathlib.Path(case).read_text()
    row = json.loads((TINY / f"eval-{name}.jsonl").read_text().splitlines()[int(line)])
    turns = (f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in row["messages"])
    return "".join(turns) + "<|im_start|>assistant\n"


def origin(dtype):
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("kvpress", "torch", "transformers"))
    return f"bench/retain/kvpress_kept.py in {str(dtype).removeprefix('torch.')}, " + ", ".join(versions)


def model_path(path):
    """As seen from the repository, if it is in there."""
    path = pathlib.Path(path).resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def kept_of(prompt):
    layers, heads, _ = prompt.shape
    golden = dict(layers=layers, kv_heads=heads, removed=REMOVED, prompt=prompt.ids[0].tolist(), repeat=prompt.repeat_words())
    by_share = [prompt.all_kept(removed) for removed in REMOVED]
    golden["presses"] = {
        name: dict(kept=digits([kept[name] for kept in by_share]), ties=[ties(kept[name]) for kept in by_share])
        for name in by_share[0]
    }
    return golden


def digits(kept):
    """For each layer and KV head a hexadecimal digit a position: bit `i` says whether it is kept at the `i`-th share."""
    bits = sum(k.kept.long() << i for i, k in enumerate(kept))
    return ["".join(f"{digit:x}" for digit in head) for head in bits.flatten(0, 1).tolist()]


def ties(kept):
    """By the number of the head, the positions that chance decided: others of the same score met another fate.

    Scores are equal within a few units of f32: in the first layer a token has keys of one length wherever it stands, as
    rotation turns them, but for rounding.
    """
    heads = presses.groups(kept.kept.shape, "head")
    tied = at_border(kept, kept.scores, heads) | at_border(kept, kept.ranks, kept.group)
    found = {head: positions.nonzero().flatten().tolist() for head, positions in enumerate(tied)}
    return {head: ranges(positions) for head, positions in found.items() if positions}


def at_border(kept, ranks, group):
    """Of each head, [heads, tokens], what has the lowest rank kept or the highest not kept of its group as its score, if these are equal."""
    scores, ranks, kept, group = kept.scores.flatten(0, 1), ranks.flatten(0, 1), kept.kept.flatten(0, 1), group.flatten()
    tied = torch.zeros(scores.shape, dtype=torch.bool)
    for number in group.unique():
        members = group == number
        mine, chosen = ranks[members], kept[members]
        if chosen.all() or not chosen.any():
            continue
        lowest, highest = mine[chosen].min(), mine[~chosen].max()
        if equal(lowest, highest):
            tied[members] = equal(scores[members], lowest) | equal(scores[members], highest)
    return tied


def equal(a, b):
    return (a - b).abs() <= TIE * b.abs()


def ranges(positions):
    """Ascending numbers as runs: [first, end)."""
    runs = []
    for position in positions:
        if runs and runs[-1][1] == position:
            runs[-1][1] += 1
        else:
            runs.append([position, position + 1])
    return runs


def pretty(golden):
    """JSON with a line for each press."""
    outer = {key: value for key, value in golden.items() if key != "presses"}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in outer.items()]
    inner = [f"  {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in golden["presses"].items()]
    return "{\n" + ",\n".join(lines) + ',\n "presses": {\n' + ",\n".join(inner) + "\n }\n}\n"


if __name__ == "__main__":
    main()
