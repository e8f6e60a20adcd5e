#!/usr/bin/env python3
"""Real coding agents: what kvik computes of their prompts, with and without --settle-prompts.

    npm install --prefix AGENTS @anthropic-ai/claude-code opencode-ai @qwen-code/qwen-code cline @continuedev/cli \
        @mariozechner/pi-coding-agent @openai/codex
    python -m venv AGENTS && AGENTS/bin/pip install aider-chat
    bench/coding_agents.py --model MODEL.gguf --agents AGENTS [--only claude,pi] [--kvik target/release/kvik]

Each agent has a home of its own and asks five times: in a new directory, going on there, in a new session there, and in two
other directories. Its first calls are forced, so that it goes on for several turns. The model need not be clever: what agents
send first does not depend on its answers. Its context has to hold about 20,000 tokens.

A row is an agent. Of the last three sessions it has the computed tokens of the largest prompt that begins a conversation, and
behind them those of all requests of the session, answers and sub-agents included. Of turns that go on it has their number,
and how many tokens more than the new ones were computed at most: a prompt's new tokens are those behind the prompt and the
answer that it continues.
"""
import argparse
import contextlib
import dataclasses
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
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
# The agents only relay answers, so that short ones do; a call needs more.
TOKENS, CALL_TOKENS = 16, 200
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
# Calls that harm nothing whatever their arguments are; the first ones of each session are forced.
HARMLESS, CALLS = {"read", "read_file", "read_files", "get_goal"}, 3
REPORT = re.compile(rb'"prompt_tokens":(\d+),"cached_tokens":(\d+),"by_tier"')
ANSWERED = re.compile(rb'"(?:completion_tokens|output_tokens)":(\d+)')
HOP = {"host", "content-length", "connection", "transfer-encoding", "accept-encoding"}


@dataclasses.dataclass
class Seen:
    """A request and its cost: its messages, its prompt's tokens, those that were computed, and its answer's."""

    messages: list
    tokens: int
    computed: int
    answered: int

    def beyond(self, earlier):
        """The computed tokens that are neither new nor an answer's last one; none for one that continues no other."""
        def is_continued(other):
            return len(other.messages) < len(self.messages) and other.messages == self.messages[:len(other.messages)]

        before = max(filter(is_continued, earlier), key=lambda other: len(other.messages), default=None)
        return None if before is None else self.computed - (self.tokens - before.tokens - before.answered)


def plain(message):
    """A message without marks that move from turn to turn."""
    if isinstance(message, dict):
        return {name: plain(value) for name, value in message.items() if name != "cache_control"}
    return [plain(part) for part in message] if isinstance(message, list) else message


def forced(path, tools):
    """The choice of a harmless tool, in the dialect of this path; none if none is offered."""
    names = [(tool.get("function") or tool).get("name") or "" for tool in tools]
    name = next((name for name in names if name.lower() in HARMLESS), None)
    if name is None:
        return None
    if path.endswith("/chat/completions"):
        return {"type": "function", "function": {"name": name}}
    return {"type": "tool" if "/messages" in path else "function", "name": name}


