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
        experts_used=4, experts_d_ff=2880, experts_bias=True, theta=150000.0, keys={"attention.sliding_window": 128},
    ), 32064, "MXFP4_MOE"),
    "qwen3moe-30b-2-layers": (Shape(
        "qwen3moe-30b-2-layers", "qwen3moe", d_model=2048, d_ff=6144, layers=2, heads=32, kv_heads=4, head_dim=128,
        qk_norm="head", experts=128, experts_used=8, experts_d_ff=768, theta=1e6,
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
