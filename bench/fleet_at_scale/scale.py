"""1,000 nodes on paper: what a simulation of their caches and what one node and one store were measured to do come to.

    python3 bench/fleet_at_scale/scale.py                         # prints the tables of docs/fleet-simulation.md, in some minutes
    python3 bench/fleet_at_scale/scale.py --check docs/fleet-simulation.md   # and says whether that page has them

`measure.py` measures what is marked as measured.
"""
import concurrent.futures
import dataclasses
import gc
import pathlib
import sys

from simulate import BLOCK_TOKENS, Fleet, Simulation, Traffic

NODES = 1_000
WARM_S, MEASURED_S = 900, 200
NODE_GIB = 16
STORE_GIB = 256             # memory of the machine with the store
BOUNDED = ((STORE_GIB, "lru"), (STORE_GIB, "lfu"), (4 * STORE_GIB, "lfu"))
RULES = ("none", "used twice at a node", "used twice in the fleet", "used first")

# Measured by measure.py.
MESSAGE_BYTES = 135         # topic, number, batch and event, without names and ids
NAME_BYTES = 9
INDEX_BYTES = 638           # a block in the index of vLLM's router 0.1.17
INDEX_S = 4.11e-6           # processor time to put it there
# Measured with `redis-benchmark` against Redis 7.0.15, both on two cores: -c 16 exists with 8 keys; -d 1835008 -c 8 -t set,get.
REDIS_LOOKUPS_S = 86_000
REDIS_BYTES_S = 1_550 * 1_835_008
# Assumed.
ID_BYTES = 4                # a token id in msgpack: 3 below 65,536, else 5
RUN_BLOCKS = 8              # blocks a value of the store
TTL_S = 3_600
ROUTER_GIB = 32
KEPT_STEPS, KEPT_BYTES = 10_000, 64 << 20           # --kv-events-steps by default, and its limit
S3_PUT, S3_GET, S3_GB_MONTH, S3_HEADS = 5e-6, 4e-7, 0.023, 4   # dollars; requests to find the longest prefix
GBIT = 125e6


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    block_bytes: int
    prefill: tuple          # what computes it, and tokens a second

    @property
    def node_blocks(self):
        return (NODE_GIB << 30) // self.block_bytes


# Keys and values of 16 positions: layers, heads and dimensions, with a scale of 4 bytes for each vector in q8.
MODELS = (
    Model("Qwen3-0.6B, f16", 2 * 28 * 8 * 128 * 2 * BLOCK_TOKENS,
          (("a data-centre GPU, assumed", 40_000), ("two cores, measured", 904))),
    Model("Qwen3-4B, q8", 2 * 36 * 8 * (128 + 4) * BLOCK_TOKENS, (("a data-centre GPU, assumed", 12_000),)),
)


def main():
    traffic = Traffic(float(NODES))
    wanted = [(model, fleet) for model in MODELS for fleet in fleets(model)]
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        found = dict(zip(wanted, pool.map(simulate, (fleet for _, fleet in wanted))))
    parts = [assumptions(traffic), *(hit_rates(model, found) for model in MODELS), demands(traffic, found)]
    text = "\n\n".join(parts)
    print(text)
    if "--check" in sys.argv:
        page = pathlib.Path(sys.argv[-1]).read_text()
        missing = [line for line in text.splitlines() if line not in page]
        sys.exit("\n".join(["the page has other figures:", *missing]) if missing else 0)


