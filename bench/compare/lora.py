#!/usr/bin/env python3
"""LoRA adapters in kvik beside llama.cpp: the same model and adapter files, log-probabilities of the likeliest tokens.

    pip install llama-cpp-python numpy
    bench/compare/lora.py --kvik target/release/kvik

Makes two adapters of random numbers (rank 4 in f32, rank 8 in f16), always the same, and a copy of the model in f32.
Prints the largest difference for the model alone, which is the floor, for each adapter and for both at once; and how far
the adapters move the same log-probabilities, so that a difference of 0 means something.
"""
import argparse
import contextlib
import ctypes
import json
import pathlib
import socket
import struct
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import numpy
import llama_cpp

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPTS, LIKELIEST = 20, 100
ALIGNMENT = 32
F32, F16, Q8_0 = 0, 1, 8
# Bytes of metadata values by their type; 8 is text, 9 an array.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TEXT, ARRAY, FLOAT = 8, 9, 6
# What a request is computed with: numbers of adapters and their scales.
MIXES = {"none": [], "rank 4, f32": [(0, 1.0)], "rank 8, f16": [(1, 0.5)], "both": [(0, 0.75), (1, -0.5)]}


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = Gguf(args.model)
        (folder / "f32.gguf").write_bytes(model.in_f32())
        adapters = [folder / "a.gguf", folder / "b.gguf"]
        adapters[0].write_bytes(adapter(model, seed=1, rank=4, kind=F32))
        adapters[1].write_bytes(adapter(model, seed=2, rank=8, kind=F16))
        for name, path in [("as it is", args.model), ("in f32", folder / "f32.gguf")]:
            print(f"{args.model.name}, {name}")
            compare(args.kvik, path, adapters)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvik", type=pathlib.Path, default=ROOT / "target/release/kvik")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/tiny/kvik-tiny-q8_0.gguf")
    return parser.parse_args()


def compare(kvik, model, adapters):
    texts = prompts(Gguf(model).vocab())
    peer = {name: peer_logprobs(model, adapters, mix, texts) for name, mix in MIXES.items()}
    with served(kvik, model, adapters) as url:
        for name, mix in MIXES.items():
            apart, total, count = [], 0.0, 0
            for text, expect, plain in zip(texts, peer[name], peer["none"]):
                found = likeliest(url, text, mix)
                ids = [token for token, _ in found]
                logprobs = numpy.array([logprob for _, logprob in found])
                apart.append(numpy.abs(logprobs - expect[ids]).max())
                total += numpy.abs(expect[ids] - plain[ids]).sum()
                count += len(ids)
            # Python's `max` would pass over a NaN.
            worst = numpy.max(apart)
            print(f"  {name:12} differs from llama.cpp by {worst:.2e} at most; moved by {total / count:.2f} on average")


def prompts(vocab):
    random = numpy.random.default_rng(7)
    return [[int(token) for token in random.integers(10, vocab, size=8 + 7 * index)] for index in range(PROMPTS)]


def peer_logprobs(model, adapters, mix, texts):
    """The log-probabilities of all tokens after each text, by llama.cpp with keys and values in f32."""
    llama = llama_cpp.Llama(str(model), n_ctx=512, n_batch=512, type_k=F32, type_v=F32, n_threads=2, verbose=False)
    handles = [llama_cpp.llama_adapter_lora_init(llama._model.model, str(path).encode()) for path in adapters]
    used = (llama_cpp.llama_adapter_lora_p_ctypes * len(mix))(*[handles[number] for number, _ in mix])
    scales = (ctypes.c_float * len(mix))(*[scale for _, scale in mix])
    assert llama_cpp.llama_set_adapters_lora(llama._ctx.ctx, used, len(mix), scales) == 0
    rows = []
    for text in texts:
        llama.reset()
        llama.eval(text)
        logits = llama_cpp.llama_get_logits_ith(llama._ctx.ctx, -1)
        row = numpy.ctypeslib.as_array(logits, shape=(llama.n_vocab(),)).astype(numpy.float64)
        rows.append(row - row.max() - numpy.log(numpy.exp(row - row.max()).sum()))
    return rows


def likeliest(url, text, mix):
    lora = [{"id": number, "scale": scale} for number, scale in mix]
    fields = {"n_predict": 1, "temperature": 0, "n_probs": LIKELIEST, "ignore_eos": True}
    answer = ask(f"{url}/completion", {"prompt": text, "lora": lora, **fields})
    return [(top["id"], top["logprob"]) for top in answer["completion_probabilities"][0]["top_logprobs"]]


