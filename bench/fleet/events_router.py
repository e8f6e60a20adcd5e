"""A router that knows what each node has cached, from its KV events: what an exact index can do, and no product.

    python -m bench.fleet.events_router --port PORT [--weigh-load] --node URL EVENTS [--node URL EVENTS ...]

A request goes to the node that has most of its prompt; of those that have as much, to the one with fewer requests.
With `--weigh-load` it goes where there is least to compute: the tokens of its prompt that the node lacks, and those
that the node was sent before and has not answered yet, as Dynamo's router weighs them. Prompts are token ids, so there
is no tokenizer here.
"""
import argparse
import asyncio
import dataclasses
import json
import sys

import aiohttp
import zmq
import zmq.asyncio
from aiohttp import web

from . import paths  # noqa: F401, it finds the next one among the tests
from kv_events import AllBlocksCleared, BlockRemoved, BlockStored, decode  # noqa: E402, I001

BLOCK_TOKENS = 16
BODY_BYTES_MAX = 32 << 20


class Index:
    """Which blocks nodes have. Names stand for a block and all before it, so those of all nodes are in one tree."""

    def __init__(self):
        self.names, self.nodes = {}, {}

    def follow(self, node, batch):
        held = self.nodes.setdefault(node, set())
        for event in batch.events:
            match event:
                case BlockStored():
                    self._store(held, event)
                case BlockRemoved():
                    held.difference_update(event.block_hashes)
                case AllBlocksCleared():
                    held.clear()

    def _store(self, held, event):
        parent = event.parent_block_hash
        for number, name in enumerate(event.block_hashes):
            tokens = event.token_ids[number * BLOCK_TOKENS:(number + 1) * BLOCK_TOKENS]
            self.names[parent, tuple(tokens)] = name
            held.add(name)
            parent = name

    def cached(self, node, tokens):
        """Leading tokens of a prompt that a node has."""
        held, parent, known = self.nodes.get(node, set()), None, 0
        while known + BLOCK_TOKENS <= len(tokens):
            parent = self.names.get((parent, tuple(tokens[known:known + BLOCK_TOKENS])))
            if parent is None or parent not in held:
                break
            known += BLOCK_TOKENS
        return known


@dataclasses.dataclass
class Node:
    url: str
    requests: int = 0
    tokens: int = 0


def choose(index, nodes, tokens, weigh_load):
    """The node for a prompt, and the tokens of it to compute there. Of equal nodes the first one."""
    def cost(node):
        lacking = len(tokens) - index.cached(node.url, tokens)
        return (lacking + node.tokens, node.requests) if weigh_load else (lacking, node.requests)

    node = min(nodes, key=cost)
    return node, len(tokens) - index.cached(node.url, tokens)


class Router:
    def __init__(self, nodes, weigh_load):
        self.index, self.nodes, self.weigh_load = Index(), nodes, weigh_load

    async def complete(self, request):
        body = await request.read()
        node, computed = choose(self.index, self.nodes, json.loads(body)["prompt"], self.weigh_load)
        node.requests += 1
        node.tokens += computed
        waiting = [computed]
        try:
            return await self._pass_on(request, node, body, waiting)
        finally:
            node.requests -= 1
            node.tokens -= sum(waiting)

    async def _pass_on(self, request, node, body, waiting):
        headers = {"content-type": "application/json"}
        async with self.client.post(node.url + request.path, data=body, headers=headers) as answer:
            passed = web.StreamResponse(status=answer.status, headers={"content-type": answer.content_type})
            await passed.prepare(request)
            async for piece in answer.content.iter_any():
                # The first token is there: the prompt is computed.
                node.tokens -= sum(waiting)
                waiting.clear()
                await passed.write(piece)
            await passed.write_eof()
            return passed

    async def subscribe(self, node, address):
        socket = zmq.asyncio.Context.instance().socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(address)
        while True:
            _, _, payload = await socket.recv_multipart()
            self.index.follow(node.url, decode(payload))

    async def run(self, port, addresses):
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_get("/health", lambda _: asyncio.sleep(0, web.Response(text="ok")))
        unlimited = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=unlimited, timeout=aiohttp.ClientTimeout(total=120)) as self.client:
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            await asyncio.gather(*(self.subscribe(*pair) for pair in zip(self.nodes, addresses)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--weigh-load", action="store_true")
    parser.add_argument("--node", nargs=2, action="append", required=True, metavar=("URL", "EVENTS"))
    args = parser.parse_args()
    router = Router([Node(url) for url, _ in args.node], args.weigh_load)
    asyncio.run(router.run(args.port, [address for _, address in args.node]))


if __name__ == "__main__":
    sys.exit(main())
