#!/usr/bin/env python3
"""What llama.cpp says to the same model file: the ids of texts, and perplexity with each format of keys and values.

    pip install numpy xllamacpp==2026.10.11549 llama-cpp-py-sync==0.11548        # llama.cpp b11549, built; its declarations
    bench/real/llama.py MODEL.gguf perplexity TEXT [--chunks 20] [--kv f16 q8_0 q4_0] [--json]
    bench/real/llama.py MODEL.gguf tokenize < TEXTS.json

Perplexity follows the rules of llama-perplexity: windows of 512 tokens, each computed from nothing, of which the second half is
scored; the token that begins a text replaces the first one of a window where the model wants it. `tokenize` reads a list of
texts in JSON and writes a list of their ids, special tokens read as such.
"""
import argparse
import importlib.util
import json
import math
import pathlib
import sys

import numpy as np


def declarations():
    """llama.h as cffi reads it, without the library of the package, which is of newer systems."""
    folder = importlib.util.find_spec("llama_cpp_py_sync").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("bindings", pathlib.Path(folder) / "_cffi_bindings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ffi


ffi = declarations()
lib = ffi.dlopen(next(iter(pathlib.Path(importlib.util.find_spec("xllamacpp").submodule_search_locations[0]).glob("*.so"))).as_posix())
# Numbers of ggml's types.
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}
# Bits of a number, with its share of scales and minima.
BITS = {"f32": 32, "f16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5}


@ffi.callback("void(enum ggml_log_level, const char *, void *)")
def silent(_level, _text, _data):
    pass


class Llama:
    """One model; contexts are made of it."""

    def __init__(self, path):
        lib.llama_log_set(silent, ffi.NULL)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        if self.model == ffi.NULL:
            sys.exit(f"llama.cpp does not load {path}")
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.size = lib.llama_vocab_n_tokens(self.vocab)

    def context(self, tokens, kv):
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = tokens
        params.n_threads = params.n_threads_batch = 2
        params.type_k = params.type_v = TYPES[kv]
        # Values in fewer bits need it.
        params.flash_attn_type = 1
        context = lib.llama_init_from_model(self.model, params)
        if context == ffi.NULL:
            sys.exit(f"llama.cpp makes no context of {tokens} tokens with {kv}")
        return context

    def tokenize(self, text, special):
        raw = text.encode()
        ids = ffi.new("llama_token[]", len(raw) + 8)
        count = lib.llama_tokenize(self.vocab, raw, len(raw), ids, len(raw) + 8, False, special)
        return list(ids[0:count])

    def perplexity(self, tokens, window, chunks, kv):
        """Negative log-likelihoods of the scored tokens of each window, [windows][tokens]."""
        context, begins = self.context(window, kv), lib.llama_vocab_get_add_bos(self.vocab)
        found = []
        for start in range(0, min(len(tokens) // window, chunks) * window, window):
            piece = tokens[start : start + window]
            if begins:
                piece = [lib.llama_vocab_bos(self.vocab), *piece[1:]]
            found.append(self.score(context, piece))
        lib.llama_free(context)
        return found

    def score(self, context, piece):
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        batch = lib.llama_batch_init(len(piece), 0, 1)
        batch.n_tokens = len(piece)
        half = len(piece) // 2
        for i, token in enumerate(piece):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, i, 1, 0
            batch.logits[i] = half <= i < len(piece) - 1
        status = lib.llama_decode(context, batch)
        assert status == 0, f"llama_decode gave {status}"
        rows = [self.row(context, i) for i in range(half, len(piece) - 1)]
        lib.llama_batch_free(batch)
        return [nll(row, piece[half + 1 + i]) for i, row in enumerate(rows)]

    def row(self, context, i):
        logits = lib.llama_get_logits_ith(context, i)
        return np.frombuffer(ffi.buffer(logits, 4 * self.size), np.float32).copy()


def nll(row, token):
    row = row.astype(np.float64)
    return float(np.log(np.exp(row - row.max()).sum()) + row.max() - row[token])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tokenize")
    scored = commands.add_parser("perplexity")
    scored.add_argument("text", type=pathlib.Path)
    scored.add_argument("--window", type=int, default=512)
    scored.add_argument("--chunks", type=int, default=20)
    scored.add_argument("--kv", nargs="+", choices=TYPES, default=["f16", "q8_0", "q4_0"])
    scored.add_argument("--json", action="store_true")
    args = parser.parse_args()
    llama = Llama(args.model)
    if args.command == "tokenize":
        json.dump([llama.tokenize(text, True) for text in json.load(sys.stdin)], sys.stdout)
        return
    # As it stands, also where its lines end in another way.
    tokens = llama.tokenize(args.text.read_bytes().decode().removesuffix("\n"), False)
    for kv in args.kv:
        windows = llama.perplexity(tokens, args.window, args.chunks, kv)
        scored = [value for window in windows for value in window]
        mean = sum(scored) / len(scored)
        if args.json:
            print(json.dumps({"kv": kv, "bits": BITS[kv], "perplexity": math.exp(mean), "windows": [sum(w) / len(w) for w in windows]}))
        else:
            print(f"{kv:>6} perplexity {math.exp(mean):.4f} ({len(scored)} tokens of {len(windows)} windows)", flush=True)


if __name__ == "__main__":
    main()
