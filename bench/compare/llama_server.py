"""llama.cpp's own server, of a Python that has xllamacpp, with its best flags for agents: as if llama-server was started.

    venv/bin/python bench/compare/llama_server.py -m model.gguf -t 2 --parallel 4 --context 98304

One buffer of keys and values for all slots, a cache of prompts in RAM, and reuse of runs that have moved (`-kvu`, `--cache-ram`,
`--cache-reuse`). The package is compiled for AVX2: on a machine with more its times are worse than those of a build for it.
Prints its address once it answers, and ends with its standard input.
"""
import argparse
import sys

import xllamacpp


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-t", "--threads", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens of all slots together")
    parser.add_argument("--cache-ram-mib", type=int, default=8192)
    parser.add_argument("--cache-reuse", type=int, default=256)
    args = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.n_ctx, params.n_parallel, params.kv_unified = args.context, args.parallel, True
    params.cache_ram_mib, params.n_cache_reuse = args.cache_ram_mib, args.cache_reuse
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.endpoint_metrics, params.fit_params = True, False
    params.port = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
