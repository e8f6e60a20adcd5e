#!/usr/bin/env python3
"""A shelf of models under load, killed, and what a swap costs.

    tests/shelf.py turns --requests 500 small=a.gguf large=b.gguf vectors=embed:c.gguf
                                        eight clients ask all models, two of which fit: answers, swaps, what stays warm
    tests/shelf.py swap notes=a.gguf    the first token of a known prompt after its model was away, with and without disk
    tests/shelf.py kills --kills 100    kill -9 while models are swapped, pulled, copied, removed and read again

Models are NAME=FILE; `embed:` before the file has its requests ask for vectors. Without any, the embedded model is taken in
four types of weights.

`turns` fails on an answer that differs from the model's alone, on an error, where models thrash, or where they are less
warm than models that are never swapped. `kills` fails where a model is lost or half there, where an answer is wrong, and
where a start finds what it cannot read.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

from hub import Hub
from server import TINY, Server

FILE = TINY / "kvik-tiny-q8_0.gguf"
EMBEDDED = {"small": {}, "wide": {"weights": "f32"}, "short": {"weights": "bf16"}, "tight": {"weights": "q4_0"}}
WORDS = "the folder of work holds letters from people who write about plans and bills for next week".split()
JSON = {"Content-Type": "application/json"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["turns", "swap", "kills"])
    parser.add_argument("models", nargs="*", metavar="NAME=FILE")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8, help="turns: prompts of a model")
    parser.add_argument("--tokens", type=int, default=120, help="words of a prompt")
    parser.add_argument("--kv", default="64MiB", help="turns: memory for keys and values of each model")
    parser.add_argument("--fit", type=int, default=2, help="turns: how many models there is memory for")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory(prefix="kvik-shelf-") as folder:
        sys.exit(dict(turns=turns, swap=swap, kills=kills)[args.what](args, pathlib.Path(folder)))


class Model:
    """A model by name, with the keys of its table."""

    def __init__(self, name, keys, embeds=False):
        self.name, self.keys, self.embeds = name, keys, embeds

    @classmethod
    def given(cls, text):
        name, _, file = text.partition("=")
        embeds = file.startswith("embed:")
        return cls(name, {"source": str(pathlib.Path(file.removeprefix("embed:")).resolve())}, embeds)

    def table(self, kv):
        keys = {"source": str(FILE), "context": 2048, "cache-ram": kv, "threads": 2, "speculate": "none"} | self.keys
        return f"[models.{self.name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())

    def ask(self, server, prompt):
        """What it says, tokens of the prompt, and those that were known."""
        path, body = "/v1/completions", dict(prompt=prompt, max_tokens=8, temperature=0, ignore_eos=True)
        if self.embeds:
            path, body = "/v1/embeddings", dict(input=prompt)
        answer = server.post(path, body | {"model": self.name})
        assert answer.status == 200, f"{self.name}: {answer.status} {answer.text}"
        usage = answer.json["usage"]
        said = answer.json["data"][0]["embedding"] if self.embeds else answer.json["choices"][0]["text"]
        known = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        return said, usage["prompt_tokens"], known


def given(args):
    if args.models:
        return [Model.given(text) for text in args.models]
    return [Model(name, keys) for name, keys in EMBEDDED.items()]


def shelf(folder, models, ram, *flags, kv="64MiB", disk="on", **more):
    """A server of these models that share so many bytes."""
    path = folder / "config.toml"
    path.write_text("".join(model.table(kv) for model in models))
    env = {"KVIK_CONFIG": str(path), "KVIK_CACHE_DISK": str(folder / "kv") if disk == "on" else "off"}
    return Server("--shelf-ram", ram, "--queue", "64", *flags, env=env | more.get("env", {}))


def prompt_of(dice, tokens):
    return " ".join(dice.choice(WORDS) for _ in range(tokens))


def listed(server):
    return {model["name"]: model for model in server.get("/v1/shelf").json["models"]}


def turns(args, folder):
    """All models alone, then together where all fit, then where some do."""
    models = given(args)
    dice = random.Random(args.seed)
    prompts = {model.name: [f"{i}: " + prompt_of(dice, args.tokens) for i in range(args.prompts)] for model in models}
    asks = [(dice.randrange(len(models)), dice.randrange(args.prompts)) for _ in range(args.requests)]
    right = {}
    for model in models:
        with shelf(folder, [model], "8GiB", kv=args.kv, disk="off") as server:
            right |= {(model.name, prompt): model.ask(server, prompt)[0] for prompt in prompts[model.name]}
            model.bytes = listed(server)[model.name]["bytes"]
        print(f"{model.name}: {model.bytes / 2**20:,.0f} MiB alone", flush=True)
    sizes = sorted((model.bytes for model in models), reverse=True)
    shares = {}
    for which, ram in (("all in memory", sum(sizes)), (f"memory for {args.fit}", sum(sizes[: args.fit]))):
        place = folder / which.replace(" ", "-")
        place.mkdir()
        with shelf(place, models, f"{ram}B", kv=args.kv) as server:
            shares[which] = run(args, server, models, prompts, asks, right, which)
            fit = max(fits(sizes, ram), 1)
    loads, best = shares[which][1], offline([model for model, _ in asks], fit)
    print(f"{loads} loads; who knows all requests and keeps their order needs {best} with {fit} in memory")
    never, swapped = (shares[name][0] for name in shares)
    print(f"known of what had been asked before: {100 * never:.1f}% never swapped, {100 * swapped:.1f}% swapped")
    return 0 if loads <= max(best, len(models)) and swapped >= 0.98 * never else 1


def fits(sizes, ram):
    """How many of the smallest fit."""
    count = 0
    for size in sorted(sizes):
        ram -= size
        count += ram >= 0
    return count


def run(args, server, models, prompts, asks, right, which):
    """The share of prompts that was known where they had been asked before, and loads."""
    seen, known, began = set(), [0, 0], time.monotonic()
    lock = threading.Lock()

    def one(asked):
        model, prompt = models[asked[0]], prompts[models[asked[0]].name][asked[1]]
        with lock:
            again = asked in seen
        said, tokens, reused = model.ask(server, prompt)
        assert said == right[model.name, prompt], f"{model.name} says something else than alone"
        with lock:
            seen.add(asked)
            if again and not model.embeds:
                known[0] += reused
                known[1] += tokens - 1  # the last token is computed each time

    with concurrent.futures.ThreadPoolExecutor(args.clients) as pool:
        list(pool.map(one, asks))
    took = time.monotonic() - began
    loads = sum(model["loads"] for model in listed(server).values())
    print(f"{which}: {len(asks)} answers as alone in {took:.0f} s, {loads} loads", flush=True)
    return known[0] / max(known[1], 1), loads


def offline(asks, fit):
    """Loads of who knows what is asked for next (Belady, 1966), a request at a time in their order."""
    held, loads = [], 0
    for at, model in enumerate(asks):
        if model in held:
            continue
        if len(held) == fit:
            after = lambda other: asks.index(other, at) if other in asks[at:] else len(asks)
            held.remove(max(held, key=after))
        held.append(model)
        loads += 1
    return loads


def swap(args, folder):
    """A known prompt of a model that was away: what waiting for the model and for the first token takes."""
    rows = []
    for model in given(args)[:1] if not args.models else given(args):
        for disk in ("on", "off"):
            with shelf(folder, [model], "8GiB", kv="2GiB", disk=disk) as server:
                firsts, loads = [], []
                dice = random.Random(args.seed)
                for _ in range(args.rounds):
                    prompt = prompt_of(dice, args.tokens)
                    cold = first_token(server, model, prompt)[0]
                    warm = first_token(server, model, prompt)[0]
                    server.post("/v1/shelf/unload", {"model": model.name})
                    while listed(server)[model.name]["status"] != "unloaded":
                        time.sleep(0.02)
                    first, load = first_token(server, model, prompt)
                    firsts.append((cold, warm, first - load, load))
                cold, warm, first, load = (statistics.median(column) for column in zip(*firsts))
                rows.append((model.name, disk, load, first, warm, cold))
    print("| model | disk | loaded again, ms | then first token, ms | in memory, ms | cold, ms |\n| --- | --- | --- | --- | --- | --- |")
    for name, disk, *times in rows:
        print(f"| {name} | {disk} | " + " | ".join(f"{1000 * seconds:,.0f}" for seconds in times) + " |")
    return 0


def first_token(server, model, prompt):
    """Seconds to the first token, and those of them that the request waited for its model."""
    began = time.monotonic()
    body = dict(model=model.name, prompt=prompt, max_tokens=2, temperature=0, ignore_eos=True, stream=True)
    connection, response = server.open_stream("/v1/completions", body)
    while not response.readline().startswith(b"data: {"):
        pass
    took = time.monotonic() - began
    response.read()
    connection.close()
    return took, int(response.headers.get("kvik-model-load-ms") or 0) / 1000


def kills(args, folder):
    """A server of pulled models is killed while clients ask, pull, copy, remove, unload and have it read again."""
    dice = random.Random(args.seed)
    content = FILE.read_bytes()
    prompts = [f"{i}: " + prompt_of(dice, 40) for i in range(4)]
    with Server("-m", FILE, "--threads", 2) as server:
        alone = Model("kvik", {})
        right = [alone.ask(server, prompt)[0] for prompt in prompts]
    counts = dict.fromkeys(("answers", "pulls", "copies", "removals", "reloads"), 0)
    with Hub({f"o/m{i}": {f"m{i}-Q8_0.gguf": content} for i in range(3)}, bytes_per_s=40_000_000) as hub:
        env = {"KVIK_MODELS_DIR": str(folder / "models"), "HF_ENDPOINT": hub.url, "KVIK_CACHE_DISK": str(folder / "kv")}
        flags = ["--shelf", "--context", 512, "--cache-ram", "16MiB", "--shelf-ram", "50MiB", "--threads", 2, "--speculate", "none"]
        kept = set()
        # On a slow machine some of it may not have been done after so many kills; then there are more, later ones.
        for kill in range(4 * args.kills + 1):
            with Server(*flags, env=env) as server:
                names = set(listed(server))
                assert kept <= names, f"after {kill} kills {kept - names} are lost"
                for name in sorted(names):
                    shown = server.post("/api/show", {"model": name})
                    assert shown.status == 200, f"after {kill} kills {name} is half there: {shown.text}"
                if kill >= args.kills and all(counts.values()):
                    break
                stop = threading.Event()
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    doing = [pool.submit(disturb, server, stop, random.Random(dice.random()), prompts, right, counts, kept, worker) for worker in range(4)]
                    time.sleep(dice.uniform(0.1, 1.2 * (1 + kill // args.kills)))
                    stop.set()
                    server.kill()
                    for done in doing:
                        done.result()
            if kill % 10 == 9:
                print(f"{kill + 1} kills: {counts}", flush=True)
    print(f"{kill} kills, {', '.join(f'{count} {what}' for what, count in counts.items())}: nothing lost, nothing wrong")
    return 0 if all(counts.values()) else 1


def disturb(server, stop, dice, prompts, right, counts, kept, worker):
    """Does one thing after another until the server is killed; what it was told to be done is kept."""
    try:
        while not stop.is_set():
            what = dice.choice(["ask"] * 4 + ["pull", "copy", "remove", "unload", "reload"])
            name = f"o/m{dice.randrange(3)}"
            if what == "ask":
                at = dice.randrange(len(prompts))
                body = dict(model=name, prompt=prompts[at], max_tokens=8, temperature=0, ignore_eos=True)
                answer = server.post("/v1/completions", body)
                assert answer.status in (200, 404, 503), answer.text
                if answer.status == 200:
                    assert answer.json["choices"][0]["text"] == right[at], (name, at, answer.text)
                    counts["answers"] += 1
            elif what == "pull":
                answer = server.post("/api/pull", {"model": f"hf:{name}", "stream": False})
                assert answer.status == 200, answer.text
                counts["pulls"] += 1
            elif what == "copy":
                # Names of its own: nobody else removes them.
                own = f"copy-{worker}-{dice.randrange(2)}"
                kept.discard(own)
                removed = server.request("DELETE", "/api/delete", json.dumps({"model": own}).encode(), JSON)
                assert removed.status in (200, 404), removed.text
                answer = server.post("/api/copy", {"source": name, "destination": own})
                assert answer.status in (200, 404), answer.text
                if answer.status == 200:
                    kept.add(own)
                    counts["copies"] += 1
            elif what == "remove":
                answer = server.request("DELETE", "/api/delete", json.dumps({"model": name}).encode(), JSON)
                assert answer.status in (200, 404), answer.text
                counts["removals"] += answer.status == 200
            elif what == "unload":
                server.post("/v1/shelf/unload", {"model": name})
            else:
                answer = server.post("/v1/shelf/reload", b"")
                assert answer.status == 200, answer.text
                counts["reloads"] += 1
    except (OSError, EOFError, http.client.HTTPException, json.JSONDecodeError):
        if not server.is_killed:
            raise


if __name__ == "__main__":
    main()
