#!/usr/bin/env python3
"""What it costs when keys and values do not stay on the GPU: tokens a second and bytes copied, by depth, as a table and a picture.

    cargo build --release --features gpu
    bench/device/copies.py --device gpu:0 --json copies.json --svg docs/gpu-copies.svg
    bench/device/copies.py --from copies.json --svg docs/gpu-copies.svg      # draws what was measured before

Rounds of `kvik bench --kv-resident on` and `off` in turns. Only the first 512 tokens of a depth are computed and their
blocks repeated (`--repeat-depth`), since what is stored changes no speed. Fails unless the bytes that were copied are those
of the formula, at every depth.
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from machine import machine  # noqa: E402
from server import BINARY  # noqa: E402

DEPTHS = (1024, 4096, 16384)
TOKENS = 16
STAY, COPIED = "on", "off"


def measure(options):
    """Rows of the bench, of all rounds."""
    rows = []
    for number in range(options.rounds):
        for resident in (STAY, COPIED) if number % 2 == 0 else (COPIED, STAY):
            argv = [options.kvik, "bench", *(["-m", options.model] if options.model else []), "--device", options.device,
                    "--kv-resident", resident, "-p", 0, "-n", TOKENS, "-d", ",".join(map(str, options.depths)), "-r", 1,
                    "--repeat-depth", "--kv", options.kv, "--json"]
            ended = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False)
            assert ended.returncode == 0, ended.stderr
            found = [row | {"kv_resident": resident} for row in json.loads(ended.stdout)]
            rows += found
            print(f"round {number + 1}, {resident:3}:", *(f"{row['avg_ts']:.1f}" for row in found), file=sys.stderr, flush=True)
    return {"machine": machine(), "rows": rows}


def summary(measured):
    """By depth: median tokens a second of both, bytes copied, and those of the formula."""
    lines = []
    for depth in sorted({row["n_depth"] for row in measured["rows"]}):
        rows = [row for row in measured["rows"] if row["n_depth"] == depth]
        speed = {which: statistics.median(row["avg_ts"] for row in rows if row["kv_resident"] == which) for which in (STAY, COPIED)}
        moved = {row["kv_bytes_moved"] for row in rows if row["kv_resident"] == COPIED}
        formula = {row["kv_bytes_formula"] for row in rows if row["kv_resident"] == COPIED}
        assert not any(row["kv_bytes_moved"] for row in rows if row["kv_resident"] == STAY), "what stays is not copied"
        assert moved == formula and len(moved) == 1, f"at {depth}: {moved} bytes copied, by the formula {formula}"
        lines.append(dict(depth=depth, speed=speed, moved=moved.pop(), formula=formula.pop()))
    return lines


def table(lines):
    rows = ["| depth | stay, tok/s | copied, tok/s | bytes copied | by the formula |", "| ---: | ---: | ---: | ---: | ---: |"]
    for line in lines:
        rows.append(f"| {line['depth']:,} | {line['speed'][STAY]:.1f} | {line['speed'][COPIED]:.1f} | {line['moved']:,} | {line['formula']:,} |")
    return "\n".join(rows)


class Panel:
    """One pair of axes, whose left upper corner is at `left`; both axes begin at 0."""

    TOP, WIDTH, HEIGHT = 46, 300, 210

    def __init__(self, left, title, x_max, y_max, y_text):
        self.left, self.x_max, self.y_max = left, x_max, round_end(y_max)
        middle = left + self.WIDTH / 2
        self.parts = [text(middle, self.TOP - 14, title, "middle", "title"), text(middle, self.TOP + self.HEIGHT + 34, "tokens before", "middle")]
        for mark in range(5):
            value = self.y_max * mark / 4
            _, y = self.place(0, value)
            self.parts.append(f'<path class="grid" d="M{left} {y:.1f}h{self.WIDTH}"/>')
            self.parts.append(text(left - 6, y + 4, y_text(value), "end"))

    def place(self, x, y):
        return self.left + self.WIDTH * x / self.x_max, self.TOP + self.HEIGHT * (1 - y / self.y_max)

    def depths(self, values):
        for value in values:
            self.parts.append(text(self.place(value, 0)[0], self.TOP + self.HEIGHT + 16, f"{value:,}", "middle"))

    def curve(self, points, kind):
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.place(*point) for point in points))
        self.parts.append(f'<polyline class="{kind}" points="{line}"/>')

    def names(self, x, anchor, *named):
        """What the colours mean, below each other."""
        for number, (kind, name) in enumerate(named):
            self.parts.append(text(self.left + x, self.TOP + 18 + 16 * number, name, anchor, kind))

    def dots(self, points, kind):
        for x, y in (self.place(*point) for point in points):
            self.parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')


def text(x, y, words, anchor, kind="axis"):
    escaped = str(words).replace("&", "&amp;").replace("<", "&lt;")
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped}</text>'


def round_end(value):
    """The end of an axis on which `value` fits, whose quarters are round."""
    digit = 10 ** math.floor(math.log10(value / 4))
    return next(4 * digit * unit for unit in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 20) if 4 * digit * unit >= value)


# Colours that are told apart on white and on black, and by who does not see red or green.
STYLE = """text{font:12px sans-serif;fill:#808080}.title{font-weight:bold}.grid{stroke:#808080;stroke-opacity:.3}
polyline{fill:none;stroke-width:2}.stay{stroke:#0072b2}.copied{stroke:#d55e00}.formula{stroke:#808080;stroke-dasharray:5 4}
circle.stay,text.stay{fill:#0072b2}circle.copied,text.copied{fill:#d55e00}text{stroke:none!important}"""


def picture(measured, lines, device):
    """Speed on the left, bytes on the right with the line of the formula."""
    depths = [line["depth"] for line in lines]
    x_max = max(depths) * 1.05
    fastest = max(max(line["speed"].values()) for line in lines)
    speed = Panel(56, f"tokens a second ({TOKENS} tokens)", x_max, fastest, lambda value: f"{value:g}")
    most = max(line["formula"] for line in lines) / 2**20
    moved = Panel(436, "MiB copied", x_max, most, lambda value: f"{value:g}")
    for panel in (speed, moved):
        panel.depths(depths)
    names = (("stay", "stay on the GPU"), ("copied", "copied at every step"))
    speed.names(speed.WIDTH - 8, "end", *names)
    moved.names(12, "start", *names, ("formula", "by the formula"))
    for which, kind in ((STAY, "stay"), (COPIED, "copied")):
        points = [(line["depth"], line["speed"][which]) for line in lines]
        speed.curve(points, kind)
        speed.dots(points, kind)
        moved.dots([(line["depth"], (line["moved"] if which == COPIED else 0) / 2**20) for line in lines], kind)
    moved.curve([(depth, formula(lines, depth) / 2**20) for depth in range(0, max(depths) + 1, 256)], "formula")
    note = text(56, 316, f"{device}; {measured['machine']}", "start")
    parts = "\n".join([*speed.parts, *moved.parts, note])
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 326" role="img" '
            f'aria-label="Tokens a second and bytes copied by depth">\n<style>{STYLE}</style>\n{parts}\n</svg>\n')


def formula(lines, depth):
    """Bytes by the formula of the bench at any depth: a step copies in the blocks before its row and copies out its own."""
    blocks = lambda start: sum(-(-position // 16) + 1 for position in range(start, start + TOKENS))
    block_bytes = lines[0]["formula"] // blocks(lines[0]["depth"])
    assert all(line["formula"] == blocks(line["depth"]) * block_bytes for line in lines), "the formula of the bench"
    return blocks(depth) * block_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvik", type=pathlib.Path, default=BINARY)
    parser.add_argument("--device", default="gpu:0")
    parser.add_argument("-m", "--model", type=pathlib.Path, help="default: the embedded model")
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--depths", type=lambda words: [int(word) for word in words.split(",")], default=DEPTHS)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--from", dest="measured", type=pathlib.Path, help="what --json wrote, instead of measuring")
    parser.add_argument("--json", type=pathlib.Path, help="writes what was measured")
    parser.add_argument("--svg", type=pathlib.Path, help="writes the picture")
    options = parser.parse_args()
    measured = json.loads(options.measured.read_text()) if options.measured else measure(options)
    lines = summary(measured)
    if options.json:
        rows = ",\n".join(json.dumps(row) for row in measured["rows"])
        options.json.write_text(f'{{"machine": {json.dumps(measured["machine"])}, "rows": [\n{rows}\n]}}\n')
    if options.svg:
        options.svg.write_text(picture(measured, lines, measured["rows"][0]["device"]))
    print(table(lines))


if __name__ == "__main__":
    main()
