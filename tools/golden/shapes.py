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
    rope: str = "none"  # none, linear, yarn, llama3, long
    spread: float = 3.0  # standard deviation of the logits
    seed: int = 1
    norms: str = "before"  # before, after, around the halves of a layer
    qk_norm: str = ""  # "", head, all
    qkv_bias: bool = False
    fused: tuple = ()  # of "qkv", "ffn", "kv_b": stored as one tensor
    o_bias: bool = False
    sinks: bool = False
    ffn_norm: str = "ffn_norm"  # what the norm before the feed-forward half is called
    experts: int = 0
    experts_used: int = 2
    experts_d_ff: int = 24
    experts_bias: bool = False
    widths_said: bool = True  # whether the file says the widths of experts
    selection_bias: bool = False
    shared_d_ff: int = 0
    shared_gate: bool = False
    dense_layers: int = 0
    experts_interval: int = 1
    rope_dims: int = 0  # of each head; 0 is all
    kv_rank: int = 0  # of latent attention; heads then have keys of head_dim and values of value_dim
    q_rank: int = 0  # of latent attention; 0 where queries come from the stream
    value_dim: int = 0
    sharing: int = 0  # layers at the end that read the keys and values of others
    sharing_stored: bool = False  # whether those have projections to keys and values all the same, which nobody reads
    full: tuple = ()  # layers without a window, where they differ from the others
    full_kv_heads: int = 0  # of those layers, which then have no projection to values
    full_head_dim: int = 0  # of those layers
    wide: tuple = ()  # layers whose feed-forward half is twice as wide
    per_layer: int = 0  # width of the embeddings of every layer
    altup: int = 0  # residual streams
    laurel: int = 0  # rank of the path beside attention
    mixed: bool = False  # whether a dense layer stands beside the experts
    output_scale: bool = False
    gelu: float = 1.0  # how much parts with GELU add; llama.cpp computes it in half precision
    beyond: int = 0  # layers behind the last that predict tokens beyond the next one: prediction heads
    head_output: bool = False  # whether a head has an embedding and an output matrix of its own
    head_repeats: bool = False  # whether a head computes what the only layer before it does
    recurrence: str = ""  # "", short, delta, delta-mixed, delta-legacy, mamba
    recurrent: tuple = ()  # layers that keep a state
    ffn_alone: tuple = ()  # layers that are a feed-forward half alone; where there are some, each layer is one half
    conv_width: int = 4
    ssm_heads: int = 4
    ssm_key_heads: int = 2
    ssm_key_dim: int = 20
    ssm_inner: int = 80
    conv_bias: bool = False
    gated: bool = False  # projections to queries that give gates, too
    ffn_gate: bool = True
    ffn_bias: bool = False
    output_norm: str = "output_norm"
    keys: dict = dataclasses.field(default_factory=dict)  # further metadata, without the architecture's prefix


