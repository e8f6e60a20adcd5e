"""Ten plain questions to a model with defaults, in every way that a person has: the page, the API, `kvik chat`, `kvik run`.

Each way has the same sampling in force, says the same with the same seed, and is right at least in half of the questions:
docs/decisions/2026-11-29-ten-questions.md has what a small model is right in. `sixty_seconds.py --questions` runs this.
"""
import json
import re
import subprocess

from acts import ask, kept, open_id, wait_for_answers
from browser import Browser
from server import BINARY, Server
from terminals import Terminal

# With what a right answer has in it.
QUESTIONS = [
    ("What is 2+2?", r"\b4\b|\bfour\b"),
    ("What is the capital of France?", r"\bParis\b"),
    ("What is the opposite of hot?", r"\bcold\b"),
    ("How many days are in a week?", r"\b7\b|\bseven\b"),
    ("Which planet do we live on?", r"\bEarth\b"),
    ("What do bees make?", r"\bhoney\b"),
    ("What is the largest ocean?", r"\bPacific\b"),
    ("Who wrote Romeo and Juliet?", r"\bShakespeare\b"),
    ("What is the first month of the year?", r"\bJanuary\b"),
    ("At how many degrees Celsius does water boil?", r"\b100\b"),
]
# Some answers of a small model do not end by themselves.
TOKENS = 64
# SmolLM2-135M in 4 bits is right in three of four; one that prints nonsense, as too high a temperature makes of it, is not.
RIGHT_SHARE_MIN = 0.5
# What the tables call the ways.
PAGE, API, CHAT, RUN, LOCAL = "page", "`/v1/chat/completions`", "`kvik chat`", "`kvik run`", "`kvik run --local`"
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
LABELS = {"temperature": "Temperature", "top_k": "Top k", "top_p": "Top p", "min_p": "Min p"}


class Ways:
    """A server with a model and a seed, and the ways to ask it; a context manager."""

    def __init__(self, model, seed, browser):
        self.browser = browser
        self.own = {"KVIK_SEED": str(seed), "KVIK_N_PREDICT": str(TOKENS), "KVIK_MODEL": str(model), "KVIK_THREADS": "2"}
        self.server = Server("--cache-ram", "256MiB", env=self.own)

    def __enter__(self):
        self.server.__enter__()
        self.env = self.server.client_environment() | self.own
        self.chat = Terminal(env=self.env)
        self.all = {PAGE: self.on_page, API: self.by_api, CHAT: self.in_chat, RUN: self.by_run, LOCAL: self.by_run_local}
        return self

    def __exit__(self, *error):
        self.chat.__exit__(*error)
        self.server.__exit__(*error)

    def on_page(self, question):
        with self.browser.page(f"http://127.0.0.1:{self.server.port}/") as page:
            ask(page, question)
            wait_for_answers(page, 1)
            # As it came: what is shown is without the signs of its Markdown.
            return kept(self.server, open_id(page))[-1][1]

    def by_api(self, question):
        answer = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": question}]})
        return answer.json["choices"][0]["message"]["content"]

    def in_chat(self, question):
        self.chat.send("/reset")
        # The last line is the one about tokens.
        return self.chat.type(question).rstrip().rpartition("\n")[0]

    def by_run(self, question, *flags):
        asked = [BINARY, "run", *flags, question]
        return subprocess.run(asked, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout

    def by_run_local(self, question):
        return self.by_run(question, "--local")

    def sampling(self):
        """The sampling in force in each way, as it is told there."""
        told = self.server.get("/props").json["sampling_defaults"]
        with self.browser.page(f"http://127.0.0.1:{self.server.port}/") as page:
            page.get_by_role("button", name="Settings").first.click()
            dialog = page.get_by_role("dialog")
            fields = {name: dialog.get_by_label(label).get_attribute("placeholder") for name, label in LABELS.items()}
        return {
            PAGE: fields,
            API: {name: str(told[name]["value"]) for name in SAMPLING},
            CHAT: self.verbose("chat", "--verbose"),
            RUN: self.verbose("run", "--verbose", "--max-tokens", "1", "Hi"),
            LOCAL: self.verbose("run", "--local", "--verbose", "--max-tokens", "1", "Hi"),
        }

    def verbose(self, *words):
        """The line with the sampling of a command."""
        done = subprocess.run([BINARY, *words], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        line = re.search(r"sampling: (.*)", done.stdout + done.stderr)[1]
        return dict(part.split(" ", 1) for part in line.split(", "))


def plain(text):
    """An answer without its line breaks, which a page sets as it likes."""
    return " ".join(text.split())


def asked(out, model, seeds):
    """Asks everything with each seed, writes the tables, and returns what is wrong."""
    said = {}
    with Browser() as browser:
        for seed in range(1, seeds + 1):
            with Ways(model, seed, browser) as ways:
                for at, (question, _) in enumerate(QUESTIONS):
                    said[seed, at] = {way: plain(ask(question)) for way, ask in ways.all.items()}
                sampling = ways.sampling()
    faults = [f"seed {seed}, {QUESTIONS[at][0]}: {json.dumps(texts)}" for (seed, at), texts in said.items() if len(set(texts.values())) > 1]
    number = lambda told: round(float(re.match(r"-?[\d.]+", told)[0]), 4)
    if len({tuple(number(told[name]) for name in SAMPLING) for told in sampling.values()}) > 1:
        faults.append(f"the sampling differs: {sampling}")
    faults += [f"{way}: {right} of {len(said)} answers are right" for way, right in rights(said).items() if right < RIGHT_SHARE_MIN * len(said)]
    (out / "questions.md").write_text("\n".join([*sampling_table(sampling), "", *shares(said), "", *answer_table(said), ""]))
    print(f"{out / 'questions.md'}\n", *shares(said), sep="\n")
    return faults


def is_right(at, text):
    return re.search(QUESTIONS[at][1], text, re.I) is not None


def sampling_table(sampling):
    rows = [f"| {way} | " + " | ".join(told[name] for name in SAMPLING) + " |" for way, told in sampling.items()]
    return ["| sampling in force | " + " | ".join(SAMPLING) + " |", "| --- | --- | --- | --- | --- |", *rows]


def rights(said):
    """The number of right answers of each way."""
    ways = next(iter(said.values()))
    return {way: sum(is_right(at, texts[way]) for (_, at), texts in said.items()) for way in ways}


def shares(said):
    """A table of the right answers of each way."""
    right = rights(said)
    cells = [f"{count} of {len(said)}" for count in right.values()]
    return ["| " + " | ".join(["asked", *right]) + " |", "| --- |" + " ---: |" * len(right), "| " + " | ".join(["right", *cells]) + " |"]


def answer_table(said):
    """Each question with the answer of the first seed, and how many were right."""
    rows = []
    for at, (question, _) in enumerate(QUESTIONS):
        texts = [text for (_, index), ways in said.items() if index == at for text in ways.values()]
        first = texts[0].replace("|", r"\|")
        rows.append(f"| {question} | {sum(is_right(at, text) for text in texts)} of {len(texts)} | {first} |")
    return ["| question | right, in all ways | the first answer |", "| --- | ---: | --- |", *rows]
