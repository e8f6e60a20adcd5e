"""What kvpress keeps of a prompt: every press as published, and its scores under other budgets.

A press runs as its users run it, `with press(model)` around a prefill, and what it left in the cache is looked up
in the cache of a plain prefill. Only its scores are listened to on the way.
"""
import dataclasses
import logging

import kvpress
import torch
from transformers import DynamicCache

logging.getLogger("kvpress").setLevel(logging.ERROR)
WINDOW = 64


@dataclasses.dataclass
class Kept:
    """All but `group` are [layers, kv_heads, tokens]; positions of one `group` number compete, [layers, kv_heads]."""

    # As the press gives them.
    scores: torch.Tensor
    # As they compete: AdaKV raises the best of each head above all others.
    ranks: torch.Tensor
    kept: torch.Tensor
    group: torch.Tensor


def published(tokens):
    """Every press that keeps what is published, by name: from the share that it removes."""
    # SnapKV needs a prompt longer than its window.
    window = lambda rows: min(rows, max(1, tokens // 2))
    snap = lambda removed: kvpress.SnapKVPress(removed, window_size=window(WINDOW))
    expected = kvpress.ExpectedAttentionPress
    return {
        "StreamingLLM": kvpress.StreamingLLMPress,
        "Knorm": kvpress.KnormPress,
        "KeyDiff": kvpress.KeyDiffPress,
        "H2O": kvpress.ObservedAttentionPress,
        "SnapKV": snap,
        "SnapKV_w16": lambda removed: kvpress.SnapKVPress(removed, window_size=window(16)),
        "PyramidKV": lambda removed: kvpress.PyramidKVPress(removed, window_size=window(WINDOW)),
        "AdaSnapKV": lambda removed: kvpress.AdaKVPress(snap(removed)),
        "Expected": expected,
        "Expected_e2": lambda removed: expected(removed, epsilon=1e-2),
        "AdaExpected": lambda removed: kvpress.AdaKVPress(expected(removed)),
        "AdaExpected_e2": lambda removed: kvpress.AdaKVPress(expected(removed, epsilon=1e-2)),
        "KVzip": kvpress.KVzipPress,
    }


# Scores that are also divided otherwise: name, sign, and over which heads positions compete.
DIVIDED = [
    *(("value norm", 1, over) for over in ("head", "layer", "all")),
    *(("Knorm", -1, over) for over in ("head", "layer", "all")),
    *((name, 1, over) for name in ("KeyDiff", "H2O", "Expected_e2") for over in ("layer", "all")),
    *(("KVzip", 1, over) for over in ("head", "layer")),
]
BUDGET = {"head": "budget per head", "layer": "budget per layer", "all": "one budget"}


class Prompt:
    """A prompt, computed once without any press."""

    def __init__(self, model, ids):
        self.model, self.ids, self.tokens = model, torch.tensor([ids]), len(ids)
        config = model.config
        self.shape = (config.num_hidden_layers, config.num_key_value_heads, len(ids))
        self.cache = self.computed("eager")
        self.heads = [self.positions_of(layer.keys[0]) for layer in self.cache.layers]

    def computed(self, attention):
        self.model.set_attn_implementation(attention)
        cache = DynamicCache()
        self.model.model(input_ids=self.ids, past_key_values=cache)
        return cache

    @staticmethod
    def positions_of(keys):
        """For each head, the position of each key by its bytes."""
        heads = [{key.numpy().tobytes(): i for i, key in enumerate(head)} for head in keys]
        assert all(len(head) == keys.shape[1] for head in heads), "two positions have the same key"
        return heads

    def all_kept(self, removed):
        """What every press keeps when it removes this share, by name."""
        kept = {name: self.kept(make(removed)) for name, make in published(self.tokens).items()}
        norms = torch.stack([layer.values[0].norm(dim=-1) for layer in self.cache.layers])
        for name, sign, over in DIVIDED:
            scores = sign * (norms if name == "value norm" else kept[name].scores)
            label = ("Knorm reversed" if sign < 0 else name) + ", " + BUDGET[over]
            kept[label] = divided(scores, removed, over)
        return kept

    def kept(self, press):
        if isinstance(press, kvpress.KVzipPress):
            return self.kept_by_kvzip(press)
        adaptive = isinstance(press, kvpress.AdaKVPress)
        scores, ranks = listen(press.press if adaptive else press)
        # The presses that mask instead of removing refuse to run with eager attention.
        self.model.set_attn_implementation("sdpa" if adaptive else "eager")
        cache = DynamicCache()
        with press(self.model):
            self.model.model(input_ids=self.ids, past_key_values=cache)
        kept = self.not_masked() if adaptive else self.looked_up(cache)
        return Kept(torch.cat(scores), torch.cat(ranks), kept, groups(self.shape, "layer" if adaptive else "head"))

    def kept_by_kvzip(self, press):
        scores, after = [], press.compress_post

        def compress_post(model):
            after(model)
            scores.append(press.score_val[:, 0].clone())

        press.compress_post = compress_post
        self.model.set_attn_implementation("sdpa")
        with press(self.model):
            self.model.model(input_ids=self.ids, past_key_values=DynamicCache())
        return Kept(scores[0], scores[0], self.not_masked(), groups(self.shape, "all"))

    def looked_up(self, cache):
        kept = torch.zeros(self.shape, dtype=torch.bool)
        for layer, heads in enumerate(self.heads):
            for head, positions in enumerate(heads):
                keys = cache.layers[layer].keys[0, head]
                kept[layer, head, [positions[key.numpy().tobytes()] for key in keys]] = True
        return kept

    def not_masked(self):
        kept = torch.ones(self.shape, dtype=torch.bool)
        for layer, module in enumerate(self.model.model.layers):
            _, heads, positions = module.self_attn.masked_key_indices
            kept[layer, heads, positions] = False
            module.self_attn.masked_key_indices = None
        return kept

    def repeat_words(self):
        """What KVzip puts around the prompt: tokens before the first message, the request, what precedes an answer."""
        press = kvpress.KVzipPress(0.5)
        found = {}
        prepare = press.prepare

        def listening(model, tokenizer, **options):
            pieces = prepare(model, tokenizer, **options)
            suffix = press._suffix_ids[0].tolist()
            context, behind = (piece[0].tolist() for piece in pieces[0])
            ask = behind[: len(behind) - len(context) - len(suffix)]
            found.update(prefix=press.prefix_length, ask=ask, suffix=suffix)
            return pieces

        press.prepare = listening
        self.kept_by_kvzip(press)
        return found


def listen(press):
    """The scores that a press gives from now on, one [1, kv_heads, tokens] a layer, and what becomes of each."""
    scores, ranks, score = [], [], press.score

    def listening(*args):
        ranks.append(score(*args))
        scores.append(ranks[-1].clone())
        return ranks[-1]

    press.score = listening
    return scores, ranks


def groups(shape, over):
    layers, heads = shape[:2]
    number = torch.arange(layers * heads).view(layers, heads)
    return {"head": number, "layer": number // heads, "all": number * 0}[over]


def divided(scores, removed, over):
    """The best of `scores` where the positions of a head, of a layer's heads or of all heads compete.

    The heads of a layer keep together as many as each would keep by itself, which is how AdaKV has it.
    """
    layers, heads, tokens = scores.shape
    share = lambda positions: positions * (100 - round(100 * removed)) // 100
    rows, count = {
        "head": (scores.flatten(0, 1), share(tokens)),
        "layer": (scores.view(layers, -1), heads * share(tokens)),
        "all": (scores.view(1, -1), share(layers * heads * tokens)),
    }[over]
    kept = torch.zeros(rows.shape, dtype=torch.bool).scatter_(1, rows.topk(count).indices, True)
    return Kept(scores, scores, kept.view(scores.shape), groups(scores.shape, over))
