"""What a fleet is asked: sessions of requests, recorded or generated, the same for the same seed.

A trace has no text, only which blocks of 512 tokens requests share. Each of its blocks becomes as many words as a
smaller model can take, always the same words for the same block, so that requests share what they shared.
"""
import dataclasses
import itertools
import json
import os
import pathlib
import random

from .paths import ROOT

TRACE = "mooncake_conversation_trace.jsonl"
TRACE_BLOCK_TOKENS = 512
CONTEXT = 2048
ANSWER_TOKENS_MAX = 32
TENANTS, SYSTEM_TOKENS = 12, 320
# Between two turns of a conversation, on average, of the time in which conversations begin.
THINK_SHARE = 0.05


@dataclasses.dataclass(frozen=True)
class Turn:
    """A request: when it is sent, its text, and whether that comes after the prompt and the answer before it."""

    at_s: float
    text: str
    answer_tokens: int
    follows: bool = False


@dataclasses.dataclass(frozen=True)
class Request:
    """A turn whose prompt is known, with the answer of a node that has no cache."""

    at_s: float
    prompt: str
    tokens: list[int]
    answer_tokens: int
    answer: str


def vocabulary():
    """Words that are one token each of kvik-tiny, after a space."""
    model = json.loads((ROOT / "models/tiny/tokenizer.json").read_text())["model"]
    words = (token[1:] for token in model["vocab"] if token.startswith("Ġ"))
    return sorted(word for word in words if len(word) > 2 and word.isascii() and word.isalpha() and word.islower())


WORDS = vocabulary()


def words(count, seed):
    """Text of as many tokens, always the same for a seed."""
    return "".join(" " + word for word in random.Random(seed).choices(WORDS, k=count))


def trace_path():
    """The recorded trace, or nothing where KVIK_DATA does not name a directory that has it."""
    directory = os.environ.get("KVIK_DATA")
    path = pathlib.Path(directory) / TRACE if directory else None
    return path if path and path.exists() else None


def recorded(path, requests, per_second, block_tokens, seed):
    """Whole sessions of a trace in Mooncake's format, drawn until there are enough requests, in less time."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    sessions = {}
    for number, line in enumerate(lines):
        # The first block is the same for all; the next one tells conversations apart.
        blocks = line["hash_ids"]
        sessions.setdefault(blocks[1] if len(blocks) > 1 else -1 - number, []).append(line)
    fit = (CONTEXT - ANSWER_TOKENS_MAX) // block_tokens
    fitting = [session for _, session in sorted(sessions.items()) if max(len(r["hash_ids"]) for r in session) <= fit]
    random.Random(seed).shuffle(fitting)
    counts = itertools.accumulate(len(session) for session in fitting)
    drawn = [session for session, count in zip(fitting, counts) if count <= requests]
    times = [line["timestamp"] for session in drawn for line in session]
    span, first = max(times) - min(times), min(times)
    seconds = len(times) / per_second
    return [
        [_recorded_turn(line, (line["timestamp"] - first) / span * seconds, block_tokens) for line in session]
        for session in drawn
    ]


def _recorded_turn(line, at_s, block_tokens):
    text = "".join(words(block_tokens, f"block {block}") for block in line["hash_ids"])
    scaled = line["output_length"] * block_tokens // TRACE_BLOCK_TOKENS
    return Turn(at_s, text, max(4, min(scaled, ANSWER_TOKENS_MAX)))


def conversations(requests, per_second, seed):
    """Conversations of several turns under the system prompts of few tenants, some of which are far busier (Zipf)."""
    dice = random.Random(seed)
    shares = [1 / (rank + 1) for rank in range(TENANTS)]
    seconds, sessions, count = requests / per_second, [], 0
    while count < requests:
        turns = min(dice.randint(1, 8), requests - count)
        tenant = dice.choices(range(TENANTS), shares)[0]
        sessions.append(_conversation(dice, f"{seed} {len(sessions)}", tenant, turns, seconds))
        count += turns
    return sessions


def _conversation(dice, name, tenant, turns, seconds):
    at_s = dice.uniform(0, seconds)
    system = f"<|im_start|>system\n{words(SYSTEM_TOKENS, f'tenant {tenant}')}<|im_end|>\n"
    made = []
    for turn in range(turns):
        asked = words(dice.choice([20, 40, 80, 160]), f"{name} {turn}")
        before = "<|im_end|>\n" if turn else system
        text = f"{before}<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
        made.append(Turn(at_s, text, dice.choice([8, 16, 24, 32]), follows=turn > 0))
        at_s += dice.expovariate(1 / (THINK_SHARE * seconds))
    return made


def body(prompt, answer_tokens):
    """What /v1/completions is asked; a prompt is a text or token ids."""
    return {"model": "kvik-node", "prompt": prompt, "max_tokens": answer_tokens, "temperature": 0, "ignore_eos": True}


def prepare(pool, server, sessions):
    """The requests of sessions, with their answers by a server that neither looks in its cache nor keeps anything."""
    return list(pool.map(lambda session: _prepare_session(server, session), sessions))


def _prepare_session(server, session):
    prepared, before = [], ""
    for turn in session:
        prompt = before + turn.text if turn.follows else turn.text
        tokens = server.post("/tokenize", {"content": prompt}).json["tokens"]
        answered = server.post("/v1/completions", body(prompt, turn.answer_tokens) | {"cache_prompt": False})
        assert answered.status == 200, answered.text
        assert answered.json["usage"]["prompt_tokens"] == len(tokens), "it counts other tokens than it names"
        answer = answered.json["choices"][0]["text"]
        prepared.append(Request(turn.at_s, prompt, tokens, turn.answer_tokens, answer))
        before = prompt + answer
    return prepared
