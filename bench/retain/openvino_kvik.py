"""A kvik server as an engine under measurement, asked over HTTP as any client asks."""
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import monotonic

from openvino_cases import ANSWER_TOKENS, ROOT


class Kvik:
    """`kvik serve` on one model file. A retention is the text that `kvik.retain` takes, as `snapkv:256,window=8`."""

    name = "kvik"

    def __init__(self, model, threads, binary, kv="f16"):
        self.model, self.threads, self.binary, self.kv = model, threads, binary, kv

    @contextmanager
    def open(self, retain, pool_bytes):
        """A server whose keys and values take at most so many bytes."""
        flags = ["--model", self.model, "--threads", self.threads, "--kv", self.kv, "--parallel", 256]
        # As the default of the server, so that its context need not fit the pool whole.
        flags += ["--retain", retain] if retain else []
        with harness().Server(*flags, "--cache-ram", f"{pool_bytes}B", binary=self.binary) as server:
            yield Served(server, retain)

    def version(self):
        return subprocess.run([self.binary, "--version"], capture_output=True, text=True, check=True).stdout.strip()


class Served:
    """A server that answers, every request under the same retention."""

    def __init__(self, server, retain):
        self.server = server
        self.extra = {"kvik": {"retain": retain}} if retain else {}

    def answer(self, case):
        """The text of a case's answer, or None where the server refuses it."""
        response = self.server.post("/v1/chat/completions", self.body(case.chat, ANSWER_TOKENS))
        if response.status == 200:
            return response.json["choices"][0]["message"]["content"]
        return refused(response.status, response.text)

    def body(self, messages, limit):
        return {"messages": messages, "temperature": 0, "max_tokens": limit} | self.extra

    def together(self, cases, limit):
        """The texts behind all cases at once, None where refused, and how many generated whenever one began to."""
        with ThreadPoolExecutor(len(cases)) as pool:
            streams = list(pool.map(lambda case: self.stream(case.chat, limit), cases))
        return [text for text, _ in streams], overlaps([span for _, span in streams if span])

    def stream(self, messages, limit):
        """The text of one stream that goes on to the limit, and the times of its first and last piece."""
        body = self.body(messages, limit) | {"stream": True, "ignore_eos": True}
        connection, response = self.server.open_stream("/v1/chat/completions", body)
        pieces, times = [], []
        try:
            if response.status != 200:
                return refused(response.status, response.read().decode()), None
            for piece in filter(None, map(delta, harness().sse(response))):
                pieces.append(piece)
                times.append(monotonic())
        finally:
            connection.close()
        return "".join(pieces), (times[0], times[-1]) if times else None

    def reach(self, case, limit):
        """How many tokens follow this case before the server ends the answer."""
        response = self.server.post("/v1/chat/completions", self.body(case.chat, limit) | {"ignore_eos": True})
        return response.json["usage"]["completion_tokens"] if response.status == 200 else refused(response.status, response.text) or 0

    def preemptions(self):
        return int(self.server.metric("kvik_preemptions_total"))


def refused(status, text):
    """None for a prompt or answer that is too long for the budget; any other error ends the measurement."""
    if status == 400 and ("context" in text or "too long" in text):
        return None
    sys.exit(f"kvik answered {status}: {text}")


def delta(payload):
    """The text of one event of a stream."""
    if payload == "[DONE]":
        return ""
    choices = json.loads(payload).get("choices") or [{"delta": {}}]
    return choices[0]["delta"].get("content") or ""


def overlaps(spans):
    """How many of these spans of time hold the start of each of them."""
    return [sum(first <= start <= last for first, last in spans) for start, _ in spans]


@cache
def harness():
    """The tests' server."""
    sys.path.insert(0, str(Path(ROOT) / "tests"))
    import server

    return server
