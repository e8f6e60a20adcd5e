"""Answers to long prompts: llama.cpp's choice at every position, its whole row of logits at some."""
import base64
import json

import numpy as np

import peer

# Around windows of 17 to 24 positions, around blocks of 16, and far beyond both.
POSITIONS = [0, 1, 16, 17, 23, 24, 25, 63, 64, 127, 255, 511, 1023, 1500, 2047, 2500, 2999]
# Around the edge of a chunk of 8,192 positions.
CHUNK_POSITIONS = [8000, 8191, 8192, 8193, 8799]
# Choices are listed as near where the two largest logits differ by less than this part of the largest.
NEAR = 0.005


def write(path, model, seed, ids, chunks):
    """Writes the answers of a model to a prompt made of the first `ids` tokens of its vocabulary."""
    positions = POSITIONS + CHUNK_POSITIONS * chunks
    tokens = prompt(seed, positions[-1] + 1, ids)
    llama = peer.Peer(model, peer.F32, context=len(tokens) + 64)
    choices, near, rows = [], [], []
    for position, logits in llama.rows(tokens):
        second, first = np.sort(logits)[-2:]
        margin = float((first - second) / np.abs(logits).max())
        choices.append(int(logits.argmax()))
        if margin < NEAR:
            near.append([position, float(f"{margin:.3g}")])
        if position in positions:
            rows.append(logits)
    llama.close()
    packed = lambda values, kind: base64.b64encode(np.array(values, kind).tobytes()).decode()
    golden = dict(seed=seed, ids=ids, positions=positions, choices=packed(choices, "u1"), rows=packed(rows, "<f4"),
                  near=near)
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"{path.stem:32} distinct {len(set(choices)):3}  near choices {len(near):4}  {path.stat().st_size} bytes")


def prompt(seed, length, ids):
    """Tokens that readers make from the seed."""
    return [mix(seed << 32 | index) % ids for index in range(length)]


def mix(bits):
    """A bijection of 64 bits that looks like chance: SplitMix64, as `kvik_testing::mix`."""
    mask = (1 << 64) - 1
    bits = (bits + 0x9E3779B97F4A7C15) & mask
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & mask
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & mask
    return bits ^ bits >> 31
