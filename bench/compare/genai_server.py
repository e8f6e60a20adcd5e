"""OpenVINO GenAI on a GGUF file behind as much of OpenAI's chat route as bench/agents.py asks for.

    venv/bin/python bench/compare/genai_server.py -m model.gguf -t 2 --parallel 4

It runs as OpenVINO GenAI does by itself: continuous batching with its own sizes of steps, a prefix cache, KV in f16 as kvik's
default. Prints its address once it answers.
"""
import argparse
import itertools
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openvino_genai


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-t", "--threads", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--cache-gib", type=int, default=4)
    args = parser.parse_args()
    batches = Batches(args)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(batches))
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    server.serve_forever()


class Batches:
    """All requests, each in the batch as soon as it comes; a thread makes the steps."""

    def __init__(self, args):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = args.cache_gib
        scheduler.max_num_seqs = args.parallel
        settings = {"INFERENCE_NUM_THREADS": args.threads, "KV_CACHE_PRECISION": "f16"}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", settings)
        self.tokenizer = self.pipeline.get_tokenizer()
        self.numbers = itertools.count()
        self.come, self.running = queue.Queue(), []
        threading.Thread(target=self.run, daemon=True).start()

    def ask(self, prompt, tokens):
        """The texts of an answer, one after the other."""
        texts = queue.Queue()
        self.come.put((prompt, tokens, texts))
        return iter(texts.get, None)

    def run(self):
        while True:
            while not self.running or not self.come.empty():
                self.begin(*self.come.get())
            self.pipeline.step()
            self.running = [running for running in self.running if self.tell(*running)]

    def begin(self, prompt, tokens, texts):
        config = openvino_genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        self.running.append((self.pipeline.add_request(next(self.numbers), prompt, config), texts))

    def tell(self, handle, texts):
        """Hands on what a step has made of an answer; whether there will be more."""
        while handle.can_read():
            for output in handle.read().values():
                texts.put(self.tokenizer.decode(list(output.generated_ids)))
        goes_on = handle.get_status() == openvino_genai.GenerationStatus.RUNNING
        if not goes_on:
            texts.put(None)
        return goes_on


def handler(batches):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            messages = [f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in body["messages"]]
            self.send_response(200)
            self.end_headers()
            for text in batches.ask("".join(messages) + "<|im_start|>assistant\n", body["max_tokens"]):
                event = {"choices": [{"delta": {"content": text}}]}
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()

        def log_message(self, *_):
            pass

    return Handler


if __name__ == "__main__":
    main()
