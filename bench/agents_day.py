#!/usr/bin/env python3
"""A day of coding agents, four at once: kvik beside llama.cpp's server.

    bench/agents_day.py record DAY --model MODEL.gguf --agents AGENTS [--only claude,qwen,pi]
    bench/agents_day.py run DAY --model MODEL.gguf [--kvik target/release/kvik] [--llama PYTHON] [--pause 0] [--writes]

`record` lets real agents (`coding_agents.py` says how they are installed) ask in a directory and go on there, and keeps what
they send: their prompts are theirs, so a day is recorded where it is needed and is no part of this repository.

`run` sends it again: each recorded session in four directories, by another name in all that is said, four sessions at once,
the requests of a session and of its sub-agents one after the other. Answers are sent back as they were recorded, so that both
servers have to compute them. A row is a server: its prompt tokens, those it computed, the time to the first token (median and
95th percentile), that of everything, and what was written to the disk. `--llama` is a Python with xllamacpp
(`compare/llama_server.py`).

`--writes` runs kvik alone, with each policy of `--cache-disk-write`: the first half of each session, a restart, and the second
half. A row is a policy: bytes written for 1,000 computed tokens, and of the second half's prompt tokens those that came from
disk and those that were computed; the others were found in memory, in which the second half itself had put them. The last row
starts the second half with an empty folder: what it computes more than another is what that one has of the disk.
"""
import argparse
import concurrent.futures
import http.client
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "bench"))
import coding_agents  # noqa: E402
from memory.gaps import percentile  # noqa: E402
from server import BINARY, Server  # noqa: E402

DIRECTORIES, AT_ONCE, ANSWER_TOKENS = ("shop", "bank", "farm", "mill"), 4, 16
# Of the first piece of an answer, in each dialect: its text, or the arguments of a call.
SAID = re.compile(rb'"(?:content|text|delta|partial_json|reasoning_content|thinking|arguments)":"[^"]')
KEPT_HEADERS = {"anthropic-version", "anthropic-beta", "content-type"}
# What kvik reports of a prompt: its tokens, those that were cached, and those of them that came from disk.
REPORT = re.compile(coding_agents.REPORT.pattern + rb':\{[^}]*"disk":(\d+)')
CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)":(\d+)')
PROMPT = re.compile(rb'"(?:prompt_tokens|input_tokens)":(\d+)')


class Recorder(coding_agents.Between):
    """Notes what an agent sends, as it is passed on."""

    kept = []

    def relay(self, body, fields):
        if fields.get("messages") or fields.get("input"):
            headers = {name.lower(): value for name, value in self.headers.items() if name.lower() in KEPT_HEADERS}
            self.kept.append({"path": self.path, "headers": headers, "body": fields})
        super().relay(body, fields)


def record(args):
    """Writes the sessions of each agent: a file of the agent, a line of a request."""
    args.day.mkdir(parents=True, exist_ok=True)
    between, url = coding_agents.listening(Recorder)
    for name in args.only.split(","):
        program = coding_agents.program(args.agents, name)
        with Server("--model", args.model, binary=args.kvik) as kvik, tempfile.TemporaryDirectory(prefix=f"day-{name}-") as folder:
            home, work = pathlib.Path(folder) / "home", pathlib.Path(folder) / "work/shop"
            home.mkdir()
            env, new, goes_on = coding_agents.AGENTS[name](home, url)
            coding_agents.Between.port, Recorder.kept = kvik.port, []
            for argv in filter(None, (new, goes_on)):
                coding_agents.Between.calls = 0
                coding_agents.run([program, *argv], env, home, work)
            coding_agents.end_daemons(home)
        (args.day / f"{name}.jsonl").write_text("".join(json.dumps(request) + "\n" for request in Recorder.kept))
        print(f"{name}: {len(Recorder.kept)} requests", flush=True)
    between.shutdown()


def shortened(request):
    """A recorded request whose answer is short, and free."""
    body = request["body"]
    body.pop("tool_choice", None)
    body["stream"] = True
    if request["path"].startswith("/v1/chat/"):
        body["stream_options"] = {"include_usage": True}
    for name in coding_agents.LENGTHS:
        if name in body:
            body[name] = ANSWER_TOKENS
    return request


def sessions(day):
    """Each recorded session in each directory; neighbours are of other agents."""
    texts = [path.read_text() for path in sorted(day.glob("*.jsonl"))]
    if not texts:
        sys.exit(f"nothing is recorded in {day}")
    for directory in DIRECTORIES:
        for text in texts:
            moved = text.replace("work/shop", f"work/{directory}").replace("work-shop", f"work-{directory}")
            yield [shortened(json.loads(line)) for line in moved.splitlines()]


def ask(base_url, request):
    """Seconds to the first piece of the answer, the prompt's tokens, those of them that were cached, and that came from disk."""
    where = urllib.parse.urlsplit(base_url)
    connection, began, first, said = http.client.HTTPConnection(where.hostname, where.port, timeout=3600), time.monotonic(), None, b""
    connection.request("POST", request["path"], json.dumps(request["body"]), request["headers"])
    answer = connection.getresponse()
    while piece := answer.read1(1 << 16):
        said += piece
        if first is None and SAID.search(said):
            first = time.monotonic() - began
    assert answer.status == 200, said[:500]
    return first or time.monotonic() - began, *tokens(request["path"], said)


