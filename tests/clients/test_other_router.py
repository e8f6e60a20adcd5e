"""vLLM's router (Python package `vllm-router`) before two nodes, as it is: by turns, by load, by prefix, by KV events.

It began as SGLang's and follows KV events, which that one does not. It asks a node for the tokens of a chat.
"""
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from routed import BOOKS, FLAGS, MODEL, Client, fails_no_request_when_a_node_ends, known, sends_what_begins_alike_to_one_node
from server import Server, free_port


class Node(Server):
    """A node that publishes its events, at an address that the router is told. It says for longer than the router looks
    away that it will end: on a busy machine the router's own retries are used up before it has noticed."""

    def __init__(self):
        self.events, self.replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        super().__init__(*FLAGS, "--drain", "2", "--kv-events", self.events, "--kv-events-replay", self.replay)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


class Router(Client):
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


@pytest.fixture
def nodes():
    with Node() as one, Node() as other:
        yield [one, other]


def wait_for(is_so, seconds=30):
    deadline = time.monotonic() + seconds
    while not (now := is_so()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return now


def test_what_begins_alike_goes_to_one_node_and_streams(nodes):
    with Router(nodes, "cache_aware") as router:
        sends_what_begins_alike_to_one_node(router)


@pytest.mark.parametrize("policy", ["round_robin", "power_of_two", "cache_aware"])
def test_a_node_that_ends_fails_no_request(nodes, policy):
    with Router(nodes, policy) as router:
        fails_no_request_when_a_node_ends(router, nodes[0])
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
