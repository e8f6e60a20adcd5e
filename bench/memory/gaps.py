#!/usr/bin/env python3
"""Conversations beside each other on a running server, with memory and without, in turns: the time between two tokens.

Each conversation says several things, the next as soon as an answer has ended or has been read (--pause), so summaries
are made and branches computed ahead while others are being answered. Without memory the client drops the oldest exchanges itself. Rounds of
both kinds alternate, and every round holds conversations that the server has not seen.

    kvik serve -m model.gguf --context 2048 --memory-recent 400 --memory-trigger 200 --memory-summary 48
    bench/memory/gaps.py --base-url http://127.0.0.1:8080/v1 --recent 400
"""
import argparse
import http.client
import json
import random
import statistics
import threading
import time
import urllib.parse
import uuid

WORDS_A_SAYING = 30


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", required=True, help="of the server, with /v1")
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--pause", type=float, default=0, help="seconds that an answer is read, about")
    parser.add_argument("--recent", type=int, default=600, help="tokens that a client without memory sends, about")
    args = parser.parse_args()
    gaps = {True: [], False: []}
    for round_number in range(args.rounds):
        for memory in (True, False) if round_number % 2 == 0 else (False, True):
            found = one_round(args, memory)
            gaps[memory].append(found)
            print(line(f"round {round_number + 1}, memory {'on' if memory else 'off'}", found), flush=True)
    for memory in (True, False):
        print(line(f"all, memory {'on' if memory else 'off'}", merged(gaps[memory])))
    ratios = [percentile(on.gaps, 99) / percentile(off.gaps, 99) for on, off in zip(gaps[True], gaps[False])]
    print(f"p99 with memory / without: median {statistics.median(ratios):.3f} of {[round(ratio, 3) for ratio in ratios]}")


class Found:
    """What the answers of a round came to."""

    def __init__(self):
        self.gaps, self.first, self.summarised, self.failed = [], [], 0, 0


def one_round(args, memory):
    found, lock = Found(), threading.Lock()
    talkers = [threading.Thread(target=converse, args=(args, memory, found, lock)) for _ in range(args.conversations)]
    for talker in talkers:
        talker.start()
    for talker in talkers:
        talker.join()
    return found


def converse(args, memory, found, lock):
    name = uuid.uuid4().hex[:8]
    messages = [dict(role="system", content=f"You are assistant {name}.")]
    reading = random.Random(name)
    for turn in range(args.turns):
        messages.append(dict(role="user", content=" ".join(f"{name} word{turn}x{i}" for i in range(WORDS_A_SAYING // 2))))
        sent = messages if memory else [messages[0]] + newest(messages[1:], args.recent)
        answer = ask(args, sent, memory)
        with lock:
            found.gaps += answer["gaps"]
            found.first.append(answer["first"])
            found.summarised += bool(answer["summarised"])
            found.failed += not answer["text"]
        messages.append(dict(role="assistant", content=answer["text"] or "."))
        time.sleep(args.pause * reading.uniform(0.5, 1.5))


def newest(messages, tokens):
    """The newest exchanges, about so many tokens of them."""
    kept = len(messages) - 1
    size = lambda start: sum(len(message["content"]) / 2.5 + 8 for message in messages[start:])
    while kept >= 2 and size(kept - 2) <= tokens:
        kept -= 2
    return messages[kept:]


def ask(args, messages, memory):
    url = urllib.parse.urlsplit(args.base_url)
    body = dict(messages=messages, max_tokens=args.max_tokens, ignore_eos=True, temperature=0, stream=True, kvik=dict(memory=memory))
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
    started = time.perf_counter()
    connection.request("POST", url.path + "/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = dict(gaps=[], first=None, text="", summarised=0)
    last = None
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter()
        frame = json.loads(line[6:])
        assert "error" not in frame, frame
        text = frame["choices"][0]["delta"].get("content") if frame.get("choices") else None
        if text:
            answer["first"] = answer["first"] or now - started
            answer["gaps"] += [now - last] if last else []
            answer["text"] += text
            last = now
        report = (frame.get("kvik") or {}).get("memory") or {}
        answer["summarised"] = report.get("messages", {}).get("summarised", answer["summarised"])
    connection.close()
    return answer


def merged(founds):
    whole = Found()
    for found in founds:
        whole.gaps += found.gaps
        whole.first += found.first
        whole.summarised += found.summarised
        whole.failed += found.failed
    return whole


def line(name, found):
    first = [seconds for seconds in found.first if seconds is not None]
    return (
        f"{name}: {len(found.gaps)} gaps, p50 {percentile(found.gaps, 50) * 1e3:.1f} ms, p99 {percentile(found.gaps, 99) * 1e3:.1f} ms, "
        f"longest {max(found.gaps) * 1e3:.1f}; first token p50 {percentile(first, 50) * 1e3:.0f} ms; "
        f"{found.summarised} turns read a summary, {found.failed} said nothing"
    )


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


if __name__ == "__main__":
    main()
