"""Hints of other servers' clients: a prompt that one keeps outlives others of its tenant, and costs no other tenant."""
from server import Server
from test_tenants import complete, flags

RULES = "The rules of the house, which everybody who works here has read before anything else. " * 4
HINT = {"retention_directives": [{"start": 0, "end": 64, "priority": 90, "duration": 600}]}
FEW_BLOCKS = ["--cache-ram", "2MiB", "--context", "512", "--evict", "lru"]


def known(server, key, prompt):
    """How many tokens of a prompt are cached; looking changes nothing."""
    answer = server.post("/v1/cache/explain", {"prompt": prompt}, Authorization=f"Bearer {key}")
    assert answer.status == 200, answer.text
    return answer.json["kvik"]["cache"]["cached_tokens"]


def press(server, key, prompt):
    """Asks other prompts until nothing of this one is cached."""
    for number in range(100):
        if known(server, key, prompt) == 0:
            return
        complete(server, key, f"{number} of many. {RULES}", max_tokens=1)
    raise AssertionError("all of it fits")


def test_a_prompt_with_a_hint_outlives_the_same_without_and_takes_nothing_from_other_tenants(tmp_path):
    plain, kept = "Without. " + RULES, "Kept for long. " + RULES
    with Server(*flags(tmp_path, acme="", beta=""), *FEW_BLOCKS) as server:
        complete(server, "beta", plain, max_tokens=1)
        others = known(server, "beta", plain)
        assert others > 32
        complete(server, "acme", kept, max_tokens=1, **HINT)
        complete(server, "acme", plain, max_tokens=1)
        all_of_it = known(server, "acme", kept)
        press(server, "acme", plain)
        assert known(server, "acme", kept) == all_of_it > 32
        for number in range(20):
            complete(server, "acme", f"{number} that are kept too. {RULES}", max_tokens=1, **HINT)
        assert known(server, "acme", kept) == 0, "of equal priority the least recently used goes"
        assert known(server, "beta", plain) == others, "a hint orders the prompts of its own tenant"
