"""What may be wrong with a store: how its replies are changed, held back or refused on their way to a node."""
import asyncio
import random
import time

from . import resp

# Shorter strings are names, numbers and states of the protocol, and no one's keys and values.
VALUE_BYTES_MIN = 64
STALL_S, BETWEEN_STALLS_S = 10.0, 5.0
CORRUPT_EVERY = 100
SLOW_BYTES_PER_SECOND = 1e6

# `full` is Redis's own: its memory is limited to what it has.
NAMES = ("dead", "stalls", "corrupt", "wrong", "full", "slow", "partition")


class Fault:
    """One fault, which begins when it is armed. `count` says how often it struck."""

    def __init__(self, name, seed=1):
        assert name in NAMES, f"{name} is none of {NAMES}"
        self.name, self.dice = name, random.Random(seed)
        self.armed_at, self.count, self.values, self.seen = None, 0, 0, []

    def arm(self):
        self.armed_at = time.monotonic()

    @property
    def armed(self):
        return self.armed_at is not None

    def refuses(self):
        """Whether connections are refused and ended."""
        return self.armed and self.name == "dead"

    def swallows(self, node):
        """Whether nothing passes for a node, either way, while its connections stay open."""
        return self.armed and self.name == "partition" and node == 0

    def slows(self):
        return self.armed and self.name == "slow"

    async def hold(self):
        """Waits while a stall lasts."""
        if self.armed and self.name == "stalls":
            into = (time.monotonic() - self.armed_at) % (STALL_S + BETWEEN_STALLS_S)
            if into < STALL_S:
                self.count += 1
                await asyncio.sleep(STALL_S - into)

    def changes(self):
        """Whether replies must be read whole."""
        return self.name in ("corrupt", "wrong")

    def change(self, reply, bulks):
        """A reply with what this fault makes of its values."""
        values = [reply[begin:end] for begin, end in bulks]
        changed = [self._value(value) if len(value) >= VALUE_BYTES_MIN else value for value in values]
        return reply if changed == values else resp.replace(reply, bulks, changed)

    def _value(self, value):
        # Also before it is armed: another key's value must have been seen.
        made = self._swap(value) if self.name == "wrong" else value
        if self.armed and self.name == "corrupt":
            made = self._corrupt(value)
        if made == value or not self.armed:
            return value
        self.count += 1
        return made

    def _corrupt(self, value):
        """Another byte somewhere in the first value and in every hundredth after it: few are enough to see it."""
        self.values += 1
        if self.values % CORRUPT_EVERY != 1:
            return value
        at = self.dice.randrange(len(value))
        return value[:at] + bytes([value[at] ^ self.dice.randint(1, 255)]) + value[at + 1:]

    def _swap(self, value):
        """Another key's value, seen before."""
        others = [other for other in self.seen if other != value]
        if value not in self.seen:
            self.seen = [*self.seen[-15:], value]
        return self.dice.choice(others) if others else value
