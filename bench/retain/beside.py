#!/usr/bin/env python3
"""Prints what `kvik eval` measured on kvik-tiny beside what kvpress reached there. See README.md.

kvik eval --json --question both $(bench/retain/beside.py --flags) > eval.json
bench/retain/beside.py eval.json
"""
import argparse
import json
import math
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
TASKS = ["recall", "passkey", "notify", "summary"]
WINDOWS = [("chat", "all"), ("chat", "answers"), ("story", "all")]
REMOVED = ["0.25", "0.5", "0.7", "0.8", "0.9", "0.95"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", nargs="?", type=pathlib.Path, help="what `kvik eval --json` printed")
    parser.add_argument("--flags", action="store_true", help="print the flags that measure every press")
    parser.add_argument("--points", type=float, default=3, help="a difference above this is marked [3]")
    args = parser.parse_args()
    texts = dict(json.loads((HERE / "presses.json").read_text()))
    peer = json.loads((HERE / "kvpress.json").read_text())
    if args.flags:
        print(" ".join(flags(texts.values(), peer["samples"])))
        return
    if args.report is None:
        parser.error("name the report")
    report = Report(json.loads(args.report.read_text()))
    for question in ("unseen", "seen"):
        rows = [row for row in peer["quality"] if row["question"] == question and row["press"] in texts]
        ours = lambda row, removed: report.percent(texts[row["press"]], question, removed, row["task"])
        grid(f"question {question}", rows, TASKS, lambda row: row["task"], ours, args.points)
    rows = [row for row in peer["perplexity"] if row["press"] in texts]
    ours = lambda row, removed: report.perplexity(texts[row["press"]], removed, row["windows"], row["tokens"])
    window = lambda row: (row["windows"], row["tokens"])
    grid("perplexity in % above everything kept", rows, WINDOWS, window, ours, args.points, digits=1)


def flags(texts, samples):
    """What makes `kvik eval` measure every press on the cases on which kvpress was measured."""
    cases = [f"tiny.{task}:{sample['cases']}" for task, sample in samples["tasks"].items()]
    windows = [f"tiny.{kind}:{samples[kind]['windows']}" for kind in ("chat", "story")]
    return ["--kv f32", "--task", ",".join(cases + windows), *(f"--retain {text}" for text in texts)]


class Report:
    """Figures of kvik by retention, question and share removed."""

    def __init__(self, report):
        self.exact = report["rows"][0]
        self.rows = {}
        # The KV format that was measured first, if there are several.
        for row in report["rows"][1:]:
            self.rows.setdefault((row["question"], *parts(row["retain"])), row)

    def row(self, text, question, removed):
        policy, options = text.partition(",")[::2]
        return self.rows.get((question, policy, options, round(1 - float(removed), 4)))

    def percent(self, text, question, removed, task):
        """Right answers in percent of those with everything kept."""
        row, task = self.row(text, question, removed), f"tiny.{task}"
        if row is None or task not in row["answers"]:
            return None
        share = lambda row: row["answers"][task]["right"] / row["answers"][task]["weight"]
        return 100 * share(row) / share(self.exact)

    def perplexity(self, text, removed, windows, tokens):
        """How much higher it is than with everything kept, in percent."""
        row, task = self.row(text, "unseen", removed), f"tiny.{windows}"
        if row is None or task not in row["texts"]:
            return None
        mean = lambda row: row["texts"][task][tokens]["nll"] / row["texts"][task][tokens]["tokens"]
        return 100 * math.expm1(mean(row) - mean(self.exact))


def parts(text):
    """Policy, options and share kept of a retention as it is written."""
    head, _, options = text.partition(",")
    policy, _, keep = head.partition(":")
    return policy, options, float(keep or 0)


def grid(title, rows, columns, column, ours, points, digits=0):
    """A line a press, a cell `ours / kvpress` a column and share removed; what differs too much is bold."""
    cells, far, count = {}, 0, 0
    for row in rows:
        for removed, theirs in row["percent"].items():
            value, key = ours(row, removed), (row["press"], column(row), removed)
            if value is None or key in cells:  # the larger sample stands first
                continue
            count += 1
            apart = abs(value - theirs) > points
            far += apart
            text = f"{value:.{digits}f} / {theirs:.{digits}f}"
            cells[key] = f"**{text}**" if apart else text
    if not cells:
        return
    used = [(c, r) for c in columns for r in REMOVED if any(key[1:] == (c, r) for key in cells)]
    name = lambda c: c if isinstance(c, str) else " ".join(c)
    print(f"\n| {title}, removed | " + " | ".join(f"{name(c)} {r}" for c, r in used) + " |")
    print("| --- |" + " ---: |" * len(used))
    for press in dict.fromkeys(key[0] for key in cells):
        print(f"| {press} | " + " | ".join(cells.get((press, *place), "") for place in used) + " |")
    print(f"\n{count - far} of {count} figures are within {points:g} points.")


if __name__ == "__main__":
    main()
