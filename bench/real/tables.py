#!/usr/bin/env python3
"""What kvik rounds and forgets on models that people run, as tables: perplexity, formats of keys and values, retention policies,
and what `kvik eval` and the server's guard say of each model.

    bench/real/tables.py smollm2=SmolLM2-135M-Instruct.Q4_1.gguf [NAME=FILE ...] --text wiki.test.raw
                         [--kvik target/release/kvik] [--parts 5] [--windows 4] [--cases 40] [--formats ...] [--policies ...] [--shares ...]

Text is cut into parts, and each part into windows of 512 tokens. What a format or a policy costs is a ratio of perplexities in
the same windows; its interval of 95% is that of the mean over parts (Student's t). Intervals of right answers are Wilson's, as
`kvik eval` gives them. State is kept apart, so that nothing measured before has a say; of the text, the guard knows the last part.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from server import BINARY, Server  # noqa: E402

FORMATS = ["f16", "q8", "q6", "q5", "q5/q4", "q4", "q3"]
POLICIES = ["kvzip", "keydiff", "keydiff,budget=all", "vnorm,budget=all", "snapkv", "expected", "h2o", "sinks", "random"]
SHARES = ["0.5", "0.3", "0.2"]
# What is asked of the guard: a choice of its own, and settings that it should know.
GUARDED = ["auto", "kvzip:0.3", "vnorm:0.5,budget=all", "keydiff:0.3"]
LOSS_MAX = "5"
WINDOW = 512
# Characters of a token at most, so that a part has its windows.
CHARACTERS = 8
# Of Student's t with so many degrees of freedom, 95% on both sides.
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


class Bench:
    """One model, with a state directory of its own."""

    def __init__(self, args, model, folder):
        self.args, self.model, self.folder = args, model, folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith("KVIK_")}
        self.env = clean | {"KVIK_STATE_DIR": str(folder / "state"), "KVIK_CACHE_DISK": "off"}

    def kvik(self, *words):
        argv = [self.args.kvik, *words, "-m", self.model, "--threads", self.args.threads]
        done = subprocess.run(list(map(str, argv)), env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def parts(self):
        """The text in parts, each as long as its windows take."""
        text, size = self.args.text.read_bytes().decode(), self.args.windows * WINDOW * CHARACTERS
        for number in range(self.args.parts):
            part = self.folder / f"part{number}.txt"
            part.write_bytes(text[number * size : (number + 1) * size].encode())
            yield part

    def predicted(self, *words):
        """Of each part the rows of `kvik eval` on it."""
        task = ["--task", f"text:{self.args.windows}", "--length", WINDOW, "--json"]
        return [json.loads(self.kvik("eval", *words, *task, "--text", part))["rows"] for part in self.parts()]

    def formats(self):
        first, *others = self.args.formats
        parts = self.predicted("--kv", first, *[word for kv in others for word in ("--kv-also", kv)])
        exact, rows = [part[0] for part in parts], list(zip(*(part[1:] for part in parts)))
        tokens = sum(text(row)["tokens"] for row in exact)
        whole = math.exp(sum(text(row)["nll"] for row in exact) / tokens)
        print(f"\nPerplexity with keys and values in f32: {whole:.4f} ({tokens} tokens of {len(exact)} parts).\n")
        print("| keys and values | bits | perplexity | divergence, nats a token |\n| --- | ---: | ---: | ---: |")
        full = exact[0]["kept"]["token_bytes"]
        for row in rows:
            bits = 32 * row[0]["kept"]["token_bytes"] / full
            divergence = sum(text(part)["kl"] for part in row) / tokens
            print(f"| {row[0]['kv']} | {bits:.2f} | {change(exact, row)} | {divergence:.5f} |", flush=True)

    def retention(self):
        asked = [word for policy in self.args.policies for word in ("--retain", policy)] + ["--keep", ",".join(self.args.shares), "--kv", "f32"]
        parts = self.predicted(*asked)
        tasks = ["--task", f"recall:{self.args.cases},needles:{self.args.cases}", "--length", "512,1024"]
        report = json.loads(self.kvik("eval", *asked, *tasks, "--json"))
        names = [task["name"] for task in report["tasks"]]
        for name in names:
            cell = report["rows"][0]["answers"][name]
            print(f"\n{name}: {cell['right']:g} of {cell['cases']} right with everything kept", end="")
        print("\n\n| retention | " + " | ".join(f"{name}, % of full" for name in names) + " | perplexity |")
        print("| --- |" + " ---: |" * (len(names) + 1))
        for index, row in enumerate(report["rows"][1:], 1):
            recalls = [recall(row["recall"].get(name)) for name in names]
            texts = change([part[0] for part in parts], [part[index] for part in parts])
            print(f"| `{row['retain']}` | " + " | ".join(recalls) + f" | {texts} |", flush=True)

    def guard(self):
        """What `kvik eval` recommends after all this, and what a server with a bound says at its start."""
        # It says so behind any measurement: here one of a policy that no table has.
        said = self.kvik("eval", "--retain", "sample:0.9", "--kv", "f32", "--task", "recall:1", "--length", WINDOW)
        begins = said.find("keeps least") if "keeps least" in said else said.rfind("nothing that was measured")
        print("\n```text\n" + said[begins:].partition("\nnot to be chosen")[0].partition("\nkept in ")[0].strip() + "\n```\n")
        for retain in GUARDED:
            flags = ["-m", self.model, "--kv", "f32", "--retain", retain, "--retain-max-loss", LOSS_MAX, "--threads", self.args.threads]
            print(f"`--retain {retain} --retain-max-loss {LOSS_MAX}`: {self.start(flags)}\n", flush=True)

    def start(self, flags):
        try:
            with Server(*flags, binary=self.args.kvik, env={"KVIK_STATE_DIR": self.env["KVIK_STATE_DIR"]}):
                return "served"
        except AssertionError as error:
            return str(error).partition("error: ")[2].strip()


def text(row):
    return row["texts"]["text"]["all"]


def change(exact, row):
    """The increase of perplexity over all parts with its interval, percent."""
    logs = [text(part)["nll"] / text(part)["tokens"] - text(whole)["nll"] / text(whole)["tokens"] for part, whole in zip(row, exact)]
    percent = lambda log: 100 * math.expm1(log)
    mean = statistics.fmean(logs)
    if len(logs) - 1 not in STUDENT:
        return f"{percent(mean):+.1f}%"
    half = STUDENT[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{percent(mean):+.1f}% [{percent(mean - half):+.1f} to {percent(mean + half):+.1f}]"


def recall(found):
    return f"{found['percent']:.0f} [{found['low']:.0f}-{found['high']:.0f}]" if found else "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="for perplexity")
    parser.add_argument("--kvik", type=pathlib.Path, default=BINARY)
    parser.add_argument("--parts", type=int, default=5)
    parser.add_argument("--windows", type=int, default=4, help="of a part")
    parser.add_argument("--cases", type=int, default=40, help="of a task that asks questions")
    parser.add_argument("--formats", nargs="+", default=FORMATS, help="of keys and values, also maps by layer")
    parser.add_argument("--policies", nargs="+", default=POLICIES, help="of the table of retention")
    parser.add_argument("--shares", nargs="+", default=SHARES, help="of the tokens that a policy keeps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=["formats", "retention", "guard"], default=["formats", "retention", "guard"])
    args = parser.parse_args()
    for name, _, model in (named.partition("=") for named in args.models):
        print(f"\n## {name}")
        with tempfile.TemporaryDirectory(prefix="kvik-real-") as folder:
            bench = Bench(args, pathlib.Path(model), pathlib.Path(folder))
            for table in args.only:
                getattr(bench, table)()


if __name__ == "__main__":
    main()
