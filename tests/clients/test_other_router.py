"""vLLM's router (Python package `vllm-router`) before two nodes, as it is: by turns, by load, by prefix, by KV events.

It began as SGLang's and follows KV events, which that one does not. Where it has no tokens it asks a node for those of a chat
in a way that kvik does not answer yet, so the prompts of the last test are token ids.
"""
import concurrent.futures
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from server import Server, free_port

MODEL = "kvik-node"
FLAGS = ["--alias", MODEL, "--context", "2048", "--cache-ram", "64MiB", "--threads", "1"]
BOOKS = [f"You answer questions about the book number {i}, in which a river, a letter and a garden stand. " * 4 for i in range(4)]


class Node(Server):
    """A node that publishes its events, at an address that the router is told."""

    def __init__(self):
        self.events, self.replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        super().__init__(*FLAGS, "--kv-events", self.events, "--kv-events-replay", self.replay)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


class Router:
    def __init__(self, nodes, policy, *flags):
        self.port = free_port()
        flags += ("--policy", policy, "--port", str(self.port), "--prometheus-port", str(free_port()))
        # A node that ends is asked no more after one check that fails.
        flags += ("--health-check-interval-secs", "1", "--health-failure-threshold", "1")
        flags += ("--retry-initial-backoff-ms", "20", "--retry-max-backoff-ms", "200")
        command = [sys.executable, "-m", "vllm_router.launch_router", "--worker-urls", *(node.url for node in nodes), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        assert wait_for(lambda: self.process.poll() is not None or self.healthy() == 2, 60), "it does not have both nodes"
        assert self.process.poll() is None, "the router has ended"
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def healthy(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readiness", timeout=20) as answer:
                return json.load(answer)["healthy_workers"]
        except (urllib.error.URLError, ConnectionError):
            return None

    def post(self, path, **body):
        body = dict(model=MODEL, max_tokens=8, temperature=0) | body
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
        return urllib.request.urlopen(request, timeout=60)

    def chat(self, system, question, **options):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        return self.post("/v1/chat/completions", messages=messages, **options)

    def answer(self, system, question):
        with self.chat(system, question) as answer:
            return json.load(answer)


@pytest.fixture
def nodes():
    with Node() as one, Node() as other:
        yield [one, other]


def wait_for(is_so, seconds=30):
    deadline = time.monotonic() + seconds
    while not (now := is_so()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return now


def known(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_what_begins_alike_goes_to_one_node_and_streams(nodes):
    with Router(nodes, "cache_aware") as router:
        for round in range(3):
            for book in BOOKS:
                answer = router.answer(book, f"What is on page {round}?")
                assert (known(answer) > 100) == (round > 0), f"round {round}: {answer['usage']}"
        with router.chat(BOOKS[0], "What is on page 9?", stream=True) as stream:
            lines = [line for line in stream.read().decode().splitlines() if line]
        assert lines[-1] == "data: [DONE]" and len(lines) > 3


@pytest.mark.parametrize("policy", ["round_robin", "power_of_two", "cache_aware"])
def test_a_node_that_ends_fails_no_request(nodes, policy):
    with Router(nodes, policy) as router, concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(router.answer, BOOKS[i % 4], f"What is on page {i}?") for i in range(80)]
        while sum(one.done() for one in asked) < 20:
            time.sleep(0.01)
        nodes[0].terminate()
        texts = [one.result()["choices"][0]["message"]["content"] for one in asked]
        assert len(texts) == 80 and all(texts)
        assert nodes[0].process.wait(30) == 0
        assert wait_for(lambda: router.healthy() == 1), "the router does not notice that a node is gone"


def test_it_finds_by_events_what_it_has_not_sent(nodes):
    flags = ["--kv-event-model", MODEL]
    for node in nodes:
        flags += ["--kv-event-source", f"{node.url}={node.events}", "--kv-event-replay-source", f"{node.url}={node.replay}"]
    with Router(nodes, "kv_aware", *flags) as router:
        # It says nowhere how far it has read, so it gets more time with each try.
        assert any(finds_all(router, nodes, f"try {i}", seconds=i / 4) for i in range(8))


def finds_all(router, nodes, words, seconds):
    """Whether each of ten chats goes to the node that has it; the router is not told but by events, and asks a node which
    tokens a chat is."""
    asked = [(nodes[0b0110100101 >> i & 1], f"{words}, book {i}. {BOOKS[0]}") for i in range(10)]
    for node, text in asked:
        node.post("/v1/chat/completions", {"messages": [{"role": "system", "content": text}], "max_tokens": 1})
    time.sleep(seconds)
    return all(known(router.answer(text, "What is on page 7?")) > 80 for _, text in asked)
