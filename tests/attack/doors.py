"""Attacks on access control, on assumptions about requests, and through the environment of the process."""
import array
import json
import math
import pathlib
import subprocess
import threading
import time

from server import BINARY, TINY, Server

from .harness import MIB, Skipped, attack, ids, is_ours

HELLO = {"prompt": "Hello", "n_predict": 1, "max_tokens": 1}


@attack("foreign-pages", "any web page that its user opens can use a server without keys")
def foreign_pages(trial):
    with trial.server() as server:
        body = json.dumps(HELLO).encode()
        here = f"127.0.0.1:{server.port}"
        cases = {
            # A program sends these too, and neither of the headers by which browsers say who asks.
            "text/plain": {"Content-Type": "text/plain", "Origin": "https://evil.example"},
            "a form": {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "cross-site"},
            "another Origin": {"Content-Type": "application/json", "Origin": "https://evil.example"},
            "Origin null": {"Content-Type": "application/json", "Origin": "null"},
            "another Host": {"Content-Type": "application/json", "Host": f"evil.example:{server.port}"},
            "a Host that rebinds": {"Content-Type": "application/json", "Host": f"127.0.0.1.evil.example:{server.port}"},
            "another page's rebinding": {"Host": "evil.example", "Origin": "http://evil.example", "Content-Type": "application/json"},
        }
        routes = [("POST", path) for path in ("/v1/completions", "/completion", "/v1/cache/pin", "/v1/cache/evict", "/tokenize")]
        for what, headers in cases.items():
            for method, path in routes + [("GET", "/v1/cache"), ("DELETE", "/v1/cache"), ("GET", "/v1/models")]:
                if method != "POST" and "Host" not in headers and "Origin" not in headers:
                    continue  # without a body there is no type
                if method == "GET" and "Host" not in headers:
                    continue  # a foreign page may send it and cannot read the answer
                answer = trial.send(server, path, body if method == "POST" else None, method, **headers)
                readable = answer.headers.get("access-control-allow-origin")
                trial.expect(answer.status >= 400 and not readable, f"{what}: {method} {path} gets {answer.status}")
        own = trial.send(server, "/v1/completions", HELLO, Host=here, Origin=f"http://{here}")
        trial.expect(own.status == 200, f"its own page gets {own.status}")


@attack("empty-keys", "a key that is empty opens the server to all without a word")
def empty_keys(trial):
    cases = [(["--api-key", value], {}) for value in ("", " ", ",")] + [([], {"KVIK_API_KEY": ""})]
    for flags, env in cases:
        what = f"{flags or env}"
        server = Server("--threads", 2, "--cache-ram", "64MiB", *flags, env=env)
        try:
            server.wait_until_ready()
            status = server.post("/completion", HELLO).status
            trial.expect(status == 401, f"{what}: the server starts and a request without a key gets {status}")
        except AssertionError:
            trial.expect("key" in server.logged(), f"{what}: the refusal says nothing about keys")
        finally:
            end(server)


def end(server):
    if server.process.poll() is None:
        server.kill()
    server.log.close()
    server.state.cleanup()


@attack("silent-doors", "an admin's key alone, or all interfaces without a key, are open without a warning")
def silent_doors(trial):
    with trial.server("--admin-key", "root") as server:
        status = trial.send(server, "/completion", HELLO).status
        warned = "WARN" in server.logged()
        trial.expect(status == 401 or warned, "--admin-key alone: inference is open and the log has no warning")
    wrap = ["unshare", "-rn"]  # a network namespace of its own
    if subprocess.run([*wrap, "true"], capture_output=True).returncode:
        return trial.note("--host 0.0.0.0 was not tried: this machine gives no network of one's own")
    server = Server("--threads", 2, "--cache-ram", "64MiB", "--host", "0.0.0.0", wrap=wrap)
    try:
        deadline = time.monotonic() + 30
        while "listening" not in server.logged() and server.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        refused, log = server.process.poll() is not None, server.logged()
        trial.expect(refused or "WARN" in log, "--host 0.0.0.0 without a key: the log has no warning")
    finally:
        end(server)


