"""KV events: what a router would keep of a node is what the node has."""
import contextlib
import hashlib
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Index, Subscriber  # noqa: E402
from server import Server, free_port  # noqa: E402

BLOCK = 16
TOPIC = "kv@node@tiny"
TOPICS = ["the sea", "a bicycle", "taxes", "the moon", "bread", "a violin", "winter", "an island"]


@contextlib.contextmanager
def node(*flags, key=None):
    """A server, and one who follows its events."""
    publish, replay = free_port(), free_port()
    addresses = [f"tcp://127.0.0.1:{port}" for port in (publish, replay)]
    events = ("--kv-events", addresses[0], "--kv-events-replay", addresses[1], "--kv-events-topic", TOPIC)
    with Server("--threads", "1", *events, *flags) as server:
        with Subscriber(publish, replay, TOPIC.encode()) as subscriber:
            wait_until_heard(server, subscriber, key)
            yield server, subscriber


def wait_until_heard(server, subscriber, key):
    """A subscriber misses what is published before it is known; this ends with the first message that reaches it."""
    for attempt in range(100):
        ask(server, f"Is anybody there? I ask for the {attempt}th time, and wait.", "", key)
        if subscriber.receive(wait_ms=200):
            return
    raise AssertionError("no event reaches the subscriber")


def system_prompt(topic):
    return f"You are a patient teacher who knows everything about {topic}, and nothing about anything else. " * 4


def ask(server, text, system, key=None):
    messages = [{"role": "system", "content": system}] * bool(system) + [{"role": "user", "content": text}]
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = dict(messages=messages, max_tokens=4, temperature=0)
    answer = server.post("/v1/chat/completions", body, **headers)
    assert answer.status == 200, answer.text
    return answer.json


def tokens_of(server, text, system):
    """The tokens of a prompt, and how many of them the server says it has."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    prompt = server.post("/apply-template", {"messages": messages}).json["prompt"]
    tokens = server.post("/tokenize", {"content": prompt, "parse_special": True}).json["tokens"]
    explained = server.post("/v1/cache/explain", {"messages": messages}).json["kvik"]["cache"]
    assert len(tokens) == explained["prompt_tokens"]
    return tokens, explained


def followed(subscriber):
    """An index of all that a node has told from its start, and its steps."""
    steps, index = subscriber.replay(0), Index()
    assert [number for number, _ in steps] == list(range(len(steps)))
    for _, batch in steps:
        index.follow("node", batch)
    return index, steps


def events(steps, kind):
    return [event for _, batch in steps for event in batch.events if isinstance(event, kind)]


def test_what_is_stored_removed_and_cleared_is_told_as_vllm_does():
    with node("--cache-ram", "2MiB", "--context", "512") as (server, subscriber):
        for topic in TOPICS * 2:
            ask(server, "What do you teach?", system_prompt(topic))
        index, steps = followed(subscriber)
        assert events(steps[:1], AllBlocksCleared), "a process begins with nothing"
        stored, removed = events(steps, BlockStored), events(steps, BlockRemoved)
        assert removed, "the prompts do not fit"
        for event in stored:
            assert (event.block_size, event.medium, event.lora_id, event.lora_name) == (BLOCK, "GPU", None, None)
        assert {event.medium for event in removed} == {"GPU"}
        assert all(batch.data_parallel_rank == 0 and batch.ts > 1.7e9 for _, batch in steps)

        # What came over the other socket is the same, as far as it came.
        live = dict(subscriber.drain())
        assert live and all(live[number] == batch for number, batch in steps if number in live)

        cleared = server.request("DELETE", "/v1/cache", None, {})
        assert cleared.status == 200, cleared.text
        index, _ = followed(subscriber)
        assert index.nodes["node"] == {}, "nothing is left, and the events say so"


def test_who_missed_steps_is_told_them_again():
    with node() as (server, subscriber):
        subscriber.drain()
        for topic in TOPICS[:4]:
            ask(server, "What do you teach?", system_prompt(topic))
        live = subscriber.drain()
        numbers = [number for number, _ in live]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "no gap where nobody is slow"
        assert subscriber.replay(numbers[1]) == live[1:]
        assert subscriber.replay(numbers[-1] + 1) == []
        assert subscriber.replay(2**63) == []


def test_only_the_last_steps_are_kept():
    with node("--kv-events-steps", "3") as (server, subscriber):
        for topic in TOPICS:
            ask(server, "What do you teach?", system_prompt(topic))
        numbers = [number for number, _ in subscriber.replay(0)]
        assert len(numbers) == 3 and numbers[-1] >= len(TOPICS)


def test_an_index_of_two_nodes_knows_what_each_has():
    with node() as (first, first_events), node() as (second, second_events):
        servers = {"first": (first, first_events), "second": (second, second_events)}
        for name, topics in {"first": TOPICS[:4], "second": TOPICS[2:]}.items():
            for topic in topics:
                ask(servers[name][0], "What do you teach?", system_prompt(topic))
        index = Index()
        for name, (_, subscriber) in servers.items():
            for _, batch in subscriber.replay(0):
                index.follow(name, batch)
        for topic in TOPICS:
            for name, (server, _) in servers.items():
                tokens, explained = tokens_of(server, "What do you teach?", system_prompt(topic))
                known = explained["cached_tokens"]
                # The last token is computed again, and a last block that is not whole is told to nobody.
                assert known - BLOCK < index.prefix(name, tokens) <= known + 1, (topic, name)


def test_prompts_of_an_isolated_tenant_are_not_told(tmp_path):
    settings = {"alone": "isolated", "one": "shared", "two": "shared"}
    text = "".join(
        f'[tenant.{name}]\nkeys = ["sha256:{hashlib.sha256(name.encode()).hexdigest()}"]\nshare = "{share}"\n'
        for name, share in settings.items()
    )
    (tmp_path / "tenants.toml").write_text(text)
    with node("--tenants", tmp_path / "tenants.toml", key="one") as (server, subscriber):
        subscriber.drain()
        ask(server, "What do you teach?", system_prompt(TOPICS[0]), key="alone")
        assert subscriber.drain() == [], "nothing is heard of it, not even when"
        ask(server, "What do you teach?", system_prompt(TOPICS[0]), key="one")
        told = sum(len(event.block_hashes) for event in events(subscriber.drain(), BlockStored))
        assert told >= 3, "all of a prompt that its tenant shares"
        ask(server, "What do you learn?", system_prompt(TOPICS[0]), key="two")
        again = sum(len(event.block_hashes) for event in events(subscriber.drain(), BlockStored))
        assert again < told, "the other one has the blocks of the first"


def test_a_replay_without_events_and_a_shelf_are_refused():
    for flags, word in [
        (("--kv-events-replay", "tcp://127.0.0.1:0"), "--kv-events"),
        (("--kv-events", "127.0.0.1:0"), "tcp://HOST:PORT"),
        (("--kv-events", "tcp://127.0.0.1:0", "--shelf"), "of its own"),
    ]:
        with pytest.raises(AssertionError, match=word):
            with Server(*flags):
                pass
