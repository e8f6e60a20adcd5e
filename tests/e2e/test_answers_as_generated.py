"""Answers that a client sends back have the tokens that the model chose for them, and are not computed again."""
from server import Server
from test_tenants import flags as tenants

QUESTIONS = ["Who lives by the river?", "Tell me of a small stone.", "What did the letter say?", "And then?", "How was the winter?",
             "Is it over now?"]
FLAGS = ["--threads", "2", "--cache-ram", "64MiB", "--context", "2048"]


def ask(server, messages, key=None, **more):
    body = {"messages": messages, "max_tokens": 96, "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = server.post("/v1/chat/completions", body | more, **headers)
    assert answer.status == 200, answer.text
    return answer.json


def talk(server, key=None):
    """The messages of a conversation, and the tokens of it that were computed twice."""
    messages, lost, known = [], 0, 0
    for seed, question in enumerate(QUESTIONS):
        messages.append({"role": "user", "content": question})
        answer = ask(server, messages, key, seed=seed)
        usage = answer["usage"]
        lost += max(0, known - usage["prompt_tokens_details"]["cached_tokens"])
        # The last token of an answer is never computed.
        known = usage["prompt_tokens"] + usage["completion_tokens"] - 1
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    return messages + [{"role": "user", "content": "Good night."}], lost


def retokenised(server, messages, key=None):
    """What an explanation says, which the answer has to confirm."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    explained = server.post("/v1/cache/explain", {"messages": messages}, **headers).json["kvik"]["cache"]
    rendered = server.post("/v1/chat/completions/render", {"messages": messages}, **headers).json["token_ids"]
    assert len(rendered) == explained["prompt_tokens"], "as a router looks it up"
    cache = ask(server, messages, key, max_tokens=1)["kvik"]["cache"]
    assert cache.get("retokenised") == explained.get("retokenised")
    assert cache["prompt_tokens"] == explained["prompt_tokens"]
    return cache.get("retokenised", 0)


def test_what_was_answered_is_not_computed_again_also_after_a_restart(tmp_path):
    env = {"KVIK_CACHE_DISK": str(tmp_path)}
    with Server(*FLAGS, env=env) as server:
        messages, lost = talk(server)
        assert lost == 0
        changed = retokenised(server, messages)
        assert changed > 0 and server.metric("kvik_retokenised_tokens_total") > changed
        parted = [dict(message) for message in messages]
        parted[-2]["content"] += " Or not."
        assert 0 < retokenised(server, parted) <= changed, "up to where the texts part"
    with Server(*FLAGS, env=env) as server:
        assert retokenised(server, messages) == changed
        assert server.request("DELETE", "/v1/cache", None, {}).status == 200
        assert retokenised(server, messages) == 0
    with Server(*FLAGS, env=env) as server:
        assert retokenised(server, messages) == 0


def test_what_is_evicted_is_what_was_computed():
    with Server(*FLAGS) as server:
        messages, _ = talk(server)
        assert retokenised(server, messages) > 0 and server.get("/v1/cache").json["prefixes"]
        assert server.post("/v1/cache/evict", {"messages": messages}).json["blocks"] > 0
        assert server.get("/v1/cache").json["prefixes"] == []


def test_it_can_be_switched_off():
    with Server(*FLAGS, "--retokenise", "off") as server:
        messages, lost = talk(server)
        assert lost > 0 and retokenised(server, messages) == 0


def test_answers_are_known_to_their_tenant_alone(tmp_path):
    with Server(*FLAGS[2:], *tenants(tmp_path, acme="", beta="")) as server:
        messages, lost = talk(server, "acme")
        assert lost == 0 and retokenised(server, messages, "beta") == 0
        assert retokenised(server, messages, "acme") > 0
