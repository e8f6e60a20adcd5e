"""The same tokens with the same log-probabilities, whatever was computed before and by which process: cold, cached, eight at
once, and from disk after `kill -9`, with keys and values in f16 and in q8."""
import concurrent.futures
import time

import pytest
from server import Server, effort

QUESTIONS = [
    "Name three rivers.", "Write a haiku about rain.", "What is a prime number? Give an example.", "Translate 'good morning' into French.",
    "def fibonacci(n):", "List the planets from the sun outwards.", "Explain photosynthesis in one sentence.", "Why is the sky blue?",
    "Tell me a story about a fox.", "What is 17 + 25?", "Who was Marie Curie?", "How do I boil an egg?", "Rewrite politely: go away.",
    "What rhymes with time?", "Describe the sea.", "Is a tomato a fruit?",
]
SYSTEM = "You are a careful assistant. Answer in one or two short sentences, and say so if you do not know. " * 3
TOKENS = 12


def prompts():
    return QUESTIONS[: effort(8, 16)]


def ask(server, question, **options):
    """The answer's tokens with log-probabilities to the last bit, and how many tokens of its prompt were cached, and from where."""
    messages = [dict(role="system", content=SYSTEM), dict(role="user", content=question)]
    body = dict(messages=messages, max_tokens=effort(TOKENS, 20), temperature=0, logprobs=True, top_logprobs=3)
    answer = server.post("/v1/chat/completions", body | options)
    assert answer.status == 200, answer.text
    return answer.json["choices"][0]["logprobs"]["content"], answer.json["kvik"]["cache"]


def all_said(server, **options):
    asked = [ask(server, question, **options) for question in prompts()]
    return [said for said, _ in asked], [cache for _, cache in asked]


def settle(server):
    deadline = time.monotonic() + 30
    while server.metric("kvik_disk_writes_pending") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start(model, kv, folder, *flags):
    # Drafts verify several tokens at a time, as do eight requests.
    flags = ["-m", model, "--kv", kv, "--cache-ram", "256MiB", "--parallel", 8, *flags]
    return Server(*flags, env={"KVIK_CACHE_DISK": str(folder)})


@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_answers_are_the_same_to_the_bit(model, kv, tmp_path):
    with start(model, kv, tmp_path, "--threads", 2) as server:
        cold, caches = all_said(server, cache_prompt=False)
        assert not any(cache["cached_tokens"] for cache in caches)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            at_once = [said for said, _ in pool.map(lambda question: ask(server, question), prompts())]
        cached, caches = all_said(server)
        assert all(cache["cached_tokens"] == cache["prompt_tokens"] - 1 for cache in caches)
        settle(server)
        server.kill()
    with start(model, kv, tmp_path, "--threads", 1) as server:
        from_disk, caches = all_said(server)
        # Whole blocks, of which a start reads the hottest into RAM by itself.
        assert all(cache["cached_tokens"] > cache["prompt_tokens"] - 17 for cache in caches)
    assert at_once == cold
    assert cached == cold
    assert from_disk == cold
