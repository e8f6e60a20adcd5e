"""Several models on one server: loaded by name when they are asked for, taking turns where they do not fit together."""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import openai
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from hub import Hub  # noqa: E402
from server import BINARY, TINY, Server, effort  # noqa: E402

FILE = TINY / "kvik-tiny-q8_0.gguf"
# The same weights in other types are other models, whose answers differ.
WEIGHTS = {"small": None, "wide": "f32", "short": "bf16", "tight": "q4_0"}
KV = "24MiB"
JSON = {"Content-Type": "application/json"}
PROMPTS = [f"Story number {i}. " + "Once upon a time there was a folder full of letters. " * 6 for i in range(6)]


def config(folder, **more):
    """A configuration of four models."""
    lines = []
    for name, weights in WEIGHTS.items():
        source = more.get(name, {}).pop("source", str(FILE))
        lines += [f"[models.{name}]", f'source = "{source}"', f'cache-ram = "{KV}"', "context = 512", "threads = 2"]
        lines += [f'weights = "{weights}"'] if weights else []
        lines += ['aliases = ["house", "gpt-4o"]'] if name == "small" else []
        lines += [f"{key} = {json.dumps(value)}" for key, value in more.get(name, {}).items()]
    path = folder / "config.toml"
    path.write_text("\n".join(lines))
    return path


def start(folder, *flags, env=None, **more):
    env = {"KVIK_CONFIG": str(config(folder, **more)), "KVIK_CACHE_DISK": str(folder / "kv")} | (env or {})
    return Server(*flags, env=env)


def ask(server, model, prompt, **options):
    body = dict(model=model, prompt=prompt, max_tokens=6, temperature=0, ignore_eos=True) | options
    answer = server.post("/v1/completions", body)
    assert answer.status == 200, answer.text
    return answer.json


