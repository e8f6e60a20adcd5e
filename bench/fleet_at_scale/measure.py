"""What a node tells a router, measured from one that runs: messages and bytes of its KV events for prompts and answers.

    python3 bench/fleet_at_scale/measure.py        # needs tests/requirements.txt and target/release/kvik

The figures of `simulate.py` are these. Token ids are of the embedded model, whose vocabulary is small, so what the bytes of
ids are is told apart: ids of other models take other lengths.
"""
import http.server
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import msgspec
import zmq

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from server import Server, free_port  # noqa: E402

WORDS = "a river and a letter stand in the garden behind the house of the miller "
PROMPT_BLOCKS = (8, 32, 64)
ANSWER_BLOCKS = (0, 4, 8)
INDEX_BLOCKS = 1_024_000
EVENT_BLOCKS = 32


class Counter:
    """A subscriber that counts."""

    def __init__(self, port):
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(f"tcp://127.0.0.1:{port}")

    def drain(self, wait_ms=500):
        """Messages, blocks stored and removed, bytes of payloads and of the ids in them."""
        counts = dict.fromkeys(("messages", "stored", "removed", "bytes", "ids"), 0)
        while self.socket.poll(wait_ms):
            topic, number, payload = self.socket.recv_multipart()
            counts["messages"] += 1
            counts["bytes"] += len(topic) + len(number) + len(payload)
            for event in msgspec.msgpack.decode(payload)[1]:
                if event["type"] == "BlockStored":
                    counts["stored"] += len(event["block_hashes"])
                    counts["ids"] += sum(len(msgspec.msgpack.encode(token)) for token in event["token_ids"])
                elif event["type"] == "BlockRemoved":
                    counts["removed"] += len(event["block_hashes"])
        return counts


def main():
    print("| prompt | answer | messages | blocks stored | blocks removed | bytes | of them, token ids | bytes a block without ids |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    port = free_port()
    flags = ["--kv-events", f"tcp://127.0.0.1:{port}", "--threads", "1"]
    with Server(*flags, "--context", "2048", "--cache-ram", "64MiB") as node:
        counter = Counter(port)
        while not counter.drain()["messages"]:  # until it is connected
            ask(node, WORDS.split()[0] + str(node.metric("kvik_prompt_tokens_total")), 16, 0)
        for prompt in PROMPT_BLOCKS:
            for answer in ANSWER_BLOCKS:
                ask(node, f"{prompt} and {answer}", prompt * 16, answer * 16)
                row(f"{prompt} blocks", f"{answer} blocks", counter.drain())
    with Server(*flags, "--context", "512", "--cache-ram", "2MiB") as node:
        # A full cache: for each block that comes another leaves.
        counter = Counter(port)
        for number in range(40):
            ask(node, f"fills {number}", 16 * 16, 0)
        counter.drain()
        for number in range(40):
            ask(node, f"is full {number}", 16 * 16, 0)
        row("16 blocks, 40 times", "0", counter.drain())
    router()


def router():
    """What a router's index takes for each block: memory and processor time of vLLM's router."""
    worker = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Worker)
    threading.Thread(target=worker.serve_forever, daemon=True).start()
    url, events = f"http://127.0.0.1:{worker.server_port}", free_port()
    socket = zmq.Context.instance().socket(zmq.PUB)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(f"tcp://127.0.0.1:{events}")
    command = [sys.executable, "-m", "vllm_router.launch_router", "--policy", "kv_aware", "--kv-event-model", "any",
               "--worker-urls", url, "--kv-event-source", f"{url}=tcp://127.0.0.1:{events}",
               "--port", str(free_port()), "--prometheus-port", str(free_port())]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(5)
        before = usage(process)
        for number in range(INDEX_BLOCKS // EVENT_BLOCKS):
            socket.send_multipart([b"", number.to_bytes(8, "big"), stored(number)])
        after = settled(process)
    finally:
        process.kill()
        worker.shutdown()
    each = [(now - was) / INDEX_BLOCKS for was, now in zip(before, after)]
    print(f"vLLM's router, {INDEX_BLOCKS} blocks in events of {EVENT_BLOCKS}: {each[0]:.0f} bytes and {each[1] * 1e6:.2f} us a block")


class Worker(http.server.BaseHTTPRequestHandler):
    """A node that has nothing but its health."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def stored(number):
    """A prompt of its own, as an event."""
    first = number * EVENT_BLOCKS
    names = [(block * 0x9E3779B97F4A7C15 + 1) % 2**64 for block in range(first, first + EVENT_BLOCKS)]
    event = {"type": "BlockStored", "block_hashes": names, "parent_block_hash": None, "block_size": 16, "lora_id": None,
             "token_ids": [(token * 7919 + number) % 151_936 for token in range(EVENT_BLOCKS * 16)], "medium": "GPU",
             "lora_name": None}
    return msgspec.msgpack.encode([time.time(), [event], 0])


def usage(process):
    """Bytes in RAM and seconds of processor of a process."""
    folder = pathlib.Path(f"/proc/{process.pid}")
    kilobytes = re.search(r"VmRSS:\s+(\d+)", (folder / "status").read_text())
    ticks = (folder / "stat").read_text().rsplit(")", 1)[1].split()
    return int(kilobytes[1]) * 1024, (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")


def settled(process):
    """Usage once it has read what was sent: a second without work."""
    last = usage(process)
    while True:
        time.sleep(2)
        now = usage(process)
        if now[1] - last[1] < 0.1:
            return now
        last = now


def ask(node, words, prompt_tokens, answer_tokens):
    ids = node.post("/tokenize", {"content": words + WORDS * (prompt_tokens // 8)}).json["tokens"][:prompt_tokens]
    assert len(ids) == prompt_tokens
    # An answer of one token at least; the one after a whole block makes it whole.
    body = {"prompt": ids, "max_tokens": answer_tokens + 1, "min_tokens": answer_tokens + 1, "temperature": 0}
    assert node.post("/v1/completions", body).status == 200


def row(prompt, answer, counts):
    blocks = counts["stored"] + counts["removed"]
    rest = (counts["bytes"] - counts["ids"]) / blocks
    print(f"| {prompt} | {answer} | {counts['messages']} | {counts['stored']} | {counts['removed']} | {counts['bytes']} "
          f"| {counts['ids']} | {rest:.1f} |")


if __name__ == "__main__":
    main()
