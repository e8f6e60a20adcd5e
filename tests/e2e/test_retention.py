"""Retention: a request forgets as it asks, says what it kept, and changes nothing for those beside it."""
import concurrent.futures
import json
import os
import re
import subprocess
import time

import openai
import pytest

from server import BINARY, Server

POLICIES = ["sinks", "keydiff", "snapkv", "h2o", "kvzip"]
QUESTION = [{"role": "user", "content": "Which parcel comes first? " + "The red parcel is older than the blue one. " * 20}]


def ask(client, model, retain=None, **more):
    extra = {} if retain is None else {"kvik": {"retain": retain}}
    body = dict(model=model, messages=QUESTION, max_tokens=24, temperature=0, logprobs=True)
    return client.chat.completions.create(**(body | more), extra_body=extra)


def said(answer):
    """Text and log-probabilities: equal only where the logits are."""
    return answer.choices[0].message.content, [token.logprob for token in answer.choices[0].logprobs.content]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_keeps_what_it_asks_for_and_says_so(client, model, policy):
    retain = ask(client, model, {"policy": policy, "keep": 0.5}).model_extra["kvik"]["retain"]
    assert retain["policy"] == f"{policy}:0.5"
    kept, dropped = retain["positions_kept"], retain["positions_dropped"]
    assert dropped > 0 and 0.4 < retain["share_kept"] <= 0.5
    assert retain["share_kept"] == pytest.approx(kept / (kept + dropped))
    assert 0 < retain["smallest_head"] <= retain["largest_head"] <= retain["tokens"]
    assert retain["measured"] is False, "nothing was measured where this server keeps its state"
    assert said(ask(client, model, f"{policy}:0.5")) == said(ask(client, model, f"{policy}:0.5"))


def test_those_that_keep_everything_are_not_changed_by_those_beside_them(client, model):
    alone = said(ask(client, model))
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        forgetting = [pool.submit(ask, client, model, f"{policy}:0.3") for policy in POLICIES]
        exact = [pool.submit(ask, client, model) for _ in range(4)]
        assert [said(answer.result()) for answer in exact] == [alone] * 4
        assert all(answer.result().model_extra["kvik"]["retain"]["positions_dropped"] > 0 for answer in forgetting)
    after = ask(client, model)
    assert said(after) == alone and "retain" not in after.model_extra["kvik"]


def test_the_last_chunk_of_a_stream_says_what_was_kept(client, model):
    chunks = list(ask(client, model, "keydiff:0.5", stream=True))
    kept = [chunk.model_extra["kvik"]["retain"] for chunk in chunks if "kvik" in (chunk.model_extra or {})]
    assert len(kept) == 1 and kept[0]["policy"] == "keydiff:0.5" and kept[0]["positions_dropped"] > 0


@pytest.mark.parametrize(
    "retain, field",
    [
        ("nonsense:0.5", "policy"),
        ({"keep": 0.5}, "policy"),
        ({"policy": "snapkv", "keep": 0}, "keep"),
        ({"policy": "snapkv", "keep": 1.5}, "keep"),
        ({"policy": "sinks", "keep": 3}, "keep"),
        ({"policy": "snapkv", "keep": 16, "window": 32}, "keep"),
        ({"policy": "snapkv", "windows": 32}, "windows"),
        ({"policy": "snapkv", "budget": "calibrated"}, "budget"),
        ({"policy": "gated"}, "policy"),
        ("auto", "policy"),
    ],
)
def test_what_cannot_be_done_names_its_field(client, model, retain, field):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, model, retain)
    assert refused.value.param == f"kvik.retain.{field}"
    assert f"kvik.retain.{field}" in refused.value.message


def test_a_server_forgets_where_a_request_does_not_say_otherwise():
    with Server("--threads", "2", "--retain", "keydiff:0.5", env={"KVIK_LOG": "debug"}) as server:
        body = {"messages": QUESTION, "max_tokens": 8, "temperature": 0}
        assert server.post("/v1/chat/completions", body).json["kvik"]["retain"]["policy"] == "keydiff:0.5"
        exact = server.post("/v1/chat/completions", body | {"kvik": {"retain": "none"}}).json
        assert "retain" not in exact["kvik"]
        metrics = server.get("/metrics").text
        assert 'kvik_retain_requests_total{policy="keydiff"} 1' in metrics
        assert "keydiff:0.5 kept" in server.logged()
        assert "was not measured" in server.logged(), "the start warns of it"


