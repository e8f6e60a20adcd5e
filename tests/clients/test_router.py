"""SGLang's router before two nodes, as it is: it learns the model, sends what begins alike to one node, and drains.

It is a binary of its own (Python package `sglang-router`); nothing of SGLang is needed.
"""
import concurrent.futures
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from routed import BOOKS, FLAGS, MODEL, Client, fails_no_request_when_a_node_ends, sends_what_begins_alike_to_one_node
from server import Server, free_port


class Router(Client):
    def __init__(self, nodes, policy):
        self.port, metrics = free_port(), free_port()
        urls = [f"http://127.0.0.1:{node.port}" for node in nodes]
        flags = ["--policy", policy, "--host", "127.0.0.1", "--port", str(self.port), "--prometheus-port", str(metrics)]
        # A node that ends is asked no more before its next check.
        flags += ["--health-check-interval-secs", "1", "--health-failure-threshold", "1"]
        flags += ["--retry-initial-backoff-ms", "20", "--retry-max-backoff-ms", "200"]
        command = [sys.executable, "-m", "sglang_router.launch_router", "--worker-urls", *urls, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if len(self.workers()) == 2 and all(worker["is_healthy"] for worker in self.workers()):
                return self
            assert self.process.poll() is None, "the router has ended"
            time.sleep(0.1)
        raise AssertionError(f"the router does not have both nodes: {self.workers()}")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def workers(self):
        try:
            return self.get("/workers")["workers"]
        except (urllib.error.URLError, ConnectionError):
            return []

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as answer:
            return json.load(answer)


# A node says for longer than the router looks away that it will end: on a busy machine the router's own retries, each of
# which may meet the node that is gone, are used up before it has noticed.
@pytest.fixture
def nodes():
    with Server(*FLAGS, "--drain", "2") as one, Server(*FLAGS) as other:
        yield [one, other]


def test_what_begins_alike_goes_to_one_node(nodes):
    with Router(nodes, "cache_aware") as router:
        assert {worker["model_id"] for worker in router.workers()} == {MODEL}
        assert [model["id"] for model in router.get("/v1/models")["data"]] == [MODEL]
        sends_what_begins_alike_to_one_node(router)


def test_a_node_that_ends_fails_no_request(nodes):
    with Router(nodes, "round_robin") as router:
        fails_no_request_when_a_node_ends(router, nodes[0])


def test_the_router_reads_the_load(nodes):
    with Router(nodes, "power_of_two") as router:
        loads = router.get("/get_loads")["workers"]
        assert [worker["load"] for worker in loads] == [0, 0]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            long = pool.submit(lambda: router.chat(BOOKS[0], "Go on.", max_tokens=1500, min_tokens=1500).read())
            deadline = time.monotonic() + 30
            while all(worker["load"] == 0 for worker in router.get("/get_loads")["workers"]):
                assert not long.done() and time.monotonic() < deadline, "a long answer is no load"
            assert long.result()