# Widths that divide by no vector length and heads that do not add up to the width find wrong assumptions.
ARCHITECTURES = [
    Shape("llama-gqa", "llama"),
    Shape("llama-tied", "llama", tied=True, seed=2),
    Shape("llama-mha", "llama", kv_heads=4, seed=33),
    Shape("llama-mqa", "llama", kv_heads=1, seed=4),
    Shape("llama-rope-llama3", "llama", rope="llama3", seed=5),
    Shape("llama-rope-linear", "llama", rope="linear", seed=66),
    Shape("llama-rope-yarn", "llama", rope="yarn", seed=7),
    Shape("qwen2", "qwen2", d_model=64, theta=1e6, qkv_bias=True, seed=8),
    Shape("qwen2-tied-yarn", "qwen2", d_model=48, heads=3, kv_heads=1, tied=True, rope="yarn", qkv_bias=True, seed=9),
    Shape("qwen3", "qwen3", theta=1e6, qk_norm="head", seed=110),
    Shape("qwen3-tied", "qwen3", tied=True, heads=6, kv_heads=3, qk_norm="head", seed=11),
    Shape("llama-fused", "llama", fused=("qkv",), seed=12),
    Shape("llama-rope-long", "llama", rope="long", seed=13),
    Shape(
        "mistral3", "mistral3", rope="yarn", seed=14,
        keys={"attention.temperature_scale": 0.3, "rope.scaling.yarn_log_multiplier": 1.0},
    ),
    Shape("mistral3-plain", "mistral3", rope="yarn", tied=True, kv_heads=1, seed=15),
    Shape("smollm3", "smollm3", layers=5, tied=True, seed=16),
    Shape("olmo2", "olmo2", d_model=64, norms="after", qk_norm="all", seed=17),
    Shape(
        "granite", "granite", seed=18,
        keys={"embedding_scale": 3.0, "residual_scale": 0.4, "attention.scale": 0.2, "logit_scale": 1.5},
    ),
    Shape("phi3", "phi3", d_model=64, fused=("qkv", "ffn"), seed=20),
    Shape("phi3-long", "phi3", d_model=64, rope="long", tied=True, fused=("qkv", "ffn"), seed=41),
    Shape("gemma2", "gemma2", norms="around", tied=True, layers=3, seed=22, keys={"attention.sliding_window": 24}),
    Shape(
        "gemma3", "gemma3", norms="around", tied=True, layers=7, qk_norm="head", theta=1e6, seed=23,
        keys={"attention.sliding_window": 20, "rope.scaling.factor": 8.0},
    ),
    # What llama.cpp takes for granted: 20 layers that store, four streams, widths of 64 and 256.
    Shape(
        "gemma3n", "gemma3n", norms="around", tied=True, layers=23, d_model=24, d_ff=40, heads=2, kv_heads=1, head_dim=8,
        qk_norm="head", theta=1e6, seed=34, gelu=0.1, sharing=3, sharing_stored=True, per_layer=256, altup=4, laurel=64,
        full=(4, 9, 14, 19, 21),
        keys={
            "attention.sliding_window": 20, "attention.shared_kv_layers": 3, "altup.num_inputs": 4, "altup.active_idx": 0,
            "embedding_length_per_layer_input": 256,
            "activation_sparsity_scale": [1.6448533535003662] * 10 + [-math.inf] * 13,
            "attention.sliding_window_pattern": [i not in (4, 9, 14, 19, 21) for i in range(23)],
        },
    ),
    Shape(
        "gemma4", "gemma4", norms="around", tied=True, layers=7, qk_norm="head", theta=1e6, seed=35, gelu=0.3, rope_dims=32,
        full=(2, 5), full_kv_heads=1, full_head_dim=32, output_scale=True,
        keys={
            "attention.sliding_window": 20, "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0,
            "final_logit_softcapping": 30.0, "rope.dimension_count_swa": 16, "rope.freq_base_swa": 5000.0,
            "attention.sliding_window_pattern": [i not in (2, 5) for i in range(7)],
        },
    ),
    Shape(
        "gemma4-shared", "gemma4", norms="around", tied=True, layers=8, qk_norm="head", theta=1e6, seed=36, gelu=0.3,
        kv_heads=1, rope_dims=32, full=(2, 4, 7), full_kv_heads=1, full_head_dim=32, sharing=3, wide=(5, 6, 7), per_layer=24,
        output_scale=True,
        keys={
            "attention.sliding_window": 18, "attention.shared_kv_layers": 3, "embedding_length_per_layer_input": 24,
            "rope.dimension_count_swa": 8, "attention.sliding_window_pattern": [i not in (2, 4, 7) for i in range(8)],
        },
    ),
    Shape(
        "gemma4-experts", "gemma4", norms="around", tied=True, layers=4, qk_norm="head", theta=1e6, seed=37, gelu=0.3,
        rope_dims=32, full=(1, 3), full_kv_heads=2, full_head_dim=32, experts=6, experts_used=3, mixed=True,
        fused=("experts",), output_scale=True,
        keys={
            "attention.sliding_window": 19, "embedding_length_per_layer_input": 0, "rope.dimension_count_swa": 16,
            "attention.sliding_window_pattern": [i not in (1, 3) for i in range(4)],
        },
    ),
    # llama.cpp rounds the pair at which YaRN's transition ends, and kvik does not: this one ends at a whole pair, the third.
    Shape(
        "gpt-oss", "gpt-oss", rope="yarn", ffn_norm="post_attention_norm", qkv_bias=True, o_bias=True, sinks=True,
        experts=6, experts_bias=True, d_model=64, experts_d_ff=32, seed=24,
        keys={"attention.sliding_window": 17, "rope.scaling.yarn_beta_slow": 0.322107},
    ),
    Shape("llama-experts", "llama", experts=5, experts_d_ff=56, seed=25),
    Shape("qwen2moe", "qwen2moe", d_model=64, qkv_bias=True, experts=6, shared_d_ff=40, shared_gate=True, seed=26),
    # As old files of Qwen1.5-MoE say it: the width of a token's experts together, which is also that of the shared one.
    Shape("qwen2moe-old", "qwen2moe", d_model=64, qkv_bias=True, experts=6, experts_d_ff=28, shared_d_ff=56, shared_gate=True, seed=42,
          widths_said=False),
    Shape("qwen3moe", "qwen3moe", qk_norm="head", experts=8, experts_used=3, seed=27),
    Shape("granitemoe", "granitemoe", experts=6, experts_d_ff=56, shared_d_ff=40, seed=28, keys={"logit_scale": 1.5}),
    Shape("olmoe", "olmoe", d_model=64, kv_heads=4, qk_norm="all", experts=6, experts_d_ff=56, seed=29),
    Shape("glm4", "glm4", norms="around", fused=("ffn",), qkv_bias=True, rope_dims=8, seed=32),
    # The text of GLM-4.1V.
    Shape("glm4-sections", "glm4", norms="around", fused=("ffn",), qkv_bias=True, rope_dims=8, seed=43,
          keys={"rope.dimension_sections": [2, 1, 1, 0]}),
    Shape("deepseek", "deepseek", d_model=64, layers=3, experts=6, shared_d_ff=48, dense_layers=1, seed=33,
          keys={"expert_shared_count": 2}),
    Shape(
        "glm4moe", "glm4moe", ffn_norm="post_attention_norm", qkv_bias=True, qk_norm="head", layers=3, experts=6,
        shared_d_ff=24, selection_bias=True, dense_layers=1, seed=30,
        keys={"expert_shared_count": 1, "expert_weights_norm": True, "expert_weights_scale": 1.3},
    ),
    Shape(
        "llama4", "llama4", layers=4, experts=6, experts_used=1, shared_d_ff=24, experts_interval=2, seed=31,
        keys={"interleave_moe_layer_step": 2},
    ),
    # Latent attention as DeepSeek V2-Lite's old files have it, as V3 has it, and as others do.
    Shape(
        "deepseek2-lite", "deepseek2", kv_heads=4, head_dim=24, rope_dims=8, kv_rank=24, value_dim=16, fused=("kv_b",),
        rope="yarn", layers=3, experts=6, shared_d_ff=48, dense_layers=1, seed=34,
        keys={"expert_shared_count": 2, "rope.scaling.yarn_log_multiplier": 0.0707, "attention.q_lora_rank": 0,
              "expert_weights_scale": 1.0},
    ),
    Shape(
        "deepseek2", "deepseek2", d_model=64, head_dim=24, rope_dims=8, kv_rank=56, q_rank=20, value_dim=16, rope="yarn",
        layers=3, experts=8, experts_used=3, selection_bias=True, shared_d_ff=24, dense_layers=1, seed=35,
        keys={"expert_shared_count": 1, "expert_gating_func": 2, "expert_group_count": 4, "expert_group_used_count": 2,
              "expert_weights_norm": True, "expert_weights_scale": 2.5, "rope.scaling.yarn_log_multiplier": 0.1},
    ),
    Shape(
        "deepseek2-dense", "deepseek2", heads=3, head_dim=16, rope_dims=6, kv_rank=20, q_rank=24, value_dim=14,
        rope="yarn", tied=True, dense_layers=2, seed=36,
        keys={"expert_shared_count": 0, "expert_feed_forward_length": 56, "attention.temperature_scale": 0.3,
              "attention.temperature_length": 16, "rope.scaling.attn_factor": 1.1},
    ),
    Shape(
        "lfm2", "lfm2", d_model=64, layers=4, qk_norm="head", tied=True, recurrence="short", recurrent=(0, 1, 3),
        conv_width=3, output_norm="token_embd_norm", theta=1e6, seed=50,
    ),
    Shape(
        "lfm2-window", "lfm2", d_model=64, layers=3, qk_norm="head", tied=True, recurrence="short", recurrent=(1,),
        conv_width=4, output_norm="token_embd_norm", seed=51, keys={"attention.sliding_window": 19},
    ),
    Shape(
        "lfm2moe", "lfm2moe", d_model=64, layers=4, qk_norm="head", tied=True, recurrence="short", recurrent=(0, 2),
        conv_width=3, output_norm="token_embd_norm", experts=6, selection_bias=True, dense_layers=1, seed=52,
        keys={"expert_gating_func": 2},
    ),
    Shape(
        "qwen35", "qwen35", layers=5, qk_norm="head", gated=True, recurrence="delta", recurrent=(0, 1, 2, 4),
        ffn_norm="post_attention_norm", rope_dims=8, seed=53,
        keys={"full_attention_interval": 4, "rope.dimension_sections": [2, 1, 1, 0]},
    ),
    Shape(
        "qwen35-short", "qwen35", layers=2, qk_norm="head", gated=True, recurrence="delta", recurrent=(0,), tied=True,
        ffn_norm="post_attention_norm", ssm_heads=6, ssm_key_dim=16, ssm_inner=96, conv_width=3, rope_dims=12, seed=54,
        keys={"full_attention_interval": 2, "rope.dimension_sections": [2, 2, 2, 0]},
    ),
    Shape(
        "qwen35moe", "qwen35moe", d_model=64, layers=4, qk_norm="head", gated=True, recurrence="delta",
        recurrent=(0, 1, 2), ffn_norm="post_attention_norm", rope_dims=8, experts=6, shared_d_ff=40, shared_gate=True,
        seed=55, keys={"rope.dimension_sections": [2, 1, 1, 0]},
    ),
    Shape(
        "qwen3next", "qwen3next", d_model=64, layers=4, qk_norm="head", gated=True, recurrence="delta-mixed",
        recurrent=(0, 2, 3), ffn_norm="post_attention_norm", rope_dims=8, experts=6, shared_d_ff=40, shared_gate=True,
        seed=56, keys={"attention.recurrent_layers": [True, False, True, True]},
    ),
    Shape(
        "qwen3next-legacy", "qwen3next", d_model=64, layers=2, qk_norm="head", gated=True, recurrence="delta-legacy",
        recurrent=(0,), ffn_norm="post_attention_norm", rope_dims=8, experts=6, shared_d_ff=40, shared_gate=True,
        ssm_heads=6, ssm_inner=120, seed=57, keys={"full_attention_interval": 2},
    ),
    Shape(
        "granitehybrid", "granitehybrid", layers=4, recurrence="mamba", recurrent=(0, 2, 3), conv_bias=True,
        ssm_key_dim=24, seed=58,
        keys={"embedding_scale": 3.0, "residual_scale": 0.4, "attention.scale": 0.2, "logit_scale": 1.5,
              "rope.scaling.finetuned": False},
    ),
    Shape(
        "granitehybrid-experts", "granitehybrid", d_model=64, layers=3, recurrence="mamba", recurrent=(0, 1),
        conv_bias=True, ssm_heads=8, ssm_key_heads=1, ssm_key_dim=16, ssm_inner=128, experts=6, experts_d_ff=56, shared_d_ff=40, seed=59,
        keys={"logit_scale": 1.5},
    ),
    # Bamba.
    Shape("granitehybrid-rotated", "granitehybrid", layers=3, recurrence="mamba", recurrent=(0, 2), conv_bias=True,
          rope_dims=8, seed=62),
    Shape(
        "nemotron_h", "nemotron_h", layers=6, recurrence="mamba", recurrent=(0, 4), ffn_alone=(1, 3, 5), conv_bias=True,
        ssm_key_dim=18, ffn_gate=False, ffn_bias=True, seed=60, keys={"attention.layer_norm_epsilon": 1e-5},
    ),
    Shape(
        "nemotron_h_moe", "nemotron_h_moe", d_model=64, layers=4, recurrence="mamba", recurrent=(0, 3), ffn_alone=(1,),
        conv_bias=True, ffn_gate=False, experts=6, shared_d_ff=40, selection_bias=True, seed=61,
        keys={"attention.layer_norm_epsilon": 1e-5, "expert_weights_norm": True, "expert_weights_scale": 1.3,
              "expert_shared_count": 1},
    ),
    Shape(
        "granite-unrotated", "granite", tied=True, kv_heads=4, seed=19,
        keys={"logit_scale": 0.7, "rope.scaling.finetuned": False},
    ),
]

