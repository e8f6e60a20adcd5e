"""The bench's own logic: traffic, figures, the index of events, and that a proxy's faults happen."""
import asyncio
import contextlib
import json
import random
import shutil
import time
from types import SimpleNamespace

import pytest

from . import events_router, faults, figures, load, network, nodes, proxy, resp, traffic
from .events_router import AllBlocksCleared, BlockRemoved, BlockStored

VALUE = bytes(range(256)) * 8


def texts(sessions):
    return [[(turn.at_s, turn.text, turn.answer_tokens) for turn in session] for session in sessions]


def trace(path, lines):
    fields = ("timestamp", "hash_ids", "output_length")
    path.write_text("".join(json.dumps(dict(zip(fields, line))) + "\n" for line in lines))
    return path


def test_generated_traffic_is_the_same_for_a_seed():
    made = traffic.conversations(80, 10.0, 3)
    assert texts(made) == texts(traffic.conversations(80, 10.0, 3))
    assert texts(made) != texts(traffic.conversations(80, 10.0, 4))
    assert sum(map(len, made)) == 80
    assert all(turn.follows == (number > 0) for session in made for number, turn in enumerate(session))
    systems = {session[0].text.split("<|im_end|>")[0] for session in made}
    assert 2 < len(systems) <= traffic.TENANTS and len(made) > len(systems)


def test_recorded_traffic_shares_what_the_trace_shares(tmp_path):
    lines = [(0, [0, 1, 2], 512), (3000, [0, 7], 60), (6000, [0, 1, 2, 3], 9000), (9000, [0], 64)]
    path = trace(tmp_path / "trace", lines)
    made = traffic.recorded(path, 4, 2.0, 16, 1)
    assert texts(made) == texts(traffic.recorded(path, 4, 2.0, 16, 1))
    by_time = sorted((turn for session in made for turn in session), key=lambda turn: turn.at_s)
    assert [turn.at_s for turn in by_time] == pytest.approx([0, 2 / 3, 4 / 3, 2])
    assert [len(turn.text.split()) for turn in by_time] == [48, 32, 64, 16]
    assert [turn.answer_tokens for turn in by_time] == [16, 4, 32, 4]
    first, other, second, last = (turn.text for turn in by_time)
    assert second.startswith(first) and not other.startswith(first)
    assert first.startswith(last) and other.startswith(last)
    assert sorted(len(session) for session in made) == [1, 1, 2]


def test_recorded_traffic_leaves_out_what_no_context_takes(tmp_path):
    path = trace(tmp_path / "trace", [(0, [0, 1], 64), (10, list(range(100, 300)), 64), (20, [0, 1, 2], 64)])
    assert sum(map(len, traffic.recorded(path, 9, 1.0, 16, 1))) == 2


def test_percentiles_are_of_the_nearest_rank():
    values = random.Random(1).sample(range(1, 101), 100)
    assert [figures.percentile(values, percent) for percent in (0, 1, 50, 95, 99, 100)] == [1, 1, 50, 95, 99, 100]
    assert figures.percentile([3, 1, 2], 50) == 2 and figures.percentile([7], 99) == 7


def outcome(sent_s, prompt, cached, first_s=0.01, **other):
    return load.Outcome(sent_s, first_s, prompt_tokens=prompt, cached_tokens=cached, **other)


def test_a_summary_counts_tokens_and_leaves_out_what_failed():
    answered = [outcome(0, 100, 50, 0.1), outcome(1, 300, 0, 0.2, wrong=True)]
    row = figures.summary([*answered, outcome(2, 0, 0, error="broke")])
    assert (row["hit_rate"], row["failed"], row["wrong"], row["requests"]) == (50 / 400, 1, 1, 3)
    assert (row["ttft_p50_ms"], row["ttft_p99_ms"]) == (100, 200)


def test_a_dip_is_the_worst_row_of_requests_since_a_change():
    rate = {**dict.fromkeys(range(10), 80), **dict.fromkeys(range(10, 12), 20), **dict.fromkeys(range(12, 20), 70)}
    outcomes = [outcome(second + tenth / 10, 100, rate[second]) for second in range(20) for tenth in range(10)]
    found = figures.around(outcomes, 10, 12, 10)
    assert [round(found[name], 2) for name in ("before", "during", "dip", "after")] == [0.8, 0.2, 0.2, 0.7]
    assert round(figures.around(outcomes, 10, 12, 40)["dip"], 2) == 0.45
    assert len(figures.windows(outcomes, 20)) == 10 and figures.windows(outcomes, 20)[5]["hit_rate"] == 0.2