def fleets(model):
    """One node with all memory, and routings and rules; of turns and of the larger model those that differ most."""
    yield Fleet(1, model.node_blocks * NODES, "random")
    for routing in ("random", "round robin", "prefix"):
        for rule in RULES if (model, routing != "round robin") == (MODELS[0], True) else RULES[:2]:
            if (model, routing) != (MODELS[1], "round robin"):
                yield Fleet(NODES, model.node_blocks, routing, rule)
    for gib, evicts in BOUNDED if model is MODELS[0] else ():
        yield Fleet(NODES, model.node_blocks, "prefix", RULES[1], (gib << 30) // model.block_bytes, evicts)


def simulate(fleet):
    gc.disable()  # nothing here is in a cycle, and there are millions of parts to look at
    found = Simulation(Traffic(float(NODES)), fleet).run(WARM_S, MEASURED_S)
    print(fleet, found, file=sys.stderr, flush=True)
    return found


def table(head, rows):
    align = "| --- |" + " ---: |" * (len(head) - 1)
    return "\n".join(["| " + " | ".join(head) + " |", align, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def assumptions(traffic):
    rows = [
        ("requests a second at a node", f"{traffic.requests_s / NODES:g}"),
        ("applications, each with a prompt of its own; popularity", f"{traffic.applications:,}; Zipf, exponent 1"),
        ("tokens of such a prompt", f"{traffic.application_blocks * BLOCK_TOKENS:,}"),
        ("tokens of a question, of an answer", f"{traffic.question_blocks * BLOCK_TOKENS}, {traffic.answer_blocks * BLOCK_TOKENS}"),
        ("turns of a conversation", f"{traffic.turns_mean:g} in the mean, geometric, {traffic.turns_max} at most"),
        ("seconds between turns", f"{traffic.pause_s:g} in the mean, exponential"),
        ("seconds that a request runs; requests at a time", f"{traffic.answer_s:g}; 16"),
        ("memory for keys and values at a node", f"{NODE_GIB} GiB"),
        *((f"bytes of a block of 16 tokens, blocks at a node: {model.name}", f"{model.block_bytes:,}, {model.node_blocks:,}")
          for model in MODELS),
        *((f"tokens computed a second: {model.name}, {what}", f"{rate:,}") for model in MODELS for what, rate in model.prefill),
        ("blocks a value of the store, time to live there", f"{RUN_BLOCKS}, {TTL_S // 3600} h"),
        ("bytes of a token id in an event", ID_BYTES),
        ("memory of the router, of the store's machine", f"{ROUTER_GIB} GiB, {STORE_GIB} GiB"),
        ("S3, dollars: 1,000 puts, 1,000 gets, a GB for a month", f"{S3_PUT * 1e3:g}, {S3_GET * 1e3:g}, {S3_GB_MONTH:g}"),
        ("measured: bytes of an event, of a name in it", f"{MESSAGE_BYTES}, {NAME_BYTES}"),
        ("measured: vLLM's router for a block, bytes and time", f"{INDEX_BYTES}, {INDEX_S * 1e6:g} us"),
        ("measured: Redis, look-ups of 8 names a second, bytes a second", f"{REDIS_LOOKUPS_S:,}, {REDIS_BYTES_S / 1e9:.1f} GB"),
    ]
    return table(("assumed or measured", "value"), rows)


def hit_rates(model, found):
    one, *others = fleets(model)
    rows = [row(fleet, model, found[model, fleet], found[model, one]) for fleet in (one, *others)]
    rows[0][0] = "one node with all memory"
    head = (f"{model.name}: routing", "written to the store", "hit rate", "of one node's", "of it from the store",
            "computed tokens/s a node", "read GB/s", "written GB/s", "the store, or its size after 1 h")
    return table(head, rows)


def row(fleet, model, found, one):
    rule, size = fleet.store, f"{found.per_s('written') * model.block_bytes * TTL_S / 1e12:,.1f} TB"
    if fleet.store_blocks:
        size = f"{fleet.store_blocks * model.block_bytes / 2**30:,.0f} GiB, {fleet.store_evicts}"
    of_store = ["", "", "", ""] if rule == "none" else [
        percent(found.from_store / found.prompt), gigabytes(found.per_s("from_store"), model),
        gigabytes(found.per_s("written"), model), size]
    return [fleet.routing, rule, percent(found.hit_rate()), percent(found.hit_rate() / one.hit_rate()), of_store[0],
            f"{found.per_s('computed') * BLOCK_TOKENS / NODES:,.0f}", *of_store[1:]]


def percent(share):
    return f"{share:.1%}"


def gigabytes(blocks, model):
    return f"{blocks * model.block_bytes / 1e9:,.1f}"


def demands(traffic, found):
    """What each thing is asked for at 1,000 nodes, what it can do, and at how many nodes that is."""
    rows = []
    for model in MODELS:
        counts = found[model, Fleet(NODES, model.node_blocks, "prefix", "used twice at a node")]
        for what, shown, demand, limit, bound in demands_of(model, counts, traffic):
            nodes = f"{NODES * limit / demand:,.0f}" if limit else ""
            rows.append((f"{model.name}: {what}", shown, bound, nodes))
    head = ("routing by prefix, written when used twice at a node", f"at {NODES:,} nodes", "limit", "reached at nodes")
    return table(head, rows)


def demands_of(model, counts, traffic):
    """Name, demand in words, demand, limit, limit in words; a limit of 0 where there is none."""
    per_s = counts.per_s
    messages = per_s("requests") * (1 + traffic.answer_blocks)
    event_bytes = (messages * MESSAGE_BYTES + (per_s("stored") + per_s("evicted")) * NAME_BYTES
                   + per_s("stored") * BLOCK_TOKENS * ID_BYTES)
    entries = NODES * model.node_blocks
    moved = (per_s("from_store") + per_s("written")) * model.block_bytes
    size = per_s("written") * model.block_bytes * TTL_S
    outage = min(KEPT_STEPS / (messages / NODES), KEPT_BYTES / (event_bytes / NODES))
    burst = NODES * KEPT_STEPS * event_bytes / messages
    yield ("memory of the router's index", f"{entries / 1e6:.1f} M blocks, {entries * INDEX_BYTES / 2**30:.1f} GiB",
           entries * INDEX_BYTES, ROUTER_GIB << 30, f"{ROUTER_GIB} GiB")
    yield ("the router's processor for events", f"{per_s('stored'):,.0f} blocks/s, {per_s('stored') * INDEX_S:.2f} cores",
           per_s("stored") * INDEX_S, 1, "1 core")
    yield ("events", f"{messages:,.0f} messages/s, {event_bytes / 1e6:.1f} MB/s", event_bytes, GBIT, "1 Gbit/s")
    yield ("replay after an outage of the router", f"the last {outage / 60:.0f} min; {burst / 1e9:.1f} GB at once", 0, 0, "10,000 steps")
    yield ("look-ups at one Redis", f"{per_s('lookups'):,.0f}/s", per_s("lookups"), REDIS_LOOKUPS_S, f"{REDIS_LOOKUPS_S:,}/s")
    yield ("bytes through one Redis", f"{moved / 1e9:.1f} GB/s", moved, REDIS_BYTES_S, f"{REDIS_BYTES_S / 1e9:.1f} GB/s")
    for gbit in (10, 25, 100):
        yield (f"the store's network of {gbit} Gbit/s", f"{moved / 1e9:.1f} GB/s", moved, gbit * GBIT, f"{gbit * GBIT / 1e9:.2f} GB/s")
    yield ("the store's memory", f"{size / 1e12:.1f} TB", size, STORE_GIB << 30, f"{STORE_GIB} GiB")
    yield ("a node's own traffic with the store", f"{moved / NODES / 1e6:.0f} MB/s", 0, 0, "")
    for what, rate in model.prefill:
        as_fast = model.block_bytes / BLOCK_TOKENS * rate / GBIT
        yield (f"reading is as fast as computing by {what}, at", f"{as_fast:.1f} Gbit/s", 0, 0, "for one that reads alone")
    puts, gets = per_s("written") / RUN_BLOCKS * S3_PUT, per_s("from_store") / RUN_BLOCKS * S3_GET
    heads, kept = per_s("lookups") * S3_HEADS * S3_GET, size / 1e9 * S3_GB_MONTH / 730
    yield ("S3: puts, gets, heads, space", ", ".join(f"${part * 3600:,.2f}" for part in (puts, gets, heads)) + f", ${kept:,.2f} an hour", 0, 0, "")


if __name__ == "__main__":
    main()