# Models with a prediction head: those above, with the same numbers, and a layer behind their last. So llama.cpp's answers
# on those are the answers of these, too; what the head says is computed by heads.py.
HEADS = [
    dataclasses.replace(shape, name=f"head-{shape.name}", beyond=1, head_output=shape.name == "glm4moe")
    for shape in ARCHITECTURES
    if shape.name in ("deepseek2", "glm4moe", "qwen35", "qwen3next")
]
# A head that is nearly always right: it sees all but the first position of what its trunk sees.
REPEATS = Shape(
    "head-repeats", "glm4moe", ffn_norm="post_attention_norm", qkv_bias=True, qk_norm="head", layers=1, experts=6,
    shared_d_ff=24, selection_bias=True, seed=70, beyond=1, head_repeats=True,
    keys={"expert_shared_count": 1, "expert_weights_norm": True, "expert_weights_scale": 1.3},
)

# Rows of 96 and 160 weights make three and five blocks of 32; K-quants need rows that divide by 256.
# Engines that quantise activations to 8 bits differ from exact arithmetic by a KL divergence that grows with the square
# of the spread: at 3 it is 1e-3 and more, which would hide what these models are to show.
NARROW = Shape("narrow", "llama", d_model=96, d_ff=160, layers=1, heads=3, kv_heads=1, head_dim=32, spread=1.5, seed=21)
WIDE = Shape(
    "wide", "qwen3", d_model=256, d_ff=256, layers=1, heads=4, kv_heads=1, head_dim=64, tied=True, spread=1.5, seed=22,
    qk_norm="head",
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
    for name, values in (repeating if shape.head_repeats else dict)(tensors(shape)).items():
        w.add_tensor(name, values)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_config(w, s):
    # llama.cpp looks for special tokens in the vocabulary of a model that is called Phi-3.
    w.add_name(f"random-{s.name.replace('phi3', 'phi')}")
    w.add_file_type(0)
    w.add_block_count(s.layers + s.beyond)
    if s.beyond:
        w.add_nextn_predict_layers(s.beyond)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(s.d_model)
    ffn = [s.d_ff * 2 if i in s.wide else s.d_ff * (i in s.ffn_alone or not s.ffn_alone) for i in range(s.layers)]
    w.add_feed_forward_length(ffn if s.wide or s.ffn_alone else s.d_ff)
    w.add_head_count(s.heads)
    if s.kv_rank:
        write_latent(w, s)
    else:
        write_recurrence(w, s)
        w.add_key_length(s.full_head_dim or s.head_dim)
        w.add_value_length(s.full_head_dim or s.head_dim)
    if s.full_head_dim:
        w.add_key_length_swa(s.head_dim)
        w.add_value_length_swa(s.head_dim)
    w.add_rope_dimension_count(s.rope_dims or s.head_dim)
    w.add_rope_freq_base(s.theta)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(len(TOKENS))
    if s.rope in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(s.rope))
        w.add_rope_scaling_factor(4.0)
        w.add_rope_scaling_orig_ctx_len(TRAINED_CONTEXT)
    if s.rope == "long":
        w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        w.add_rope_scaling_orig_ctx_len(TRAINED_CONTEXT)
        w.add_rope_scaling_attn_factors(1.2)
    if s.experts:
        w.add_expert_count(s.experts)
        w.add_expert_used_count(s.experts_used)
        if s.widths_said:
            w.add_expert_feed_forward_length(s.experts_d_ff)
        if s.shared_d_ff and s.widths_said:
            w.add_expert_shared_feed_forward_length(s.shared_d_ff)
    if s.dense_layers:
        w.add_leading_dense_block_count(s.dense_layers)
    for key, value in s.keys.items():
        add_key(w, f"{s.arch}.{key}", value)


