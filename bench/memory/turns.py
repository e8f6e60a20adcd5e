#!/usr/bin/env python3
"""One conversation of many turns with a running server, which is sent the whole history every time.

The user tells facts in turns 1 to 50 and asks for each once: at once (the control), or 100, 300 or 500 turns later.
The other turns are small talk. Facts and small talk are of kvik-tiny's kind, with names it was not trained on.
Writes a JSON line a turn, and prints recall by distance, times to first token (from the moment when the request is
sent), whole turns beside their neighbours, the largest prompt, refusals, and of kvik the bytes of keys and values in use.
The conversation ends when the last fact has been asked for, so it is up to 50 turns longer than --turns.

    bench/memory/turns.py --base-url http://127.0.0.1:8080/v1 --out turns.jsonl
"""
import argparse
import contextlib
import json
import pathlib
import re
import statistics
import sys
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "models/tiny/train"))

from facts import facts, filler_pair  # noqa: E402
from pools import Ctx  # noqa: E402

TELLING_TURNS = 50
DISTANCES = (100, 300, 500)
CONTROL = 1
CHARS_PER_TOKEN = 4
KV_EVERY = 50
# A turn is compared with so many before it and behind it.
NEIGHBOURS = 5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", required=True, help="of the server, with /v1")
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--turns", type=int, default=500, help="facts are asked for at most so many turns later")
    parser.add_argument("--mode", choices=["full", "truncate"], default="full", help="what is sent of the history")
    parser.add_argument("--truncate-tokens", type=int, default=1500, help="what --mode truncate sends, about")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--pause", type=float, default=0, help="seconds that the user reads an answer before the next turn")
    parser.add_argument("--body", type=json.loads, default={}, help='JSON for every request: {"kvik": {"memory": ..}}')
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("turns.jsonl"))
    args = parser.parse_args()
    rows = []
    with args.out.open("w") as out:
        for row in converse(ask_server(args), script(args.turns, args.seed), history_of(args)):
            if row["turn"] % KV_EVERY == 0:
                row["kv_bytes"] = kv_bytes(args)
            rows.append(row)
            print(json.dumps(row), file=out, flush=True)
            time.sleep(args.pause)
    print("\n".join(table(rows)))


def script(turns, seed):
    """What the user says in each turn: dicts of `text`, and for a question `value`, `distance` and `told`."""
    random = Ctx(seed, held=True)
    distances = [distance for distance in DISTANCES if distance <= turns]
    cycle = [CONTROL, *distances]
    told, asked, turn = {}, {}, 1
    for i, fact in enumerate(facts(random, TELLING_TURNS)):
        distance = cycle[i % len(cycle)]
        if turn + (distance == CONTROL) > TELLING_TURNS:
            break
        told[turn] = fact.state(random)
        asked[turn + distance] = dict(text=fact.ask(random), value=fact.v, distance=distance, told=turn)
        turn += 2 if distance == CONTROL else 1
    small_talk = lambda: dict(text=filler_pair(random, random.p(0.15))[0])
    last = max([turns, *asked])
    return [asked.get(turn) or (dict(text=told[turn]) if turn in told else small_talk()) for turn in range(1, last + 1)]


def converse(ask, said, sent):
    """Holds the conversation, and yields what each turn came to. An exchange that is refused is not in the history."""
    history = []
    for number, line in enumerate(said, 1):
        messages = history + [dict(role="user", content=line["text"])]
        answer = ask(sent(messages))
        if answer["refusal"] is None:
            history = messages + [dict(role="assistant", content=answer["text"])]
        row = dict(turn=number, question=line["text"]) | answer
        if "value" in line:
            row |= {key: line[key] for key in ("value", "distance", "told")}
            row["right"] = contains(answer["text"], line["value"])
        yield row


def contains(answer, value):
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", answer, re.IGNORECASE) is not None


def history_of(args):
    if args.mode == "full":
        return lambda messages: messages
    return lambda messages: truncated(messages, args.truncate_tokens)


def truncated(messages, tokens):
    """The messages without the oldest exchanges, about `tokens` long; the last message always stays."""
    size = lambda message: len(message["content"]) / CHARS_PER_TOKEN
    total, start = sum(map(size, messages)), 0
    while total > tokens and start < len(messages) - 1:
        total -= size(messages[start])
        start += 1
        while messages[start]["role"] != "user":
            total -= size(messages[start])
            start += 1
    return messages[start:]


