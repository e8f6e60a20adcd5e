"""Prints what `near.py` wrote as tables: `python tables.py FILE...`."""
import json
import math
import pathlib
import sys

DEVIATIONS = 1.959963984540054
HEAD = (
    "| way | computed again | right | of exact's | right where exact is | divergence | perplexity | of exact's |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def main():
    for file in map(pathlib.Path, sys.argv[1:]):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for kind, chosen in (("what is reused", False), ("what has changed", True)):
            part = [row for row in rows if (row["kind"] == "changed") == chosen]
            if part:
                print(f"\n{file.stem}, questions about {kind}\n\n{table(part)}")


def table(rows):
    """One line for each way; a share has its interval of 95%."""
    ways = {}
    for row in rows:
        ways.setdefault(row["way"], []).append(row)
    return "\n".join([HEAD, *(line(way, ways[way], ways["exact"]) for way in ways)])


def line(way, rows, exact):
    count = len(rows)
    mean = lambda name: sum(row[name] for row in rows) / count
    right, expected = sum(row["right"] for row in rows), sum(row["right"] for row in exact)
    held = sum(row["right"] and other["right"] for row, other in zip(rows, exact))
    low, high = wilson(held, expected)
    again = sum(row["again"] for row in rows) / sum(row["reused"] for row in rows)
    ratio = f"{100 * right / expected:.1f}%" if expected else ""
    return (
        f"| `{way}` | {100 * again:.1f}% | {right} of {count} | {ratio} | {held} of {expected} "
        f"({100 * low:.1f} to {100 * high:.1f}%) | {mean('divergence'):.3f} | {math.exp(mean('nll')):.2f} | "
        f"{relative([row['nll'] - other['nll'] for row, other in zip(rows, exact)])} |"
    )


def relative(differences):
    """The perplexity relative to that of the same questions, with an interval by the normal distribution."""
    count = len(differences)
    mean = sum(differences) / count
    square = sum((it - mean) ** 2 for it in differences) / max(count - 1, 1)
    half = DEVIATIONS * math.sqrt(square / count)
    return f"{math.exp(mean):.2f} ({math.exp(mean - half):.2f} to {math.exp(mean + half):.2f})"


def wilson(right, cases):
    """Wilson's score interval, as `kvik eval` has it."""
    if cases == 0:
        return 0.0, 1.0
    square, share = DEVIATIONS**2, right / cases
    middle = share + square / (2 * cases)
    half = DEVIATIONS * math.sqrt(share * (1 - share) / cases + square / (4 * cases**2))
    scale = 1 + square / cases
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


if __name__ == "__main__":
    main()
