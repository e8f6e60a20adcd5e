"""Attacks on kept prompts: pins, times to live, public prompts, and the memory they take."""
import statistics
import time

from server import sse

from .harness import MIB, attack, cache_of, ids, settle, tenants, words

ROOT = "root"


def complete(trial, server, prompt, key=None, **body):
    return trial.send(server, "/completion", dict(prompt=prompt, n_predict=1, temperature=0) | body, key=key)


def prefixes(server, key=None):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return server.get("/v1/cache?limit=1000", **headers).json["prefixes"]


def pinned_bytes(server, key=None):
    return sum(p["bytes"] for p in prefixes(server, key) if p["pinned"])


@attack("pins", "one client pins all memory; every other request then fails")
def pins(trial):
    with trial.server("--cache-ram", "12MiB") as server, trial.neighbour(server):
        for seed in range(12 if trial.sample else 24):
            complete(trial, server, ids(700, seed), kvik={"pin": True})
            trial.send(server, "/v1/cache/pin", {"prompt": ids(700, f"by hand {seed}")})
        answers = [complete(trial, server, ids(count, f"other {count}")) for count in (350, 700, 1400)]
        for answer in answers:
            trial.expect(answer.status == 200, f"an unrelated request got {answer.status} {answer.text[:160]}")
        trial.note(f"{pinned_bytes(server) / MIB:.1f} of 12 MiB are pinned")
    trial.bound(seconds=15, neighbour_ms=3000)


@attack("pins-quota", "a tenant's pins pass its quota, and the admin cannot take them back")
def pins_quota(trial):
    flags = tenants(trial.folder, acme='ram = "4MiB"', beta="")
    with trial.server("--cache-ram", "12MiB", *flags) as server:
        for seed in range(16):
            complete(trial, server, ids(700, seed), key="acme", kvik={"pin": True})
        held = pinned_bytes(server, "acme")
        trial.expect(held <= 4 * MIB, f"a quota of 4 MiB holds {held / MIB:.1f} MiB pinned")
        unpin(trial, server)
        left = pinned_bytes(server, ROOT)
        trial.expect(left == 0, f"after the admin's unpin {left / MIB:.1f} MiB are pinned")


def unpin(trial, server):
    """The admin takes all pins back."""
    trial.send(server, "/v1/cache?pinned=true", method="DELETE", key=ROOT)


@attack("pin-covers-answer", "a pin covers the answer too, and evicting by the same body leaves it")
def pin_covers_answer(trial):
    folders = dict(disk=trial.folder / "kv", state=trial.folder / "state")
    body = dict(prompt=ids(100, "pinned"), n_predict=64, ignore_eos=True, temperature=0, kvik={"pin": True})
    with trial.server(**folders) as server:
        assert trial.send(server, "/completion", body).status == 200
        assert pinned_bytes(server) > 0, "nothing was pinned"
        settle(server)
        evicted = trial.send(server, "/v1/cache/evict", {"prompt": body["prompt"]})
        assert evicted.status == 200, evicted.text
        left = [p["blocks"] for p in prefixes(server) if p["pinned"]]
        trial.expect(not left, f"after evicting, prefixes of {left} blocks are pinned")
    with trial.server(**folders) as server:
        time.sleep(1)
        left = [p["blocks"] for p in prefixes(server) if p["pinned"]]
        trial.expect(not left, f"after a restart, prefixes of {left} blocks are pinned")


@attack("pin-private", "`pin` with `private` is accepted and keeps nothing")
def pin_private(trial):
    with trial.server() as server:
        answer = complete(trial, server, ids(100, 1), kvik={"pin": True, "cache": "private"})
        trial.expect(answer.status == 400, f"answered {answer.status}")


