#!/usr/bin/env python3
"""Write model files in the shapes of published models whose layers differ, with random weights.

    pip install gguf numpy
    bench/kinds/shapes.py --list
    bench/kinds/shapes.py --quantize llama.cpp/build/bin/llama-quantize --into models [gemma3-1b ...]

Speed and memory depend on shapes and types, not on weights. Of mixtures of experts that would not fit a small machine
there are a few layers, which the name says. The vocabulary has the published size and means nothing.
"""
import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/golden"))
import shapes  # noqa: E402
from shapes import Shape  # noqa: E402

CONTEXT = 32768
# The shape, its vocabulary, and the type it is quantised to.
MODELS = {
    "gemma3-1b": (Shape(
        "gemma3-1b", "gemma3", d_model=1152, d_ff=6912, layers=26, heads=4, kv_heads=1, head_dim=256, tied=True,
        norms="around", qk_norm="head", theta=1e6, keys={"attention.sliding_window": 512},
    ), 262144, "Q8_0"),
    "qwen3-0.6b": (Shape(
        "qwen3-0.6b", "qwen3", d_model=1024, d_ff=3072, layers=28, heads=16, kv_heads=8, head_dim=128, tied=True,
        qk_norm="head", theta=1e6,
    ), 151936, "Q8_0"),
    "qwen35-0.8b": (Shape(
        "qwen35-0.8b", "qwen35", d_model=1024, d_ff=3584, layers=24, heads=8, kv_heads=2, head_dim=256, tied=True,
        qk_norm="head", gated=True, recurrence="delta", recurrent=tuple(i for i in range(24) if i % 4 != 3),
        ffn_norm="post_attention_norm", rope_dims=64, theta=1e7, ssm_heads=16, ssm_key_heads=16, ssm_key_dim=128,
        ssm_inner=2048, keys={"full_attention_interval": 4, "rope.dimension_sections": [11, 11, 10, 0]},
    ), 248320, "Q8_0"),
    "lfm2-350m": (Shape(
        "lfm2-350m", "lfm2", d_model=1024, d_ff=4608, layers=16, heads=16, kv_heads=8, head_dim=64, tied=True,
        qk_norm="head", recurrence="short", recurrent=(0, 1, 3, 4, 6, 7, 9, 11, 13, 15), conv_width=3,
        output_norm="token_embd_norm", theta=1e6,
    ), 65536, "Q8_0"),
    "gpt-oss-2-layers": (Shape(
        "gpt-oss-2-layers", "gpt-oss", d_model=2880, d_ff=2880, layers=2, heads=64, kv_heads=8, head_dim=64,
        rope="yarn", ffn_norm="post_attention_norm", qkv_bias=True, o_bias=True, sinks=True, experts=32,
        experts_used=4, experts_d_ff=2880, experts_bias=True, theta=150000.0,
        # The transition of YaRN ends at a whole pair, the seventh, to which llama.cpp rounds it.
        keys={"attention.sliding_window": 128, "rope.scaling.yarn_beta_slow": 0.7511561},
    ), 32064, "MXFP4_MOE"),
    "qwen3moe-30b-2-layers": (Shape(
        "qwen3moe-30b-2-layers", "qwen3moe", d_model=2048, d_ff=6144, layers=2, heads=32, kv_heads=4, head_dim=128,
        qk_norm="head", experts=128, experts_used=8, experts_d_ff=768, theta=1e6,
    ), 32064, "Q8_0"),
    "ministral3-3b-6-layers": (Shape(
        "ministral3-3b-6-layers", "mistral3", d_model=3072, d_ff=9216, layers=6, heads=32, kv_heads=8, head_dim=128,
        tied=True, rope="yarn", theta=1e6,
        keys={"attention.temperature_scale": 0.1, "rope.scaling.yarn_log_multiplier": 1.0},
    ), 131072, "Q8_0"),
    "smollm3-3b-8-layers": (Shape(
        "smollm3-3b-8-layers", "smollm3", d_model=2048, d_ff=11008, layers=8, heads=16, kv_heads=4, head_dim=128,
        tied=True, theta=5e6,
    ), 128256, "Q8_0"),
    "phi4-mini-6-layers": (Shape(
        "phi4-mini-6-layers", "phi3", d_model=3072, d_ff=8192, layers=6, heads=24, kv_heads=8, head_dim=128, tied=True,
        fused=("qkv", "ffn"), rope="long",
    ), 200064, "Q8_0"),
    "olmo2-1b": (Shape(
        "olmo2-1b", "olmo2", d_model=2048, d_ff=8192, layers=16, heads=16, kv_heads=16, head_dim=128, norms="after",
        qk_norm="all", theta=5e5,
    ), 100352, "Q8_0"),
    "granite3-2b-8-layers": (Shape(
        "granite3-2b-8-layers", "granite", d_model=2048, d_ff=8192, layers=8, heads=32, kv_heads=8, head_dim=64,
        tied=True, theta=1e7,
        keys={"embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.015625, "logit_scale": 8.0},
    ), 49152, "Q8_0"),
    "gemma2-2b-8-layers": (Shape(
        "gemma2-2b-8-layers", "gemma2", d_model=2304, d_ff=9216, layers=8, heads=8, kv_heads=4, head_dim=256, tied=True,
        norms="around",
        keys={"attention.sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ), 256000, "Q8_0"),
    "glm4-9b-4-layers": (Shape(
        "glm4-9b-4-layers", "glm4", d_model=4096, d_ff=13696, layers=4, heads=32, kv_heads=2, head_dim=128,
        norms="around", fused=("ffn",), qkv_bias=True, rope_dims=64,
    ), 151552, "Q8_0"),
    "granitemoe-1b": (Shape(
        "granitemoe-1b", "granitemoe", d_model=1024, d_ff=512, layers=24, heads=16, kv_heads=8, head_dim=64, tied=True,
        experts=32, experts_used=8, experts_d_ff=512,
        keys={"embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.015625, "logit_scale": 6.0},
    ), 49152, "Q8_0"),
    "deepseek-v2-lite-4-layers": (Shape(
        "deepseek-v2-lite-4-layers", "deepseek2", d_model=2048, d_ff=10944, layers=4, heads=16, kv_heads=16,
        head_dim=192, rope_dims=64, kv_rank=512, value_dim=128, rope="yarn", dense_layers=1, experts=64, experts_used=6,
        experts_d_ff=1408, shared_d_ff=2816,
        keys={"expert_shared_count": 2, "expert_weights_scale": 1.0, "rope.scaling.yarn_log_multiplier": 0.0707,
              "attention.q_lora_rank": 0},
    ), 102400, "Q8_0"),
    "glm45-air-2-layers": (Shape(
        "glm45-air-2-layers", "glm4moe", d_model=4096, d_ff=10944, layers=2, heads=96, kv_heads=8, head_dim=128,
        qkv_bias=True, rope_dims=64, ffn_norm="post_attention_norm", dense_layers=1, experts=64, experts_used=8,
        experts_d_ff=1408, shared_d_ff=1408, selection_bias=True, theta=1e6,
        keys={"expert_shared_count": 1, "expert_weights_norm": True, "expert_weights_scale": 1.0},
    ), 32064, "Q8_0"),
    "granite4-h-350m": (Shape(
        "granite4-h-350m", "granitehybrid", d_model=768, d_ff=2048, layers=32, heads=12, kv_heads=4, head_dim=64,
        tied=True, recurrence="mamba", recurrent=tuple(i for i in range(32) if i not in (10, 13, 17, 27)),
        conv_bias=True, ssm_heads=48, ssm_key_heads=1, ssm_key_dim=128, ssm_inner=1536,
        keys={"embedding_scale": 12.0, "residual_scale": 0.246, "attention.scale": 0.015625, "logit_scale": 3.0,
              "rope.scaling.finetuned": False},
    ), 100352, "Q8_0"),
    "nemotron-h-4b-8-layers": (Shape(
        "nemotron-h-4b-8-layers", "nemotron_h", d_model=3072, d_ff=12288, layers=8, heads=32, kv_heads=8, head_dim=128,
        recurrence="mamba", recurrent=(0, 2, 4, 7), ffn_alone=(1, 3, 6), conv_bias=True, ssm_heads=112,
        ssm_key_heads=8, ssm_key_dim=128, ssm_inner=7168, ffn_gate=False,
        keys={"attention.layer_norm_epsilon": 1e-5},
    ), 131072, "Q8_0"),
    "qwen3next-80b-4-layers": (Shape(
        "qwen3next-80b-4-layers", "qwen3next", d_model=2048, d_ff=5120, layers=4, heads=16, kv_heads=2, head_dim=256,
        qk_norm="head", gated=True, recurrence="delta-mixed", recurrent=(0, 1, 2), ffn_norm="post_attention_norm",
        rope_dims=64, theta=1e7, experts=128, experts_used=10, experts_d_ff=512, shared_d_ff=512, shared_gate=True,
        ssm_heads=32, ssm_key_heads=16, ssm_key_dim=128, ssm_inner=4096,
        keys={"full_attention_interval": 4},
    ), 32064, "Q8_0"),
}


def make(name, folder, quantize):
    shape, vocabulary, kind = MODELS[name]
    target = folder / f"{name}-{kind.lower()}.gguf"
    if target.exists():
        return target
    shapes.CONTEXT = CONTEXT
    shapes.TOKENS = shapes.TOKENS[:99] + [f"[{index}]" for index in range(99, vocabulary)]
    plain = folder / f"{name}-f32.gguf"
    shapes.write(plain, shape)
    subprocess.run([quantize, plain, target, kind, "2"], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    plain.unlink()
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--quantize", help="llama.cpp's llama-quantize")
    parser.add_argument("--into", type=pathlib.Path, default=pathlib.Path("."))
    args = parser.parse_args()
    if args.list:
        print("\n".join(MODELS))
        return
    for name in args.names or MODELS:
        print(make(name, args.into, args.quantize), flush=True)


if __name__ == "__main__":
    main()
