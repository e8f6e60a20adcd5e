"""OpenVINO GenAI on a GGUF file, asked like `kvik bench`: prefill and decode, as JSON on standard output.

    venv/bin/python bench/compare/genai_bench.py -m model.gguf -p 512 -n 64 -d 0 -t 2 -r 3 --kv f16 --sequences 1

It runs as OpenVINO GenAI does by itself: paged attention, a prompt in one piece, and a prefix cache, which holds the
tokens of the depth. Before the samples of a figure one more is taken, which does not count.
"""
import argparse
import json
import random
import sys
from dataclasses import dataclass

import openvino
import openvino_genai

# Its name of each of kvik's KV formats.
KV = {"f16": "f16", "bf16": "bf16", "q8": "u8", "q4": "u4"}
# Tokens of a block of its cache on a processor.
BLOCK = 32


def main():
    args = arguments()
    pipeline = loaded(args)
    bench = Bench(pipeline, len(pipeline.get_tokenizer().get_vocab()), args.sequences)
    depth = bench.tokens(args.depth)
    results = [result(args, tokens, 0, 1, lambda: bench.prefill(depth, tokens)) for tokens in args.prompt]
    results += [result(args, 0, tokens, args.sequences, lambda: bench.decode(depth, tokens)) for tokens in args.generate]
    print(json.dumps(results))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=version())
    parser.add_argument("-m", dest="model", required=True)
    parser.add_argument("-p", dest="prompt", type=numbers, default=[], help="prefill lengths, 0 for none")
    parser.add_argument("-n", dest="generate", type=numbers, default=[], help="tokens to decode, 0 for none")
    parser.add_argument("-d", dest="depth", type=int, default=0, help="tokens already in the cache")
    parser.add_argument("-t", dest="threads", type=int, required=True)
    parser.add_argument("-r", dest="samples", type=int, default=1)
    parser.add_argument("--kv", choices=KV, default="f16")
    parser.add_argument("--sequences", type=int, default=1, help="decode this many together, behind the same depth")
    parser.add_argument("--precision", choices=("f32", "bf16", "f16"), help="what it computes in, instead of its own choice")
    return parser.parse_args()


def version():
    """With what it computes in unless it is told, which it chooses by the processor."""
    precision = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    return f"OpenVINO GenAI {openvino_genai.__version__}, computes in {precision}"


def numbers(text):
    return [int(number) for number in text.split(",") if number != "0"]


def loaded(args):
    """As it would be by itself, except that the cache has its size from the start: OpenVINO 2026.4 crashes where a u4 one grows."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.max_num_batched_tokens = sys.maxsize
    scheduler.num_kv_blocks = blocks(args)
    settings = {"INFERENCE_NUM_THREADS": args.threads, "KV_CACHE_PRECISION": KV[args.kv]}
    settings |= {"INFERENCE_PRECISION_HINT": args.precision} if args.precision else {}
    return openvino_genai.LLMPipeline(args.model, "CPU", scheduler_config=scheduler, **settings)


def blocks(args):
    """Enough for a sample, and as many for what earlier ones left behind."""
    each = max(args.prompt + args.generate, default=0) // BLOCK + 2
    return 2 * (args.depth // BLOCK + 1 + args.sequences * each)


def result(args, prompt, generate, sequences, sample):
    samples = [sample() for _ in range(1 + args.samples)][1:]
    sizes = {"n_prompt": prompt, "n_gen": generate, "n_depth": args.depth, "n_sequences": sequences}
    return sizes | {"type_k": args.kv, "type_v": args.kv, "samples_ts": samples}


@dataclass(frozen=True)
class Bench:
    pipeline: openvino_genai.LLMPipeline
    vocabulary: int
    sequences: int

    def tokens(self, count):
        """Others every time, so that no sample finds its own in the prefix cache."""
        return random.choices(range(self.vocabulary), k=count)

    def prefill(self, depth, count):
        """Tokens per second until the first answer."""
        self.fill(depth)
        return 1000 * count / self.generate([depth + self.tokens(count)], 1).get_ttft().mean

    def decode(self, depth, count):
        """Tokens per second of all sequences. Each begins with a token of its own; what follows its answer is timed."""
        self.fill(depth)
        prompts = [depth + self.tokens(1) for _ in range(self.sequences)]
        return 1000 / self.generate(prompts, 1 + count).get_tpot().mean

    def fill(self, depth):
        """Has the depth in the prefix cache; that costs next to nothing once it is there."""
        if depth:
            self.generate([depth], 1)

    def generate(self, prompts, count):
        """What it says about the time of an answer of exactly `count` tokens to each prompt."""
        config = openvino_genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        mask = [[1] * len(prompt) for prompt in prompts]
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(prompts), openvino.Tensor(mask))
        answer = self.pipeline.generate(inputs, config)
        if [len(tokens) for tokens in answer.tokens] != [count] * len(prompts):
            sys.exit(f"not every answer has {count} tokens")
        return answer.perf_metrics


if __name__ == "__main__":
    main()
