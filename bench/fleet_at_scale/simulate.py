"""Conversations before a fleet of nodes, each with its cache, behind a router, with a store that they share or without.

What is cached is counted in parts of prompts: the prompt of an application, and each turn of a conversation. A node evicts the
least recently used part, leaves of its tree first. Nothing here computes a model; all is drawn from one seed.
"""
import collections
import dataclasses
import heapq
import itertools
import random

BLOCK_TOKENS = 16


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What is asked."""
    requests_s: float               # of the whole fleet
    applications: int = 2_000       # their popularity falls as 1/rank (Zipf)
    application_blocks: int = 64    # a system prompt with tools: 1,024 tokens
    question_blocks: int = 8        # 128 tokens
    answer_blocks: int = 16         # 256 tokens
    turns_mean: float = 6.0         # geometric
    turns_max: int = 40
    pause_s: float = 60.0           # between turns, exponential
    answer_s: float = 5.0           # a request runs that long

    @property
    def turn_blocks(self):
        return self.question_blocks + self.answer_blocks


@dataclasses.dataclass(frozen=True)
class Fleet:
    """Who answers."""
    nodes: int
    node_blocks: int
    routing: str                    # random, round robin or prefix
    store: str = "none"             # or what is written to it: used first, used twice at a node, used twice in the fleet
    store_blocks: int = 0           # what fits into it; 0 where nothing is evicted
    store_evicts: str = "lru"       # or lfu, as Redis does: of five keys drawn the one that was used least
    running_max: int = 16           # what kvik computes at a time; the router gives a node no more


@dataclasses.dataclass
class Counts:
    """What was counted while it was measured, in blocks unless it says otherwise."""
    seconds: float = 0.0
    requests: int = 0
    lookups: int = 0                # requests of which the node did not have all
    prompt: int = 0
    from_node: int = 0
    from_store: int = 0
    computed: int = 0
    stored: int = 0                 # that came into a node's cache
    evicted: int = 0
    written: int = 0                # into the store

    def hit_rate(self):
        return (self.from_node + self.from_store) / self.prompt

    def per_s(self, name):
        return getattr(self, name) / self.seconds


class Node:
    """A cache of parts, the least recently used first."""

    def __init__(self, blocks_max):
        self.parts, self.free, self.running = collections.OrderedDict(), blocks_max, 0

    def matched(self, chain):
        """How many parts from the first on it has."""
        parts = self.parts
        return next((index for index, (part, _) in enumerate(chain) if part not in parts), len(chain))

    def use(self, chain, counts):
        """Makes these parts the most recently used, the first one last, so that what a part follows outlives it."""
        for part, blocks in reversed(chain):
            if part in self.parts:
                self.parts.move_to_end(part)
            else:
                self.parts[part] = blocks
                self.free -= blocks
                counts.stored += blocks
        while self.free < 0:
            _, blocks = self.parts.popitem(last=False)
            self.free += blocks
            counts.evicted += blocks


class Store:
    """What was written, what decides whether a part is, and what makes room for it."""

    def __init__(self, fleet):
        self.rule, self.free, self.evicts = fleet.store, fleet.store_blocks or float("inf"), fleet.store_evicts
        self.parts, self.asked = collections.OrderedDict(), set()      # blocks and uses of each part
        self.keys, self.draw = [], random.Random(2)

    def find(self, chain):
        """How many of these parts from the first on it has; they are used."""
        for index, (part, _) in enumerate(chain):
            if part not in self.parts:
                return index
            self.parts[part][1] += 1
            self.parts.move_to_end(part)
        return len(chain)

    def offer(self, node, chain, counts):
        for part, blocks in chain:
            if part not in self.parts and self.is_wanted(node, part):
                self.parts[part] = [blocks, 1]
                self.keys.append(part)
                counts.written += blocks
                self.free -= blocks
        while self.free < 0:
            self.free += self.parts.pop(self.victim())[0]

    def victim(self):
        if self.evicts == "lru":
            return next(iter(self.parts))
        drawn = [self.drawn() for _ in range(5)]
        return min(drawn, key=lambda part: self.parts[part][1])

    def drawn(self):
        """One of the parts. Keys of parts that are gone are dropped when they are met."""
        while True:
            index = self.draw.randrange(len(self.keys))
            if self.keys[index] in self.parts:
                return self.keys[index]
            self.keys[index] = self.keys[-1]
            self.keys.pop()

    def is_wanted(self, node, part):
        if self.rule in ("none", "used first"):
            return self.rule != "none"
        use = part if self.rule == "used twice in the fleet" else (node, part)
        if use in self.asked:
            self.asked.discard(use)
            return True
        self.asked.add(use)
        return False


@dataclasses.dataclass(slots=True)
class Conversation:
    number: int
    application: int
    turns: int
    turn: int = 0
    node: int = -1


class Simulation:
    def __init__(self, traffic, fleet, seed=1):
        self.traffic, self.fleet, self.draw = traffic, fleet, random.Random(seed)
        self.nodes = [Node(fleet.node_blocks) for _ in range(fleet.nodes)]
        self.store, self.counts = Store(fleet), Counts()
        self.holders = collections.defaultdict(list)    # of an application's prompt, as far as is known
        self.running = collections.deque()              # when a request ends, and where
        self.turn_of = itertools.cycle(range(fleet.nodes))
        self.weights = list(itertools.accumulate(1 / rank for rank in range(1, traffic.applications + 1)))

    def run(self, warm_s, measured_s):
        """Counts of the time after `warm_s`."""
        rate = self.traffic.requests_s / self.traffic.turns_mean
        due, begins = [], self.draw.expovariate(rate)
        for number in itertools.count():
            while due and due[0][0] <= begins:
                now, _, conversation = heapq.heappop(due)
                self.answer_at(now, conversation, due)
            now = begins
            if now > warm_s and not self.counts.seconds:
                self.counts = Counts(seconds=measured_s)
            if now > warm_s + measured_s:
                return self.counts
            self.answer_at(now, self.begin(number), due)
            begins += self.draw.expovariate(rate)

    def begin(self, number):
        application = self.draw.choices(range(self.traffic.applications), cum_weights=self.weights)[0]
        turns = 1
        while turns < self.traffic.turns_max and self.draw.random() > 1 / self.traffic.turns_mean:
            turns += 1
        return Conversation(number, application, turns)

    def answer_at(self, now, conversation, due):
        while self.running and self.running[0][0] <= now:
            self.nodes[self.running.popleft()[1]].running -= 1
        node = self.route(conversation)
        self.nodes[node].running += 1
        self.running.append((now + self.traffic.answer_s, node))
        self.answer(node, conversation)
        if conversation.turn < conversation.turns:
            again = now + self.traffic.answer_s + self.draw.expovariate(1 / self.traffic.pause_s)
            heapq.heappush(due, (again, conversation.number, conversation))

    def chain(self, conversation):
        """The parts of the next prompt that may be cached."""
        turns = range(conversation.number * 64, conversation.number * 64 + conversation.turn)
        return [(-1 - conversation.application, self.traffic.application_blocks),
                *((turn, self.traffic.turn_blocks) for turn in turns)]

    def answer(self, number, conversation):
        node, counts, chain = self.nodes[number], self.counts, self.chain(conversation)
        has = node.matched(chain)
        finds = has + self.store.find(chain[has:])
        self.store.offer(number, chain, counts)
        counts.requests += 1
        counts.lookups += has < len(chain)
        counts.prompt += sum(blocks for _, blocks in chain) + self.traffic.question_blocks
        counts.from_node += sum(blocks for _, blocks in chain[:has])
        counts.from_store += sum(blocks for _, blocks in chain[has:finds])
        counts.computed += sum(blocks for _, blocks in chain[finds:]) + self.traffic.question_blocks
        if not has:
            self.holders[conversation.application].append(number)
        said = (conversation.number * 64 + conversation.turn, self.traffic.turn_blocks)
        node.use([*chain, said], counts)
        conversation.turn, conversation.node = conversation.turn + 1, number

    def route(self, conversation):
        if self.fleet.routing == "random":
            return self.draw.randrange(self.fleet.nodes)
        if self.fleet.routing == "round robin":
            return next(self.turn_of)
        return self.by_prefix(conversation)

    def by_prefix(self, conversation):
        """Where the longest prefix is, unless that node has as much to do as it can; of several the one with less to do."""
        last, part = conversation.node, -1 - conversation.application
        said = conversation.number * 64 + conversation.turn - 1
        if last >= 0 and said in self.nodes[last].parts and self.has_room(last):
            return last
        holders = self.holders[conversation.application]
        for _ in range(min(4, len(holders))):
            index = self.draw.randrange(len(holders))
            if part not in self.nodes[holders[index]].parts:
                holders[index] = holders[-1]
                holders.pop()
                if not holders:
                    break
            elif self.has_room(holders[index]):
                return holders[index]
        pair = self.draw.randrange(self.fleet.nodes), self.draw.randrange(self.fleet.nodes)
        return min(pair, key=lambda node: self.nodes[node].running)

    def has_room(self, node):
        return self.nodes[node].running < self.fleet.running_max
