#!/usr/bin/env python3
"""Does Attention Matching (arXiv 2602.16284) keep what a prompt says? A forward pass of Llama's architecture in NumPy, the keys and
values of a context replaced by a few for each head, and questions that follow it.

    bench/real/compaction.py MODEL.gguf [--cases 60] [--tokens 480] [--keep 0.3 0.1 0.02] [--text FILE --windows 12]

It needs the packages numpy, gguf and tokenizers. For models of Llama's architecture whose tokenizer is SmolLM2's.

Each row keeps the same number of keys and values over all heads. The first positions are kept by all. `kvzip` keeps what the
repeated context attends to; `+v` fits values by least squares to the attention outputs of that repetition; `+b+v` first fits a
bias for each key, so that the mass of attention agrees as well; `head` has one budget for each head and chooses by the root of
the mean square, as the paper does, and the others one for all heads.
"""
import argparse
import functools
import math
import random

import gguf
import numpy
import tokenizers

SINKS = 4
METHODS = ["kvzip", "kvzip+v", "kvzip+b+v", "head", "head+b+v"]
TASK = "What was said before, word by word:\n"
SYSTEM = "You are a helpful assistant."
NAMES = "Maria Tom Elena Victor Nadia Oscar Priya Lukas Hanna Diego Alice Bruno Clara Felix Greta Ivan Julia Karl Lena Marco".split()
THINGS = ["gate code", "locker code", "safe code", "room number", "order number", "project name", "team name", "secret word"]
WORDS = "falcon copper maple thunder velvet harbor cactus lantern comet orchid granite saffron willow amber pebble rocket".split()
TALK = [
    ("Did you see the game last night?", "I did not, but I heard that it was close until the end."),
    ("I think I will bake bread this weekend.", "That sounds lovely. A slow rise overnight gives the best taste."),
    ("My plants keep losing their leaves.", "They may be getting too much water. Let the soil dry first."),
    ("The train was late again today.", "That is annoying. Perhaps there is an earlier one that you could take."),
    ("Can you name a good book for a rainy day?", "A classic mystery is always a fine choice for a rainy day."),
    ("It has been raining for a week here.", "I hope that the sun comes back soon where you live."),
    ("I started to learn the guitar.", "Wonderful. Practise a little each day and it will come."),
    ("We painted the kitchen in a warm yellow.", "A warm yellow makes a room bright even in winter."),
    ("My cat sleeps on the keyboard.", "Cats like warm places, and they like to be where you are."),
    ("The new cafe around the corner is nice.", "It is good to have such a place close to home."),
    ("I walked ten kilometres along the river.", "That is a long walk. I hope that the view was worth it."),
    ("The printer at work is broken again.", "Printers seem to know when one is in a hurry."),
]


