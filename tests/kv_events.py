"""vLLM's types of KV events (vllm/distributed/kv_events.py, v0.24 and later: its pull request 42892), and a subscriber.

Field names, their order, defaults and options of the structs are vLLM's, so what decodes here decodes there.
"""
from typing import Any

import msgspec
import zmq

WAIT_MS = 20_000
END = -1


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


decode = msgspec.msgpack.Decoder(type=KVEventBatch).decode


class Subscriber:
    """Follows the events of one server, and asks for those it has missed."""

    def __init__(self, publish, replay, topic=b""):
        context = zmq.Context.instance()
        self.socket, self.asking = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)
        for socket, port in ((self.socket, publish), (self.asking, replay)):
            socket.setsockopt(zmq.RCVTIMEO, WAIT_MS)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(f"tcp://127.0.0.1:{port}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.asking.close()

    def receive(self, wait_ms=WAIT_MS):
        """The topic, number and batch of the next message; nothing when none comes."""
        if not self.socket.poll(wait_ms):
            return None
        topic, number, payload = self.socket.recv_multipart()
        assert len(number) == 8
        return topic, int.from_bytes(number, "big"), decode(payload)

    def drain(self, wait_ms=300):
        """All messages until none comes for a while: numbers and batches."""
        received = []
        while message := self.receive(wait_ms):
            received.append(message[1:])
        return received

    def replay(self, start):
        """The kept steps from a number on: numbers and batches."""
        self.asking.send_multipart([b"", start.to_bytes(8, "big")])
        kept = []
        while True:
            empty, number, payload = self.asking.recv_multipart()
            number = int.from_bytes(number, "big", signed=True)
            assert empty == b""
            if number == END:
                assert payload == b""
                return kept
            kept.append((number, decode(payload)))


class Index:
    """What a router keeps of its nodes: which blocks each has, found by their tokens."""

    def __init__(self):
        self.nodes = {}

    def follow(self, node, batch):
        blocks = self.nodes.setdefault(node, {})
        for event in batch.events:
            match event:
                case BlockStored():
                    self._store(blocks, event)
                case BlockRemoved():
                    for block in event.block_hashes:
                        del blocks[block]
                case AllBlocksCleared():
                    blocks.clear()

    @staticmethod
    def _store(blocks, event):
        assert event.parent_block_hash is None or event.parent_block_hash in blocks
        parent, size = event.parent_block_hash, event.block_size
        assert len(event.token_ids) == size * len(event.block_hashes)
        for index, block in enumerate(event.block_hashes):
            assert block not in blocks
            blocks[block] = (parent, event.lora_name, tuple(event.token_ids[index * size:(index + 1) * size]))
            parent = block

    def prefix(self, node, tokens, lora=None, size=16):
        """Leading tokens of a prompt that a node has."""
        children = {held: block for block, held in self.nodes.get(node, {}).items()}
        parent, known = None, 0
        while len(tokens) >= known + size:
            parent = children.get((parent, lora, tuple(tokens[known:known + size])))
            if parent is None:
                break
            known += size
        return known