def text(answer):
    return answer["choices"][0]["text"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The answers of each model on a server of its own."""
    said = {}
    for name, weights in WEIGHTS.items():
        flags = ["-m", FILE, "--context", "512", "--cache-ram", KV, "--threads", "2"] + (["--weights", weights] if weights else [])
        with Server(*flags) as server:
            said[name] = [text(ask(server, name, prompt)) for prompt in PROMPTS]
    assert len({json.dumps(answers) for answers in said.values()}) > 1, "they are different models"
    return said


def statuses(server):
    models = server.get("/v1/models").json["data"]
    return {model["id"]: model["status"]["value"] for model in models if "status" in model}


def test_a_model_is_loaded_when_it_is_asked_for(tmp_path, alone):
    told = {"told-window": ["agent=200k", "helper=1m"]}
    with start(tmp_path, "--shelf-ram", "1GiB", small=told) as server:
        assert list(statuses(server)) == list(WEIGHTS), "in the order of the file"
        assert list(statuses(server).values()) == 4 * ["unloaded"], "a question about the server loads none"
        for name in WEIGHTS:
            first = server.post("/v1/completions", dict(model=name, prompt=PROMPTS[0], max_tokens=6, temperature=0, ignore_eos=True))
            assert text(first.json) == alone[name][0] and first.json["model"] == name
            assert int(first.headers["kvik-model-load-ms"]) > 0
            assert statuses(server)[name] == "loaded"
        again = ask(server, "gpt-4o", PROMPTS[0])
        assert again["model"] == "small" and again["usage"]["prompt_tokens_details"]["cached_tokens"] > 64
        helped = ask(server, "helper", PROMPTS[0])
        assert (helped["model"], helped["kvik"]["told_window"]) == ("small", 1_000_000)
        assert helped["usage"]["prompt_tokens"] == -(-again["usage"]["prompt_tokens"] * 1_000_000 // 512)
        assert set(statuses(server).values()) == {"loaded"}, "there is room for all"
        assert [model["name"] for model in server.get("/api/ps").json["models"]] == list(WEIGHTS)
        missing = server.post("/v1/completions", dict(model="large", prompt="Hi"))
        assert missing.status == 404 and "small, wide, short, tight" in missing.json["error"]["message"]
        chat = openai.OpenAI(base_url=server.base_url, api_key="unused")
        said = chat.chat.completions.create(model="wide", messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
        assert said.model == "wide"


def test_models_that_do_not_fit_together_take_turns_and_stay_warm(tmp_path, alone):
    """Memory for two of four, and eight clients that ask all of them."""
    dice = random.Random(7)
    asks = [(dice.choice(list(WEIGHTS)), dice.randrange(len(PROMPTS))) for _ in range(effort(60, 160))]
    with start(tmp_path, "--shelf-ram", "70MiB", "--queue", "64") as server:
        answered = set()

        def one(asked):
            """Whether it was answered before it was asked again, and the share of its prompt that was cached."""
            name, number = asked
            again = asked in answered
            answer = ask(server, name, PROMPTS[number])
            assert text(answer) == alone[name][number], asked
            answered.add(asked)
            usage = answer["usage"]
            return again, usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            cached = list(pool.map(one, asks))
        listed = {model["name"]: model for model in server.get("/v1/shelf").json["models"]}
        loads = sum(model["loads"] for model in listed.values())
        assert loads < len(asks) / 3, f"{loads} loads for {len(asks)} requests: they thrash"
        assert sum(model["status"] == "loaded" for model in listed.values()) <= 2
        warm = [share for again, share in cached if again]
        assert len(warm) > len(asks) / 4 and sum(share > 0.8 for share in warm) > 0.9 * len(warm), warm


def test_a_model_that_comes_back_knows_what_it_knew(tmp_path, alone):
    with start(tmp_path, "--shelf-ram", "40MiB") as server:
        for name in ("small", "wide", "small", "wide"):
            for number, prompt in enumerate(PROMPTS):
                answer = ask(server, name, prompt)
                assert text(answer) == alone[name][number]
                usage = answer["usage"]
                known = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
                listed = {model["name"]: model for model in server.get("/v1/shelf").json["models"]}
                assert (known > 0.8) == (listed[name]["loads"] == 2), (name, number, answer)


def test_what_nobody_asks_for_goes(tmp_path):
    with start(tmp_path, "--shelf-ram", "1GiB", small={"keep-alive": "1s"}) as server:
        ask(server, "small", "Hello"), ask(server, "wide", "Hello")
        deadline = time.monotonic() + 10
        while statuses(server)["small"] != "unloaded":
            assert time.monotonic() < deadline, statuses(server)
            time.sleep(0.1)
        assert statuses(server)["wide"] == "loaded"
        assert server.get("/health").status == 200


def test_a_model_that_cannot_be_loaded_says_why_and_harms_nobody(tmp_path, alone):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(FILE.read_bytes()[:100_000])
    with start(tmp_path, "--shelf-ram", "1GiB", tight={"source": str(broken)}) as server:
        answer = server.post("/v1/completions", dict(model="tight", prompt="Hi"))
        assert answer.status == 503 and "tight" in answer.json["error"]["message"], answer.text
        assert answer.json["error"]["code"] == "model_load_failed"
        assert text(ask(server, "small", PROMPTS[0])) == alone["small"][0]


def test_models_that_were_added_by_name_are_served(tmp_path, alone):
    env = os.environ | {"KVIK_MODELS_DIR": str(tmp_path / "models"), "KVIK_CACHE_DISK": "off"}
    for name in ("pulled", "copied"):
        done = subprocess.run([BINARY, "pull", FILE, "--name", name], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    with Server("--shelf", "--context", "512", "--cache-ram", KV, env={"KVIK_MODELS_DIR": str(tmp_path / "models")}) as server:
        assert list(statuses(server)) == ["copied", "pulled"]
        assert text(ask(server, "pulled", PROMPTS[0])) == alone["small"][0]
        shown = subprocess.run([BINARY, "ps", "--url", f"http://127.0.0.1:{server.port}"], env=env, capture_output=True, text=True)
        assert re.search(r"pulled +loaded", shown.stdout), shown
        unloaded = subprocess.run([BINARY, "ps", "--unload", "pulled", "--url", f"http://127.0.0.1:{server.port}"], env=env)
        assert unloaded.returncode == 0


def test_the_caches_in_memory_are_cleared_and_the_others_are_named(tmp_path):
    with start(tmp_path, "--shelf-ram", "1GiB") as server:
        url = f"http://127.0.0.1:{server.port}"
        run = lambda *words: subprocess.run([BINARY, "cache", *words, "--url", url], capture_output=True, text=True, timeout=60)
        assert "not in memory, so that what they have on disk stays: " in run("clear").stdout
        assert set(statuses(server).values()) == {"unloaded"}, "none is loaded to be cleared"
        for name in ("small", "wide"):
            ask(server, name, PROMPTS[0])
        for name in ("small", "wide"):
            assert "tokens" in run("ls", "--model", name).stdout, name
        refused = run("clear", "--model", "short")
        assert refused.returncode == 1 and "short is not in memory" in refused.stderr, refused
        assert re.match(r"small: evicted \d+ blocks", run("clear", "-m", "small").stdout)
        assert run("ls", "-m", "small").stdout == "the cache is empty\n"
        assert "tokens" in run("ls", "-m", "wide").stdout, "the other one is as it was"
        cleared = run("clear").stdout
        assert re.search(r"^wide: evicted \d+ blocks", cleared, re.M) and "stays: " in cleared and "short" in cleared, cleared
        assert run("ls", "-m", "wide").stdout == "the cache is empty\n"


def test_config_toml_is_read_again_while_the_server_runs(tmp_path, alone):
    with start(tmp_path, "--shelf-ram", "1GiB") as server:
        for name in WEIGHTS:
            ask(server, name, PROMPTS[0])
        path = tmp_path / "config.toml"
        tables = path.read_text().split("[models.")
        tables = [table.replace("512", "256") if table.startswith("wide") else table for table in tables if not table.startswith("tight")]
        tables += [f'new]\nsource = "{FILE}"\ncontext = 512\ncache-ram = "{KV}"\n']
        path.write_text("[models.".join(tables))
        server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 10
        while "new" not in statuses(server):
            assert time.monotonic() < deadline, statuses(server)
            time.sleep(0.05)
        assert sorted(statuses(server)) == ["new", "short", "small", "wide"]
        assert server.post("/v1/completions", dict(model="tight", prompt="Hi")).status == 404
        assert text(ask(server, "new", PROMPTS[0])) == alone["small"][0]
        loads = {model["name"]: model["loads"] for model in server.get("/v1/shelf").json["models"]}
        assert loads["small"] == 1, "what has not changed stays in memory"
        assert text(ask(server, "wide", PROMPTS[0])) == alone["wide"][0]
        assert {model["id"]: model.get("meta", {}) for model in server.get("/v1/models").json["data"]}["wide"]["n_ctx"] == 256
        valid, before = path.read_text(), statuses(server)
        assert before["new"] == "loaded"
        for mistake, word in [
            ("contxt = 5", "contxt"),
            ('chat-template-kwargs = "{enable_thinking: false}"', "chat-template-kwargs"),
            ('kv = "q8"\nkv-map = "x"', "kv-map"),
            ('device = "cpu"\ngpu-layers = 4', "gpu-layers"),
        ]:
            path.write_text(f"{valid}{mistake}\n")
            wrong = server.post("/v1/shelf/reload", b"")
            message = wrong.json["error"]["message"]
            assert wrong.status == 422 and word in message and "stay as they were" in message, wrong.text
            assert statuses(server) == before, mistake


def test_a_file_that_is_replaced_is_loaded_at_the_next_request(tmp_path, alone):
    path, other = tmp_path / "model.gguf", tmp_path / "other.gguf"
    path.write_bytes(FILE.read_bytes())
    # Of the same length, with the last layers of nothing.
    other.write_bytes(FILE.read_bytes()[:-2_000_000] + bytes(2_000_000))
    with start(tmp_path, "--shelf-ram", "1GiB", small={"source": str(path)}) as server:
        assert text(ask(server, "small", PROMPTS[0])) == alone["small"][0]
        assert server.post("/v1/shelf/reload", b"").status == 200
        assert statuses(server)["small"] == "loaded", "it is as it was"
        os.replace(other, path)
        assert server.post("/v1/shelf/reload", b"").status == 200
        said = text(ask(server, "small", PROMPTS[0]))
        loads = {model["name"]: model["loads"] for model in server.get("/v1/shelf").json["models"]}
        assert loads["small"] == 2 and said != alone["small"][0]
    with Server("-m", path, "--context", "512", "--cache-ram", KV, "--threads", "2") as server:
        assert text(ask(server, "small", PROMPTS[0])) == said


def test_a_model_on_the_hub_is_fetched_while_others_answer(tmp_path, alone):
    with Hub({"o/tiny": {"tiny-Q8_0.gguf": FILE.read_bytes()}}, bytes_per_s=100_000) as hub:
        env = {"KVIK_MODELS_DIR": str(tmp_path / "models"), "HF_ENDPOINT": hub.url}
        with start(tmp_path, "--shelf-ram", "1GiB", env=env, small={"source": "hf:o/tiny"}) as server:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                asked = pool.submit(ask, server, "small", PROMPTS[0])
                while not any("/blobs/" in path for path in hub.asked):
                    assert not asked.done(), asked.result()
                    time.sleep(0.02)
                assert text(ask(server, "wide", PROMPTS[0])) == alone["wide"][0]
                assert statuses(server)["small"] == "loading" and not asked.done()
                hub.bytes_per_s = None
                assert text(asked.result()) == alone["small"][0]
            assert server.post("/v1/shelf/reload", b"").status == 200
            assert text(ask(server, "small", PROMPTS[1])) == alone["small"][1]
            listed = server.get("/v1/shelf").json["models"][0]
            assert (listed["name"], listed["loads"]) == ("small", 1), "it stays in memory"
            assert server.get("/api/tags").json["models"][0]["size"] == FILE.stat().st_size


def lines(answer):
    return [json.loads(line) for line in answer.text.splitlines()]


def test_models_are_pulled_copied_and_removed_while_the_server_runs(tmp_path, alone):
    model = FILE.read_bytes()
    wrong = bytearray(model)
    with Hub({"o/tiny": {"tiny-Q8_0.gguf": model}, "o/slow": {"slow-Q8_0.gguf": bytes(wrong)}}) as hub:
        env = {"KVIK_MODELS_DIR": str(tmp_path / "models"), "HF_ENDPOINT": hub.url, "KVIK_CACHE_DISK": str(tmp_path / "kv")}
        with Server("--shelf", "--context", "512", "--cache-ram", KV, env=env) as server:
            assert statuses(server) == {}
            nothing = server.post("/v1/completions", dict(prompt="Hi"))
            assert nothing.status == 404 and "kvik pull" in nothing.json["error"]["message"]
            steps = lines(server.post("/api/pull", {"model": "hf.co/o/tiny"}))
            assert steps[0] == {"status": "pulling manifest"} and steps[-1] == {"status": "success"}, steps
            assert any(step.get("completed") == step.get("total") == len(model) for step in steps), steps
            assert text(ask(server, "o/tiny", PROMPTS[0])) == text(ask(server, "hf.co/o/tiny:latest", PROMPTS[0])) == alone["small"][0]
            assert server.post("/api/copy", {"source": "o/tiny", "destination": "mine"}).status == 200
            again = ask(server, "mine", PROMPTS[0])
            assert text(again) == alone["small"][0] and again["model"] == "mine"
            assert server.request("DELETE", "/api/delete", json.dumps({"model": "o/tiny"}).encode(), JSON).status == 200
            assert list(statuses(server)) == ["mine"] and text(ask(server, "mine", PROMPTS[1])) == alone["small"][1]
            assert server.request("DELETE", "/api/delete", json.dumps({"model": "mine"}).encode(), JSON).status == 200
            assert statuses(server) == {} and not list((tmp_path / "models").rglob("*.gguf")), "its files are gone with the last name"
            assert server.request("DELETE", "/api/delete", json.dumps({"model": "mine"}).encode(), JSON).status == 404
            for source, status, words in [
                ("nothing", 400, "hf.co/OWNER/REPO"),
                (str(FILE), 400, "hf.co/OWNER/REPO"),
                ("hf:../x", 400, "hf:owner/repo"),
            ]:
                refused = server.post("/api/pull", {"model": source})
                assert refused.status == status and words in refused.json["error"], refused.text
            assert "error" in lines(server.post("/api/pull", {"model": "hf:o/nothing"}))[-1]
            hub.bytes_per_s = 400_000
            # A client that leaves ends the download; the next one goes on from there.
            begun = server.open_stream("/api/pull", {"model": "hf:o/slow"})
            connection, response = begun
            while not json.loads(response.readline()).get("completed"):
                pass
            connection.sock.close()
            response.close()
            hub.bytes_per_s = None
            steps = lines(server.post("/api/pull", {"model": "hf:o/slow"}))
            counted = [step["completed"] for step in steps if "completed" in step]
            assert steps[-1] == {"status": "success"} and counted, steps
            assert text(ask(server, "o/slow", PROMPTS[0])) == alone["small"][0]


def test_only_the_admin_changes_the_shelf(tmp_path):
    env = {"KVIK_MODELS_DIR": str(tmp_path / "models")}
    flags = ["--shelf", "--api-key", "user", "--admin-key", "admin"]
    with Server(*flags, env=env) as server:
        for method, path, body in [
            ("POST", "/api/pull", {"model": "hf:o/tiny"}),
            ("POST", "/api/copy", {"source": "a", "destination": "b"}),
            ("DELETE", "/api/delete", {"model": "a"}),
            ("POST", "/v1/shelf/reload", {}),
            ("POST", "/v1/shelf/unload", {"model": "a"}),
        ]:
            refused = server.request(method, path, json.dumps(body).encode(), JSON | {"Authorization": "Bearer user"})
            assert refused.status == 403, (path, refused.text)
        allowed = server.request("POST", "/v1/shelf/reload", b"", {"Authorization": "Bearer admin"})
        assert allowed.status == 200, allowed.text


def test_a_conversation_is_forgotten_by_models_that_are_not_in_memory(tmp_path):
    remembers = {"memory": "on", "memory-recent": 200, "memory-summary": 64, "memory-trigger": 60, "memory-quotes": 0}
    env = {"KVIK_STATE_DIR": str(tmp_path / "state")}
    with start(tmp_path, "--shelf-ram", "1GiB", env=env, small=remembers) as server:
        messages = [{"role": "user", "content": "Please remember that my dog is called Bolt."}]
        name = server.post("/v1/conversations", {"name": "trip"}).json["id"]

        def remembered(id):
            assert server.post("/v1/shelf/load", {"model": "small"}).status == 200
            shown = server.get(f"/v1/conversations/{id}/memory?model=small")
            assert shown.status == 200, shown.text
            return shown.json["summary"]

        deadline = time.monotonic() + 90
        while remembered(name) is None:
            assert time.monotonic() < deadline
            body = dict(model="small", messages=messages[-1:], max_tokens=12, temperature=0, kvik={"conversation": name})
            answer = server.post("/v1/chat/completions", body)
            assert answer.status == 200, answer.text
            messages = [{"role": "user", "content": f"The bus number {answer.json['usage']['prompt_tokens']} was late again."}]
            time.sleep(0.05)
        said = server.get(f"/v1/conversations/{name}").json["messages"]
        again = server.post("/v1/conversations", {"messages": said}).json["id"]
        assert remembered(again) is not None, "it is known by what was said"

        def unload():
            assert server.post("/v1/shelf/unload", {"model": "small"}).status == 200
            while statuses(server)["small"] != "unloaded":
                time.sleep(0.02)

        unload()
        shown = server.get(f"/v1/conversations/{again}/memory?model=small")
        assert (shown.status, shown.json["error"]["code"]) == (409, "model_not_loaded")
        assert statuses(server)["small"] == "unloaded", "a GET loads nothing"
        assert remembered(again) is not None, "also when the model comes back"
        unload()
        assert server.request("DELETE", f"/v1/conversations/{name}", None, {}).status == 200
        assert statuses(server)["small"] == "unloaded", "nothing is loaded for that"
        assert remembered(again) is None


def test_a_conversation_is_forgotten_whose_model_was_taken_off_the_shelf(tmp_path):
    state, marker = tmp_path / "state", b"seventeen purple umbrellas"
    files_with = lambda: [path for path in state.rglob("*") if path.is_file() and marker in path.read_bytes()]
    remembers = {"memory": "on", "memory-recent": 200, "memory-summary": 64, "memory-trigger": 60, "memory-quotes": 4}
    with start(tmp_path, "--shelf-ram", "1GiB", env={"KVIK_STATE_DIR": str(state)}, small=remembers) as server:
        name = server.post("/v1/conversations", {"name": "trip"}).json["id"]
        deadline, text = time.monotonic() + 90, f"Please remember that I have {marker.decode()}."
        while server.get(f"/v1/conversations/{name}/memory?model=small").json.get("summary") is None:
            assert time.monotonic() < deadline
            messages = [{"role": "user", "content": text}]
            body = dict(model="small", messages=messages, max_tokens=12, temperature=0, kvik={"conversation": name})
            assert server.post("/v1/chat/completions", body).status == 200
            text = "The bus was late again, and it rained all morning."
        assert files_with()
        path = tmp_path / "config.toml"
        path.write_text(path.read_text().replace("[models.small]", "[models.other]").replace("aliases", "# aliases"))
        assert server.post("/v1/shelf/reload", b"").status == 200
        assert "small" not in statuses(server)
        deadline = time.monotonic() + 30
        while server.request("DELETE", f"/v1/conversations/{name}", None, {}).json.get("pending"):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert files_with() == [], "neither what was said nor the summary"



def test_a_model_of_some_tenants_does_not_exist_for_others(tmp_path):
    keys = {name: f"sha256:{hashlib.sha256(name.encode()).hexdigest()}" for name in ("office", "guest")}
    tenants = tmp_path / "tenants.toml"
    tenants.write_text("".join(f'[tenant.{name}]\nkeys = ["{key}"]\n' for name, key in keys.items()))
    tenants.chmod(0o600)
    flags = ["--shelf-ram", "1GiB", "--tenants", tenants, "--admin-key", "root"]
    with start(tmp_path, *flags, small={"tenants": ["office"]}) as server:
        def asked(key, method, path, body=None):
            raw = None if body is None else json.dumps(body).encode()
            return server.request(method, path, raw, JSON | {"Authorization": f"Bearer {key}"})

        for key, sees in (("office", True), ("guest", False), ("root", True)):
            names = [model["id"] for model in asked(key, "GET", "/v1/models").json["data"]]
            assert names == [name for name in WEIGHTS if sees or name != "small"], (key, names)
            assert len(asked(key, "GET", "/api/tags").json["models"]) == len(asked(key, "GET", "/v1/shelf").json["models"]) == len(names)
            for name in ("small", "gpt-4o"):
                answer = asked(key, "POST", "/v1/completions", dict(model=name, prompt="Hi", max_tokens=2))
                assert answer.status == (200 if sees else 404), (key, name, answer.text)
                assert sees or answer.json["error"]["message"].endswith("this server has wide, short, tight")
                assert asked(key, "POST", "/api/show", {"model": name}).status == answer.status
            assert asked(key, "GET", "/v1/models/small").status == answer.status
            usual = asked(key, "POST", "/v1/completions", dict(prompt="Hi", max_tokens=2))
            assert usual.status == 200 and (sees or usual.json["model"] != "small"), usual.text
        asked("office", "POST", "/v1/completions", dict(model="small", prompt="Hi", max_tokens=2))
        # What is left of it answers no question of others either.
        for name in sorted(WEIGHTS, key=lambda name: name == "small"):
            asked("root", "POST", "/v1/shelf/unload", {"model": name})
            while {model["name"]: model["status"] for model in asked("root", "GET", "/v1/shelf").json["models"]}[name] != "unloaded":
                time.sleep(0.02)
        for key, sees in (("office", True), ("guest", False)):
            props = asked(key, "GET", "/props")
            assert props.status == 200 and (props.json["model_alias"] == "small") == sees, props.text