@contextlib.contextmanager
def served(kvik, model, adapters):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [f"--lora={path}" for path in adapters] + ["--lora-init-without-apply", "--cache-disk", "off", "--kv", "f32"]
    command = [kvik, "serve", "-m", model, "--port", str(port), "--context", "512", "--cache-ram", "256MiB", *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                ask(f"{url}/health")
                break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


class Gguf:
    """The tensors of a GGUF file, and its metadata as bytes."""

    def __init__(self, path):
        self.bytes = path.read_bytes()
        _, _, tensors, self.keys = struct.unpack_from("<IIQQ", self.bytes)
        self.at, self.values = 24, {}
        begin = self.at
        for _ in range(self.keys):
            key = self.text()
            (kind,) = self.read("<I")
            self.values[key] = self.value(kind)
        self.head = self.bytes[begin : self.at]
        self.tensors = [self.tensor() for _ in range(tensors)]
        self.data = -(-self.at // ALIGNMENT) * ALIGNMENT

    def read(self, form):
        values = struct.unpack_from(form, self.bytes, self.at)
        self.at += struct.calcsize(form)
        return values

    def text(self):
        (length,) = self.read("<Q")
        self.at += length
        return self.bytes[self.at - length : self.at].decode("utf-8", "replace")

    def value(self, kind):
        """Text as it is; how many an array has; nothing of the rest."""
        if kind == TEXT:
            return self.text()
        if kind != ARRAY:
            self.at += SIZES[kind]
            return None
        element, count = self.read("<IQ")
        for _ in range(count):
            self.value(element)
        return count

    def tensor(self):
        name, (dims,) = self.text(), self.read("<I")
        shape = self.read(f"<{dims}Q")[::-1]
        kind, offset = self.read("<IQ")
        return name, shape, kind, offset

    def vocab(self):
        return self.values["tokenizer.ggml.tokens"]

    def floats(self, shape, kind, offset):
        start, count = self.data + offset, int(numpy.prod(shape))
        if kind == F32:
            return numpy.frombuffer(self.bytes, "<f4", count, start)
        if kind == F16:
            return numpy.frombuffer(self.bytes, "<f2", count, start).astype("<f4")
        assert kind == Q8_0, f"type {kind} is not read here"
        blocks = numpy.frombuffer(self.bytes, numpy.dtype([("d", "<f2"), ("q", "i1", 32)]), count // 32, start)
        return (blocks["d"].astype("<f4")[:, None] * blocks["q"]).astype("<f4").ravel()

    def in_f32(self):
        tensors = [(name, shape, F32, self.floats(shape, kind, offset).tobytes()) for name, shape, kind, offset in self.tensors]
        return gguf(self.keys, self.head, tensors)

    def matrices(self):
        """What is multiplied: not the norms, and not the embedding."""
        return [(name, shape) for name, shape, *_ in self.tensors if len(shape) == 2 and name.startswith("blk.")]


def adapter(model, seed, rank, kind):
    random = numpy.random.default_rng(seed)
    dtype = "<f4" if kind == F32 else "<f2"
    tensors = []
    for name, (rows, cols) in model.matrices():
        a = random.standard_normal((rank, cols)) / numpy.sqrt(cols)
        b = random.standard_normal((rows, rank)) / numpy.sqrt(rank)
        tensors.append((f"{name}.lora_a", (rank, cols), kind, a.astype(dtype).tobytes()))
        tensors.append((f"{name}.lora_b", (rows, rank), kind, b.astype(dtype).tobytes()))
    texts = {
        "general.type": "adapter",
        "general.architecture": model.values["general.architecture"],
        "adapter.type": "lora",
    }
    head = b"".join(string(key) + struct.pack("<I", TEXT) + string(value) for key, value in texts.items())
    head += string("adapter.lora.alpha") + struct.pack("<If", FLOAT, rank / 4)
    return gguf(len(texts) + 1, head, tensors)


def gguf(keys, head, tensors):
    infos, data = b"", b""
    for name, shape, kind, values in tensors:
        infos += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        infos += struct.pack("<IQ", kind, len(data))
        data += values + bytes(-len(values) % ALIGNMENT)
    start = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), keys) + head + infos
    return start + bytes(-len(start) % ALIGNMENT) + data


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


if __name__ == "__main__":
    main()
