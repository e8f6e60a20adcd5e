#!/usr/bin/env python3
"""What drafts are worth: the same answers with and without them, in turns.

    bench/speculation.py --model MODEL.gguf [--rounds 5] [--parallel 1] [--columns "none lookup lookup,tree"]
        [--llama-server PATH --columns "none lookup llama:none llama:ngram-simple"] [--reading 1000 --answer-tokens 96]

A model that was never trained says nothing that could be drafted. So answers are forced: a grammar names the tokens of a
text one by one, and a drafted token counts where it is the text's. What a step costs is the model's, what is drawn is the
text's. What the grammar itself drafts would be all of it, so that source stays off. With `--reading` another client has
long prompts read all the time, and what one of them takes is printed too. Texts are made of this repository's own, always the same: edits of code, records as JSON, calls of tools, summaries,
and talk that repeats nothing. Prints tokens a second and tokens a step, medians over the rounds; answers are compared
token by token.
"""
import argparse
import concurrent.futures
import contextlib
import json
import pathlib
import random
import re
import statistics
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from server import Server  # noqa: E402

def read(path, start, length):
    return "".join((ROOT / path).read_text().splitlines(keepends=True)[start:start + length])


def code_edit(dice):
    code = read("bench/compare/lora.py", dice.randrange(40, 120), 70)
    old, new = dice.choice([("model", "network"), ("path", "file"), ("adapter", "change")])
    return f"{code}\nRename `{old}` to `{new}`.\n", re.sub(rf"\b{old}\b", new, code)


def records(dice):
    people = [(f"{dice.choice('ABDEFGHKLM')}{dice.choice(['nna', 'ilo', 'orris', 'etra'])}", dice.randrange(10_000, 99_999),
               dice.choice(["Lyon", "Graz", "Turku", "Porto"])) for _ in range(16)]
    prose = "\n".join(f"{name} of {city} ordered number {number} last week." for name, number, city in people)
    rows = [{"name": name, "city": city, "order": number} for name, number, city in people]
    return f"{prose}\nAs JSON:\n", json.dumps(rows, indent=1)


def tool_calls(dice):
    names = dice.sample(["api/chat/mod.rs", "app/state.rs", "http/error.rs", "serving/load.rs", "settings/kv.rs"], 4)
    call = lambda name, line: json.dumps({"name": "read_lines", "arguments": {"path": f"crates/kvik/src/{name}", "line": line}})
    output = read("crates/kvik-server/src/app/state.rs", dice.randrange(0, 60), 30)
    history = "\n".join(f"<tool_call>\n{call(name, dice.randrange(400))}\n</tool_call>\n{output[:300]}" for name in names)
    answer = "\n".join(f"<tool_call>\n{call(name, dice.randrange(400))}\n</tool_call>" for name in reversed(names))
    return f"{history}\nRead these again elsewhere.\n", answer + "\nThe file says:\n" + output[:500]


def summary(dice):
    text = read("docs/memory.md", dice.randrange(0, 30), 60)
    sentences = [sentence for sentence in re.split(r"(?<=[.:])\s", text) if 40 < len(sentence) < 300]
    words = [sentence.split() for sentence in sentences]
    told = [" ".join(word for word in part if dice.random() > 0.25) for part in words[::2]]
    return f"{text}\nIn short:\n", " ".join(told)


def chat(dice):
    asked = dice.choice(["How do birds find their way?", "What is a sonnet?", "Why does bread rise?"])
    paragraphs = [line for line in (ROOT / "docs/http.md").read_text().splitlines() if len(line) > 120 and "|" not in line]
    return f"{asked}\n", " ".join(dice.sample(paragraphs, min(6, len(paragraphs))))


KINDS = {"code edit": code_edit, "records as JSON": records, "tool calls": tool_calls, "summary": summary, "chat": chat}


def tokens(server, text):
    return server.post("/tokenize", {"content": text}).json["tokens"]


def ask(server, prompt, forced):
    grammar = "root ::= " + " ".join(f"<[{token}]>" for token in forced)
    body = {"prompt": prompt, "grammar": grammar, "n_predict": len(forced), "temperature": 0, "return_tokens": True}
    answer = server.post("/completion", body)
    assert answer.status == 200, answer.text
    return answer.json


