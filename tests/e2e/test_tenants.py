"""Tenants: sharing, isolation, limits, turns, and the bill."""
import concurrent.futures
import hashlib
import itertools
import json
import os
import signal
import subprocess
import time

import openai
import pytest
from server import BINARY, Server, sse

PROMPT = "The minutes of the meeting on the new bridge over the river, with all that was said about its price. " * 4


def tenants_file(path, **tenants):
    """A tenants file whose keys are the names; a tenant's settings are given as lines of TOML."""
    text = ""
    for name, settings in tenants.items():
        digest = hashlib.sha256(name.encode()).hexdigest()
        text += f'[tenant.{name}]\nkeys = ["sha256:{digest}"]\n{settings}\n'
    path.write_text(text)
    path.chmod(0o600)
    return path


def flags(tmp_path, **tenants):
    file = tenants_file(tmp_path / "tenants.toml", **tenants)
    return ["--tenants", file, "--admin-key", "root", "--state-dir", tmp_path / "state", "--threads", "2"]


def complete(server, key, prompt=PROMPT, **body):
    answer = server.post("/v1/completions", dict(prompt=prompt, max_tokens=4, temperature=0) | body, Authorization=f"Bearer {key}")
    assert answer.status == 200, answer.text
    return answer.json


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def usage(server, key, parameters=""):
    answer = server.get("/v1/usage" + parameters, Authorization=f"Bearer {key}")
    assert answer.status == 200, answer.text
    return {line["tenant"]: line for line in answer.json["data"]}


def kvik_usage(*arguments):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KVIK_")}
    return subprocess.run([BINARY, "usage", *map(str, arguments)], env=clean, capture_output=True, text=True, timeout=60)


def test_equal_prompts_of_two_tenants_share_nothing(tmp_path):
    with Server(*flags(tmp_path, acme="", beta="")) as server:
        first = complete(server, "acme")
        again = complete(server, "acme")
        claims = dict(cache_salt="acme", salt="acme", prompt_cache_key="acme", user="acme")
        other = complete(server, "beta", **claims)
        assert cached(first) == 0 and cached(other) == 0
        assert cached(again) == again["usage"]["prompt_tokens"] - 1
        assert first["choices"] == again["choices"] == other["choices"], "sharing never changes an answer"


def test_tenants_that_share_reuse_each_others_prompts(tmp_path):
    both = 'share = "shared"'
    with Server(*flags(tmp_path, acme=both, beta=both, gamma='share = "public-prompts"')) as server:
        complete(server, "acme")
        other = complete(server, "beta")
        assert cached(other) == other["usage"]["prompt_tokens"] - 1
        assert cached(complete(server, "gamma")) == 0


def test_a_tenant_sees_nothing_of_the_others(tmp_path):
    with Server(*flags(tmp_path, acme="", beta="")) as server:
        complete(server, "beta")
        assert server.get("/v1/models").status == 401
        for path in ("/metrics", "/v1/usage?tenant=beta"):
            refused = server.get(path, Authorization="Bearer acme")
            assert refused.status == 403 and refused.error["code"] == "admin_key_required"
        assert usage(server, "acme") == {}
        assert list(usage(server, "root")) == ["beta"]
        assert 'tenant="beta"' in server.get("/metrics", Authorization="Bearer root").text


def test_explanations_are_for_those_who_asked(tmp_path):
    with Server(*flags(tmp_path, acme="", beta="")) as server:
        chat = dict(messages=[{"role": "user", "content": PROMPT}], max_tokens=4, temperature=0)
        ask = lambda key, **more: server.post("/v1/chat/completions", chat | more, Authorization=f"Bearer {key}").json
        explain = lambda key: server.post("/v1/cache/explain", chat, Authorization=f"Bearer {key}").json["kvik"]["cache"]
        unknown, own = explain("acme"), ask("beta")
        assert explain("beta")["cached_tokens"] > 0
        assert explain("acme") == unknown, "nothing about it has changed for others"
        compared = ask("acme", prompt_cache_options={"comparison_response_id": own["id"]})
        assert compared["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}


def test_rates_are_limited_and_reported(tmp_path):
    with Server(*flags(tmp_path, acme="requests-per-minute = 3", beta="tokens-per-minute = 20")) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="acme", max_retries=0)
        for left in (2, 1, 0):
            answer = client.completions.with_raw_response.create(model="kvik", prompt="Hi", max_tokens=1)
            assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
        with pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(model="kvik", prompt="Hi", max_tokens=1)
        assert refused.value.code == "rate_limit_exceeded"
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 20
        complete(server, "beta")
        body = dict(prompt="Hi", max_tokens=1)
        assert server.post("/v1/completions", body, Authorization="Bearer beta").status == 429, "it is in debt"


def test_a_streaming_flood_does_not_keep_others_waiting(tmp_path):
    with Server(*flags(tmp_path, acme="", beta=""), "--parallel", 2, "--queue", 100) as server:
        ended = []

        def ask(key, **more):
            complete(server, key, **more)
            ended.append(key)

        with concurrent.futures.ThreadPoolExecutor(45) as pool:
            flood = [pool.submit(ask, "acme", prompt=f"{i}: {PROMPT}", max_tokens=60, ignore_eos=True) for i in range(45)]
            wait_for(lambda: ended)
            before = len(ended)
            ask("beta", max_tokens=1)
            others = ended.index("beta") - before
            assert others <= 6, f"{others} requests of the flood ended while one of beta was served"
            for answer in flood:
                answer.result()


