"""Bad input: each gets a clear error, and the server keeps running."""
import json
import random
import socket
import struct
import time

import pytest
from server import TINY, Server

MODEL_FILE = TINY / "kvik-tiny-q8_0.gguf"
MIB = 1 << 20


@pytest.fixture(autouse=True)
def still_serving(request):
    """After every case a normal request works."""
    yield
    if "server" in request.fixturenames:
        assert_serving(request.getfixturevalue("server"))


def assert_serving(server):
    answer = server.post("/completion", {"prompt": "Hello", "n_predict": 3, "temperature": 0})
    assert answer.status == 200 and answer.json["tokens_predicted"] > 0


def chat(**options):
    return {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 16} | options


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe\x00garbage",
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"messages": ' + b"[" * 100_000,
        b'{"prompt": 1e999}',
    ],
    ids=lambda body: repr(body[:24]),
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion", "/tokenize"])
def test_bodies_that_are_no_json(server, path, body):
    answer = server.post(path, body)
    assert answer.status in (400, 422), (answer.status, answer.text)
    assert answer.error["message"]


WRONG = [None, True, -1, 1.5, "text", "", [], [None], {}, {"x": 1}, 10**30, "\x00"]
FIELDS = [
    "model", "messages", "prompt", "max_tokens", "n_predict", "temperature", "top_p", "top_k", "min_p", "seed", "stop",
    "stream", "stream_options", "n", "logprobs", "top_logprobs", "logit_bias", "response_format", "tools", "tool_choice",
    "presence_penalty", "frequency_penalty", "repeat_penalty", "grammar", "json_schema", "chat_template_kwargs", "content",
    "tokens",
]  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion", "/tokenize", "/detokenize", "/apply-template"])
def test_fields_of_every_wrong_type(server, path):
    """Answered or refused, but never a 5xx."""
    for field in FIELDS:
        for value in WRONG:
            body = chat(prompt="Hello", n_predict=2, max_tokens=2) | {field: value}
            answer = server.post(path, body)
            assert answer.status in (200, 400, 404), (field, value, answer.status, answer.text)
            if answer.status != 200:
                assert answer.error["message"], (field, value)


def test_a_prompt_of_ten_mebibytes(server):
    text = "word " * (10 * MIB // 5)
    for path, body in (
        ("/completion", {"prompt": text}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * (10 * MIB)}]}),
        ("/tokenize", {"content": text}),
    ):
        started = time.monotonic()
        answer = server.post(path, body)
        assert answer.status in (200, 400, 413) if path == "/tokenize" else answer.status in (400, 413), answer.text[:300]
        assert time.monotonic() - started < 60
        assert_serving(server)


def test_a_body_beyond_the_limit(server):
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.settimeout(30)
    head = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n"
    connection.sendall(head + b'{"prompt": "')
    status = connection.recv(64).split(b" ")[1]
    connection.close()
    assert status == b"413"


def test_random_bytes_instead_of_http(server):
    rng = random.Random(1)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(rng.randbytes(200))


def test_a_schema_that_cannot_be_satisfied(server):
    for schema in (
        False,
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"enum": []},
        {"type": "nonsense"},
        {"$ref": "#/missing"},
        {"$ref": "https://example.com/schema.json"},
        {"type": "string", "pattern": "("},
    ):
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        answer = server.post("/v1/chat/completions", chat(response_format=wanted))
        assert answer.status == 400, (schema, answer.status, answer.text)
        assert answer.error["message"]
        assert_serving(server)


def test_a_schema_that_never_ends(server):
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = server.post("/v1/chat/completions", chat(response_format=wanted))
    assert answer.status in (200, 400)
    if answer.status == 200:
        assert answer.json["choices"][0]["finish_reason"] == "length"


def test_a_grammar_that_is_none(server):
    for grammar in ("this is no grammar", "start: missing", "start: \"", 'root ::= "x', "root ::= root", "start: start start"):
        answer = server.post("/completion", {"prompt": "Hello", "n_predict": 4, "grammar": grammar})
        assert answer.status == 400, (grammar, answer.text)


def test_a_stop_string_longer_than_the_answer(server):
    plain = server.post("/v1/chat/completions", chat(temperature=0)).json["choices"][0]
    stop = plain["message"]["content"] + " and then something that is never said"
    for stream in (False, True):
        answer = server.post("/v1/chat/completions", chat(temperature=0, stop=stop, stream=stream))
        assert answer.status == 200
        if stream:
            events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
            chunks = [json.loads(event) for event in events[:-1]]
            text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
        else:
            text = answer.json["choices"][0]["message"]["content"]
        assert text == plain["message"]["content"]


