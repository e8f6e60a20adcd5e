#!/usr/bin/env python3
"""What prediction heads say on the models of shapes.HEADS, in plain NumPy: `heads.py [--check]`.

llama-cpp-python has no logits of heads, and llama.cpp leaves out that of GLM-4.5, so this is a reference of its own:
the whole model from the papers, in float64, nothing cached and nothing shared with kvik.
(DeepSeek-V3, arXiv 2412.19437, section 2.2; GLM-4.5, arXiv 2508.06471; Gated DeltaNet, arXiv 2412.06464; YaRN,
arXiv 2309.00071.) `--check` holds its trunk against the answers of llama.cpp that are checked in.
"""
import argparse
import json
import math
import pathlib

import gguf
import numpy as np

import shapes

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "crates/kvik-model/tests/golden"
# Tokens that a head guesses in a row, each from its own hidden state.
PASSES = 4
# Lengths of the sequences after which it is asked.
LENGTHS = (2, 38, 75)


class Model:
    """One file: its tensors, and the numbers of its shape."""

    def __init__(self, path, shape):
        self.s, self.eps = shape, 1e-5
        reader = gguf.GGUFReader(str(path))
        # A matrix is [rows, cols]; the reader gives the dimensions of a tensor in the order of memory.
        self.tensors = {t.name: np.array(t.data, np.float64).reshape(tuple(reversed(t.shape))) for t in reader.tensors}

    def __getitem__(self, name):
        return self.tensors[name]

    def norm(self, x, name):
        return rms(x, self.eps) * self[name].reshape(-1)

    def hidden(self, tokens):
        """States after the output norm, [n, d_model]."""
        x = self["token_embd.weight"][tokens]
        for i in range(self.s.layers):
            x = self.layer(i, x)
        return self.norm(x, f"{self.s.output_norm}.weight")

    def logits(self, hidden):
        return hidden @ self["output.weight"].T

    def layer(self, i, x):
        """One decoder layer over all positions, [n, d_model]."""
        s, b = self.s, f"blk.{i}."
        h = self.norm(x, b + "attn_norm.weight")
        if i in s.recurrent:
            x = x + self.delta(b, h)
        elif s.kv_rank:
            x = x + self.latent(b, h)
        else:
            x = x + self.attention(b, h)
        h = self.norm(x, f"{b}{s.ffn_norm}.weight")
        is_mixture = s.experts and i >= s.dense_layers
        return x + np.array([self.experts(b, row) if is_mixture else self.dense(b, row) for row in h])

    def dense(self, b, h, suffix=""):
        gate, up = (self[f"{b}ffn_{part}{suffix}.weight"] @ h for part in ("gate", "up"))
        return self[f"{b}ffn_down{suffix}.weight"] @ (silu(gate) * up)

    def experts(self, b, h):
        s, keys = self.s, self.s.keys
        scores = self[b + "ffn_gate_inp.weight"] @ h
        # GLM-4.5 says nothing of its sigmoid; Qwen's experts are chosen by a softmax.
        scores = sigmoid(scores) if s.selection_bias else softmax(scores)
        biased = scores + self.tensors.get(b + "exp_probs_b.bias", np.zeros(s.experts)).reshape(-1)
        groups = keys.get("expert_group_count", 1)
        if groups > 1:
            by_group = biased.reshape(groups, -1)
            best = np.sort(by_group, axis=1)[:, -2:].sum(axis=1)
            kept = np.argsort(-best, kind="stable")[: keys["expert_group_used_count"]]
            left = np.full_like(by_group, -np.inf)
            left[kept] = by_group[kept]
            biased = left.reshape(-1)
        chosen = np.argsort(-biased, kind="stable")[: s.experts_used]
        weights = scores[chosen] / scores[chosen].sum() * keys.get("expert_weights_scale", 1.0)
        out = np.zeros(s.d_model)
        for expert, weight in zip(chosen, weights):
            gate, up = (self[f"{b}ffn_{part}_exps.weight"][expert] @ h for part in ("gate", "up"))
            out += weight * (self[b + "ffn_down_exps.weight"][expert] @ (silu(gate) * up))
        if s.shared_d_ff:
            shared = self.dense(b, h, "_shexp")
            out += shared * sigmoid(self[b + "ffn_gate_inp_shexp.weight"].reshape(-1) @ h) if s.shared_gate else shared
        return out

    def attention(self, b, h):
        s, n = self.s, len(h)
        project = lambda part: h @ self[f"{b}attn_{part}.weight"].T + (self[f"{b}attn_{part}.bias"].reshape(-1) if s.qkv_bias else 0)
        q, k, v = (project(part).reshape(n, -1, s.head_dim) for part in "qkv")
        gate = 1.0
        if s.gated:
            # A head's query, then its gate.
            both = q.reshape(n, s.heads, 2, s.head_dim)
            q, gate = both[:, :, 0], sigmoid(both[:, :, 1]).reshape(n, -1)
        q, k = self.norm(q, b + "attn_q_norm.weight"), self.norm(k, b + "attn_k_norm.weight")
        dims = s.rope_dims or s.head_dim
        angles = np.outer(np.arange(n), s.theta ** (-np.arange(0, dims, 2) / dims))
        q, k = (rotated(x, angles, dims, halves=True) for x in (q, k))
        k, v = (np.repeat(x, s.heads // s.kv_heads, axis=1) for x in (k, v))
        out = attend(q, k, v, 1 / math.sqrt(s.head_dim)).reshape(n, -1)
        return (out * gate) @ self[b + "attn_output.weight"].T

    def latent(self, b, h):
        s, n = self.s, len(h)
        flat = s.head_dim - s.rope_dims
        low = self.norm(h @ self[b + "attn_q_a.weight"].T, b + "attn_q_a_norm.weight")
        q = (low @ self[b + "attn_q_b.weight"].T).reshape(n, s.heads, s.head_dim)
        both = h @ self[b + "attn_kv_a_mqa.weight"].T
        c = self.norm(both[:, : s.kv_rank], b + "attn_kv_a_norm.weight")
        angles, growth = yarn(s, n)
        turned = rotated(both[:, None, s.kv_rank :], angles, s.rope_dims, halves=False)
        # [heads, kv_rank, flat] and [heads, value_dim, kv_rank].
        k = np.einsum("nr,hrd->nhd", c, self[b + "attn_k_b.weight"])
        v = np.einsum("nr,hdr->nhd", c, self[b + "attn_v_b.weight"])
        k = np.concatenate([k, np.repeat(turned, s.heads, axis=1)], axis=2)
        q = np.concatenate([q[:, :, :flat], rotated(q[:, :, flat:], angles, s.rope_dims, halves=False)], axis=2)
        out = attend(q, k, v, growth * growth / math.sqrt(s.head_dim))
        return out.reshape(n, -1) @ self[b + "attn_output.weight"].T

    def delta(self, b, h):
        """The gated delta rule, one position after the other."""
        s, n = self.s, len(h)
        heads, keys, dim = s.ssm_heads, s.ssm_key_heads, s.ssm_key_dim
        mixed, z, beta, alpha = self.projections(b, h)
        kernel = self[b + "ssm_conv1d.weight"]
        padded = np.concatenate([np.zeros((s.conv_width - 1, mixed.shape[1])), mixed])
        mixed = silu(np.array([(padded[t : t + s.conv_width].T * kernel).sum(axis=1) for t in range(n)]))
        q, k, v = np.split(mixed, [keys * dim, 2 * keys * dim], axis=1)
        # In GGUF files of Qwen3.5 the heads of all key heads alternate; in those of Qwen3-Next they are adjacent.
        shared = np.arange(heads) // (heads // keys) if s.arch == "qwen3next" else np.arange(heads) % keys
        unit = lambda x: x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)
        q, k = (unit(x.reshape(n, keys, dim))[:, shared] for x in (q, k))
        v, z = v.reshape(n, heads, dim), z.reshape(n, heads, dim)
        decay = np.exp(self[b + "ssm_a"].reshape(-1) * np.log1p(np.exp(alpha + self[b + "ssm_dt.bias"].reshape(-1))))
        state, out = np.zeros((heads, dim, dim)), np.zeros((n, heads, dim))
        for t in range(n):
            state = state * decay[t][:, None, None]
            wrong = v[t] - np.einsum("hk,hkv->hv", k[t], state)
            state = state + np.einsum("hk,hv->hkv", k[t], wrong * sigmoid(beta[t])[:, None])
            out[t] = np.einsum("hk,hkv->hv", q[t], state) / math.sqrt(dim)
        out = self.norm(out, b + "ssm_norm.weight") * silu(z)
        return out.reshape(n, -1) @ self[b + "ssm_out.weight"].T

    def projections(self, b, h):
        """Inputs of the convolution, gates of the output, and what beta and alpha are made of."""
        s = self.s
        of = lambda name: h @ self[f"{b}{name}.weight"].T
        if s.recurrence == "delta":
            return of("attn_qkv"), of("attn_gate"), of("ssm_beta"), of("ssm_alpha")
        # A key head's betas, then its alphas.
        both = of("ssm_ba").reshape(len(h), s.ssm_key_heads, 2, -1)
        return of("attn_qkv"), of("attn_gate"), both[:, :, 0].reshape(len(h), -1), both[:, :, 1].reshape(len(h), -1)

    def head(self, tokens, hidden, states=()):
        """Logits and hidden state of the head behind the last of `tokens`; `states` are its own, for its own guesses.

        Position p joins the state of position p and the embedding of token p + 1.
        """
        b = f"blk.{self.s.layers}."
        computed = len(tokens) - 1
        states = np.concatenate([hidden[: computed - len(states)], np.reshape(states, (len(states), self.s.d_model))])
        table = self.tensors.get(b + "nextn.embed_tokens.weight", self["token_embd.weight"])
        embedded = self.norm(table[tokens[1:]], b + "nextn.enorm.weight")
        x = np.concatenate([embedded, self.norm(states, b + "nextn.hnorm.weight")], axis=1) @ self[b + "nextn.eh_proj.weight"].T
        state = self.norm(self.layer(self.s.layers, x)[-1], b + "nextn.shared_head_norm.weight")
        output = self.tensors.get(b + "nextn.shared_head_head.weight", self["output.weight"])
        return output @ state, state

    def guesses(self, tokens):
        """Logits of each pass behind `tokens`: the head goes on from what it holds likeliest."""
        tokens, hidden, own, passes = list(tokens), self.hidden(tokens), [], []
        for _ in range(PASSES):
            logits, state = self.head(np.array(tokens), hidden, own)
            passes.append(logits)
            tokens.append(int(logits.argmax()))
            own.append(state)
        return passes


def rms(x, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attend(q, k, v, scale):
    """Causal attention, [n, heads, dim] each."""
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    return np.einsum("hqk,khd->qhd", softmax(scores), v)


def rotated(x, angles, dims, halves):
    """[n, heads, dim], of which the first `dims` rotate: pairs are halves apart or adjacent."""
    first, second = (x[..., : dims // 2], x[..., dims // 2 : dims]) if halves else (x[..., 0:dims:2], x[..., 1:dims:2])
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = first * cos - second * sin, first * sin + second * cos
    out = x.copy()
    if halves:
        out[..., : dims // 2], out[..., dims // 2 : dims] = a, b
    else:
        out[..., 0:dims:2], out[..., 1:dims:2] = a, b
    return out


def yarn(s, n, factor=4.0, fast=32.0, slow=1.0):
    """Angles, [n, pairs], and the factor by whose square attention scores grow."""
    dims, trained = s.rope_dims, shapes.TRAINED_CONTEXT
    pairs = np.arange(0, dims, 2)
    free = s.theta ** (-pairs / dims)
    turns = lambda rotations: dims * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(s.theta))
    low, high = max(math.floor(turns(fast)), 0), min(math.ceil(turns(slow)), dims - 1)
    ramp = np.clip((pairs / 2 - low) / max(high - low, 0.001), 0, 1)
    inverse = free / factor * ramp + free * (1 - ramp)
    # Files store a tenth of mscale_all_dim.
    all_dims = s.keys["rope.scaling.yarn_log_multiplier"] / 0.1
    return np.outer(np.arange(n), inverse), 0.1 * all_dims * math.log(factor) + 1


def prompt_of(shape):
    """The golden prompt and what llama.cpp says behind it, of the model without a head."""
    file = GOLDEN / f"arch-{shape.name.removeprefix('head-')}.json"
    golden = json.loads(file.read_text())
    return golden["prompt"] + golden["greedy"], golden


def check(shape, model):
    """The largest difference between the trunk's logits and llama.cpp's."""
    tokens, golden = prompt_of(shape)
    apart = []
    for probe in golden["probes"]:
        if probe["step"] <= 60:
            logits = model.logits(model.hidden(tokens[: len(golden["prompt"]) + probe["step"]])[-1:])[0]
            apart.append(np.abs(logits[probe["tokens"]] - probe["logits"]).max())
    # Python's `max` would pass over a NaN.
    worst = np.max(apart)
    print(f"{shape.name:24} trunk differs from llama.cpp by at most {worst:.1e}")
    assert worst < 1e-3, shape.name


def write(shape):
    path = GOLDEN / f"{shape.name}.gguf"
    shapes.write(path, shape)
    model = Model(path, shape)
    check(shape, model)
    tokens, _ = prompt_of(shape)
    asked = []
    for length in LENGTHS:
        passes = [[float(f"{x:.7g}") for x in logits] for logits in model.guesses(tokens[:length])]
        asked.append(dict(len=length, passes=passes))
    golden = dict(tokens=tokens[: max(LENGTHS)], asked=asked)
    path.with_suffix(".json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--check", action="store_true", help="hold the trunk against llama.cpp's answers, and write nothing")
    only_check = args.parse_args().check
    for shape in shapes.HEADS:
        check(shape, Model(GOLDEN / f"{shape.name}.gguf", shape)) if only_check else write(shape)
    if not only_check:
        shapes.write(GOLDEN / f"{shapes.REPEATS.name}.gguf", shapes.REPEATS)


if __name__ == "__main__":
    main()