def write_recurrence(w, s):
    """Key and value heads, and the numbers of layers that keep a state."""
    attends = [i not in s.recurrent and i not in s.ffn_alone for i in range(s.layers)]
    by_layer = s.recurrence in ("short", "mamba")
    heads = [heads_of(s, i)[0] * (attends[i] or not by_layer) for i in range(s.layers)]
    w.add_head_count_kv(heads if by_layer or len(set(heads)) > 1 else s.kv_heads)
    if s.recurrence == "short":
        w.add_shortconv_l_cache(s.conv_width)
    elif s.recurrence:
        w.add_ssm_conv_kernel(s.conv_width)
        w.add_ssm_inner_size(s.ssm_inner)
        w.add_ssm_state_size(s.ssm_key_dim)
        w.add_ssm_time_step_rank(s.ssm_heads)
        w.add_ssm_group_count(s.ssm_key_heads)


def write_latent(w, s):
    w.add_kv_lora_rank(s.kv_rank)
    if s.q_rank:
        w.add_q_lora_rank(s.q_rank)
    if "kv_b" in s.fused:
        w.add_head_count_kv(s.heads)
        w.add_key_length(s.head_dim)
        w.add_value_length(s.value_dim)
    else:
        w.add_head_count_kv(1)
        w.add_key_length(s.kv_rank + s.rope_dims)
        w.add_value_length(s.kv_rank)
        w.add_key_length_mla(s.head_dim)
        w.add_value_length_mla(s.value_dim)