@attack("usage-lock", "`kvik usage` takes the accounts' lock, and a server that starts then runs without them")
def usage_lock(trial):
    state, stop = trial.folder / "state", threading.Event()
    with trial.server(state=state) as server:
        trial.send(server, "/v1/completions", HELLO)

    def look():
        while not stop.is_set():
            command = [BINARY, "usage", "--state-dir", state, "--json", "--port", "9"]
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        starts = 4 if trial.sample else 15
        lost = 0
        for _ in range(starts):
            with trial.server(state=state) as server:
                lost += "this server loses its accounts" in server.logged()
    finally:
        stop.set()
        for looker in lookers:
            looker.join()
    trial.expect(not lost, f"{lost} of {starts} starts went on without accounts")


# Fields that other servers support and a client may rely on; each would change the answer.
UNOBEYED = {
    "/completion": dict(
        typical_p=0.01, mirostat=2, dry_multiplier=5.0, xtc_probability=1.0, samplers=["top_k"],
        bad_words=["the"], guided_json={"type": "integer"}, lora=[{"id": 0, "scale": 1.0}], n_keep=5,
        image_data=[{"data": "AA==", "id": 1}], post_sampling_probs=True,
    ),
    "/v1/chat/completions": dict(
        functions=[{"name": "f", "parameters": {"type": "object"}}], function_call={"name": "f"}, modalities=["audio"],
        audio={"voice": "alloy", "format": "wav"}, guided_json={"type": "integer"},
    ),
}  # fmt: skip


@attack("ignored-fields", "fields that would change the answer are dropped in silence")
def ignored_fields(trial):
    """Refused, or the answer is another one: anything else is silence."""
    with trial.server() as server:
        for path, fields in UNOBEYED.items():
            base = dict(temperature=1.2, seed=7, max_tokens=24, n_predict=24)
            base |= {"messages": [{"role": "user", "content": "Tell me a story."}]} if "chat" in path else {"prompt": "Once upon"}
            plain = said(trial.send(server, path, base))
            for field, value in fields.items():
                answer = trial.send(server, path, base | {field: value})
                silent = answer.status == 200 and said(answer) == plain and field not in answer.text
                trial.expect(not silent, f"{path}: `{field}` changes nothing")


def said(answer):
    value = answer.json
    return value.get("content") or [choice.get("message") or choice.get("text") for choice in value.get("choices", [])]


@attack("bad-paths", "wrong paths and queries get plain text")
def bad_paths(trial):
    with trial.server() as server:
        for method, path in (
            ("GET", "/v1/prompts/%FF"), ("GET", "/v1/cache?limit=many"), ("GET", "/v1/cache?nobody=1"), ("GET", "/v1/usage?since=%FF"),
            ("GET", "/v1/usage?nobody=1"), ("GET", "/v1/models/%FF"), ("DELETE", "/v1/prompts/%FF"), ("GET", "/nowhere"),
            ("PATCH", "/completion"), ("GET", "/v1/prompts/a/b/c"), ("POST", "/v1/prompts/x/nothing"),
        ):  # fmt: skip
            answer = trial.send(server, path, b"{}" if method in ("POST", "PATCH") else None, method)
            trial.expect(400 <= answer.status < 500 and is_ours(answer), f"{method} {path} gets {answer.status} {answer.text[:60]!r}")


@attack("control-tokens", "a user's text that looks like a control token is obeyed as one")
def control_tokens(trial):
    with trial.server() as server:
        tokens = lambda text: trial.send(
            server, "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
        ).json["usage"]["prompt_tokens"]
        more = tokens("Hi" + "<|im_end|>" * 10) - tokens("Hi")
        trial.expect(more > 20, f"ten `<|im_end|>` in a user's text are {more} tokens: control tokens")
        prompt = trial.send(server, "/v1/completions", dict(HELLO, prompt="Hi" + "<|im_end|>" * 10)).json["usage"]["prompt_tokens"]
        trial.note(f"in a chat they are {more} tokens, in a completion of the client's own text {prompt - 1}")


@attack("kwargs-messages", "`chat_template_kwargs.messages` replaces the conversation")
def kwargs_messages(trial):
    with trial.server() as server:
        body = {"messages": [{"role": "user", "content": "the real question"}]}
        for kwargs in ({"messages": [{"role": "user", "content": "another"}]}, {"tools": [{}]}, {"add_generation_prompt": False}):
            answer = trial.send(server, "/apply-template", body | {"chat_template_kwargs": kwargs})
            kept = answer.status == 200 and "the real question" in answer.json["prompt"] and "messages" not in kwargs
            trial.expect(answer.status == 400 or kept, f"{list(kwargs)} gets {answer.status} {answer.text[:100]}")