def tokens(path, said):
    """The prompt's tokens, those of them that were cached, and that came from disk: of kvik's report, or else of the dialect's
    usage, which names no tier."""
    for report in REPORT.findall(said)[-1:]:
        return tuple(map(int, report))
    cached, prompt = (max(map(int, found.findall(said)), default=0) for found in (CACHED, PROMPT))
    # Anthropic's dialect counts cached tokens apart.
    return (prompt + cached if "/messages" in path else prompt), cached, 0


def talk(base_url, all_sessions, pause):
    """All sessions, four at once: what each request gave, and the seconds of everything."""
    def one(session):
        answers = []
        for request in session:
            answers.append(ask(base_url, request))
            time.sleep(pause)
        return answers

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return sum(pool.map(one, all_sessions), []), time.monotonic() - began


class Llama:
    """llama.cpp's server."""

    def __init__(self, args):
        flags = ["-m", args.model, "-t", args.threads, "--parallel", AT_ONCE, "--context", args.context]
        command = [args.llama, ROOT / "bench/compare/llama_server.py", *flags]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(list(map(str, command)), text=True, **streams)
        self.base_url = self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def metric(self, name):
        return 0


def kvik(args, *flags):
    common = ["--model", args.model, "--threads", args.threads, "--parallel", AT_ONCE, "--ahead", "auto"]
    return Server(*common, *flags, binary=args.kvik)


def beside(args):
    """The table of servers."""
    print("| server | prompt tokens | computed | first token p50 | p95 | all | written |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory(prefix="day-disk-") as folder:
        disk = lambda name: ("--cache-disk", f"{folder}/{name}", "--cache-disk-write", "auto")
        servers = {
            "kvik": lambda: kvik(args, *disk("plain")),
            "kvik `--settle-prompts`": lambda: kvik(args, "--settle-prompts", *disk("settled")),
        }
        if args.llama:
            servers["llama-server"] = lambda: Llama(args)
        for name, start in servers.items():
            with start() as server:
                answers, seconds = talk(server.base_url, list(sessions(args.day)), args.pause)
                written = server.metric("kvik_disk_written_bytes_today") / 1e6
            first, prompt, cached, _ = zip(*answers)
            cells = (f"{sum(prompt):,}", f"{sum(prompt) - sum(cached):,}", f"{percentile(first, 50):.2f} s", f"{percentile(first, 95):.2f} s")
            print(f"| {name} | {' | '.join(cells)} | {seconds:.0f} s | {written:.1f} MB |", flush=True)


def writes(args):
    """The table of policies of writing."""
    print("| `--cache-disk-write` | written for 1,000 tokens | from disk after a restart | computed after it |\n| --- | ---: | ---: | ---: |")
    halves = [[], []]
    for session in sessions(args.day):
        middle = (len(session) + 1) // 2
        halves[0].append(session[:middle])
        halves[1].append(session[middle:])
    for policy, is_emptied in (("all", False), ("reused", False), ("auto", False), ("all", True)):
        name = f"{policy}, emptied at the restart" if is_emptied else policy
        print(f"| {name} | {' | '.join(restarted(args, policy, halves, is_emptied))} |", flush=True)


def restarted(args, policy, halves, is_emptied):
    """The cells of a policy, whose folder is empty again when the server starts again if `is_emptied`."""
    computed, written = 0, 0
    with tempfile.TemporaryDirectory(prefix="day-disk-") as folder:
        for half in halves:
            with kvik(args, "--cache-disk", folder, "--cache-disk-write", policy) as server:
                answers, _ = talk(server.base_url, half, args.pause)
                written = max(written, server.metric("kvik_disk_written_bytes_today"))
            computed += sum(prompt - cached for _, prompt, cached, _ in answers)
            if is_emptied:
                shutil.rmtree(folder)
                pathlib.Path(folder).mkdir()
    return f"{written / computed:.1f} KB", *after_restart(answers)


def after_restart(answers):
    """The cells of the second half: tokens from disk, and computed ones, of those of its prompts."""
    _, prompt, cached, disk = map(sum, zip(*answers))
    return f"{disk:,} of {prompt:,}", f"{prompt - cached:,}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "run"))
    parser.add_argument("day", type=pathlib.Path, help="the folder of recorded sessions")
    parser.add_argument("--model", required=True, type=pathlib.Path, help="one whose context holds about 20,000 tokens")
    parser.add_argument("--kvik", type=pathlib.Path, default=BINARY)
    parser.add_argument("--agents", type=pathlib.Path, help="the folder that they are installed in")
    parser.add_argument("--only", default="claude,qwen,pi", help="three kinds of agents")
    parser.add_argument("--llama", type=pathlib.Path, metavar="PYTHON")
    parser.add_argument("--context", type=int, default=98304, help="tokens of llama-server's slots together")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0, help="seconds between an answer and the next request of a session")
    parser.add_argument("--writes", action="store_true")
    args = parser.parse_args()
    if args.what == "record":
        record(args)
    else:
        (writes if args.writes else beside)(args)


if __name__ == "__main__":
    main()