def test_a_bound_on_the_loss_allows_measured_policies_only():
    with Server("--threads", "2", "--retain-max-loss", "5") as server:
        body = {"messages": QUESTION, "max_tokens": 8}
        assert server.post("/v1/chat/completions", body).status == 200
        refused = server.post("/v1/chat/completions", body | {"kvik": {"retain": "snapkv:0.5"}})
        assert refused.status == 400 and refused.error["param"] == "kvik.retain.policy"
        assert "kvik eval --retain snapkv:0.5" in refused.error["message"]


def test_what_was_measured_is_judged_by_its_worse_side_and_few_right_answers_are_not_enough(tmp_path):
    env = {"KVIK_STATE_DIR": str(tmp_path)}
    few = ["--task", "recall:3,stories:1", "--length", "200"]
    measure = lambda *words: subprocess.run(
        [BINARY, "eval", "-t", "2", *few, *words], capture_output=True, text=True, env=os.environ | env
    )
    calibrated = measure("--calibrate")
    assert calibrated.returncode != 0 and " cases of a task rightly" in calibrated.stderr, calibrated.stderr
    assert "fewer than 20" in calibrated.stderr and "--cases" in calibrated.stderr
    assert not list(tmp_path.glob("**/*.calibration.json")), "nothing is kept"

    table = measure("--retain", "sinks:0.1", "--retain", "sinks:1").stdout
    assert "recall n=3" in table and "interval of 95%" in table and "nothing follows" in table, table
    assert "not to be chosen yet" in table and "fewer than 20" in table

    with Server("--threads", "2", "--retain-max-loss", "5", env=env) as server:
        refused = lambda policy: server.post("/v1/completions", {"prompt": "a", "kvik": {"retain": policy}}).error
        lossy, doubtful = refused("sinks:0.1"), refused("sinks:1")
        both = r"loses \d+\.\d% of (recall in recall \(of perplexity|perplexity in stories \(of recall) -?\d+\.\d%"
        assert lossy["param"] == "kvik.retain.keep" and re.search(both, lossy["message"]), lossy
        assert doubtful["param"] == "kvik.retain.policy" and "fewer than 20" in doubtful["message"], doubtful


MANUAL = {"role": "system", "content": "You answer from this manual. " + "Clean the filter with warm water each week. " * 20}


def keep_start(folder):
    env = {"KVIK_CACHE_DISK": str(folder / "kv"), "KVIK_STATE_DIR": str(folder / "state")}
    return Server("--threads", "2", "--cache-ram", "64MiB", env=env)


def from_manual(server, kvik):
    messages = [MANUAL, {"role": "user", "content": "How is the filter cleaned?"}]
    body = dict(messages=messages, max_tokens=12, temperature=0, logprobs=True, kvik=kvik)
    return server.post("/v1/chat/completions", body).json


