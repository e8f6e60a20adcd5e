"""Ways to take runs that were computed elsewhere: which of their tokens are computed again.

| way         | computes again                                                                            |
|-------------|-------------------------------------------------------------------------------------------|
| `none`      | nothing; the keys are rotated to where they now stand                                     |
| `first`     | the first tokens of each run: EPIC's LegoLink (arXiv 2410.15332)                          |
| `deviation` | those whose keys and values deviate most in layer 1: CacheBlend (arXiv 2405.16444)        |
| `both`      | the first 8 of each run and, up to the same share in all, those that deviate most         |

`deviation` and `both` compute layer 0 of all tokens besides, and the keys and values of layer 1.
"""
import dataclasses

import numpy as np

from reference import Cache

# Tokens at the beginning of each run of `both`.
FIRST_OF_BOTH = 8
COUNTS = (8, 16, 32, 64)
SHARES = (5, 15, 30, 50)


@dataclasses.dataclass(frozen=True)
class Way:
    """`count` tokens of each run, or `share` of all reused tokens."""

    rule: str
    count: int = 0
    share: float = 0.0


def known_ways():
    """All ways by name; `exact` takes nothing from elsewhere."""
    ways = {"exact": Way("exact"), "none": Way("first")}
    ways |= {f"first-{count}": Way("first", count=count) for count in COUNTS}
    rules = [(rule, share) for share in SHARES for rule in ("first", "deviation", "both")]
    return ways | {f"{rule}-{share}%": Way(rule, share=share / 100) for rule, share in rules}


class Joined:
    """The tokens of a prompt, its runs as `(start, end)`, and a cache with the runs in their places."""

    def __init__(self, model, encode, prompt):
        parts = [encode(text) for text in prompt.segments]
        ends = np.cumsum([len(part) for part in parts])
        self.tokens = np.concatenate(parts)
        self.runs = [(ends[i] - len(parts[i]), ends[i]) for i in sorted(prompt.reused)]
        self.reused = np.zeros(len(self.tokens), bool)
        for start, end in self.runs:
            self.reused[start:end] = True
        self.cache = Cache(model.shape, len(self.tokens))
        self.take(model, encode, prompt)

    def take(self, model, encode, prompt):
        """Computes the earlier prompts and copies each run from the one in which it stood."""
        texts = [prompt.segments[i] for i in sorted(prompt.reused)]
        for earlier in prompt.earlier:
            parts = [encode(text) for text in earlier]
            tokens = np.concatenate(parts)
            cache = Cache(model.shape, len(tokens))
            model.compute(tokens, np.arange(len(tokens)), cache)
            at = 0
            for text, part in zip(earlier, parts):
                if text in texts:
                    start, end = self.runs[texts.index(text)]
                    self.cache.copy_from(cache, at, start, end - start)
                at += len(part)


def join(model, joined, way, room):
    """The cache of the prompt, with `room` more positions, and how many of the reused tokens were computed again."""
    cache = Cache(model.shape, len(joined.tokens) + room)
    cache.copy_from(joined.cache, 0, 0, len(joined.tokens))
    chosen = ~joined.reused
    if way.rule == "exact":
        chosen[:] = True
    if way.rule in ("first", "both"):
        for start, end in joined.runs:
            count = FIRST_OF_BOTH if way.rule == "both" else way.count or round(way.share * (end - start))
            chosen[start : min(start + count, end)] = True
    hidden, first = None, 0
    if way.rule in ("deviation", "both"):
        hidden, first = choose(model, joined, cache, chosen, way.share), 1
    rows = np.flatnonzero(chosen)
    model.compute(joined.tokens[rows], rows, cache, None if hidden is None else hidden[rows], first)
    return cache, int((chosen & joined.reused).sum())


def choose(model, joined, cache, chosen, share):
    """Computes layer 0, and chooses up to `share` of the reused tokens by what they are in layer 1."""
    every = np.arange(len(joined.tokens))
    hidden = model.embed(joined.tokens)
    cache.keys[0, every], cache.values[0, every] = model.keys_values(0, hidden)
    hidden = model.layer(0, hidden, every, cache)
    keys, values = model.keys_values(1, hidden)
    deviation = distance(keys, cache.keys[1, every]) + distance(values, cache.values[1, every])
    deviation[chosen] = -1
    left = round(share * joined.reused.sum()) - int((chosen & joined.reused).sum())
    chosen[np.argsort(-deviation)[: max(left, 0)]] = True
    return hidden


def distance(new, old):
    """Squared distance of each row, relative to the mean squared length of the new ones."""
    return ((new - old) ** 2).sum((1, 2)) / (new**2).sum((1, 2)).mean()