class Model:
    """Weights in 32-bit floats."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = lambda name: reader.fields[name].contents()
        self.tensors = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(numpy.float32) for t in reader.tensors}
        self.layers = field("llama.block_count")
        self.heads, self.groups = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
        self.size = self.tensors["blk.0.attn_q.weight"].shape[0] // self.heads
        self.eps, base = field("llama.attention.layer_norm_rms_epsilon"), field("llama.rope.freq_base")
        self.rates = base ** (-numpy.arange(0, self.size, 2) / self.size)
        self.tokenizer = tokenizer(field("tokenizer.ggml.tokens"), field("tokenizer.ggml.merges"))

    def norm(self, x, name):
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.tensors[name]

    def rotate(self, x, start):
        angles = (start + numpy.arange(x.shape[0]))[:, None] * self.rates
        cos, sin = (f(angles).astype(numpy.float32)[:, None] for f in (numpy.cos, numpy.sin))
        even, odd = x[..., ::2], x[..., 1::2]
        return numpy.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def forward(self, tokens, start, past, watch=None):
        """Logits of tokens at positions from `start` on, behind `past`, and what they add: for each layer and KV head the keys, the
        values and the biases. `watch` is given the queries of each layer."""
        weight = lambda layer, name: self.tensors[f"blk.{layer}.{name}.weight"]
        x, added = self.tensors["token_embd.weight"][tokens], []
        count = len(tokens)
        causal = numpy.triu(numpy.full((count, count), -numpy.inf, numpy.float32), 1)
        for layer in range(self.layers):
            h = self.norm(x, f"blk.{layer}.attn_norm.weight")
            shaped = lambda name: (h @ weight(layer, name).T).reshape(count, -1, self.size)
            q, k, v = self.rotate(shaped("attn_q"), start), self.rotate(shaped("attn_k"), start), shaped("attn_v")
            q = q.reshape(count, self.groups, -1, self.size)
            if watch:
                watch(layer, q)
            outs, rows = [], []
            for group in range(self.groups):
                k0, v0, b0 = past[layer][group] if past else (k[:0, 0], v[:0, 0], k[:0, 0, 0])
                keys, values = numpy.concatenate([k0, k[:, group]]), numpy.concatenate([v0, v[:, group]])
                logits = q[:, group] @ keys.T / math.sqrt(self.size)
                logits[..., : len(k0)] += b0
                logits[..., len(k0) :] += causal[:, None]
                outs.append(softmax(logits) @ values)
                rows.append((keys, values, numpy.concatenate([b0, numpy.zeros(count, numpy.float32)])))
            added.append(rows)
            x = x + numpy.stack(outs, 1).reshape(count, -1) @ weight(layer, "attn_output").T
            h = self.norm(x, f"blk.{layer}.ffn_norm.weight")
            gate = h @ weight(layer, "ffn_gate").T
            x = x + (gate / (1 + numpy.exp(-gate)) * (h @ weight(layer, "ffn_up").T)) @ weight(layer, "ffn_down").T
        return self.norm(x, "output_norm.weight"), added

    def logits(self, hidden):
        return hidden @ self.tensors.get("output.weight", self.tensors["token_embd.weight"]).T

    def greedy(self, tokens, start, past, limit):
        said = []
        for _ in range(limit):
            hidden, past = self.forward(tokens, start, past)
            start += len(tokens)
            tokens = [int(self.logits(hidden[-1]).argmax())]
            said += tokens
        return self.tokenizer.decode(said, skip_special_tokens=False)

    def encode(self, text):
        return self.tokenizer.encode(text).ids


def tokenizer(tokens, merges):
    vocab = {token: index for index, token in enumerate(tokens)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [tuple(merge.split(" ")) for merge in merges]))
    pre = tokenizers.pre_tokenizers
    made.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([token for token in tokens if token.startswith("<|") and token.endswith("|>")])
    return made


def softmax(logits):
    exp = numpy.exp(logits - logits.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


class Context:
    """A computed context, and how its repetition attends to it."""

    def __init__(self, model, tokens):
        self.model, self.tokens = model, tokens
        self.hidden, self.past = model.forward(tokens, 0, None)
        self.queries = {}
        model.forward(model.encode(TASK) + tokens[SINKS:], len(tokens), self.past, lambda layer, q: self.queries.update({layer: q}))

    @functools.cached_property
    def heads(self):
        return [self.head(layer, group) for layer in range(self.model.layers) for group in range(self.model.groups)]

    def head(self, layer, group):
        keys, values, _ = self.past[layer][group]
        q = self.queries[layer][:, group].reshape(-1, self.model.size)
        logits = q @ keys.T / math.sqrt(self.model.size)
        return logits, keys, values

    def compacted(self, keep, method):
        base, *fits = method.split("+")
        kept = self.chosen(keep, base)
        rows = [fitted(*head, chosen, fits) for head, chosen in zip(self.heads, kept)]
        groups = self.model.groups
        return [rows[at : at + groups] for at in range(0, len(rows), groups)]

    def chosen(self, keep, base):
        """Indices of the kept positions of each head."""
        attended = [softmax(logits) for logits, _, _ in self.heads]
        scores = numpy.stack([a.max(0) if base == "kvzip" else numpy.sqrt((a * a).mean(0)) for a in attended])
        scores[:, :SINKS] = numpy.inf
        budget = round(keep * scores.size)
        if base == "head":
            each = max(SINKS, budget // len(scores))
            return [numpy.sort(numpy.argsort(-row, kind="stable")[:each]) for row in scores]
        flat = numpy.zeros(scores.size, bool)
        flat[numpy.argsort(-scores, axis=None, kind="stable")[:budget]] = True
        return [numpy.flatnonzero(row) for row in flat.reshape(scores.shape)]


def fitted(logits, keys, values, chosen, fits):
    """Keys, values and biases that stand for all keys and values where the queries behind these logits attend to them."""
    some = logits[:, chosen]
    bias = numpy.zeros(len(chosen), numpy.float32)
    if "b" in fits:
        bias = numpy.log(mass(logits, some)).astype(numpy.float32)
    if "v" not in fits:
        return keys[chosen], values[chosen], bias
    x = softmax(some + bias).astype(numpy.float64)
    y = (softmax(logits) @ values).astype(numpy.float64)
    # What the kept values leave is fitted, so that a direction without queries keeps its value.
    gram = x.T @ x
    strength = 1e-3 * numpy.trace(gram) / len(gram)
    change = numpy.linalg.solve(gram + strength * numpy.eye(len(gram)), x.T @ (y - x @ values[chosen]))
    return keys[chosen], (values[chosen] + change).astype(numpy.float32), bias


def mass(logits, some):
    """Weights of the kept keys, each from e^-3 to e^3, so that their weighted exponentials are the sum of all: least squares of the
    relative error by accelerated projected gradients."""
    top = logits.max(-1, keepdims=True)
    part = numpy.exp(some - top) / numpy.exp(logits - top).sum(-1, keepdims=True)
    part = part.astype(numpy.float64)
    gram, aim = part.T @ part, part.sum(0)
    step = 1 / max(numpy.linalg.norm(gram, 2), 1e-12)
    weights = momentum = numpy.ones(len(gram))
    for turn in range(400):
        new = numpy.clip(momentum - step * (gram @ momentum - aim), math.exp(-3), math.exp(3))
        momentum = new + turn / (turn + 3) * (new - weights)
        weights = new
    return weights


def case(draws, model, length):
    """A conversation of about so many tokens with five facts, and the question for one of them with the beginning of its answer."""
    owners, words = draws.sample(NAMES, 5), draws.sample(WORDS, 5)
    facts = []
    for owner, word in zip(owners, words):
        thing = draws.choice(THINGS)
        value = word if thing.endswith(("name", "word")) else str(draws.randrange(10000, 99999))
        facts.append((f"{owner}'s {thing}", value))
    turn = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n".format
    told = [turn(f"Please remember that {what} is {value}.", "Noted.") for what, value in facts]
    turns, size = list(told), sum(len(model.encode(each)) for each in told)
    while size < length - 20:
        turns.append(turn(*draws.choice(TALK)))
        size += len(model.encode(turns[-1]))
    draws.shuffle(turns)
    context = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n" + "".join(turns)
    what, value = facts[0]
    return context, f"<|im_start|>user\nWhat is {what}?<|im_end|>\n<|im_start|>assistant\n{what} is", value


def recall(model, args, methods):
    draws, right, asked = random.Random(1), {}, 0
    for number in range(args.cases):
        text, question, value = case(draws, model, args.tokens)
        tokens, question = model.encode(text), model.encode(question)
        hidden, past = model.forward(tokens, 0, None)
        if value not in model.greedy(question, len(tokens), past, 10):
            continue
        asked += 1
        context = Context(model, tokens)
        for keep in args.keep:
            for method in methods:
                said = model.greedy(question, len(tokens), context.compacted(keep, method), 10)
                right[method, keep] = right.get((method, keep), 0) + (value in said)
        print(f"{number + 1} cases, {asked} right with everything kept:", {f"{m} {k}": n for (m, k), n in right.items()}, flush=True)
    table(args, methods, {cell: f"{n} of {asked}: {100 * n / asked:.0f}%" for cell, n in right.items()})


def prediction(model, args, methods):
    """What compaction of 384 tokens costs the prediction of the next 128."""
    tokens = model.encode(open(args.text, encoding="utf-8").read()[: args.windows * 4096])
    losses, whole = {}, []
    for window in range(args.windows):
        at = window * 512
        context, rest = tokens[at : at + 384], tokens[at + 384 : at + 512]
        computed = Context(model, context)
        whole.append(loss(model, rest, computed.past, len(context)))
        for keep in args.keep:
            for method in methods:
                past = computed.compacted(keep, method)
                losses.setdefault((method, keep), []).append(loss(model, rest, past, len(context)))
        mean = {f"{m} {k}": f"{100 * math.expm1(numpy.mean(l) - numpy.mean(whole)):+.1f}%" for (m, k), l in losses.items()}
        print(f"window {window + 1}, perplexity {math.exp(numpy.mean(whole)):.2f}:", mean, flush=True)
    table(args, methods, {cell: f"{100 * math.expm1(numpy.mean(l) - numpy.mean(whole)):+.1f}%" for cell, l in losses.items()})


def loss(model, tokens, past, start):
    hidden, _ = model.forward(tokens[:-1], start, past)
    logits = model.logits(hidden)
    top = logits.max(-1)
    return float((top + numpy.log(numpy.exp(logits - top[:, None]).sum(-1)) - logits[range(len(hidden)), tokens[1:]]).mean())


def table(args, methods, cells):
    print("\n| kept | " + " | ".join(f"{keep:g}" for keep in args.keep) + " |\n| --- |" + " ---: |" * len(args.keep))
    for method in methods:
        print(f"| `{method}` | " + " | ".join(cells[method, keep] for keep in args.keep) + " |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=480)
    parser.add_argument("--keep", type=float, nargs="+", default=[0.3, 0.1, 0.02])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--text")
    parser.add_argument("--windows", type=int, default=12)
    args = parser.parse_args()
    model = Model(args.model)
    recall(model, args, args.methods)
    if args.text:
        prediction(model, args, args.methods)


if __name__ == "__main__":
    main()