def test_a_part_of_a_prompt_is_kept_and_read_by_those_who_name_it_also_after_a_kill(tmp_path):
    file = tmp_path / "manual.json"
    file.write_text(json.dumps({"messages": [MANUAL]}))
    with keep_start(tmp_path) as server:
        exact = from_manual(server, {"cache": "private"})["choices"]
        run = lambda *words: subprocess.run(
            [BINARY, "prompt", *words, "--url", f"http://127.0.0.1:{server.port}"], capture_output=True, text=True
        )
        added = run("add", "manual", str(file), "--retain", "kvzip", "--keep", "0.25")
        assert added.returncode == 0 and "kvzip:0.25" in added.stdout, added.stderr + added.stdout
        assert "by kvzip:0.25, loss not measured" in run("ls").stdout
        assert run("check", "manual", str(file)).returncode == 0
        kept = server.get("/v1/prompts/manual").json
        assert kept["pinned"] and kept["cached"] and kept["retain"]["share_kept"] == pytest.approx(0.25, abs=0.01)

        first = from_manual(server, {"kept_prefix": "manual"})
        retain, cache = first["kvik"]["retain"], first["kvik"]["cache"]
        assert retain["policy"] == "kvzip:0.25" and retain["measured"] is False
        assert retain["positions_dropped"] == kept["retain"]["positions_dropped"]
        assert cache["reason"] == "retained" and cache["cached_tokens"] == kept["ram"]
        assert from_manual(server, {})["choices"] == exact, "who does not name it reads all of it"
        refused = server.post("/v1/chat/completions", {"messages": QUESTION, "kvik": {"kept_prefix": "manual"}})
        assert refused.status == 400 and refused.error["param"] == "kvik.kept_prefix"
        deadline = time.monotonic() + 20
        while server.metric("kvik_disk_writes_pending") > 0:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        server.kill()

    with keep_start(tmp_path) as server:
        again = from_manual(server, {"kept_prefix": "manual"})
        assert again["choices"] == first["choices"], "the same part, from disk"
        assert again["kvik"]["cache"]["cached_tokens"] == kept["ram"]
        assert again["kvik"]["retain"] == retain
        assert from_manual(server, {})["choices"] == exact


def rest(server):
    """Waits until nothing is computed any more, in idle time either: a request would end that."""
    deadline, before, still = time.monotonic() + 60, None, 0
    # A single step may take longer than from one look to the next.
    while still < 4:
        assert time.monotonic() < deadline, "it does not come to rest"
        spent = server.metric("kvik_step_seconds_total"), server.metric("kvik_requests_running")
        still = still + 1 if spent == before and spent[1] == 0 else 0
        before = spent
        time.sleep(0.3)


def test_in_idle_time_a_part_is_kept_for_those_who_allow_it():
    def conversation(number):
        text = f"Parcel {number} is red. " + f"It was sent on day {number} by a friend of mine. " * 40
        return [{"role": "user", "content": text}]

    with Server("--retain-idle", "keydiff:0.25", "--cache-ram", "6MiB", "--cache-disk", "off") as server:
        with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            def turn(number, **kvik):
                body = dict(model="kvik", messages=conversation(number), max_tokens=4, temperature=0, logprobs=True)
                return client.chat.completions.create(**body, extra_body={"kvik": kvik} if kvik else None)

            first = said(turn(0))
            for number in range(1, 6):
                turn(number)
                rest(server)
            back = turn(0, kept_prefix=True)
            retain = back.model_extra["kvik"]["retain"]
            assert retain["policy"] == "keydiff:0.25" and retain["positions_dropped"] > 0
            assert back.model_extra["kvik"]["cache"]["reason"] == "retained"
            assert back.usage.prompt_tokens_details.cached_tokens > 256
            assert said(turn(0)) == first, "who does not allow it reads all"
    refused = subprocess.run(
        [BINARY, "serve", "--retain-idle", "keydiff:0.25", "--retain-max-loss", "1"],
        capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0 and "--retain-idle" in refused.stderr


def test_who_may_forgets_before_anybody_is_preempted():
    def complete(server, number, retain):
        prompt = f"Story {number}. " + f"The {number} red parcels are older than the blue ones. " * 20
        body = {"prompt": prompt, "max_tokens": 400, "ignore_eos": True, "temperature": 0, "kvik": {"retain": retain}}
        return server.post("/v1/completions", body)

    def together(retain):
        with Server("--threads", "2", "--cache-ram", "4MiB", env={"KVIK_LOG": "debug"}) as server:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(lambda number: complete(server, number, retain), range(4)))
            assert [answer.status for answer in answers] == [200] * 4
            metrics = server.metrics()
            return answers, metrics["kvik_preemptions_total"], metrics.get("kvik_retain_tightened_total", 0), server.logged()

    _, preempted, tightened, _ = together("none")
    assert preempted > 0 and tightened == 0, "all of it does not fit"
    answers, preempted, tightened, logged = together("knorm:0.25,order=large,budget=all,every=32,when=pressure")
    assert preempted == 0
    said = [answer.json["kvik"]["retain"].get("tightened", 0) for answer in answers]
    assert sum(said) == tightened > 0 and "memory was short" in logged