def test_medians_are_of_each_column():
    rows = [{"title": "x", "hit_rate": rate, "failed": failed} for rate, failed in ((0.1, 0), (0.5, 1), (0.2, 0))]
    assert figures.medians(rows) == {"title": "x", "hit_rate": 0.2, "failed": 0}


def stored(names, parent, first_token):
    tokens = list(range(first_token, first_token + 16 * len(names)))
    return BlockStored(names, parent, tokens, 16, None, "GPU", None)


def follow(index, node, *events):
    index.follow(node, SimpleNamespace(events=events))


def test_the_index_knows_the_longest_prefix_of_each_node():
    index, prompt = events_router.Index(), list(range(70))
    follow(index, "a", stored([11, 12], None, 0), stored([13], 12, 32))
    follow(index, "b", stored([11], None, 0))
    assert [index.cached(node, prompt) for node in ("a", "b", "c")] == [48, 16, 0]
    assert index.cached("a", prompt[:40]) == 32 and index.cached("a", [5, *prompt]) == 0
    follow(index, "a", BlockRemoved([13], "GPU"))
    assert index.cached("a", prompt) == 32
    follow(index, "a", AllBlocksCleared())
    assert [index.cached(node, prompt) for node in ("a", "b")] == [0, 16]


def test_a_request_goes_to_the_longest_prefix_or_to_the_least_to_compute():
    index, prompt = events_router.Index(), list(range(70))
    follow(index, "a", stored([11, 12], None, 0))
    near, far = events_router.Node("a", requests=5, tokens=100), events_router.Node("b")
    assert events_router.choose(index, [far, near], prompt, False) == (near, 38)
    assert events_router.choose(index, [far, near], prompt, True) == (far, 70)
    assert events_router.choose(index, [near, far], [900] * 40, False) == (far, 40)


REPLIES = [
    b"+OK\r\n", b"$-1\r\n", b"$5\r\na\r\nbc\r\n", b"*2\r\n$3\r\nabc\r\n*1\r\n:7\r\n", b"%1\r\n+key\r\n$2\r\nhi\r\n",
    b"*-1\r\n", b"_\r\n",
]


@pytest.mark.parametrize("length", [1, 2, 7, 1000])
def test_replies_are_found_however_they_are_cut(length):
    stream, replies, found = b"".join(REPLIES), resp.Replies(), []
    for at in range(0, len(stream), length):
        found += replies.feed(stream[at:at + length])
    assert [reply for reply, _ in found] == REPLIES
    bulks = [reply[begin:end] for reply, parts in found for begin, end in parts]
    assert bulks == [b"a\r\nbc", b"abc", b"hi"]


def test_a_reply_has_other_values_in_their_place():
    reply = b"*3\r\n$3\r\nabc\r\n$-1\r\n$2\r\n$1\r\n"
    [(whole, bulks)] = resp.Replies().feed(reply)
    assert resp.replace(whole, bulks, [b"longer", b"x"]) == b"*3\r\n$6\r\nlonger\r\n$-1\r\n$1\r\nx\r\n"


def test_what_is_no_reply_is_an_error():
    with pytest.raises(ValueError, match="no reply"):
        resp.Replies().feed(b"HTTP/1.1 200\r\n")


def bulk(value):
    return b"$%d\r\n%s\r\n" % (len(value), value)


def changed(fault, value):
    [(reply, bulks)] = resp.Replies().feed(bulk(value))
    [(after, places)] = resp.Replies().feed(fault.change(reply, bulks))
    return after[places[0][0]:places[0][1]]


def test_one_value_in_a_hundred_is_corrupted_in_one_byte_once_armed():
    fault = faults.Fault("corrupt")
    assert all(changed(fault, VALUE) == VALUE for _ in range(500)) and fault.count == 0
    fault.arm()
    differ = [sum(a != b for a, b in zip(changed(fault, VALUE), VALUE, strict=True)) for _ in range(5000)]
    assert set(differ) == {0, 1} and sum(differ) == fault.count == 50 and differ[0] == 1
    assert all(changed(fault, b"short") == b"short" for _ in range(500))


def test_a_key_has_the_value_of_another():
    fault, values = faults.Fault("wrong"), [bytes([i]) * (100 + i) for i in range(4)]
    assert [changed(fault, value) for value in values] == values
    fault.arm()
    for value in values * 5:
        after = changed(fault, value)
        assert after != value and after in values
    assert fault.count == 20


