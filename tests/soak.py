#!/usr/bin/env python3
"""Many streaming clients with random cancellation on the embedded model.

Every finished stream must equal its solo run on a cold prompt; at the end no block may be leaked; memory must stay
inside the budget all the time. Prints one line of figures and the errors.
"""
import argparse
import collections
import json
import random
import sys
import threading
import time

from server import Server, eval_cases, sse

MIB = 1 << 20
# Beside the KV budget: batch buffers, tokenizer, connections.
OTHER_MEMORY = 192 * MIB


def main():
    args = arguments()
    with Server("--cache-ram", f"{args.budget_mib}MiB", "--threads", "2", "--parallel", args.clients) as server:
        requests = make_requests(random.Random(args.seed), args.requests)
        alone = [solo(server, request) for request in requests]
        base = server.resident_bytes()
        watch = Watch(server, args.budget_mib * MIB)
        tally = run_clients(server, requests, alone, args, watch)
        idle(server)
        problems = tally.problems + too_few(tally.counts, args) + watch.stop(base) + leaks(server)
        report(tally, watch, args)
    for problem in problems[:20]:
        print("soak: FAILED:", problem)
    sys.exit(bool(problems))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=96, help="different requests that the clients draw from")
    parser.add_argument("--budget-mib", type=int, default=64, help="KV budget; small, so that blocks are evicted")
    parser.add_argument("--cancel", type=float, default=0.3, help="share of streams that are cut off")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def make_requests(rng, count):
    """Shared and unshared prompts, short and long, greedy and sampled, some with several choices or a schema."""
    prompts = [case["messages"] for name in ("notify", "recall", "summary", "passkey") for case in eval_cases(name)[:60]]
    stories = [[{"role": "user", "content": f"Tell me a story about {who}."}] for who in ("a fox", "a boat", "Anna")]
    schema = {"type": "object", "properties": {"priority": {"type": "integer"}}, "required": ["priority"]}
    requests = []
    for _ in range(count):
        request = dict(messages=rng.choice(prompts + 10 * stories), max_tokens=rng.choice([8, 40, 120]), stream=True)
        request |= rng.choice([{"temperature": 0}, {"temperature": 0.9, "seed": rng.randrange(100)}])
        if rng.random() < 0.1:
            request["n"] = 3
        elif rng.random() < 0.1:
            request["response_format"] = {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}
        requests.append(request)
    return requests


def solo(server, request):
    """The answer to the request, alone and without cache."""
    whole = server.post("/v1/chat/completions", request | {"stream": False, "cache_prompt": False})
    assert whole.status == 200, whole.text
    return {c["index"]: (c["message"]["content"], c["finish_reason"]) for c in whole.json["choices"]}


class Tally:
    """Counts and errors of the clients."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.problems = []

    def add(self, what, problem=None):
        with self.lock:
            self.counts[what] += 1
            if problem:
                self.problems.append(problem)


def run_clients(server, requests, alone, args, watch):
    tally = Tally()
    deadline = time.monotonic() + args.seconds
    clients = [
        threading.Thread(target=client, args=(server, requests, alone, args.cancel, random.Random(f"{args.seed} {i}"), deadline, tally))
        for i in range(args.clients)
    ]
    watch.start()
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    return tally


def client(server, requests, alone, cancel, rng, deadline, tally):
    while time.monotonic() < deadline:
        which = rng.randrange(len(requests))
        events_wanted = rng.randrange(30) if rng.random() < cancel else None
        try:
            one_stream(server, requests[which], alone[which], events_wanted, tally)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
            tally.add("broken", f"request {which}: {error!r}")
            time.sleep(0.1)


def one_stream(server, request, expected, events_wanted, tally):
    connection, response = server.open_stream("/v1/chat/completions", request)
    try:
        if response.status == 429:
            tally.add("refused")
            time.sleep(0.2)
            return
        assert response.status == 200, response.read()
        texts, reasons = {}, {}
        for count, data in enumerate(sse(response)):
            if count == events_wanted:
                tally.add("cancelled")
                return
            if data == "[DONE]":
                break
            for choice in json.loads(data)["choices"]:
                index = choice["index"]
                texts[index] = texts.get(index, "") + (choice["delta"].get("content") or "")
                reasons[index] = choice["finish_reason"] or reasons.get(index)
        else:
            raise AssertionError("the stream ended without [DONE]")
        got = {index: (texts[index], reasons[index]) for index in texts}
        tally.add("finished", None if got == expected else f"{request} gave {got}, alone {expected}")
    finally:
        connection.close()


class Watch(threading.Thread):
    """Samples memory and the KV budget while the clients run."""

    def __init__(self, server, budget):
        super().__init__(daemon=True)
        self.server, self.budget = server, budget
        self.ended = threading.Event()
        self.resident_max = self.kv_max = 0
        self.problems = []

    def run(self):
        while not self.ended.wait(0.5):
            try:
                self.sample()
            except Exception as error:  # noqa: BLE001  (a watch that ends would find nothing from then on)
                self.problems.append(f"memory cannot be read: {error!r}")

    def sample(self):
        self.resident_max = max(self.resident_max, self.server.resident_bytes())
        used = self.server.kv_bytes()
        self.kv_max = max(self.kv_max, used)
        if used > self.budget:
            self.problems.append(f"{used} bytes of KV are used, the budget is {self.budget}")

    def stop(self, base):
        self.ended.set()
        self.join()
        if not (self.resident_max and self.kv_max):
            self.problems.append("nobody has seen any memory in use")
        if self.resident_max > base + self.budget + OTHER_MEMORY:
            self.problems.append(f"{self.resident_max} bytes resident, {base} before, the budget is {self.budget}")
        return self.problems


def too_few(counts, args):
    """A soak with hardly any finished or cancelled stream proves nothing."""
    wanted = {"finished": args.clients, "cancelled": args.clients // 4 if args.cancel else 0}
    return [f"only {counts[what]} streams were {what}, at least {least} wanted" for what, least in wanted.items() if counts[what] < least]


def idle(server):
    deadline = time.monotonic() + 30
    while server.metrics()["kvik_requests_running"] + server.metrics()["kvik_requests_waiting"] > 0:
        assert time.monotonic() < deadline, "requests still run 30 s after the last client left"
        time.sleep(0.1)


def leaks(server):
    """Blocks that are neither free nor in the tree while nothing runs."""
    m = server.metrics()
    total, free, cached, owned = (m[f"kvik_blocks_{which}"] for which in ("total", "free", "cached", "owned"))
    if owned or free + cached != total:
        return [f"when idle {free} of {total} blocks are free, {cached} cached and {owned} owned"]
    return []


def report(tally, watch, args):
    counts = dict(tally.counts)
    print(
        f"soak: {args.clients} clients, {args.seconds:.0f} s: {counts}; "
        f"KV at most {watch.kv_max / MIB:.1f} of {args.budget_mib} MiB, resident at most {watch.resident_max / MIB:.0f} MiB"
    )


if __name__ == "__main__":
    main()
