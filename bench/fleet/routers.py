"""Routers in front of a fleet: SGLang's with a policy, or this bench's own that follows KV events."""
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

from .paths import ROOT, free_port

START_S = 60

# Placement: what starts its router, and what the table calls it.
PLACEMENTS = {
    "random": "random",
    "round_robin": "round robin",
    "power_of_two": "by load (the lesser of two)",
    "cache_aware": "by prefix (SGLang's guess)",
    "events": "by prefix (KV events)",
    "events_load": "by prefix and load (KV events)",
}


class Router:
    """A router with the nodes at these URLs; `events` are where their KV events are found."""

    def __init__(self, placement, urls, events):
        self.port, self.as_ids = free_port(), placement.startswith("events")
        command = self._events(placement, urls, events) if self.as_ids else self._sglang(placement, urls)
        self.count = len(urls)
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _events(self, placement, urls, events):
        nodes = [word for pair in zip(urls, events) for word in ("--node", *pair)]
        weigh = ["--weigh-load"] if placement == "events_load" else []
        return [sys.executable, "-m", "bench.fleet.events_router", "--port", str(self.port), *weigh, *nodes]

    def _sglang(self, policy, urls):
        flags = ["--policy", policy, "--host", "127.0.0.1", "--port", str(self.port)]
        flags += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        # A node that says it is to end is asked no more within a second.
        flags += ["--health-check-interval-secs", "1"]
        flags += ["--health-failure-threshold", "1", "--health-success-threshold", "1"]
        flags += ["--retry-initial-backoff-ms", "20", "--retry-max-backoff-ms", "200"]
        return [sys.executable, "-m", "sglang_router.launch_router", "--worker-urls", *urls, *flags]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        self.wait_for(self.count)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def healthy(self):
        """How many nodes the router sends requests to now."""
        if self.as_ids:
            return self.count if self._get("/health", plain=True) else 0
        workers = self._get("/workers")
        return sum(worker["is_healthy"] for worker in workers["workers"]) if workers else 0

    def wait_for(self, count):
        deadline = time.monotonic() + START_S
        while self.healthy() < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the router has {self.healthy()} nodes and not {count}")
            time.sleep(0.1)

    def add(self, url):
        """Makes a node known to SGLang's router while it runs."""
        body = json.dumps({"url": url}).encode()
        asked = urllib.request.Request(f"{self.url}/workers", body, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert answer.status in (200, 202), answer.status

    def _get(self, path, plain=False):
        try:
            with urllib.request.urlopen(self.url + path, timeout=20) as answer:
                return answer.read() if plain else json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            return None