@attack("ttl-on-disk", "a time to live, asked for once, makes a prompt unreachable on disk for good")
def ttl_on_disk(trial):
    folders = dict(disk=trial.folder / "kv", state=trial.folder / "state")
    prompt = ids(750, "time to live")
    with trial.server(**folders) as server:
        complete(trial, server, prompt, kvik={"ttl_s": 2})
        for _ in range(3):
            assert cache_of(complete(trial, server, prompt)).get("cached_tokens", 0) > 700
        settle(server)
        time.sleep(3)
    for restart in ("one restart", "two restarts"):
        with trial.server(**folders) as server:
            cache = cache_of(complete(trial, server, prompt))
            known, reason = cache.get("cached_tokens", 0), cache.get("reason")
            trial.expect(known > 700, f"after {restart} {known} of 750 tokens are known: {reason}")
            time.sleep(1)


@attack("sixteen-loads", "sixteen requests that load from disk hold back one that has nothing there")
def sixteen_loads(trial):
    """Newcomers beside twelve loads, which all fit, and beside twenty."""
    folders = dict(disk=trial.folder / "kv", state=trial.folder / "state")
    flags = ["--cache-ram", "96MiB", "--context", 4096, "--parallel", 32]
    prompts = [ids(3500, f"load {i}") for i in range(20)]
    with trial.server(*flags, **folders) as server:
        for prompt in prompts:
            complete(trial, server, prompt)
        settle(server)
    waits = {}
    for loads in (12, 20):
        with trial.server(*flags, **folders) as server:
            time.sleep(1)  # the hottest blocks are loaded at the start
            answers = []
            loading = [lambda p=p: answers.append(complete(trial, server, p).status) for p in prompts[:loads]]
            *_, waits[loads] = trial.together(*loading, lambda: newcomers(trial, server, answers))
            trial.expect(set(answers) == {200}, f"beside {loads} loads, answers are {sorted(answers)}")
    trial.note(f"newcomers waited {waits[12] * 1000:.0f} ms beside 12 loads, {waits[20] * 1000:.0f} ms beside 20")
    trial.expect(waits[20] <= 0.05 + 5 * waits[12], "a request with nothing on disk waits for the loads of others")


def newcomers(trial, server, answers):
    """The median wait of four requests in sequence."""
    waits = []
    for i in range(4):
        time.sleep(0.03)
        started = time.monotonic()
        answers.append(complete(trial, server, f"hello there {i}").status)
        waits.append(time.monotonic() - started)
    return statistics.median(waits)


@attack("private-n2", "`private` with two choices leaves its text in the cache")
def private_n2(trial):
    secret = "zebra quartz " + words(60, "private")
    with trial.server() as server:
        for n in (1, 2, 3):
            body = dict(prompt=secret, max_tokens=20, n=n, temperature=1, kvik={"cache": "private"})
            assert trial.send(server, "/v1/completions", body).status == 200
            left = [p for p in prefixes(server) if "zebra" in p["text"]]
            trial.expect(not left, f"with n = {n} the cache lists {left[:1]}")


MODE = 'share = "public-prompts"'


def keep(trial, server, name, prompt, key, **more):
    return trial.send(server, f"/v1/prompts/{name}", {"prompt": prompt} | more, method="PUT", key=key)


def publisher(trial, server, name, prompt):
    """Publishes a prompt with the key that is allowed to; returns that key."""
    for key in (ROOT, "acme"):
        if keep(trial, server, name, prompt, key, public=True).status == 200:
            return key
    raise AssertionError("nobody may publish")


@attack("public-by-tenant", "any tenant publishes a prompt to all others")
def public_by_tenant(trial):
    with trial.server(*tenants(trial.folder, acme=MODE, beta=MODE)) as server:
        answer = keep(trial, server, "advert", ids(400, 1), "acme", public=True)
        trial.expect(answer.status in (400, 401, 403), f"a tenant that publishes gets {answer.status}")


