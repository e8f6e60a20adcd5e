"""Golden vectors for weight types, from the `gguf` package (the numpy twin of ggml's reference code).

For every quantised type: NAME.blocks holds blocks of random bits with sane half floats, NAME.values what they mean.
x.values holds inputs for the quantisers, NAME.quantised what the reference makes of them.
"""

import os

import numpy as np
from gguf import GGMLQuantizationType as T, GGML_QUANT_SIZES, quants

HERE = os.path.dirname(os.path.abspath(__file__))
# Byte offsets of the half floats in a block.
HALVES = {
    T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.IQ4_NL: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}


def save(name, array):
    array.tofile(os.path.join(HERE, name))


rng = np.random.default_rng(2026)
for ty, halves in HALVES.items():
    length, size = GGML_QUANT_SIZES[ty]
    blocks = rng.integers(0, 256, (512 // length, size), dtype=np.uint8)
    for at in halves:
        d = rng.normal(0, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = d.view(np.uint8).reshape(-1, 2)
    save(f"{ty.name.lower()}.blocks", blocks)
    save(f"{ty.name.lower()}.values", quants.dequantize(blocks, ty).astype(np.float32))

x = rng.normal(0, 1, 512).astype(np.float32)
x[32:64] = 0
x[64:96] *= 1e-30
x[96:128] *= 1e4
x[128:160] = np.linspace(-127, 128, 32)
x[160:192] = -x[128:160]
save("x.values", x)
for ty in [T.Q8_0, T.Q4_0, T.BF16, T.F16]:
    save(f"{ty.name.lower()}.quantised", quants.quantize(x, ty))

blocks = rng.integers(0, 256, (16, 17), dtype=np.uint8)
blocks[:, 0] = rng.integers(112, 124, 16)
blocks[:3, 0] = [0, 1, 254]
save("mxfp4.blocks", blocks)
save("mxfp4.values", quants.dequantize(blocks, T.MXFP4).astype(np.float32))