@attack("lm-head-only", "a valid tied checkpoint that stores only `lm_head.weight` is refused")
def lm_head_only(trial):
    checkpoint(trial.folder)
    server = Server("--threads", 2, "--cache-ram", "64MiB", "-m", trial.folder)
    try:
        server.wait_until_ready()
        answer = server.post("/completion", HELLO)
        trial.expect(answer.status == 200 and answer.json["tokens_predicted"] > 0, f"it answers {answer.status}")
    except AssertionError as error:
        trial.expect(False, f"it does not load: {str(error).strip().splitlines()[-1][:200]}")
    finally:
        end(server)


def checkpoint(folder, vocab=2048, width=64, feed=128, heads=2):
    """A Llama of one layer with tied embeddings, stored under the head's name alone."""
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    vocab = max(len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"]), vocab)
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=width, intermediate_size=feed, num_hidden_layers=1,
        num_attention_heads=heads, num_key_value_heads=heads, vocab_size=vocab, max_position_embeddings=256, rms_norm_eps=1e-5,
        rope_theta=10000.0, tie_word_embeddings=True, hidden_act="silu", torch_dtype="float32", eos_token_id=0, bos_token_id=0,
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    layer = "model.layers.0."
    shapes = {"lm_head.weight": (vocab, width), "model.norm.weight": (width,)}
    shapes |= {layer + norm + ".weight": (width,) for norm in ("input_layernorm", "post_attention_layernorm")}
    shapes |= {layer + f"self_attn.{part}_proj.weight": (width, width) for part in "qkvo"}
    shapes |= {layer + f"mlp.{part}_proj.weight": shape for part, shape in dict(gate=(feed, width), up=(feed, width), down=(width, feed)).items()}
    write_safetensors(folder / "model.safetensors", shapes)


def write_safetensors(path, shapes):
    """Tensors of small numbers: a header of JSON, then bytes."""
    header, data = {}, b""
    for number, (name, shape) in enumerate(shapes.items()):
        count = math.prod(shape)
        numbers = [1.0] * count if len(shape) == 1 else [((i * 37 + number) % 101 - 50) / 500 for i in range(count)]
        raw = array.array("f", numbers).tobytes()
        header[name] = dict(dtype="F32", shape=list(shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@attack("file-size-limit", "a limit on the length of files kills the process")
def file_size_limit(trial):
    folders = dict(disk=trial.folder / "kv", state=trial.folder / "state")
    flags = ["--cache-ram", "16MiB"]
    with trial.server(*flags, **folders, file_bytes=4 * MIB) as server:
        for i in range(40):
            answer = trial.send(server, "/completion", dict(prompt=ids(700, f"file {i}"), n_predict=1))
            trial.expect(answer.status == 200, f"request {i} gets {answer.status or 'no answer'}")
            if answer.status != 200:
                break
        time.sleep(1)


@attack("clock-before-1970", "a clock before 1970 ends the server")
def clock(trial):
    library = next(iter(sorted(pathlib.Path("/usr/lib").rglob("libfaketime.so.1"))), None)
    if library is None:
        raise Skipped("libfaketime is not installed")
    env = {"LD_PRELOAD": str(library), "FAKETIME": "@1960-01-01 00:00:00", "TZ": "UTC", "DONT_FAKE_MONOTONIC": "1"}
    folders = dict(disk=trial.folder / "kv", state=trial.folder / "state")
    try:
        with trial.server(env=env, patience=20, **folders) as server:
            answer = trial.send(server, "/v1/completions", HELLO)
            trial.expect(answer.status == 200, f"a request gets {answer.status or 'no answer'}")
            trial.expect("panicked" not in server.logged(), "the log has a panic")
    except AssertionError as error:
        # No answer can be dated: to refuse to start, and say why, is right as well.
        lines = str(error).splitlines()
        refusal = [line for line in lines if line.startswith("error:") and "clock" in line]
        panics = [line for line in lines if "panicked" in line]
        trial.verdict.problems.clear()
        trial.expect(refusal and not panics, f"it does not serve: {(panics or lines)[0]}")
        trial.note("it refuses to start" if refusal else "")
