"""Attacks by cost: one request makes the server compute, allocate or wait too much."""
import contextlib
import json
import socket
import time

from .harness import GIB, KIB, MIB, attack, is_ours

# Memory of the process itself: model, tokenizer, cache, threads; a request adds memory for its body.
AT_REST = 300


def completion(prompt="Hello", **body):
    return dict(prompt=prompt, n_predict=1, max_tokens=1, temperature=0) | body


@attack("multiple-of", "a schema of 50 bytes stops all inference and takes gigabytes")
def multiple_of(trial):
    schema = {"type": "integer", "multipleOf": 10000019}
    body = completion(json_schema=schema, n_predict=8)
    with trial.server() as server, trial.neighbour(server):
        ask = lambda: trial.send(server, "/completion", body, patience=20)
        answers = trial.together(ask, ask)
        for answer in answers:
            trial.expect(answer.status in (200, 400), f"the schema got {answer.status}")
        for _ in range(5 if trial.sample else 20):
            abandon(server, "/completion", body, seconds=0.2)
        time.sleep(1)
        trial.send(server, "/v1/completions", completion())
        trial.expect(server.process.poll() is None, "the server is gone")
        started = time.monotonic()
    trial.note(f"SIGTERM took {time.monotonic() - started:.1f} s")
    trial.expect(time.monotonic() - started < 8, "SIGTERM did not end the server within its grace")
    trial.bound(seconds=10, peak_mib=AT_REST + 700, neighbour_ms=3000)


def abandon(server, path, body, seconds):
    """Sends a request and disconnects after a moment."""
    raw = json.dumps(body).encode()
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=10) as s:
        s.sendall(head(server, path, len(raw)) + raw)
        time.sleep(seconds)


def head(server, path, length):
    lines = f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", "Content-Type: application/json", f"Content-Length: {length}"
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@attack("one-grammar-64", "64 prompts compile one dear schema 64 times")
def one_grammar_64(trial):
    """Once it takes most of a second."""
    schema = {"type": "integer", "multipleOf": 30011}
    with trial.server() as server, trial.neighbour(server):
        answer = trial.send(server, "/v1/completions", completion(["Hello"] * 64, json_schema=schema))
        trial.expect(answer.status in (200, 400), f"answered {answer.status or 'nothing'}")
    trial.bound(seconds=10, peak_mib=AT_REST + 400, neighbour_ms=3000)


@attack("echo-n64", "`echo` with `n: 64` copies the prompt 64 times before any check")
def echo_n64(trial):
    with trial.server() as server, trial.neighbour(server):
        text = "x" * int(15.3 * MIB)
        trial.send(server, "/v1/completions", completion(text, echo=True, n=64))
        trial.send(server, "/v1/completions", completion(["y" * (400 * 1000)] * 64, echo=True))
    trial.bound(seconds=10, peak_mib=AT_REST + 250, neighbour_ms=3000)


@attack("echo-three-at-once", "three such requests end a server of 3 GB")
def echo_three(trial):
    with trial.server(memory=3 * GIB) as server:
        body = json.dumps(completion("x" * (30 * MIB), echo=True, n=64)).encode()
        ask = lambda: trial.send(server, "/v1/completions", body)
        trial.together(ask, ask, ask)
        answer = trial.send(server, "/completion", completion())
        trial.expect(answer.status == 200, f"afterwards a request gets {answer.status}")
    trial.bound(seconds=15, peak_mib=AT_REST + 500)


