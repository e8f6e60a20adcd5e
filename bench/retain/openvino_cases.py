"""The held-out cases of kvik-tiny that both engines answer, and when an answer is right."""
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "models/tiny"
TASKS = ("recall", "passkey")
ANSWER_TOKENS = 40
ENDS = ("<|im_end|>", "<|endoftext|>")


@dataclass(frozen=True)
class Case:
    """One conversation whose last message asks for something said before."""

    task: str
    messages: tuple
    """(role, content) pairs"""
    expected: str
    tokens: tuple
    """the ids of the rendered prompt"""

    @property
    def chat(self):
        """The messages as a chat request has them."""
        return [{"role": role, "content": content} for role, content in self.messages]

    def right(self, text):
        """Whether an answer names what was asked for; None is no answer."""
        return text is not None and self.expected.lower() in text.lower()


def cases(task, every=1):
    """The cases of a held-out file, or of every so many one."""
    lines = (TINY / f"eval-{task}.jsonl").read_text().splitlines()
    return [of(task, json.loads(line)) for line in lines[::every]]


def of(task, fields):
    messages = tuple((message["role"], message["content"]) for message in fields["messages"])
    return Case(task, messages, fields["expected"], tuple(encode(rendered(messages))))


def first_turn(case):
    """The turn before the one that asks: all messages before the last two."""
    before = case.messages[:-2]
    return Case(case.task, before, "", tuple(encode(rendered(before))))


def conversations(count, prompt_max=1 << 30):
    """So many of the longest conversations of at most so many tokens, half recall and half passkey."""
    short = {task: [case for case in cases(task) if len(case.tokens) <= prompt_max] for task in TASKS}
    longest = {task: sorted(short[task], key=lambda case: -len(case.tokens)) for task in TASKS}
    return [longest[TASKS[number % 2]][number // 2] for number in range(count)]


def rendered(messages):
    """The prompt that the chat template renders."""
    turns = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    return turns + "<|im_start|>assistant\n"


def encode(text):
    return vocabulary().encode(text, add_special_tokens=False).ids


def answer_text(tokens):
    """The text of generated ids before the first that ends an answer."""
    ends = [vocabulary().token_to_id(end) for end in ENDS]
    stop = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
    return vocabulary().decode(tokens[:stop], skip_special_tokens=False)


def end_ids():
    return [vocabulary().token_to_id(end) for end in ENDS]


@cache
def vocabulary():
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(TINY / "tokenizer.json"))
