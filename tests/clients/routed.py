"""What is the same for every router: a client of it, and what it is to do with two nodes."""
import concurrent.futures
import json
import time
import urllib.request

MODEL = "kvik-node"
FLAGS = ["--alias", MODEL, "--context", "2048", "--cache-ram", "64MiB", "--threads", "1"]
# Long enough that a router tells prompts apart by their beginning.
BOOKS = [f"You answer questions about the book number {i}, in which a river, a letter and a garden stand. " * 4 for i in range(4)]


class Client:
    """Asks a router at `port`."""

    def chat(self, system, question, **options):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        body = dict(model=MODEL, messages=messages, max_tokens=8, temperature=0) | options
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
        return urllib.request.urlopen(request, timeout=60)

    def answer(self, system, question):
        with self.chat(system, question) as answer:
            return json.load(answer)


def known(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def sends_what_begins_alike_to_one_node(router):
    """From the second round on each book is known, and an answer streams."""
    for round in range(3):
        for book in BOOKS:
            answer = router.answer(book, f"What is on page {round}?")
            assert (known(answer) > 100) == (round > 0), f"round {round}: {answer['usage']}"
    with router.chat(BOOKS[0], "What is on page 9?", stream=True) as stream:
        lines = [line for line in stream.read().decode().splitlines() if line]
    assert lines[-1] == "data: [DONE]" and len(lines) > 3


def fails_no_request_when_a_node_ends(router, node):
    """A node is ended under load; it ends by itself, and well."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(router.answer, BOOKS[i % 4], f"What is on page {i}?") for i in range(80)]
        while sum(one.done() for one in asked) < 20:
            time.sleep(0.01)
        node.terminate()
        texts = [one.result()["choices"][0]["message"]["content"] for one in asked]
        assert len(texts) == 80 and all(texts)
        assert node.process.wait(30) == 0