@attack("public-withdrawn", "withdrawing a public prompt is acknowledged and does nothing")
def public_withdrawn(trial):
    prompt = ids(600, "withdrawn")
    with trial.server(*tenants(trial.folder, acme=MODE, beta=MODE, gamma=MODE)) as server:
        key = publisher(trial, server, "notes", prompt)
        shared = cache_of(complete(trial, server, prompt + [305], "beta")).get("cached_tokens", 0)
        assert shared > 500, "a public prompt is used by others"
        said = keep(trial, server, "notes", prompt, key, public=False).json.get("public")
        shown = trial.send(server, "/v1/prompts/notes", method="GET", key=key).json.get("public")
        trial.expect(said is False and shown is False, f"PUT says public: {said}, GET says {shown}")
        # What beta computed itself stays its own; a tenant who comes now starts from nothing.
        found = cache_of(complete(trial, server, prompt + [306], "gamma")).get("cached_tokens")
        trial.expect(found == 0, f"another tenant still finds {found} of 600 tokens")


@attack("public-two-names", "deleting one of two names of a prompt takes the other's pin")
def public_two_names(trial):
    prompt = ids(400, "two names")
    with trial.server() as server:
        for name in ("one", "two"):
            assert keep(trial, server, name, prompt, None).status == 200
        trial.send(server, "/v1/prompts/one", method="DELETE")
        left = trial.send(server, "/v1/prompts/two", method="GET").json
        trial.expect(left.get("cached") is True, f"the other name says cached: {left.get('cached')}, ram: {left.get('ram')}")


@attack("public-pins-leak", "pins on the continuation of a public prompt outlive everything")
def public_pins_leak(trial):
    base = ids(352, "public base")
    with trial.server(*tenants(trial.folder, acme=MODE, beta=MODE)) as server:
        key = publisher(trial, server, "base", base)
        theirs = keep(trial, server, "mine", base + ids(200, "more"), "beta").json
        shown = trial.send(server, "/v1/prompts/mine", method="GET", key="beta").json
        trial.expect(shown.get("cached") is True, f"kept ({theirs.get('built')}) and shown as cached: {shown.get('cached')}, ram: {shown.get('ram')}")
        trial.send(server, "/v1/prompts/mine", method="DELETE", key="beta")
        trial.send(server, "/v1/prompts/base", method="DELETE", key=key)
        trial.send(server, "/v1/cache", method="DELETE", key=ROOT)
        left = [p["blocks"] for p in prefixes(server, ROOT)]
        trial.expect(not left, f"when all is deleted, prefixes of {left} blocks stay")


@attack("prompts-unmetered", "kept prompts are computed without limit and without a bill")
def prompts_unmetered(trial):
    limits = 'tokens-per-minute = 1000\nprices = { input = 1, cached = 1, output = 1, per = 1 }'
    with trial.server(*tenants(trial.folder, acme=limits, beta="parallel = 1")) as server:
        passed, computed = 0, 0
        for i in range(19):
            answer = keep(trial, server, f"p{i}", ids(1100, f"unmetered {i}"), "acme")
            passed += answer.status == 200
            computed += answer.json.get("computed_tokens", 0)
        pinned = trial.send(server, "/v1/cache/pin", {"prompt": ids(900, "by hand")}, key="acme").status
        lines = trial.send(server, "/v1/usage", method="GET", key="acme").json.get("data", [])
        billed = sum(line.get("computed_tokens", 0) for line in lines)
        trial.expect(passed <= 2 and pinned == 429, f"{passed} of 19 prompts ({computed} tokens) passed 1,000 a minute, a pin got {pinned}")
        trial.expect(billed >= computed > 0, f"{computed} tokens were computed and {billed} billed")
        six = [lambda i=i: keep(trial, server, f"q{i}", ids(1500, f"six {i}"), "beta").status for i in range(6)]
        statuses = trial.together(*six)
        trial.expect(429 in statuses, f"six at a time with `parallel = 1` got {statuses}")


@attack("still-answers", "control: an honest stream is answered by an unharmed server")
def still_answers(trial):
    """The harness must be able to say `held`."""
    with trial.server() as server, trial.neighbour(server):
        connection, response = server.open_stream("/v1/completions", dict(prompt="Hello", max_tokens=20, stream=True))
        frames = list(sse(response))
        connection.close()
        trial.expect(frames[-1] == "[DONE]", f"a stream ended with {frames[-1:]}")
    trial.bound(seconds=10, neighbour_ms=3000)
