"""Retention: a request forgets as it asks, says what it kept, and changes nothing for those beside it."""
import concurrent.futures

import openai
import pytest

from server import Server

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
        ("auto", "policy"),
    ],
)
def test_what_cannot_be_done_names_its_field(client, model, retain, field):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, model, retain)
    assert refused.value.param == f"kvik.retain.{field}"
    assert f"kvik.retain.{field}" in refused.value.message


def test_a_server_forgets_where_a_request_does_not_say_otherwise():
    with Server("--threads", "2", "--retain", "keydiff:0.5") as server:
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
