#!/usr/bin/env python3
"""Real coding agents: what kvik computes of their prompts, with and without --settle-prompts.

    npm install --prefix AGENTS @anthropic-ai/claude-code opencode-ai @qwen-code/qwen-code cline @continuedev/cli \
        @mariozechner/pi-coding-agent @openai/codex
    bench/coding_agents.py --model MODEL.gguf --agents AGENTS [--only claude,pi] [--kvik target/release/kvik]

Each agent has a home of its own and asks five times: in a new directory, going on there, in a new session there, and in two
other directories. Prints how many prompt tokens were computed each time, over all requests, and how many the largest prompt
has; an answer that is cut off lets some agents ask twice. The model need not be
clever: what agents send first does not depend on its answers. Its context has to hold about 20,000 tokens.
"""
import argparse
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from server import Server  # noqa: E402

PHASES = ("new", "goes on", "new session", "other directory", "third directory")
SECONDS = 240
QUESTION = "Fix the bug in calc.py"
# The agents only relay answers, so that short ones do.
TOKENS = 16
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
REPORT = re.compile(rb'"prompt_tokens":(\d+),"cached_tokens":(\d+),"by_tier"')
HOP = {"host", "content-length", "connection", "transfer-encoding", "accept-encoding"}


class Between(http.server.BaseHTTPRequestHandler):
    """Passes requests on, with short answers, and notes what each prompt cost."""

    protocol_version = "HTTP/1.0"
    port, prompts = None, []

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.relay(None)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            fields = json.loads(body)
            for name in LENGTHS:
                if name in fields:
                    fields[name] = TOKENS
            body = json.dumps(fields).encode()
        except ValueError:
            pass
        self.relay(body)

    def relay(self, body):
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        upstream = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        upstream.request(self.command, self.path, body, headers)
        answer, said = upstream.getresponse(), b""
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.end_headers()
        while piece := answer.read1(1 << 16):
            said += piece
            self.wfile.write(piece)
            self.wfile.flush()
        self.prompts += [(int(tokens), int(tokens) - int(cached)) for tokens, cached in REPORT.findall(said)[-1:]]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def claude(home, url):
    env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "x", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    flags = ["-p", "--model", "kvik", "--max-turns", "1"]
    return env, [*flags, QUESTION], [*flags, "-c", "Now add a test"]


def codex(home, url):
    provider = f'base_url = "{url}/v1"\nname = "kvik"\nwire_api = "responses"\n'
    write(home / ".codex/config.toml", f'model = "kvik"\nmodel_provider = "kvik"\n[model_providers.kvik]\n{provider}')
    flags = ["exec", "--skip-git-repo-check"]
    return {}, [*flags, QUESTION], [*flags, "resume", "--last", "Now add a test"]


def opencode(home, url):
    provider = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": f"{url}/v1"}, "models": {"kvik": {}}}
    write(home / ".config/opencode/opencode.json", json.dumps({"provider": {"kvik": provider}, "model": "kvik/kvik"}))
    env = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return env, ["run", QUESTION], ["run", "-c", "Now add a test"]


def qwen(home, url):
    env = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "x", "OPENAI_MODEL": "kvik"}
    flags = ["--auth-type", "openai", "--max-session-turns", "1", "-p"]
    return env, [*flags, QUESTION], ["--continue", *flags, "Now add a test"]


def cline(home, url):
    return {"OPENAI_BASE_URL": f"{url}/v1"}, ["-P", "openai-compatible", "-m", "kvik", "-k", "x", QUESTION], None


def cn(home, url):
    model = f"models:\n  - name: kvik\n    provider: openai\n    model: kvik\n    apiBase: {url}/v1\n    apiKey: x\n    roles: [chat]\n"
    write(home / "config.yaml", f"name: local\nversion: 1.0.0\nschema: v1\n{model}")
    flags = ["--config", str(home / "config.yaml"), "-p"]
    return {}, [*flags, QUESTION], [*flags, "--resume", "Now add a test"]


def pi(home, url):
    models = [{"id": "kvik", "name": "kvik", "contextWindow": 131072, "maxTokens": 4096, "input": ["text"], "reasoning": False, "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}}]
    provider = {"baseUrl": f"{url}/v1", "apiKey": "x", "api": "openai-completions", "models": models}
    write(home / ".pi/agent/models.json", json.dumps({"providers": {"kvik": provider}}))
    flags = ["--provider", "kvik", "--model", "kvik", "-p"]
    return {"PI_OFFLINE": "1"}, [*flags, QUESTION], [*flags, "-c", "Now add a test"]


AGENTS = {"claude": claude, "codex": codex, "opencode": opencode, "qwen": qwen, "cline": cline, "cn": cn, "pi": pi}


def run(argv, env, home, directory):
    directory.mkdir(parents=True, exist_ok=True)
    write(directory / "calc.py", "def add(a, b):\n    return a - b\n")
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", "NO_COLOR": "1"} | env
    try:
        subprocess.run(argv, env=own, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        print(f"{argv[0]} did not end in {SECONDS} s", file=sys.stderr)


def measure(name, program, kvik, url):
    """The computed tokens of each phase, and those of its largest prompt."""
    Between.port, found = kvik.port, {}
    with tempfile.TemporaryDirectory(prefix=f"agent-{name}-") as folder:
        home, work = pathlib.Path(folder) / "home", pathlib.Path(folder) / "work"
        home.mkdir()
        env, new, goes_on = AGENTS[name](home, url)
        shop, bank, farm = work / "shop", work / "bank/accounts", work / "farm"
        for phase, argv, at in zip(PHASES, (new, goes_on, new, new, new), (shop, shop, shop, bank, farm)):
            Between.prompts.clear()
            if argv is not None:
                run([program, *argv], env, home, at)
            costs = Between.prompts
            found[phase] = (sum(computed for _, computed in costs), max(tokens for tokens, _ in costs)) if costs else None
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--agents", required=True, type=pathlib.Path, help="the folder that npm installed them to")
    parser.add_argument("--only", default=",".join(AGENTS))
    parser.add_argument("--kvik", default=ROOT / "target/release/kvik")
    args = parser.parse_args()
    between = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Between)
    threading.Thread(target=between.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{between.server_port}"
    print("| agent | prompts | " + " | ".join(PHASES) + " |\n| --- | --- | " + "---: | " * len(PHASES))
    for name in args.only.split(","):
        program = shutil.which(name, path=args.agents / "node_modules/.bin")
        if program is None:
            print(f"| {name} | not installed |" + " |" * len(PHASES), flush=True)
            continue
        for flags in ((), ("--settle-prompts",)):
            with Server("--model", args.model, "--cache-ram", "2GiB", *flags, binary=args.kvik) as kvik:
                found = measure(name, program, kvik, url)
            cells = ("not seen" if cost is None else f"{cost[0]:,} of {cost[1]:,}" for cost in found.values())
            print(f"| {name} | {'settled' if flags else 'as sent'} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
