"""Replies of Redis as they pass by (RESP 2 and 3): where one ends, and which bulk strings are in it."""

BULK, SIMPLE = b"$=!", b"+-:_#,("
# Elements of an aggregate for each that it counts.
AGGREGATES = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}


class Replies:
    """Cuts a stream into whole replies."""

    def __init__(self):
        self.waiting = bytearray()

    def feed(self, data):
        """The replies that are whole now, each as its bytes and the (begin, end) of its bulk strings."""
        self.waiting += data
        whole, at = [], 0
        while (found := reply_end(self.waiting, at)) is not None:
            end, bulks = found
            whole.append((bytes(self.waiting[at:end]), [(begin - at, stop - at) for begin, stop in bulks]))
            at = end
        del self.waiting[:at]
        return whole


def reply_end(data, at):
    """Where the reply that begins at `at` ends, and its bulk strings; nothing where bytes are missing."""
    bulks, missing = [], 1
    while missing:
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return None
        kind, after = bytes(data[at:at + 1]), line_end + 2
        missing -= 1
        if kind in AGGREGATES:
            elements = max(0, int(data[at + 1:line_end])) * AGGREGATES[kind]
            # An attribute stands before the value that it is about.
            missing += elements + (kind == b"|")
        elif kind in BULK and (length := int(data[at + 1:line_end])) >= 0:
            if len(data) < after + length + 2:
                return None
            bulks.append((after, after + length))
            after += length + 2
        elif kind not in BULK and kind not in SIMPLE:
            raise ValueError(f"no reply of Redis begins with {kind!r}")
        at = after
    return at, bulks


def replace(reply, bulks, values):
    """A reply with other bulk strings in place of its own, whose lengths may differ."""
    made, at = bytearray(), 0
    for (begin, end), value in zip(bulks, values):
        header = reply.rindex(b"$" if b"$" in reply[at:begin] else b"=", at, begin)
        made += reply[at:header + 1] + b"%d\r\n" % len(value) + value
        at = end
    return bytes(made + reply[at:])