def add_key(w, key, value):
    if isinstance(value, bool):
        w.add_bool(key, value)
    elif isinstance(value, int):
        w.add_uint32(key, value)
    elif isinstance(value, float):
        w.add_float32(key, value)
    else:
        w.add_array(key, value)


def write_tokenizer(w):
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(TOKENS)
    w.add_token_types([1] * (len(TOKENS) - 3) + [3] * 3)
    w.add_token_merges(["t h"])  # one, because readers reject a list of none
    w.add_eos_token_id(len(TOKENS) - 1)
    w.add_bos_token_id(len(TOKENS) - 3)
    w.add_add_bos_token(False)


def heads_of(s, layer):
    """Key/value heads of a layer, and their dimensions."""
    is_own = layer in s.full
    return is_own and s.full_kv_heads or s.kv_heads, is_own and s.full_head_dim or s.head_dim


def tensors(s):
    """Names and values in file order; every matrix is [rows, cols]."""
    rng = np.random.default_rng(s.seed)
    normal = lambda *dims, std: (rng.standard_normal(dims) * std).astype(np.float32)
    norm = lambda n, mean=1.0: (mean + 0.2 * rng.standard_normal(n)).astype(np.float32)
    unit = 1 / math.sqrt(s.d_model)

    # Gemma's embeddings are multiplied, so its layers have to add more.
    after = 8.0 if s.norms == "around" else 1.0

    # A tied model whose layers add little repeats its last token for ever, so its embedding is the smaller part.
    yield "token_embd.weight", normal(len(TOKENS), s.d_model, std=s.spread * unit if s.tied else 1.0)
    yield f"{s.output_norm}.weight", norm(s.d_model)
    if not s.tied:
        yield "output.weight", normal(len(TOKENS), s.d_model, std=s.spread * unit)
    if s.rope == "llama3":
        yield "rope_freqs.weight", llama3_divisors(s)
    if s.rope == "long":
        for name, low, high in (("long", 1, 8), ("short", 0.8, 1.2)):
            yield f"rope_factors_{name}.weight", rng.uniform(low, high, s.head_dim // 2).astype(np.float32)
    if s.full_head_dim:
        # A quarter of the dimensions rotates, as in the models.
        pairs = s.full_head_dim // 2
        yield "rope_freqs.weight", np.where(np.arange(pairs) < pairs // 4, 1, 1e30).astype(np.float32)
    yield from around_layers(s, normal, norm, unit)
    for i in range(s.layers + s.beyond):
        b = f"blk.{i}."
        if i >= s.layers:
            yield from joined(s, b, normal, norm, unit)
        if s.norms != "after":
            yield b + "attn_norm.weight", norm(s.d_model)
        if i in s.recurrent:
            yield from recurrent(s, b, normal, norm, rng)
        elif s.kv_rank:
            yield from latent(s, b, normal, norm)
        elif i not in s.ffn_alone:
            yield from attention(s, i, b, normal, norm)
        if s.ffn_alone and i not in s.ffn_alone:
            continue
        if s.norms != "before":
            yield b + "post_attention_norm.weight", norm(s.d_model, after)
        if s.norms != "after" and not s.ffn_alone:
            yield f"{b}{s.ffn_norm}.weight", norm(s.d_model)
        yield from around_layer(s, b, normal, norm, unit, after)
        if s.mixed:
            yield b + "post_ffw_norm_1.weight", norm(s.d_model)
            yield b + "pre_ffw_norm_2.weight", norm(s.d_model)
            yield b + "post_ffw_norm_2.weight", norm(s.d_model)
            yield b + "ffn_gate_inp.scale", norm(s.d_model, math.sqrt(s.d_model))
            yield b + "ffn_down_exps.scale", norm(s.experts)
            yield from experts(s, b, normal, unit)
        elif s.experts and i >= s.dense_layers and (i + 1) % s.experts_interval == 0:
            yield from experts(s, b, normal, unit)
            continue
        d_ff = s.d_ff * 2 if i in s.wide else s.d_ff
        gate, up = normal(d_ff, s.d_model, std=1.5 * unit), normal(d_ff, s.d_model, std=1.5 * unit)
        if "ffn" in s.fused:
            yield b + "ffn_up.weight", np.concatenate([gate, up])
        else:
            if s.ffn_gate:
                yield b + "ffn_gate.weight", gate
            yield b + "ffn_up.weight", up
        if s.ffn_bias:
            yield b + "ffn_up.bias", normal(s.d_ff, std=0.5)
            yield b + "ffn_down.bias", normal(s.d_model, std=0.5)
        yield b + "ffn_down.weight", normal(s.d_model, d_ff, std=2 / math.sqrt(d_ff))
        if s.norms != "before":
            yield b + "post_ffw_norm.weight", norm(s.d_model, after) * np.float32(s.gelu)


def repeating(tensors):
    """The tensors of a model of one layer, with a head of the same layer that sees nothing but embeddings."""
    values = dict(tensors)
    embedding = values["token_embd.weight"]
    # A head norms what it looks up.
    embedding /= np.sqrt((embedding * embedding).mean(axis=1, keepdims=True))
    d = embedding.shape[1]
    values["blk.1.nextn.eh_proj.weight"] = np.eye(d, 2 * d, dtype=np.float32)
    values["blk.1.nextn.enorm.weight"] = np.ones(d, np.float32)
    values["blk.1.nextn.shared_head_norm.weight"] = values["output_norm.weight"]
    for name in values:
        if name.startswith("blk.0."):
            values[name.replace("blk.0.", "blk.1.")] = values[name]
    return values


def joined(s, b, normal, norm, unit):
    """The tensors of a prediction head beside those of its decoder layer."""
    yield b + "nextn.eh_proj.weight", normal(s.d_model, 2 * s.d_model, std=unit)
    yield b + "nextn.enorm.weight", norm(s.d_model)
    yield b + "nextn.hnorm.weight", norm(s.d_model)
    yield b + "nextn.shared_head_norm.weight", norm(s.d_model)
    if s.head_output:
        yield b + "nextn.embed_tokens.weight", normal(len(TOKENS), s.d_model, std=1.0)
        yield b + "nextn.shared_head_head.weight", normal(len(TOKENS), s.d_model, std=s.spread * unit)


def around_layers(s, normal, norm, unit):
    """What stands around the residual stream before the first layer and behind the last."""
    d, all_layers = s.d_model, s.layers * s.per_layer
    if s.altup:
        yield "altup_proj.weight", normal(s.altup - 1, d, d, std=unit)
        yield "altup_unembd_proj.weight", normal(s.altup - 1, d, d, std=unit)
    if s.per_layer:
        # Its rows are looked up: quantised, they are the same numbers in every engine.
        table = normal(len(TOKENS), all_layers, std=1 / math.sqrt(s.per_layer))
        yield "per_layer_token_embd.weight", table.astype(np.float16)
        yield "per_layer_model_proj.weight", normal(all_layers, d, std=1.0)
        yield "per_layer_proj_norm.weight", norm(s.per_layer)


def around_layer(s, b, normal, norm, unit, after):
    """The same in a layer."""
    d = s.d_model
    if s.altup:
        yield b + "altup_correct_coef.weight", normal(s.altup, s.altup, std=0.3)
        yield b + "altup_correct_scale.weight", norm(d)
        yield b + "altup_predict_coef.weight", normal(s.altup * s.altup, s.altup, std=0.1)
        yield b + "altup_router.weight", normal(s.altup, d, std=0.7 * math.sqrt(d))
        yield b + "altup_router_norm.weight", norm(d)
    if s.laurel:
        yield b + "laurel_l.weight", normal(s.laurel, d, std=unit)
        yield b + "laurel_r.weight", normal(d, s.laurel, std=1 / math.sqrt(s.laurel))
        yield b + "laurel_post_norm.weight", norm(d, after)
    if s.per_layer:
        yield b + "inp_gate.weight", normal(s.per_layer, d, std=unit)
        yield b + "proj.weight", normal(d, s.per_layer, std=1 / math.sqrt(s.per_layer))
        yield b + "post_norm.weight", norm(d, after) * np.float32(s.gelu)
    if s.output_scale:
        yield b + "layer_output_scale.weight", norm(1, 0.9)


def attention(s, layer, b, normal, norm):
    """The tensors of attention."""
    kv_heads, head_dim = heads_of(s, layer)
    q, kv, unit = s.heads * head_dim, kv_heads * head_dim, 1 / math.sqrt(s.d_model)
    has_own = layer < s.layers - s.sharing or layer >= s.layers or s.sharing_stored
    projections = [
        ("q", normal(2 * q if s.gated else q, s.d_model, std=1.5 * unit)),
        ("k", normal(kv, s.d_model, std=1.5 * unit)),
        ("v", normal(kv, s.d_model, std=2 * unit)),
    ]
    if layer in s.full and s.full_kv_heads:
        projections.pop()
    if not has_own:
        projections = projections[:1]
    if "qkv" in s.fused:
        projections = [("qkv", np.concatenate([matrix for _, matrix in projections]))]
    for part, matrix in projections:
        yield f"{b}attn_{part}.weight", matrix
    if s.qkv_bias:
        for part, matrix in projections:
            yield f"{b}attn_{part}.bias", normal(len(matrix), std=0.5)
    if s.qk_norm:
        # Where scores are not divided by a root they are kept small here.
        mean = 0.5 if s.arch in ("gemma3n", "gemma4") else 1.4
        yield b + "attn_q_norm.weight", norm(head_dim if s.qk_norm == "head" else q, mean)
        if has_own:
            yield b + "attn_k_norm.weight", norm(head_dim if s.qk_norm == "head" else kv, mean)
    yield b + "attn_output.weight", normal(s.d_model, q, std=2 / math.sqrt(q))
    if s.o_bias:
        yield b + "attn_output.bias", normal(s.d_model, std=0.5)
    if s.sinks:
        yield b + "attn_sinks.weight", normal(s.heads, std=1.5)


def recurrent(s, b, normal, norm, rng):
    """The tensors of a layer that keeps a state."""
    d, heads, inner, unit = s.d_model, s.ssm_heads, s.ssm_inner, 1 / math.sqrt(s.d_model)
    if s.recurrence == "short":
        yield b + "shortconv.in_proj.weight", normal(3 * d, d, std=1.5 * unit)
        yield b + "shortconv.conv.weight", normal(d, s.conv_width, std=1.0)
        yield b + "shortconv.out_proj.weight", normal(d, d, std=unit)
        return
    channels = inner + 2 * s.ssm_key_heads * s.ssm_key_dim
    mamba = s.recurrence == "mamba"
    if s.recurrence in ("delta", "delta-mixed"):
        yield b + "attn_qkv.weight", normal(channels, d, std=1.5 * unit)
        yield b + "attn_gate.weight", normal(inner, d, std=1.5 * unit)
    else:
        yield b + "ssm_in.weight", normal(inner + channels + heads * mamba, d, std=1.5 * unit)
    if s.recurrence == "delta":
        yield b + "ssm_beta.weight", normal(heads, d, std=1.5 * unit)
        yield b + "ssm_alpha.weight", normal(heads, d, std=1.5 * unit)
    elif not mamba:
        yield b + "ssm_ba.weight", normal(2 * heads, d, std=1.5 * unit)
    yield b + "ssm_conv1d.weight", normal(channels, s.conv_width, std=0.7)
    if s.conv_bias:
        yield b + "ssm_conv1d.bias", normal(channels, std=0.3)
    yield b + "ssm_dt.bias", normal(heads, std=0.5)
    # States that last between one position and a hundred.
    decay = -np.exp(rng.uniform(math.log(0.01), math.log(2), heads)).astype(np.float32)
    yield b + "ssm_a", decay[:, None] if mamba else decay
    if mamba:
        yield b + "ssm_d", normal(heads, 1, std=1.0)
        yield b + "ssm_norm.weight", norm(inner).reshape(s.ssm_key_heads, -1)
    else:
        yield b + "ssm_norm.weight", norm(s.ssm_key_dim)
    yield b + "ssm_out.weight", normal(d, inner, std=2 / math.sqrt(inner))


def latent(s, b, normal, norm):
    """The tensors of latent attention."""
    unrotated, q, unit = s.head_dim - s.rope_dims, s.heads * s.head_dim, 1 / math.sqrt(s.d_model)
    if s.q_rank:
        yield b + "attn_q_a.weight", normal(s.q_rank, s.d_model, std=unit)
        yield b + "attn_q_a_norm.weight", norm(s.q_rank)
        yield b + "attn_q_b.weight", normal(q, s.q_rank, std=1.5 / math.sqrt(s.q_rank))
    else:
        yield b + "attn_q.weight", normal(q, s.d_model, std=1.5 * unit)
    yield b + "attn_kv_a_mqa.weight", normal(s.kv_rank + s.rope_dims, s.d_model, std=1.5 * unit)
    yield b + "attn_kv_a_norm.weight", norm(s.kv_rank)
    keys = normal(s.heads, unrotated, s.kv_rank, std=1.5 / math.sqrt(s.kv_rank))
    values = normal(s.heads, s.value_dim, s.kv_rank, std=2 / math.sqrt(s.kv_rank))
    if "kv_b" in s.fused:
        yield b + "attn_kv_b.weight", np.concatenate([keys, values], axis=1).reshape(-1, s.kv_rank)
    else:
        yield b + "attn_k_b.weight", np.ascontiguousarray(keys.transpose(0, 2, 1))
        yield b + "attn_v_b.weight", values
    attended = s.heads * s.value_dim
    yield b + "attn_output.weight", normal(s.d_model, attended, std=2 / math.sqrt(attended))


def experts(s, b, normal, unit):
    """The tensors of a mixture of experts."""
    d, d_ff, count = s.d_model, s.experts_d_ff, s.experts
    yield b + "ffn_gate_inp.weight", normal(count, d, std=2 * unit)
    gate = normal(count, d_ff, d, std=1.5 * unit) if s.ffn_gate else None
    up = normal(count, d_ff, d, std=1.5 * unit)
    if "experts" in s.fused:
        yield b + "ffn_gate_up_exps.weight", np.concatenate([gate, up], axis=1)
    else:
        if s.ffn_gate:
            yield b + "ffn_gate_exps.weight", gate
        yield b + "ffn_up_exps.weight", up
    yield b + "ffn_down_exps.weight", normal(count, d, d_ff, std=2 / math.sqrt(d_ff))
    if s.experts_bias:
        yield b + "ffn_gate_inp.bias", normal(count, std=0.5)
        yield b + "ffn_gate_exps.bias", normal(count, d_ff, std=0.5)
        yield b + "ffn_up_exps.bias", normal(count, d_ff, std=0.5)
        yield b + "ffn_down_exps.bias", normal(count, d, std=0.5)
    if s.selection_bias:
        yield b + "exp_probs_b.bias", normal(count, std=0.3)
    if s.shared_d_ff:
        if s.ffn_gate:
            yield b + "ffn_gate_shexp.weight", normal(s.shared_d_ff, d, std=1.5 * unit)
        yield b + "ffn_up_shexp.weight", normal(s.shared_d_ff, d, std=1.5 * unit)
        yield b + "ffn_down_shexp.weight", normal(d, s.shared_d_ff, std=2 / math.sqrt(s.shared_d_ff))
    if s.shared_gate:
        yield b + "ffn_gate_inp_shexp.weight", normal(d, std=2 * unit)


def llama3_divisors(s, factor=8.0, low=1.0, high=4.0):
    """Divisors of the frequencies, [head_dim / 2], as Llama 3.1 files carry them."""
    freqs = s.theta ** (-np.arange(0, s.head_dim, 2) / s.head_dim)
    wavelengths = 2 * np.pi / freqs
    smooth = np.clip((TRAINED_CONTEXT / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
