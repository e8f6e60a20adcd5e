"""Small random models in GGUF: every architecture, every form of rope, and shapes that can be quantised."""
import dataclasses
import math

import gguf
import numpy as np


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    arch: str
    d_model: int = 40
    d_ff: int = 56
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    tied: bool = False
    theta: float = 10000.0
    rope: str = "none"  # none, linear, yarn, llama3
    spread: float = 3.0  # standard deviation of the logits
    seed: int = 1


# Widths that divide by no vector length and heads that do not add up to the width find wrong assumptions.
ARCHITECTURES = [
    Shape("llama-gqa", "llama"),
    Shape("llama-tied", "llama", tied=True, seed=2),
    Shape("llama-mha", "llama", kv_heads=4, seed=33),
    Shape("llama-mqa", "llama", kv_heads=1, seed=4),
    Shape("llama-rope-llama3", "llama", rope="llama3", seed=5),
    Shape("llama-rope-linear", "llama", rope="linear", seed=66),
    Shape("llama-rope-yarn", "llama", rope="yarn", seed=7),
    Shape("qwen2", "qwen2", d_model=64, theta=1e6, seed=8),
    Shape("qwen2-tied-yarn", "qwen2", d_model=48, heads=3, kv_heads=1, tied=True, rope="yarn", seed=9),
    Shape("qwen3", "qwen3", theta=1e6, seed=110),
    Shape("qwen3-tied", "qwen3", tied=True, heads=6, kv_heads=3, seed=11),
]

# Rows of 96 and 160 weights make three and five blocks of 32; K-quants need rows that divide by 256.
# Engines that quantise activations to 8 bits differ from exact arithmetic by a KL divergence that grows with the square
# of the spread: at 3 it is 1e-3 and more, which would hide what these models are to show.
NARROW = Shape("narrow", "llama", d_model=96, d_ff=160, layers=1, heads=3, kv_heads=1, head_dim=32, spread=1.5, seed=21)
WIDE = Shape(
    "wide", "qwen3", d_model=256, d_ff=256, layers=1, heads=4, kv_heads=1, head_dim=64, tied=True, spread=1.5, seed=22
)

TRAINED_CONTEXT = 64
CONTEXT = 1024
# Printable ASCII, a space and a newline in byte-level spelling, and three special tokens: 99 rows.
TOKENS = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write(path, shape):
    """Writes the model of one shape as F32."""
    w = gguf.GGUFWriter(str(path), shape.arch)
    write_config(w, shape)
    write_tokenizer(w)
    for name, values in tensors(shape):
        w.add_tensor(name, values)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_config(w, s):
    w.add_name(f"random-{s.name}")
    w.add_file_type(0)
    w.add_block_count(s.layers)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(s.d_model)
    w.add_feed_forward_length(s.d_ff)
    w.add_head_count(s.heads)
    w.add_head_count_kv(s.kv_heads)
    w.add_key_length(s.head_dim)
    w.add_value_length(s.head_dim)
    w.add_rope_dimension_count(s.head_dim)
    w.add_rope_freq_base(s.theta)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(len(TOKENS))
    if s.rope in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(s.rope))
        w.add_rope_scaling_factor(4.0)
        w.add_rope_scaling_orig_ctx_len(TRAINED_CONTEXT)


def write_tokenizer(w):
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(TOKENS)
    w.add_token_types([1] * (len(TOKENS) - 3) + [3] * 3)
    w.add_token_merges(["t h"])  # one, because readers reject a list of none
    w.add_eos_token_id(len(TOKENS) - 1)
    w.add_bos_token_id(len(TOKENS) - 3)
    w.add_add_bos_token(False)


def tensors(s):
    """Names and values in file order; every matrix is [rows, cols]."""
    rng = np.random.default_rng(s.seed)
    normal = lambda *dims, std: (rng.standard_normal(dims) * std).astype(np.float32)
    norm = lambda n, mean=1.0: (mean + 0.2 * rng.standard_normal(n)).astype(np.float32)
    q, kv, unit = s.heads * s.head_dim, s.kv_heads * s.head_dim, 1 / math.sqrt(s.d_model)

    # A tied model whose layers add little repeats its last token for ever, so its embedding is the smaller part.
    yield "token_embd.weight", normal(len(TOKENS), s.d_model, std=s.spread * unit if s.tied else 1.0)
    yield "output_norm.weight", norm(s.d_model)
    if not s.tied:
        yield "output.weight", normal(len(TOKENS), s.d_model, std=s.spread * unit)
    if s.rope == "llama3":
        yield "rope_freqs.weight", llama3_divisors(s)
    for i in range(s.layers):
        b = f"blk.{i}."
        yield b + "attn_norm.weight", norm(s.d_model)
        yield b + "attn_q.weight", normal(q, s.d_model, std=1.5 * unit)
        yield b + "attn_k.weight", normal(kv, s.d_model, std=1.5 * unit)
        yield b + "attn_v.weight", normal(kv, s.d_model, std=2 * unit)
        if s.arch == "qwen2":
            for part, rows in (("q", q), ("k", kv), ("v", kv)):
                yield f"{b}attn_{part}.bias", normal(rows, std=0.5)
        if s.arch == "qwen3":
            yield b + "attn_q_norm.weight", norm(s.head_dim, 1.4)
            yield b + "attn_k_norm.weight", norm(s.head_dim, 1.4)
        yield b + "attn_output.weight", normal(s.d_model, q, std=2 / math.sqrt(q))
        yield b + "ffn_norm.weight", norm(s.d_model)
        yield b + "ffn_gate.weight", normal(s.d_ff, s.d_model, std=1.5 * unit)
        yield b + "ffn_up.weight", normal(s.d_ff, s.d_model, std=1.5 * unit)
        yield b + "ffn_down.weight", normal(s.d_model, s.d_ff, std=2 / math.sqrt(s.d_ff))


def llama3_divisors(s, factor=8.0, low=1.0, high=4.0):
    """Divisors of the frequencies, [head_dim / 2], as Llama 3.1 files carry them."""
    freqs = s.theta ** (-np.arange(0, s.head_dim, 2) / s.head_dim)
    wavelengths = 2 * np.pi / freqs
    smooth = np.clip((TRAINED_CONTEXT / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