def ask_server(args):
    """A function from messages to an answer with its figures."""
    import openai

    started = 0.0

    def sent(_request):
        # What the client takes to write down a long history is its own affair: half a millisecond a message.
        nonlocal started
        started = time.perf_counter()

    http = openai.DefaultHttpxClient(event_hooks=dict(request=[sent]))
    client = openai.OpenAI(
        base_url=args.base_url, api_key=args.api_key, max_retries=0, timeout=600, http_client=http
    )
    model = args.model or client.models.list().data[0].id

    def ask(messages):
        answer = dict(text="", ttft_ms=None, turn_ms=None, refusal=None, memory=None, cache=None, prompt_tokens=None, cached_tokens=None)
        try:
            stream = client.chat.completions.create(
                model=model, messages=messages, max_tokens=args.max_tokens, temperature=0,
                stream=True, stream_options=dict(include_usage=True), extra_body=args.body,
            )
            with contextlib.closing(stream):
                for chunk in stream:
                    read_chunk(chunk, answer, lambda: (time.perf_counter() - started) * 1000)
            answer["turn_ms"] = (time.perf_counter() - started) * 1000
        except openai.APIError as error:
            answer["refusal"] = str(error)
        return answer

    return ask


def read_chunk(chunk, answer, elapsed_ms):
    delta = chunk.choices[0].delta if chunk.choices else None
    if delta is not None and (delta.content or getattr(delta, "reasoning_content", None)):
        if answer["ttft_ms"] is None:
            answer["ttft_ms"] = elapsed_ms()
        answer["text"] += delta.content or ""
    if chunk.usage is not None:
        details = chunk.usage.prompt_tokens_details
        answer["prompt_tokens"] = chunk.usage.prompt_tokens
        answer["cached_tokens"] = details.cached_tokens if details else None
    report = (chunk.model_extra or {}).get("kvik") or {}
    answer["memory"] = report.get("memory") or answer["memory"]
    answer["cache"] = report.get("cache") or answer["cache"]


def kv_bytes(args):
    """Bytes of the server's blocks that hold something; None where it has no such metric."""
    url = urllib.parse.urljoin(args.base_url, "/metrics")
    request = urllib.request.Request(url, headers=dict(authorization=f"Bearer {args.api_key}"))
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
        used = re.search(r"^kvik_kv_used_bytes (\S+)", answer.read().decode(), re.MULTILINE)
        return int(float(used[1])) if used else None


def table(rows):
    """The lines of the report."""
    lines = ["| asked after | facts | recalled |", "| ---: | ---: | ---: |"]
    for distance in sorted({row["distance"] for row in rows if "distance" in row}):
        asked = [row["right"] for row in rows if row.get("distance") == distance]
        lines.append(f"| {distance} | {len(asked)} | {sum(asked) / len(asked):.0%} |")
    lines += ["", "| turns | count | first token p50 ms | p99 ms |", "| --- | ---: | ---: | ---: |"]
    rebuilt = lambda row: bool((row["memory"] or {}).get("rebuilt"))
    for name, wanted in (("after a rebuild", True), ("other", False)):
        times = sorted(row["ttft_ms"] for row in rows if row["ttft_ms"] is not None and rebuilt(row) == wanted)
        lines.append(f"| {name} | {len(times)} | {percentile(times, 50)} | {percentile(times, 99)} |")
    lines += [""] + beside_neighbours(rows)
    prompts = [row for row in rows if row["prompt_tokens"] is not None]
    computed = sum(row["prompt_tokens"] - (row["cached_tokens"] or 0) for row in prompts)
    refusals = [row for row in rows if row["refusal"] is not None]
    lines += ["", f"largest prompt: {max((row['prompt_tokens'] for row in prompts), default=0)} tokens"]
    lines += [f"prompt tokens computed: {computed}", f"refusals: {len(refusals)}"]
    used = [f"{row['kv_bytes']:,} (turn {row['turn']})" for row in rows if row.get("kv_bytes") is not None]
    lines += [f"bytes of keys and values: {', '.join(used)}"] if used else []
    lines += [f"first refusal: turn {row['turn']}: {row['refusal']}" for row in refusals[:1]]
    return lines


def beside_neighbours(rows):
    """How many turns took more than 1.5 times the median of those around them, and which was the worst."""
    times = [(row["turn"], row["turn_ms"]) for row in rows if row.get("turn_ms") is not None]
    around = lambda i: times[max(0, i - NEIGHBOURS) : i] + times[i + 1 : i + 1 + NEIGHBOURS]
    ratios = [
        (time / statistics.median(other for _, other in around(i)), turn)
        for i, (turn, time) in enumerate(times)
        if around(i)
    ]
    if not ratios:
        return []
    worst, turn = max(ratios)
    above = sum(ratio > 1.5 for ratio, _ in ratios)
    return [f"turns above 1.5 times the median of their neighbours: {above} of {len(ratios)}, the worst {worst:.2f} (turn {turn})"]


def percentile(ordered, percent):
    if not ordered:
        return "-"
    return f"{ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]:.0f}"


if __name__ == "__main__":
    main()