class Between(http.server.BaseHTTPRequestHandler):
    """Passes requests on, with short answers and forced calls, and notes what each prompt cost."""

    protocol_version = "HTTP/1.0"
    port, seen, calls = None, [], 0

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.relay(None, {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            fields = json.loads(body)
        except ValueError:
            return self.relay(body, {})
        self.shorten(fields)
        self.relay(json.dumps(fields).encode(), fields)

    def shorten(self, fields):
        choice = forced(self.path, fields.get("tools") or []) if Between.calls < CALLS and "count" not in self.path else None
        if choice is not None:
            Between.calls += 1
            fields["tool_choice"] = choice
        length = "max_output_tokens" if self.path.endswith("/responses") else "max_tokens"
        for name in {name for name in LENGTHS if name in fields} or {length}:
            fields[name] = TOKENS if choice is None else CALL_TOKENS

    def relay(self, body, fields):
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
        for tokens, cached in REPORT.findall(said)[-1:]:
            messages = fields.get("messages") or fields.get("input") or []
            answered = max(map(int, ANSWERED.findall(said)), default=0)
            self.seen.append(Seen(plain(messages), int(tokens), int(tokens) - int(cached), answered))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def claude(home, url):
    env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "x", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    flags = ["-p", "--model", "kvik", "--max-turns", str(CALLS + 1)]
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
    flags = ["--auth-type", "openai", "--max-session-turns", str(CALLS + 1), "-p"]
    return env, [*flags, QUESTION], ["--continue", *flags, "Now add a test"]


def cline(home, url):
    settings = {"provider": "openai-compatible", "apiKey": "x", "model": "kvik", "baseUrl": f"{url}/v1"}
    entry = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    providers = {"version": 1, "lastUsedProvider": "openai-compatible", "modes": {}, "providers": {"openai-compatible": entry}}
    write(home / ".cline/data/settings/providers.json", json.dumps(providers))
    return {}, ["-P", "openai-compatible", "-m", "kvik", QUESTION], None


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


def aider(home, url):
    env = {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "x", "AIDER_ANALYTICS_DISABLE": "1"}
    flags = ["--model", "openai/kvik", "--yes-always", "--no-git", "--no-check-update", "--no-show-model-warnings"]
    return env, [*flags, "--message", QUESTION, "calc.py"], [*flags, "--restore-chat-history", "--message", "Now add a test", "calc.py"]


AGENTS = {"claude": claude, "codex": codex, "opencode": opencode, "qwen": qwen, "cline": cline, "cn": cn, "pi": pi, "aider": aider}


def run(argv, env, home, directory):
    directory.mkdir(parents=True, exist_ok=True)
    write(directory / "calc.py", "def add(a, b):\n    return a - b\n")
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", "NO_COLOR": "1"} | env
    try:
        subprocess.run(argv, env=own, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        print(f"{argv[0]} did not end in {SECONDS} s", file=sys.stderr)


def end_daemons(home):
    """Ends what an agent has left running in the background: a later run would be answered by it, with its settings."""
    for environment in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"HOME={home}\0".encode() in environment.read_bytes() + b"\0":
                os.kill(int(environment.parent.name), signal.SIGTERM)


def measure(name, program, kvik, url):
    """What was seen of each phase; none if it is not asked."""
    Between.port, found = kvik.port, {}
    with tempfile.TemporaryDirectory(prefix=f"agent-{name}-") as folder:
        home, work = pathlib.Path(folder) / "home", pathlib.Path(folder) / "work"
        home.mkdir()
        env, new, goes_on = AGENTS[name](home, url)
        shop, bank, farm = work / "shop", work / "bank/accounts", work / "farm"
        for phase, argv, at in zip(PHASES, (new, goes_on, new, new, new), (shop, shop, shop, bank, farm)):
            Between.seen, Between.calls = [], 0
            if argv is not None:
                run([program, *argv], env, home, at)
            found[phase] = Between.seen
        end_daemons(home)
    return found


def begins(seen):
    """The cost of a session: of the largest prompt that begins a conversation, and of all requests."""
    firsts = [request for index, request in enumerate(seen) if request.beyond(seen[:index]) is None]
    if not firsts:
        return "not seen"
    largest = max(firsts, key=lambda request: request.tokens)
    return f"{largest.computed:,} of {largest.tokens:,} ({sum(request.computed for request in seen):,} of {len(seen)} requests)"


def turns(found):
    """The turns that go on, and what they computed at most beyond what was new."""
    new = found["new"]
    sessions = [new, *(found[phase] for phase in PHASES[2:])]
    beyond = [request.beyond(seen[:index]) for seen in sessions for index, request in enumerate(seen)]
    beyond += [request.beyond(new + found["goes on"][:index]) for index, request in enumerate(found["goes on"])]
    later = [tokens for tokens in beyond if tokens is not None]
    return f"{max(later):+,} in {len(later)}" if later else "not seen"


def listening(between):
    """The handler between agents and kvik, as a server, and its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), between)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"


def program(agents, name):
    """The path of an agent; none if it is not installed."""
    return shutil.which(name, path=f"{agents / 'node_modules/.bin'}:{agents / 'bin'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--agents", required=True, type=pathlib.Path, help="the folder that npm installed them to")
    parser.add_argument("--only", default=",".join(AGENTS))
    parser.add_argument("--kvik", default=ROOT / "target/release/kvik")
    parser.add_argument("--ahead", default="off", help="as kvik's; how much is computed behind answers depends on how long tools run")
    args = parser.parse_args()
    _, url = listening(Between)
    columns = ("turns that go on", *PHASES[:1], *PHASES[2:])
    print("| agent | prompts | " + " | ".join(columns) + " |\n| --- | --- | " + "---: | " * len(columns))
    for name in args.only.split(","):
        path = program(args.agents, name)
        if path is None:
            print(f"| {name} | not installed |" + " |" * len(columns), flush=True)
            continue
        for flags in ((), ("--settle-prompts",)):
            with Server("--model", args.model, "--cache-ram", "2GiB", "--ahead", args.ahead, *flags, binary=args.kvik) as kvik:
                found = measure(name, path, kvik, url)
            cells = (turns(found), *(begins(found[phase]) for phase in columns[1:]))
            print(f"| {name} | {'settled' if flags else 'as sent'} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