@attack("logit-bias-text", "a bias on 28 MiB of text is tokenized for each choice")
def logit_bias_text(trial):
    with trial.server() as server, trial.neighbour(server):
        text = "word " * (28 * MIB // 5)
        for bias in ({text: 1}, [[text, 1]]):
            answer = trial.send(server, "/completion", completion(logit_bias=bias, n=8))
            trial.expect(answer.status == 400, f"answered {answer.status}")
    trial.bound(seconds=10, peak_mib=AT_REST + 250, neighbour_ms=3000)


@attack("tokenize", "/tokenize of 30 MiB takes gigabytes and keeps them")
def tokenize(trial):
    with trial.server(memory=6 * GIB) as server, trial.neighbour(server):
        text = "a" * (30 * MIB - 100)
        trial.send(server, "/tokenize", {"content": text})
        if not trial.sample:
            trial.send(server, "/tokenize", {"content": text, "with_pieces": True})
            trial.send(server, "/tokenize", {"content": "a b " * (7 * MIB)})
        after = trial.resident_mib(server)
        trial.note(f"{after:.0f} MiB stay resident")
        trial.expect(after < AT_REST + 400, f"{after:.0f} MiB stay resident")
    trial.bound(seconds=30, peak_mib=AT_REST + 1000, neighbour_ms=3000)


@attack("log-probabilities", "many answers with thousands of log-probabilities a token take all memory together")
def log_probabilities(trial):
    """Alone one is answered; beside others it is, or is asked to come again."""
    body = completion(n_predict=128, n_probs=2000, ignore_eos=True)
    crowd = 12 if trial.sample else 48
    with trial.server("--parallel", 4) as server, trial.neighbour(server):
        answers = trial.together(*[lambda: trial.send(server, "/completion", body)] * crowd)
        statuses = sorted({answer.status for answer in answers})
        trial.expect(set(statuses) <= {200, 429} and 200 in statuses, f"answered {statuses}")
        waits = [answer.headers.get("retry-after") for answer in answers if answer.status == 429]
        trial.expect(all(waits), "a refusal does not say when to come again")
        unread = [unread_answer(server, "/completion", body | {"stream": stream}) for stream in (True, False) * (crowd // 2)]
        time.sleep(3)
        for connection in unread:
            connection.close()
        alone = trial.send(server, "/completion", body)
        deadline = time.monotonic() + 10
        while alone.status == 429 and time.monotonic() < deadline:
            time.sleep(0.2)
            alone = trial.send(server, "/completion", body)
        trial.expect(alone.status == 200, f"when the others are gone it gets {alone.status}")
    trial.bound(peak_mib=AT_REST + 500, neighbour_ms=5000)


def unread_answer(server, path, body):
    """A connection whose answer nobody reads."""
    raw = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(head(server, path, len(raw)) + raw)
    return connection


@attack("large-conversation", "reading one conversation of megabytes, again and again, slows all others")
def large_conversation(trial):
    said = [{"role": "user", "content": f"{number} " + "rain and wind over the harbour " * 14} for number in range(4000)]
    turns = said[: 800 if trial.sample else len(said)]
    with trial.server() as server, trial.neighbour(server):
        begun = trial.send(server, "/v1/conversations", {"name": "long", "messages": turns})
        trial.expect(begun.status == 200, f"it was answered {begun.status}")
        reads = ["/v1/conversations?search=lighthouse", "/v1/conversations/long/export", "/v1/conversations/long/items",
                 "/v1/conversations/long/memory"]
        for _ in range(3 if trial.sample else 10):
            trial.together(*[lambda path=path: trial.send(server, path, method="GET") for path in reads])
            copied = trial.send(server, "/v1/conversations", {"from": "long"})
            trial.expect(copied.status == 200, f"a copy was answered {copied.status}")
    trial.bound(seconds=20, peak_mib=AT_REST + 500, neighbour_ms=3000)


@attack("ignored-json", "JSON in a field that nobody reads takes and keeps gigabytes")
def ignored_json(trial):
    sizes = (9.7,) if trial.sample else (9.7, 9.7, 9.7, 28.6)
    with trial.server(memory=6 * GIB) as server, trial.neighbour(server):
        for mib in sizes:
            junk = ("[[1]]," * int(mib * MIB / 6)).rstrip(",")
            body = f'{{"prompt": "Hello", "n_predict": 1, "nobody": [{junk}]}}'.encode()
            for path in ("/completion", "/v1/completions"):
                trial.send(server, path, body)
        after = trial.resident_mib(server)
        trial.note(f"{after:.0f} MiB stay resident")
        trial.expect(after < AT_REST + 150, f"{after:.0f} MiB stay resident")
    trial.bound(seconds=10, peak_mib=AT_REST + 300, neighbour_ms=3000)


@attack("four-open-bodies", "four bodies that never come hold back all that are larger than 64 KiB")
def four_open_bodies(trial):
    with trial.server() as server, contextlib.ExitStack() as stack:
        for _ in range(8):
            s = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            s.sendall(head(server, "/completion", 32 * MIB) + b'{"prompt": "')
        time.sleep(0.5)
        answer = trial.send(server, "/completion", completion("x", ignored="y" * (100 * KIB)), patience=10)
        trial.expect(answer.status == 200, f"a body of 100 KiB gets {answer.status or 'no answer'} in 10 s")
    trial.bound(seconds=5)


@attack("idle-connections", "1,030 idle connections block /health")
def idle_connections(trial):
    with trial.server() as server, contextlib.ExitStack() as stack:
        for _ in range(1030):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=2))
        for _ in range(3):
            answer = trial.send(server, "/health", method="GET", patience=5)
            trial.expect(answer.status == 200, f"/health gets {answer.status or 'no answer'}")
    trial.bound(seconds=3)


TEMPLATES = {
    "template-indent": "{{ 'x'|indent(4000000000) }}",
    "template-center": "{{ 'x'|center(4000000000) }}{{ 'x'.ljust(4000000000) }}",
    "template-doubling": "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "template-adding": "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "template-replace": "{% set s = 'x' * 100000 %}{{ s.replace('x', s).replace('x', s) }}",
    "template-lists": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}",
}


def template(name, source):
    @attack(name, f"a chat template ends the server or stops it: {source[:50]}")
    def run(trial):
        path = trial.folder / "template.jinja"
        path.write_text(source)
        with trial.server("--chat-template", path) as server, trial.neighbour(server):
            body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}
            answer = trial.send(server, "/v1/chat/completions", body)
            # An indentation of nothing costs nothing, and is right.
            refused = answer.status == 400 and is_ours(answer)
            trial.expect(refused or (name == "template-indent" and answer.status == 200), f"answered {answer.status or 'nothing'}: {answer.text[:100]}")
        trial.bound(seconds=5, peak_mib=AT_REST + 400, neighbour_ms=3000)


for name, source in TEMPLATES.items():
    template(name, source)