class Reader:
    """Another client, which has prompts of so many tokens read one after the other while this is open. None is known."""

    def __init__(self, server, tokens, dice):
        self.server, self.tokens, self.dice = server, tokens, dice
        self.seconds, self.stops = [], threading.Event()
        self.thread = threading.Thread(target=self.read)

    def read(self):
        while self.tokens and not self.stops.is_set():
            prompt = [self.dice.randrange(1000, 30_000) for _ in range(self.tokens)]
            started = time.perf_counter()
            answer = self.server.post("/completion", {"prompt": prompt, "n_predict": 1, "cache_prompt": False})
            assert answer.status == 200, answer.text
            if not self.stops.is_set():
                self.seconds.append(time.perf_counter() - started)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stops.set()
        self.thread.join()


def run(server, kind, args, dice):
    """What some requests at a time said, their tokens a second and a step, and the seconds of each prompt read beside."""
    pairs = [KINDS[kind](random.Random(seed)) for seed in range(args.parallel)]
    forced = [tokens(server, answer)[:args.answer_tokens] for _, answer in pairs]
    with Reader(server, args.reading, dice) as reader, concurrent.futures.ThreadPoolExecutor(args.parallel) as pool:
        answers = list(pool.map(lambda pair: ask(server, *pair), [(prompt, ids) for (prompt, _), ids in zip(pairs, forced)]))
    said = [answer["tokens"] for answer in answers]
    timings = [answer["timings"] for answer in answers]
    drawn = sum(timing["predicted_n"] - 1 for timing in timings)
    steps = drawn - sum(timing.get("draft_n_accepted", 0) for timing in timings)
    seconds = max(timing["predicted_ms"] for timing in timings) / 1e3
    return said, drawn / seconds, drawn / max(steps, 1), reader.seconds


class LlamaServer(Server):
    """llama-server with the same files, threads and settings."""

    def __init__(self, binary, spec_type, model, args):
        super().__init__(
            "-m", model, "-t", str(args.threads), "-tb", str(args.threads), "-np", str(args.parallel), "-c",
            str(4096 * args.parallel), "--spec-type", spec_type, "--no-webui", binary=binary, command=())


def start(column, args):
    """The server of a column: `lookup,tree` is of kvik, `llama:ngram-mod` of llama-server."""
    if column.startswith("llama:"):
        return LlamaServer(args.llama_server, column.removeprefix("llama:"), args.model, args)
    return Server("--model", args.model, "--threads", args.threads, "--speculate", column, binary=args.kvik)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvik", type=pathlib.Path, default=ROOT / "target/release/kvik")
    parser.add_argument("--llama-server", type=pathlib.Path, help="for columns of it")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/tiny/kvik-tiny-q8_0.gguf")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parallel", type=int, default=1, help="requests at a time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--answer-tokens", type=int, default=256)
    parser.add_argument("--reading", type=int, default=0, help="tokens of the prompts that another client has read meanwhile")
    parser.add_argument("--columns", default="none lookup", help="what takes turns: values of --speculate, or of llama-server's"
                        " --spec-type as llama:ngram-mod. A tree, or a pool of n-grams, knows each answer from the round before")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of answers, as \"code edit,chat\"")
    args = parser.parse_args()
    columns = args.columns.split()
    print(f"{args.model.name}, {args.parallel} at a time, medians of {args.rounds} rounds: tokens a second, tokens a step\n")
    print(f"{'':18}" + "".join(f"{column:>22}" for column in columns))
    with contextlib.ExitStack() as stack:
        servers = {column: stack.enter_context(start(column, args)) for column in columns}
        for kind in args.kinds.split(","):
            compare(servers, kind, args)


def compare(servers, kind, args):
    rates, reads = {column: [] for column in servers}, {column: [] for column in servers}
    per_step, said, dice = {column: [] for column in servers}, set(), random.Random(kind)
    for round_ in range(args.rounds + 1):
        for column, server in servers.items():
            answers, rate, tokens_a_step, seconds = run(server, kind, args, dice)
            said.add(str(answers))
            assert len(said) == 1, f"{kind}: the answers of {column} differ in round {round_}"
            if round_:  # The first one computes the prompts.
                rates[column].append(rate)
                per_step[column].append(tokens_a_step)
                reads[column] += seconds
    cells = (f"{statistics.median(rates[column]):15.1f}{statistics.median(per_step[column]):7.2f}" for column in servers)
    print(f"{kind:18}" + "".join(cells), flush=True)
    if args.reading:
        # None where answers ended before the first prompt did.
        cells = (f"{statistics.median(reads[column]):22.2f}" if reads[column] else f"{'-':>22}" for column in servers)
        print(f"{'  s for a prompt':18}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
