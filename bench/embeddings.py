#!/usr/bin/env python3
"""Embeddings beside llama.cpp: agreement on the same file, texts a second in turns, and the share that caching saves.

    bench/embeddings.py --model models/tiny/kvik-tiny-q8_0.gguf

Needs `pip install llama-cpp-python numpy`. The peer runs in this process: it has no HTTP to pay for, and its texts
become tokens in Python. kvik is asked over HTTP, with base64. Both have the same threads, keys and values in the same
format, and room for every text of a batch; each round runs both, the order changing from round to round.
"""
import argparse
import base64
import http.client
import json
import pathlib
import statistics
import sys
import time

import llama_cpp
import numpy

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from server import BINARY, Server  # noqa: E402

POOLINGS = {"last": llama_cpp.LLAMA_POOLING_TYPE_LAST, "mean": llama_cpp.LLAMA_POOLING_TYPE_MEAN}
TYPES = {"f32": 0, "f16": 1}
# Texts of one request.
BATCH = 250


def sentences(count):
    """Different texts of some ten to forty tokens."""
    lines = (ROOT / "models/tiny/eval-text.txt").read_text().splitlines()
    pieces = [sentence.strip() + "." for line in lines for sentence in line.split(". ") if len(sentence) > 25]
    return [f"Note {i}. {pieces[i % len(pieces)]}" for i in range(count)]


def instruction():
    """A prefix of about 200 tokens, as instructed embedding models have one."""
    lines = (ROOT / "models/tiny/eval-text.txt").read_text().splitlines()
    return "Represent what follows for a search in notes. " + lines[3] + " " + lines[4][:400] + " "


class Kvik:
    def __init__(self, options, pooling, kv, weights=None):
        flags = ["-m", options.model, "--pooling", pooling, "--kv", kv, "--threads", options.threads]
        flags += ["--weights", weights] if weights else []
        self.server = Server(*flags, "--cache-ram", "512MiB", "--parallel", "64", binary=options.kvik)

    def __enter__(self):
        self.server.__enter__()
        self.connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        return self

    def __exit__(self, *error):
        self.connection.close()
        self.server.__exit__(*error)

    def post(self, path, body, method="POST"):
        self.connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
        answer = self.connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return json.loads(text)

    def embed(self, texts, shared=True):
        vectors, cached, tokens = [], 0, 0
        for start in range(0, len(texts), BATCH):
            body = {"input": texts[start:start + BATCH], "encoding_format": "base64", "cache_prompt": shared}
            answer = self.post("/v1/embeddings", body)
            vectors += [numpy.frombuffer(base64.b64decode(data["embedding"]), "<f4") for data in answer["data"]]
            tokens += answer["usage"]["prompt_tokens"]
            cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return numpy.array(vectors), tokens, cached

    def forget(self):
        self.post("/v1/cache", {}, "DELETE")


class Peer:
    def __init__(self, options, pooling, kv):
        self.model = llama_cpp.Llama(
            options.model, embedding=True, pooling_type=POOLINGS[pooling], n_ctx=options.peer_tokens,
            n_batch=options.peer_tokens, n_ubatch=options.peer_tokens, flash_attn=True, n_threads=int(options.threads), n_threads_batch=int(options.threads),
            type_k=TYPES[kv], type_v=TYPES[kv], verbose=False)

    def embed(self, texts):
        return numpy.array(self.model.embed(texts, normalize=True, truncate=False), "f4")


def agreement(options):
    """Both also beside the same weights as 32-bit floats, with which nothing is rounded on the way: where both round
    differently, that says whose error it is."""
    texts = sentences(options.texts)
    for kv in TYPES:
        for pooling in POOLINGS:
            with Kvik(options, pooling, kv) as kvik:
                ours, _, _ = kvik.embed(texts)
            with Kvik(options, pooling, "f32", weights="f32") as kvik:
                exact, _, _ = kvik.embed(texts)
            theirs = Peer(options, pooling, kv).embed(texts)
            pairs = {"kvik and llama.cpp": (ours, theirs), "kvik and exact": (ours, exact),
                     "llama.cpp and exact": (theirs, exact)}
            for names, (a, b) in pairs.items():
                cosines = (a * b).sum(axis=1) / numpy.linalg.norm(a, axis=1) / numpy.linalg.norm(b, axis=1)
                print(f"agreement, {pooling}, KV {kv}, {len(texts)} texts: {names}: cosine at least "
                      f"{cosines.min():.7f}, mean {cosines.mean():.7f}", flush=True)


def spread(samples):
    return f"{statistics.median(samples):.0f} texts/s ({min(samples):.0f} to {max(samples):.0f})"


def timed(run, count):
    start = time.perf_counter()
    run()
    return count / (time.perf_counter() - start)


def speed(options, name, texts, pooling, kv="f16"):
    """Cold texts: kvik neither looks for a prompt nor leaves one, so that no round helps the next."""
    with Kvik(options, pooling, kv) as kvik:
        peer = Peer(options, pooling, kv)
        runs = {
            "kvik, nothing cached": lambda: kvik.embed(texts, shared=False),
            "kvik, prefixes cached": lambda: (kvik.forget(), kvik.embed(texts)),
            "llama.cpp": lambda: peer.embed(texts),
        }
        if pooling != "last":
            del runs["kvik, prefixes cached"]
        samples = {name: [] for name in runs}
        for round in range(options.rounds + 1):
            for engine in list(runs)[::1 if round % 2 else -1]:
                sample = timed(runs[engine], len(texts))
                if round > 0:  # the first one warms up
                    samples[engine].append(sample)
        kvik.forget()
        _, tokens, cached = kvik.embed(texts)
    mean = tokens / len(texts)
    for engine, samples in samples.items():
        print(f"{name}, {pooling}: {engine}: {spread(samples)}, {mean:.0f} tokens a text", flush=True)
    print(f"{name}, {pooling}: {cached} of {tokens} tokens cached, {100 * cached / tokens:.1f} %", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models/tiny/kvik-tiny-q8_0.gguf"))
    parser.add_argument("--kvik", default=BINARY, help="the program")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--texts", type=int, default=200, help="texts of the agreement")
    parser.add_argument("--many", type=int, default=1000, help="texts of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-tokens", type=int, default=512, help="of a batch of the peer, and of its context")
    parser.add_argument("--only", choices=["agreement", "speed"])
    options = parser.parse_args()
    if options.only != "speed":
        agreement(options)
    if options.only != "agreement":
        plain = sentences(options.many)
        speed(options, "short texts", plain, "last")
        speed(options, "short texts", plain, "mean")
        speed(options, "one instruction", [instruction() + text for text in plain], "last")


if __name__ == "__main__":
    main()
