#!/usr/bin/env python3
"""From starting a server to its first token, with the model file in the page cache and without.

    bench/start.py --kvik target/release/kvik [--kvik OTHER] [--llama-server llama-server] [--cold] [--rounds 5] MODEL.gguf [...]

Programs take turns on the same file. A request for one token is repeated until it is answered, so that loading, listening and
the first prompt are all in it. `--cold` also empties the page cache before each start, which root may. A first start that
does not count lets kvik learn the digest of a file, as the first use of a model does.
"""
import argparse
import json
import pathlib
import socket
import statistics
import subprocess
import time
import urllib.error
import urllib.request

PROMPT = "The first question that is asked after the start"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def command(program, kind, model, port, threads):
    if kind == "kvik":
        return [program, "serve", "-m", model, "--port", port, "--threads", threads, "--context", "2048"]
    return [program, "-m", model, "--port", port, "-t", threads, "-c", "2048", "--no-webui"]


def answered(port):
    body = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}
    url = f"http://127.0.0.1:{port}/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError):
        return None


def started(program, kind, model, threads):
    """Seconds from the start to the first token."""
    port, began = free_port(), time.monotonic()
    asked = [str(part) for part in command(program, kind, model, port, threads)]
    process = subprocess.Popen(asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not answered(port):
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(asked)} ended with {process.returncode}")
            time.sleep(0.005)
        return time.monotonic() - began
    finally:
        process.terminate()
        process.wait()


def empty_page_cache():
    subprocess.run(["sync"], check=True)
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("1\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=pathlib.Path, metavar="MODEL")
    parser.add_argument("--kvik", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--llama-server", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    programs = [(path, "kvik") for path in args.kvik] + [(path, "llama.cpp") for path in args.llama_server]
    print("| model | page cache | program | seconds to the first token, each | median |\n| --- | --- | --- | --- | ---: |")
    for model in args.models:
        for cache in ["warm"] + ["cold"] * args.cold:
            times = {program: [] for program in programs}
            for number in range(args.rounds + (cache == "warm")):
                for program in programs if number % 2 == 0 else reversed(programs):
                    if cache == "cold":
                        empty_page_cache()
                    took = started(*program, model, args.threads)
                    if cache == "cold" or number > 0:
                        times[program].append(took)
            for (path, kind), took in times.items():
                each = " ".join(f"{seconds:.2f}" for seconds in took)
                print(f"| {model.stem} | {cache} | {kind} ({path.name}) | {each} | {statistics.median(took):.2f} |", flush=True)


if __name__ == "__main__":
    main()
