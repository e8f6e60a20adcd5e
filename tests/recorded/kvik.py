"""Requests in kvik's own dialect: the cache, prompts that are kept, pins, usage, metrics; and keys, tenants, limits."""
from .openai import RULES, TURNS
from .requests import EXPLAIN, Request, bearer, chat, delete, each, get, llama, post, put, text


def cache():
    question = {"messages": TURNS, "max_tokens": 2}
    return [
        post(EXPLAIN, "a chat that is not known", {"messages": [{"role": "user", "content": "Never seen before"}]}),
        chat("a chat to look for", TURNS),
        post(EXPLAIN, "a chat that is known", question),
        post(EXPLAIN, "a chat that goes on differently", {"messages": [TURNS[0], {"role": "user", "content": "Other"}]}),
        post(EXPLAIN, "a text", {"prompt": "Once upon a time"}),
        post(EXPLAIN, "several texts", {"prompt": ["Once upon a time", "There"]}),
        post(EXPLAIN, "neither", {}),
        post(EXPLAIN, "a wrong field", question | {"temperature": "hot"}),
        post(EXPLAIN, "a private one", question | {"kvik": {"cache": "private"}}),
        post("/v1/cache/pin", "a conversation", {"messages": TURNS[:1]}),
        post("/v1/cache/pin", "a text", {"prompt": RULES}),
        post("/v1/cache/pin", "nothing", {}),
        post("/v1/cache/pin", "several texts", {"prompt": ["a", "b"]}),
        post(EXPLAIN, "what is pinned", {"prompt": RULES}),
        get("/v1/cache/pins"),
        get("/v1/cache"),
        get("/v1/cache?limit=1&order=hits"),
        get("/v1/cache?order=age"),
        get("/v1/cache?limit=x"),
        get("/v1/cache?depth=3"),
        delete("/v1/cache/pins/x"),
        delete("/v1/cache/pins/4096"),
        Request("DELETE the first pin", "DELETE", lambda seen: f"/v1/cache/pins/{seen['GET /v1/cache/pins']['data'][0]['id']}"),
        post("/v1/cache/evict", "a text", {"prompt": RULES}),
        post("/v1/cache/evict", "a conversation", {"messages": TURNS}),
        post("/v1/cache/evict", "nothing", {}),
        delete("/v1/cache/pins"),
        delete("/v1/cache/pins?tenant=default", "of one tenant"),
        delete("/v1/cache/pins?tenant=nobody", "of nobody"),
        chat("after all was evicted", TURNS),
        delete("/v1/cache"),
        chat("after all was dropped", TURNS),
    ]


def prompts():
    rules = {"messages": TURNS[:1]}
    return [
        get("/v1/prompts", "none"),
        put("/v1/prompts/rules", "new", rules),
        put("/v1/prompts/rules", "the same", rules),
        get("/v1/prompts/rules"),
        post("/v1/prompts/rules/check", "the same", rules),
        post("/v1/prompts/rules/check", "another", {"messages": [{"role": "system", "content": "Be brief."}]}),
        put("/v1/prompts/rules", "changed", {"messages": [{"role": "system", "content": RULES + " Be brief."}]}),
        put("/v1/prompts/opening", "a text", {"prompt": RULES}),
        put("/v1/prompts/opening", "public", {"prompt": RULES, "public": True}),
        get("/v1/prompts"),
        chat("a question after a kept prompt", [{"role": "system", "content": RULES + " Be brief."}, {"role": "user", "content": "Sale of shoes"}]),
        get("/v1/prompts/nobody"),
        post("/v1/prompts/nobody/check", "unknown", rules),
        put("/v1/prompts/" + "x" * 129, "a long name", rules),
        put("/v1/prompts/several", "several texts", {"prompt": ["a", "b"]}),
        put("/v1/prompts/nothing", "nothing", {}),
        put("/v1/prompts/wrong", "public = text", rules | {"public": "yes"}),
        put("/v1/prompts/wrong", "messages = text", {"messages": "x"}),
        delete("/v1/prompts/rules"),
        delete("/v1/prompts/rules", "again"),
        delete("/v1/prompts/opening"),
        get("/v1/usage"),
        get("/v1/usage?since=2020-01-01&until=2020-12-31"),
        get("/v1/usage?since=yesterday"),
        get("/v1/usage?tenant=default"),
        get("/v1/usage?color=red"),
        get("/metrics"),
    ]


KEY = dict(authorization=bearer("SECRET"))


