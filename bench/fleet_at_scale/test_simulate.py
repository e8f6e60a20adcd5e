"""The simulation's own accounts, and that what should help does."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from simulate import Counts, Fleet, Node, Simulation, Store, Traffic  # noqa: E402

TRAFFIC = Traffic(20.0, applications=50)
BLOCKS = 2_000


def run(fleet):
    simulation = Simulation(TRAFFIC, fleet)
    return simulation, simulation.run(300, 100)


@pytest.mark.parametrize("routing", ["random", "round robin", "prefix"])
@pytest.mark.parametrize("rule", ["none", "used twice at a node", "used twice in the fleet", "used first"])
def test_every_block_of_a_prompt_is_found_or_computed(routing, rule):
    simulation, counts = run(Fleet(20, BLOCKS, routing, rule, store_blocks=5_000))
    assert counts.prompt == counts.from_node + counts.from_store + counts.computed > 0
    assert (counts.from_store > 0) == (rule != "none")
    for node in simulation.nodes:
        assert 0 <= node.free == BLOCKS - sum(node.parts.values())
    assert simulation.store.free == 5_000 - sum(blocks for blocks, _ in simulation.store.parts.values()) >= 0
    assert sum(node.running for node in simulation.nodes) == len(simulation.running)


def test_the_same_seed_counts_the_same_and_what_helps_helps():
    fleets = [Fleet(20, BLOCKS, "random"), Fleet(20, BLOCKS, "prefix"), Fleet(20, BLOCKS, "prefix", "used first")]
    counts = [run(fleet)[1] for fleet in fleets]
    assert counts == [run(fleet)[1] for fleet in fleets]
    rates = [count.hit_rate() for count in counts]
    assert rates == sorted(rates) and rates[0] + 0.2 < rates[1], rates


def test_what_is_evicted_is_what_was_used_longest_ago_and_never_what_others_follow():
    node = Node(10)
    node.use([("app", 4), ("turn 1", 3)], Counts())
    node.use([("app", 4), ("turn 2", 3)], Counts())
    node.use([("app", 4), ("turn 3", 3)], Counts())
    assert list(node.parts) == ["turn 2", "turn 3", "app"] and node.free == 0


@pytest.mark.parametrize("evicts, kept", [("lru", "new"), ("lfu", "often")])
def test_a_full_store_evicts_by_its_rule(evicts, kept):
    store = Store(Fleet(1, 1, "random", "used first", store_blocks=1, store_evicts=evicts))
    store.offer(0, [("often", 1)], Counts())
    for _ in range(3):
        store.find([("often", 1)])
    store.offer(0, [("new", 1)], Counts())
    assert set(store.parts) == {kept}
