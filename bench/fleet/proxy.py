"""A TCP proxy that limits bandwidth, adds delay, counts bytes and has a store's faults: a network without a kernel.

A program of its own, so that it takes no time from who measures: its standard input is a line of JSON with its links,
then a command a line (`arm`, `count`), each answered by a line. It ends when its input does.
"""
import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import time

from .faults import SLOW_BYTES_PER_SECOND, Fault
from .resp import Replies

READ_BYTES = 64 << 10
# Timers of asyncio have a grain of a millisecond: what departs sooner is not waited for.
GRAIN_S = 0.002


@dataclasses.dataclass
class Wire:
    """One direction of an interface: a rate that all its connections share. Zero is no limit."""

    bytes_per_second: float
    free_at: float = 0.0
    bytes: int = 0

    def departs(self, now, length):
        """When the last of so many bytes has left."""
        self.bytes += length
        if self.bytes_per_second:
            self.free_at = max(now, self.free_at) + length / self.bytes_per_second
        return max(now, self.free_at)


@dataclasses.dataclass
class Link:
    """A port that leads to another: over which wires, with what delay one way. Links of a store have faults."""

    listen: int
    target: int
    up: list[str]
    down: list[str]
    delay_s: float
    node: int
    store: bool = False
    host: str = "127.0.0.1"


class Proxy:
    def __init__(self, wires, links, fault=None):
        self.wires = {name: Wire(rate) for name, rate in wires.items()}
        self.links = links
        self.fault = Fault(fault) if fault else None
        self.slow = Wire(SLOW_BYTES_PER_SECOND)
        self.servers, self.writers = [], set()

    async def start(self):
        for link in self.links:
            serve = self._connection(link)
            self.servers.append(await asyncio.start_server(serve, link.host, link.listen, backlog=512))

    def _connection(self, link):
        async def serve(reader, writer):
            try:
                if link.store and self.fault and self.fault.refuses():
                    self.fault.count += 1
                    raise ConnectionRefusedError
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", link.target)
            except OSError:
                writer.transport.abort()
                return
            ends = {writer, far_writer}
            self.writers |= ends if link.store else set()
            try:
                await asyncio.gather(
                    self._pump(link, reader, far_writer, link.up),
                    self._pump(link, far_reader, writer, link.down, reply=True),
                )
            finally:
                self.writers -= ends
                for end in ends:
                    end.transport.abort()

        return serve

    async def _pump(self, link, reader, writer, names, reply=False):
        """Carries bytes one way until they end; the other side is told so."""
        fault = self.fault if link.store else None
        replies = Replies() if fault and reply and fault.changes() else None
        on_the_way = asyncio.Queue(maxsize=64)
        sender = asyncio.create_task(self._send(on_the_way, writer))
        wires = [self.wires[name] for name in names]
        try:
            while data := await reader.read(READ_BYTES):
                if fault and fault.swallows(link.node):
                    fault.count += 1
                    continue
                if fault and reply:
                    await fault.hold()
                if replies:
                    data = b"".join(fault.change(*one) for one in replies.feed(data))
                await self._depart(wires, fault, data, link.delay_s, on_the_way)
        except OSError:
            writer.transport.abort()
        finally:
            await on_the_way.put(None)
            await sender

    async def _depart(self, wires, fault, data, delay_s, on_the_way):
        now = time.monotonic()
        over = [*wires, self.slow] if fault and fault.slows() else wires
        departs = max((wire.departs(now, len(data)) for wire in over), default=now)
        if fault and fault.slows():
            fault.count += 1
        if departs - now > GRAIN_S:
            await asyncio.sleep(departs - now)
        await on_the_way.put((departs + delay_s, data))

    @staticmethod
    async def _send(on_the_way, writer):
        with contextlib.suppress(OSError):
            while item := await on_the_way.get():
                arrives, data = item
                if (wait := arrives - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            return
        while await on_the_way.get():
            pass

    def arm(self):
        """Lets the fault begin; a store that is dead also ends what was open."""
        self.fault.arm()
        if self.fault.refuses():
            self.fault.count += len(self.writers) // 2
            for writer in self.writers:
                writer.transport.abort()

    def count(self):
        """Bytes of each wire so far, and how often the fault struck."""
        struck = self.fault.count if self.fault else 0
        return {"bytes": {name: wire.bytes for name, wire in self.wires.items()}, "struck": struck}


async def main():
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    spec = json.loads(await reader.readline())
    proxy = Proxy(spec["wires"], [Link(**link) for link in spec["links"]], spec["fault"])
    await proxy.start()
    print(json.dumps({"started": True}), flush=True)
    while command := (await reader.readline()).decode().strip():
        if command == "arm":
            proxy.arm()
        print(json.dumps(proxy.count()), flush=True)
    # Open connections end with the process; asyncio would cancel each of their tasks and report those that send.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
