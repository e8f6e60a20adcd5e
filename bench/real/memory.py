#!/usr/bin/env python3
"""Memory on models that people run: ten summaries with what was refused before each, and facts that were told at the beginning.

    bench/real/memory.py smollm2=SmolLM2-135M-Instruct.Q4_1.gguf [NAME=FILE ...] [--kvik target/release/kvik]
                         [--distances 40 200 500] [--context 2048] [--only summaries recall]

Summaries: in each of ten conversations three facts are told among everyday questions, until there is a summary; the table has
how it came about, what the judge refused before, and how many of the facts are in it.

Recall: a conversation without pauses begins with ten facts, each acknowledged by a sentence of this script. So many turns later
each is asked for, in a branch of its own: with quotes, by the summary alone (a server on a copy of the state, `--memory-quotes 0`), by a client that drops the oldest
exchanges, and with all that was said, where the model's context holds it. Answers are greedy.
"""
import argparse
import json
import pathlib
import re
import shutil
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench/memory")]
from server import BINARY, Server  # noqa: E402
from turns import truncated  # noqa: E402

# What is told, asked for, and in a right answer.
FACTS = [
    ("My dog is called Bolt.", "What is my dog called?", "Bolt"),
    ("I live in Lisbon.", "In which city do I live?", "Lisbon"),
    ("My sister's name is Ingrid.", "What is my sister's name?", "Ingrid"),
    ("I was born in 1987.", "In which year was I born?", "1987"),
    ("My favourite fruit is the papaya.", "What is my favourite fruit?", "papaya"),
    ("I work as a carpenter.", "What is my job?", "carpenter"),
    ("The code of my bicycle lock is 4619.", "What is the code of my bicycle lock?", "4619"),
    ("My best friend is called Tomasz.", "What is my best friend called?", "Tomasz"),
    ("I am learning to play the cello.", "Which instrument am I learning to play?", "cello"),
    ("My car is a green Volvo.", "Which car do I have?", "Volvo"),
]
# What stands behind a told fact: small models answer "I cannot assist with that", and then to all that follows.
NOTED = "Thank you, I will remember that."
ASKED = ["Say one sentence about {}.", "Name one thing that goes with {}.", "Write a short line with the word {}.",
         "Why do people like {}?", "Where does one find {}?"]
THINGS = """bread rain music tea trains gardens maps chess winter bridges rivers soap clocks birds paper honey glass
stars boats letters shoes bicycles salt cheese windows forests candles mirrors pencils kites tides apples wool sand coffee
lamps gates islands snow spices rope drums parks lemons stones barns wells ferries olives pottery rice tulips moss wind
markets horses puzzles poems stairs towers villages caves cotton""".split()
ANSWER_TOKENS = 32
FACT_ANSWER_TOKENS = 24
SUMMARIES = 10
FACTS_EACH = 3
# A conversation without a summary after so many turns has none.
TURNS_MAX = 80
# What a client without memory sends at most, of the context.
TRUNCATED_SHARE = 0.75
WORKED_SECONDS = 60
# All that was said is read at once, on a machine that may have other work.
PREFILL_SECONDS = 1800