def test_no_tokens_wanted(server):
    answer = server.post("/v1/chat/completions", chat(max_tokens=0))
    assert answer.status == 200 and answer.json["usage"]["completion_tokens"] == 0
    answer = server.post("/completion", {"prompt": "Hello", "n_predict": 0})
    assert answer.status == 200 and answer.json["tokens_predicted"] == 0


def test_empty_prompts(server):
    for path, body in (
        ("/v1/chat/completions", {"messages": []}),
        ("/completion", {"prompt": ""}),
        ("/completion", {"prompt": []}),
        ("/completion", {"prompt": [10**9]}),
        ("/completion", {"prompt": [-1]}),
        ("/v1/completions", {"prompt": ""}),
    ):
        answer = server.post(path, body | {"max_tokens": 2, "n_predict": 2})
        assert answer.status in (200, 400), (path, body, answer.text)


def test_unknown_paths_and_methods(server):
    assert server.get("/v1/nothing").status == 404
    assert server.get("/v1/chat/completions").status == 405
    assert server.post("/v1/models", {}).status == 405


def test_a_client_that_never_reads():
    """Its answer is far larger than the sockets' buffers; others are served, and its end frees its blocks."""
    with Server("--threads", "2") as server:
        before = server.resident_bytes()
        body = json.dumps(chat(max_tokens=1500, n=8, logprobs=True, top_logprobs=20, stream=True) | {"ignore_eos": True})
        silent = socket.socket()
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", server.port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        silent.sendall((head + body).encode())
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:
            assert_serving(server)
            time.sleep(0.5)
        assert server.resident_bytes() - before < 256 * MIB
        silent.close()
        deadline = time.monotonic() + 20
        while server.metrics()["kvik_requests_running"] > 0:
            assert time.monotonic() < deadline, "the silent client's work goes on"
            time.sleep(0.1)
        assert_serving(server)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(1000000000) %}{% for j in range(1000000000) %}x{% endfor %}{% endfor %}",
        "{{ raise_exception('no roles here') }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[5].content.x.y }}",
        "{{ 'x' * 1000000000 * 1000 }}",
        "{{ 1 // 0 }}",
    ],
)
def test_templates_that_loop_or_raise(tmp_path, template):
    path = tmp_path / "template.jinja"
    path.write_text(template)
    with Server("--chat-template", path, "--threads", "2") as server:
        started = time.monotonic()
        answer = server.post("/v1/chat/completions", chat())
        assert answer.status == 400, answer.text
        assert "template" in answer.error["message"]
        assert time.monotonic() - started < 10
        assert_serving(server)


def test_a_template_that_does_not_parse(tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text("{% for %}")
    assert "template" in refusal("--chat-template", path)


def test_broken_model_files(tmp_path):
    whole = MODEL_FILE.read_bytes()
    path = tmp_path / "model.gguf"
    for name, content in broken_models(whole).items():
        path.write_bytes(content)
        message = refusal("-m", path)
        assert "model.gguf" in message, (name, message)


def broken_models(whole):
    u64 = lambda value: struct.pack("<Q", value)
    put = lambda at, piece: whole[:at] + piece + whole[at + len(piece) :]
    rng = random.Random(2)
    noisy = bytearray(whole[:200_000])
    for _ in range(2000):
        noisy[rng.randrange(8, len(noisy))] = rng.randrange(256)
    return {
        "empty": b"",
        "magic only": b"GGUF",
        "other magic": put(0, b"ELF\x7f"),
        "version 99": put(4, struct.pack("<I", 99)),
        "half a header": whole[:1000],
        "half the tokenizer": whole[:60_000],
        "half the tensors": whole[: len(whole) // 2],
        "one byte short": whole[:-1],
        "huge tensor count": put(8, u64(2**63)),
        "many tensors": put(8, u64(10**6)),
        "huge metadata count": put(16, u64(2**64 - 1)),
        "huge first key": put(24, u64(2**40)),
        "noise": bytes(noisy) + whole[200_000:],
    }


def refusal(*flags):
    """The message of a server that does not start; it must exit by itself, soon, and without a panic."""
    server = Server(*flags)
    try:
        assert server.process.wait(60) > 0, server.logged()
        message = server.logged()
        assert "panicked" not in message and "error" in message.lower(), message
        return message
    finally:
        if server.process.poll() is None:
            server.kill()
