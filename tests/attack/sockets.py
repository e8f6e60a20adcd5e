"""Attacks on sockets that do not speak HTTP."""
import contextlib
import socket

from server import free_port

from .harness import MIB, attack

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
SOCKETS = {"events": b"SUB", "replay": b"REQ"}
GREETED = 64 + 2  # the other side's greeting, and the head of its READY


def ready(kind):
    body = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    return bytes([4, len(body)]) + body


def long_frame(flags, length):
    return bytes([flags | 2]) + length.to_bytes(8, "big")


# Each behind a handshake. A peer may send what it likes as long as its connection holds; nothing else may notice.
FRAMES = {
    "a frame that announces 2^40 bytes": [long_frame(0, 1 << 40)],
    "a frame that announces 2^62 bytes": [long_frame(0, 1 << 62)],
    "a frame that announces 2^64 - 1 bytes": [long_frame(0, (1 << 64) - 1)],
    "a command that announces 2^40 bytes": [long_frame(4, 1 << 40)],
    "a frame of 256 MB": [long_frame(0, 256 << 20), *[bytes(MIB)] * 256],
    "256 MB in frames of which more follow": [long_frame(1, MIB) + bytes(MIB)] * 256,
    "a million small parts": [b"\x01\x00" * 65536] * 16,
    "400 subscriptions of 1 MB": [long_frame(0, MIB) + b"\x01" + bytes(MIB - 1)] * 400,
    "a million small subscriptions": [b"\x00\x03\x01ab" * 65536] * 16,
    "a million PINGs whose answers are not read": [b"\x04\x07\x04PING\0\0" * 65536] * 16,
    "a READY without an end": [b"\x04\x06\x05READY" + b"\x04\xff\x05READY"],
}


@attack("event-frames", "one frame of a peer of the KV events ends the process or fills its memory")
def event_frames(trial):
    ports = {name: free_port() for name in SOCKETS}
    flags = ["--kv-events", f"tcp://127.0.0.1:{ports['events']}", "--kv-events-replay", f"tcp://127.0.0.1:{ports['replay']}"]
    with trial.server(*flags) as server:
        before = trial.resident_mib(server)
        for name, port in ports.items():
            for what, pieces in FRAMES.items():
                send_until_refused(port, GREETING + ready(SOCKETS[name]), pieces)
                alive = trial.send(server, "/health", method="GET").status == 200
                trial.expect(alive, f"{what} to {name}: the server does not answer any more")
        for name, port in ports.items():
            with greeted(port, GREETING + ready(SOCKETS[name])) as answer:
                trial.expect(answer.startswith(b"\xff"), f"{name} greets nobody after the attack")
        grown = trial.resident_mib(server) - before
        trial.expect(grown < 64, f"{grown:.0f} MiB more are kept after the attack")
        trial.bound(peak_mib=before + 128)


@attack("event-crowd", "peers of the KV events that do nothing take all memory or all places of the server")
def event_crowd(trial):
    port = free_port()
    with trial.server("--kv-events", f"tcp://127.0.0.1:{port}") as server, contextlib.ExitStack() as stack:
        # Those beyond its places wait with the system, and at last are not let in there.
        with contextlib.suppress(TimeoutError):
            for _ in range(1000):
                peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=1))
                peer.sendall(GREETING)
        answer = trial.send(server, "/completion", {"prompt": "Hello", "n_predict": 1})
        trial.expect(answer.status == 200, f"a completion gets {answer.status}")
        trial.bound(seconds=10)
        stack.pop_all().close()
        with greeted(port, GREETING + ready(b"SUB")) as answer:
            trial.expect(answer.startswith(b"\xff"), "a subscriber finds no place when the crowd has gone")


def send_until_refused(port, hello, pieces):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
        peer.sendall(hello)
        for piece in pieces:
            peer.sendall(piece)
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1 << 16)


@contextlib.contextmanager
def greeted(port, hello):
    with socket.create_connection(("127.0.0.1", port), timeout=15) as peer:
        peer.sendall(hello)
        yield peer.recv(GREETED)
