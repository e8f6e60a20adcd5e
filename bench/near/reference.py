"""The forward pass of small dense models in float32, over a cache that anything may have filled.

A reference, not an engine: a row says its position and attends to all cached positions up to its own, and any subset of
the rows of a prompt can be computed. Keys are cached before RoPE, so a run that is taken elsewhere needs no second
rotation: its keys are rotated to where it now stands.
"""
import dataclasses

import numpy as np

# Rows of one block of attention.
ROWS = 256


@dataclasses.dataclass(frozen=True)
class Shape:
    """`interleaved`: RoPE's pairs are adjacent, as in the files of `llama`; otherwise they are halves of a head."""

    layers: int
    heads: int
    kv_heads: int
    dim: int
    epsilon: float
    theta: float
    interleaved: bool


class Cache:
    """Keys before RoPE and values of the first positions of a sequence: `[layers, positions, kv_heads, dim]`."""

    def __init__(self, shape, positions):
        size = (shape.layers, positions, shape.kv_heads, shape.dim)
        self.keys, self.values = np.zeros(size, "f4"), np.zeros(size, "f4")

    def copy_from(self, other, source, target, count):
        """Copies `count` positions of another cache, from `source` on, to `target`."""
        self.keys[:, target : target + count] = other.keys[:, source : source + count]
        self.values[:, target : target + count] = other.values[:, source : source + count]


class Model:
    """Weights by the names of GGUF, `[out, in]` each; `output.weight` is that of the embedding if there is none."""

    def __init__(self, shape, tensors):
        self.shape, self.tensors = shape, dict(tensors)
        self.tensors.setdefault("output.weight", self.tensors["token_embd.weight"])

    def embed(self, tokens):
        return self.tensors["token_embd.weight"][tokens]

    def logits(self, hidden):
        return self.norm(hidden, "output_norm.weight") @ self.tensors["output.weight"].T

    def compute(self, tokens, positions, cache, hidden=None, first=0):
        """Computes rows from layer `first` on, caches their keys and values, returns their last hidden states."""
        hidden = self.embed(tokens) if hidden is None else hidden
        for layer in range(first, self.shape.layers):
            cache.keys[layer, positions], cache.values[layer, positions] = self.keys_values(layer, hidden)
            hidden = self.layer(layer, hidden, positions, cache)
        return hidden

    def keys_values(self, layer, hidden):
        """What a layer caches of its inputs, keys before RoPE: `[rows, kv_heads, dim]` each."""
        x = self.norm(hidden, f"blk.{layer}.attn_norm.weight")
        return self.project(layer, x, "k"), self.project(layer, x, "v")

    def layer(self, layer, hidden, positions, cache):
        """One layer over rows at ascending `positions`, whose keys and values are in `cache` already."""
        weight = lambda name: self.tensors[f"blk.{layer}.{name}.weight"].T
        query = self.project(layer, self.norm(hidden, f"blk.{layer}.attn_norm.weight"), "q")
        query = rope(self.shape, query, positions)
        end = positions[-1] + 1
        keys = rope(self.shape, cache.keys[layer, :end], np.arange(end))
        mixed = np.empty_like(query)
        for start in range(0, len(positions), ROWS):
            part = slice(start, start + ROWS)
            mixed[part] = attend(self.shape, query[part], positions[part], keys, cache.values[layer])
        hidden = hidden + mixed.reshape(len(hidden), -1) @ weight("attn_output")
        x = self.norm(hidden, f"blk.{layer}.ffn_norm.weight")
        gate = x @ weight("ffn_gate")
        return hidden + (gate / (1 + np.exp(-gate)) * (x @ weight("ffn_up"))) @ weight("ffn_down")

    def project(self, layer, x, name):
        out = x @ self.tensors[f"blk.{layer}.attn_{name}.weight"].T
        bias = self.tensors.get(f"blk.{layer}.attn_{name}.bias")
        return (out if bias is None else out + bias).reshape(len(x), -1, self.shape.dim)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.shape.epsilon) * self.tensors[name]


def rope(shape, x, positions):
    """Rotates `[rows, heads, dim]` to `positions`."""
    half = shape.dim // 2
    angle = positions[:, None] * shape.theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angle).astype("f4")[:, None], np.sin(angle).astype("f4")[:, None]
    a, b = (x[..., ::2], x[..., 1::2]) if shape.interleaved else (x[..., :half], x[..., half:])
    rotated = a * cos - b * sin, a * sin + b * cos
    return np.stack(rotated, -1).reshape(x.shape) if shape.interleaved else np.concatenate(rotated, -1)


def attend(shape, query, positions, keys, values):
    """Attention of rows to all positions up to their own."""
    end, group = positions[-1] + 1, shape.heads // shape.kv_heads
    future = np.arange(end)[None] > positions[:, None]
    out = np.empty_like(query)
    for head in range(shape.heads):
        score = query[:, head] @ keys[:end, head // group].T * np.float32(shape.dim**-0.5)
        score[future] = -np.inf
        score = np.exp(score - score.max(1, keepdims=True))
        out[:, head] = score @ values[:end, head // group] / score.sum(1, keepdims=True)
    return out