def test_costs_are_exact_and_outlive_the_server(tmp_path):
    prices = "prices = { input = 2.5, cached = 0.1, output = 5, per = 1000 }"
    start = flags(tmp_path, acme=prices, beta="")
    state = tmp_path / "state"
    total = 0
    for _ in range(2):
        with Server(*start, "--price-output", "0.25") as server:
            for _ in range(3):
                spent = complete(server, "acme")["usage"]
                known, said = spent["prompt_tokens_details"]["cached_tokens"], spent["completion_tokens"]
                nano = 2_500_000 * (spent["prompt_tokens"] - known) + 100_000 * known + 5_000_000 * said
                assert spent["cost"] == nano / 10**9
                total += nano
            assert complete(server, "beta")["usage"]["cost"] == 1.0
            line = usage(server, "acme")["acme"]
            assert round(float(line["cost"]) * 10**9) == total
            assert line["prompt_tokens"] == line["computed_tokens"] + line["cached_tokens"]["ram"] + line["cached_tokens"]["disk"]
            asked = kvik_usage("--state-dir", state, "--port", server.port, "--key", "acme", "--json")
            assert json.loads(asked.stdout)["data"][0]["cost"] == line["cost"], asked.stderr
            assert "beta" in kvik_usage("--state-dir", state, "--port", server.port, "--admin-key", "root").stdout
            server.terminate()
            assert server.process.wait(20) == 0
    lines = {line["tenant"]: line for line in json.loads(kvik_usage("--state-dir", state, "--json").stdout)["data"]}
    assert (lines["acme"]["requests"], lines["beta"]["requests"]) == (6, 2)
    assert round(float(lines["acme"]["cost"]) * 10**9) == total
    table = kvik_usage("--state-dir", state, "--tenant", "acme", "--day", "today").stdout
    assert "acme" in table and "beta" not in table


def test_a_kill_loses_seconds_of_the_accounts_and_no_more(tmp_path):
    start = flags(tmp_path, acme="")
    records = tmp_path / "state" / "records.redb"
    with Server(*start) as server:
        asked, before = itertools.count(), records.stat().st_mtime_ns

        def is_written():
            complete(server, "acme")
            next(asked)
            return records.stat().st_mtime_ns != before

        wait_for(is_written)
        time.sleep(0.2)  # for the rest of what is written at once
        complete(server, "acme")
        server.kill()
    with Server(*start) as server:
        assert 1 <= usage(server, "acme")["acme"]["requests"] <= next(asked) + 1


def test_broken_records_are_set_aside(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    (state / "records.redb").write_bytes(b"not a database" * 1000)
    with Server(*flags(tmp_path, acme="")) as server:
        complete(server, "acme")
        assert usage(server, "acme")["acme"]["requests"] == 1
        assert any(".broken-" in path.name for path in state.iterdir())


def test_two_servers_on_one_state_directory(tmp_path):
    start = flags(tmp_path, acme="")
    with Server(*start) as one, Server(*start) as other:
        for server in (one, other):
            complete(server, "acme")
            assert usage(server, "acme")["acme"]["requests"] == 1
        assert "--state-dir" in other.logged()


def test_the_file_is_read_again_and_a_wrong_one_changes_nothing(tmp_path):
    start, stall = flags(tmp_path, acme=""), tmp_path / "stall"
    file = start[1]
    with Server(*start, env={"KVIK_TEST_STALL": str(stall)}) as server:
        complete(server, "acme")
        file.write_text("[tenant.acme]\nkeys = 5\n")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "stay as they were" in server.logged())
        assert cached(complete(server, "acme")) > 0
        long = {"prompt": "Once", "n_predict": 1000, "ignore_eos": True, "stream": True}
        with server.stalled(stall, lambda: server.begin_stream("/completion", long, "acme"), "root") as (connection, response):
            tenants_file(file, beta="")
            server.process.send_signal(signal.SIGHUP)
            wait_for(lambda: server.get("/v1/models", Authorization="Bearer beta").status == 200)
            assert server.get("/v1/models", Authorization="Bearer acme").status == 401
        last = [event for event in sse(response) if event != "[DONE]"][-1]
        assert json.loads(last)["stop"], "running requests continue"
        connection.close()


def test_a_key_is_made_shown_once_and_works(tmp_path):
    made = subprocess.run([BINARY, "tenant", "key", "acme"], capture_output=True, text=True, timeout=60).stdout
    key, rest = made.split("\n", 1)
    file = tmp_path / "tenants.toml"
    file.write_text(rest[rest.index("[tenant") :])
    with Server("--tenants", file, "--state-dir", tmp_path / "state") as server:
        complete(server, key)
        assert key not in server.logged()
        secret = tmp_path / "state" / "secret"
        assert len(secret.read_bytes()) == 32 and secret.stat().st_mode & 0o777 == 0o600


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)