class FakeRedis:
    """Answers each line with one value."""

    def __init__(self):
        self.port, self.entry = network.free_ports(2)

    async def serve(self, reader, writer):
        while await reader.readline():
            writer.write(bulk(VALUE))
            await writer.drain()
        writer.close()

    @contextlib.asynccontextmanager
    async def through(self, fault=None, rate=0, delay_s=0.0, node=0):
        """A proxy before it, and a connection through that."""
        link = proxy.Link(self.entry, self.port, ["in"], ["out"], delay_s, node, store=True)
        shaped = proxy.Proxy({"in": rate, "out": rate}, [link], fault)
        async with await asyncio.start_server(self.serve, "127.0.0.1", self.port) as server:
            await shaped.start()
            reader, writer = await asyncio.open_connection("127.0.0.1", self.entry)
            try:
                yield shaped, reader, writer
            finally:
                writer.transport.abort()
                for listening in [*shaped.servers, server]:
                    listening.close()
                await asyncio.sleep(0.05)


async def ask(reader, writer, times=1):
    """The values that as many questions get, and the seconds that it took."""
    began = time.monotonic()
    writer.write(b"GET\n" * times)
    values = [(await reader.readexactly(len(bulk(VALUE))))[7:-2] for _ in range(times)]
    return values, time.monotonic() - began


def proxied(check, **options):
    async def run():
        async with FakeRedis().through(**options) as (shaped, reader, writer):
            await asyncio.wait_for(check(shaped, reader, writer), 20)

    asyncio.run(run())


def test_a_proxy_passes_all_bytes_and_counts_them():
    async def check(shaped, reader, writer):
        values, _ = await ask(reader, writer, 20)
        assert values == [VALUE] * 20
        assert shaped.count() == {"bytes": {"in": 80, "out": 20 * len(bulk(VALUE))}, "struck": 0}

    proxied(check)


def test_a_proxy_has_the_rate_and_the_delay_it_is_given():
    async def check(shaped, reader, writer):
        _, seconds = await ask(reader, writer, 200)
        assert seconds >= 200 * len(VALUE) / 2e6 * 0.95 + 0.1

    proxied(check, rate=2e6, delay_s=0.05)


def test_a_dead_store_ends_connections_and_takes_none():
    async def check(shaped, reader, writer):
        await ask(reader, writer)
        shaped.arm()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await ask(reader, writer)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await ask(*await asyncio.open_connection("127.0.0.1", shaped.links[0].listen))
        assert shaped.count()["struck"]

    proxied(check, fault="dead")


@pytest.mark.parametrize("node, cut", [(0, True), (1, False)])
def test_a_partition_is_of_one_node(node, cut):
    async def check(shaped, reader, writer):
        await ask(reader, writer)
        shaped.arm()
        with pytest.raises(TimeoutError) if cut else contextlib.nullcontext():
            await asyncio.wait_for(ask(reader, writer), 0.3)
        assert bool(shaped.count()["struck"]) == cut

    proxied(check, fault="partition", node=node)


def test_a_store_stalls_for_a_while(monkeypatch):
    monkeypatch.setattr(faults, "STALL_S", 0.4)

    async def check(shaped, reader, writer):
        await ask(reader, writer)
        shaped.arm()
        assert (await ask(reader, writer))[1] >= 0.35
        # Not held, however busy the machine is: the least of several.
        assert min([(await ask(reader, writer))[1] for _ in range(5)]) < 0.3
        assert shaped.count()["struck"] == 1

    proxied(check, fault="stalls")


def test_a_store_is_slow():
    async def check(shaped, reader, writer):
        before = min([(await ask(reader, writer, 100))[1] for _ in range(5)])
        shaped.arm()
        assert before < 0.15 and (await ask(reader, writer, 100))[1] >= 0.18
        assert shaped.count()["struck"]

    proxied(check, fault="slow")


def test_a_store_corrupts_values_on_their_way():
    async def check(shaped, reader, writer):
        assert (await ask(reader, writer, 300))[0] == [VALUE] * 300
        shaped.arm()
        values, _ = await ask(reader, writer, 1000)
        assert sum(value != VALUE for value in values) == shaped.count()["struck"] > 0

    proxied(check, fault="corrupt")


@pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is not installed")
def test_a_full_store_refuses_writes_and_still_answers():
    [port] = network.free_ports(1)
    place = network.Place("127.0.0.1", port, (), ("127.0.0.1", port))
    with nodes.Store(place) as store:
        assert store.command("SET", "before", "x" * 100) == "+OK" and store.refused() == 0
        store.fill()
        assert store.command("SET", "after", "x").startswith("-OOM")
        assert store.command("GET", "before") == "x" * 100 and store.refused() == 1