def keys():
    """A server with a key, a small limit of bodies, the name of its model taken seriously, and one page that may call."""
    page = "https://page.example"
    return [
        get("/health", "without a key"),
        get("/v1/models", "without a key"),
        get("/v1/models", "with a wrong key", authorization=bearer("WRONG")),
        get("/v1/models", "with another scheme", authorization="Basic SECRET"),
        get("/v1/models", "with the key", **KEY),
        get("/v1/models", "with the key as llama-server's clients send it", x_api_key="SECRET"),
        chat("without a key"),
        chat("with the key", headers=KEY, model="house"),
        chat("by kvik's name", headers=KEY, model="kvik"),
        chat("no model named", headers=KEY),
        chat("another model", headers=KEY, model="gpt-4o"),
        get("/v1/models/house", "its alias", **KEY),
        get("/v1/models/gpt-4o", "another", **KEY),
        chat("too large", "x" * 9000, headers=KEY),
        get("/metrics", "without the admin's key", **KEY),
        get("/metrics", "with the admin's key", authorization=bearer("ROOT")),
        get("/nowhere", "without a key"),
        get("/v1/models", "from a page that may call", origin=page, **KEY),
        get("/v1/models", "from another page", origin="https://other.example", **KEY),
        get("/health", "from another page", origin="https://other.example"),
        get("/health", "for another host", host="other.example"),
        Request("OPTIONS from a page that may call", "OPTIONS", "/v1/models", headers={"origin": page, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}),
        Request("OPTIONS from another page", "OPTIONS", "/v1/models", headers={"origin": "https://other.example", "access-control-request-method": "POST"}),
    ]


def senders():
    """A server without keys, asked by browsers."""
    return [
        get("/v1/models", "for another host", host="other.example"),
        get("/v1/models", "for a name of this machine", host="kvik.localhost"),
        get("/v1/models", "from a page of another origin", origin="https://other.example"),
        get("/v1/models", "from a page of no origin", origin="null"),
    ]


# Keys are the tenants' names. A minute's worth of `slow` is one request, of `poor` a few tokens.
TENANTS = dict(
    acme="prices = { input = 2.5, cached = 0.25, output = 10, per = 1000000 }\nweight = 2.0",
    beta='share = "shared"',
    gamma='share = "shared"',
    reader='share = "public-prompts"',
    slow="requests-per-minute = 1",
    poor="tokens-per-minute = 8",
    small='pin = "16KiB"',
)


def tenants():
    by = lambda key: {"authorization": bearer(key)}
    return [
        get("/health", "without a key"),
        get("/v1/models", "without a key"),
        get("/v1/models", "unknown key", **by("nobody")),
        get("/v1/models", "acme", **by("acme")),
        chat("acme, cold", TURNS, headers=by("acme")),
        chat("acme, warm", TURNS, headers=by("acme")),
        chat("acme, in a stream", TURNS, headers=by("acme"), stream=True, stream_options={"include_usage": True}),
        text("acme, a text", headers=by("acme")),
        chat("beta has it not", TURNS, headers=by("beta")),
        chat("gamma shares with beta", TURNS, headers=by("gamma")),
        put("/v1/prompts/rules", "a tenant may not publish", {"prompt": RULES, "public": True}, **by("acme")),
        put("/v1/prompts/rules", "the admin publishes", {"prompt": RULES, "public": True}, **by("ROOT")),
        text("reader after what is public", RULES + " Go on.", headers=by("reader")),
        text("acme does not see it", RULES + " Go on.", headers=by("acme")),
        get("/v1/prompts", "acme", **by("acme")),
        get("/v1/prompts", "admin", **by("ROOT")),
        get("/v1/cache", "acme", **by("acme")),
        get("/v1/cache", "beta sees no texts", **by("beta")),
        get("/v1/cache", "admin", **by("ROOT")),
        delete("/v1/cache", "gamma", **by("gamma")),
        post("/v1/cache/pin", "more than it may", {"prompt": RULES}, **by("small")),
        text("pinned, more than it may", RULES, headers=by("small"), kvik={"pin": True}),
        get("/v1/models", "slow, the first", **by("slow")),
        get("/v1/models", "slow, the second", **by("slow")),
        text("poor, the first", headers=by("poor")),
        text("poor, the second", headers=by("poor")),
        get("/metrics", "acme", **by("acme")),
        get("/metrics", "admin", **by("ROOT")),
        get("/v1/usage", "acme", **by("acme")),
        get("/v1/usage?tenant=beta", "acme asks for another", **by("acme")),
        get("/v1/usage", "admin", **by("ROOT")),
        get("/v1/usage?tenant=acme", "admin asks for one", **by("ROOT")),
        delete("/v1/cache/pins?tenant=beta", "acme asks for another", **by("acme")),
        delete("/v1/cache/pins?tenant=nobody", "admin asks for nobody", **by("ROOT")),
        delete("/v1/prompts/rules", "acme has none", **by("acme")),
        delete("/v1/cache", "admin", **by("ROOT")),
    ]


def tight():
    """A server with hardly any room for keys and values."""
    many = [300 + i % 3000 for i in range(900)]
    return [
        text("larger than all room", many),
        text("as much as there is", many[:500], max_tokens=2),
        text("something else, so that it goes", many[400:], max_tokens=2),
        text("what had to go", many[:500], max_tokens=2),
        post("/v1/cache/pin", "more than may be pinned", {"prompt": many[:600]}),
        llama("several answers in turns", many[:16], n=6, n_predict=4, ignore_eos=True),
        get("/v1/cache"),
    ]