def small_talk(number):
    """Another everyday question for each number."""
    return ASKED[number // len(THINGS) % len(ASKED)].format(THINGS[number % len(THINGS)])


class Bench:
    """One model, and the servers that answer with it."""

    def __init__(self, args, model):
        self.args, self.model = args, model

    def serve(self, state, *flags, context=None):
        memory = ("--memory", "on") if context is None else ("--memory", "off")
        flags = ("-m", self.model, "--context", context or self.args.context, *memory, "--threads", self.args.threads, *flags)
        return Server(*flags, binary=self.args.kvik, env={"KVIK_STATE_DIR": str(state)})

    def summaries(self):
        print("\n| told | what it is | refused before | of the told facts | summary |\n| --- | --- | --- | ---: | --- |")
        with tempfile.TemporaryDirectory() as state, self.serve(state) as server:
            for number in range(SUMMARIES):
                facts = [FACTS[(number + step * 3) % len(FACTS)] for step in range(FACTS_EACH)]
                before = refused(server)
                found = self.first_summary(server, facts, number)
                flaws = ", ".join(name for name, count in refused(server).items() if count > before.get(name, 0)) or "nothing"
                values = ", ".join(value for _, _, value in facts)
                if found is None:
                    print(f"| {values} | none after {TURNS_MAX} turns | {flaws} | | |", flush=True)
                    continue
                held = sum(contains(found["text"], value) for _, _, value in facts)
                text = " / ".join(found["text"].split("\n")).replace("|", "\\|")
                print(f"| {values} | `{found['kind']}` | {flaws} | {held} of {FACTS_EACH} | {text} |", flush=True)

    def first_summary(self, server, facts, number):
        """The first summary of a conversation with these facts in its second, fourth and sixth turn."""
        id = server.post("/v1/conversations", {}).json["id"]
        for turn in range(TURNS_MAX):
            if turn % 2 and turn // 2 < len(facts):
                server.post(f"/v1/conversations/{id}/items", {"items": [user(facts[turn // 2][0]), assistant(NOTED)]})
                continue
            said = [user(small_talk(number * 7 + turn))]
            body = {"messages": said, "max_tokens": ANSWER_TOKENS, "temperature": 0, "kvik": {"conversation": id}}
            answered(server.post("/v1/chat/completions", body))
            rest(server)
            summary = server.get(f"/v1/conversations/{id}/memory").json["summary"]
            if summary and not summary.get("failed"):
                return summary
        return None

    def recall(self):
        table, turns = {}, []
        history = [message for told, _, _ in FACTS for message in (user(told), assistant(NOTED))]
        with tempfile.TemporaryDirectory() as folder:
            state = pathlib.Path(folder, "state")
            with self.serve(state) as server:
                for distance in sorted(self.args.distances):
                    while len(turns) < distance:
                        turns.append(self.turn(server, history, small_talk(len(turns))))
                    found = {"with quotes": right(server, history)}
                    rest(server)
                    other = pathlib.Path(folder, f"state-{distance}")
                    shutil.copytree(state, other, ignore=shutil.ignore_patterns("*.sock", "*.lock"))
                    table[distance] = found | self.others(other, history)
                    print(f"after {distance} turns: {table[distance]}", file=sys.stderr, flush=True)
        print(f"\n| right of {len(FACTS)}, asked after | " + " | ".join(f"{distance} turns" for distance in table) + " |")
        print("| --- |" + " ---: |" * len(table))
        for kind in table[min(table)]:
            print(f"| {kind} | " + " | ".join(str(found[kind]) for found in table.values()) + " |")
        computed, seconds = ([turn[at] for turn in turns] for at in range(2))
        took = sorted(seconds)
        print(f"\n{len(turns)} turns without a pause: {statistics.fmean(computed):.0f} prompt tokens computed a turn, largest "
              f"{max(computed)}; a turn took {took[len(took) // 2]:.2f} s (p50), {took[len(took) * 99 // 100]:.2f} s (p99).")

    def turn(self, server, history, said):
        """Goes on with a conversation; the prompt's tokens that were computed, and the seconds."""
        began = time.monotonic()
        answer = ask(server, [*history, user(said)], ANSWER_TOKENS)
        history += [user(said), assistant(answer["choices"][0]["message"]["content"])]
        usage = answer["usage"]
        return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"], time.monotonic() - began

    def others(self, state, history):
        """The same questions without quotes, without memory, and with everything."""
        found = {}
        with self.serve(state, "--memory-quotes", "0") as server:
            found["summary alone"] = right(server, history)
            print(f"without quotes: {found}", file=sys.stderr, flush=True)
        with self.serve(state / "none", context=self.args.context) as server:
            found["oldest dropped"] = right(server, truncated(history, self.args.context * TRUNCATED_SHARE))
        with self.serve(state / "whole", context=self.args.whole) as server:
            try:
                found["all that was said"] = right(server, history)
            except Refused:
                found["all that was said"] = "too long"
        return found


class Refused(Exception):
    """A request that was not answered."""


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def answered(response):
    if response.status != 200:
        raise Refused(response.text)
    return response.json


def ask(server, messages, tokens):
    body = json.dumps({"messages": messages, "max_tokens": tokens, "temperature": 0}).encode()
    return answered(server.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}, timeout=PREFILL_SECONDS))


def right(server, history):
    """How many facts are answered, each asked for in a branch of its own."""
    texts = [ask(server, [*history, user(asked)], FACT_ANSWER_TOKENS)["choices"][0]["message"]["content"] for _, asked, _ in FACTS]
    return sum(contains(text, value) for text, (_, _, value) in zip(texts, FACTS))


def contains(text, value):
    return re.search(rf"\b{re.escape(value)}\b", text, re.IGNORECASE) is not None


def rest(server):
    """Waits until nothing is made in the background."""
    until = time.monotonic() + WORKED_SECONDS
    while server.metric("kvik_memory_pending") > 0 and time.monotonic() < until:
        time.sleep(0.02)


def refused(server):
    """Texts that were not used as a summary, by their flaw."""
    found = re.findall(r'^kvik_memory_summaries_refused_total\{.*flaw="(\w+)".*\} (\d+)', server.get("/metrics").text, re.MULTILINE)
    return {name: int(count) for name, count in found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--kvik", type=pathlib.Path, default=BINARY)
    parser.add_argument("--context", type=int, default=2048, help="of the server that remembers")
    parser.add_argument("--whole", type=int, default=8192, help="context of the server that reads everything")
    parser.add_argument("--distances", type=int, nargs="+", default=[40, 200, 500])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=["summaries", "recall"], default=["summaries", "recall"])
    args = parser.parse_args()
    for name, _, model in (named.partition("=") for named in args.models):
        print(f"\n## {name}")
        bench = Bench(args, pathlib.Path(model))
        for part in args.only:
            getattr(bench, part)()


if __name__ == "__main__":
    main()
