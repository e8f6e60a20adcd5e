"""A proxy between the page and a server, for what a fast server on the same machine never does.

It passes everything on. `delay_s` slows a stream down, event by event; `scripted` answers the next chat with a text of
its own, so that a test says what the model says, and is in the conversation for whoever reads it through here; `fields` are
added to the body of chats; `stall` is the file of KVIK_TEST_STALL, which is made in the middle of the next stream: the
answer is not over then, however fast the server is; while it is `away`, connections end without an answer.
"""
import collections
import http.client
import http.server
import json
import time

from local import Local

MIDDLE = 20  # events of a stream
HOP = {"connection", "transfer-encoding", "keep-alive"}


class Between(Local):
    def __init__(self, port):
        self.upstream = port
        self.delay_s = 0.0
        self.scripted = None
        self.fields = {}
        self.stall = None
        self.away = False
        self.played = collections.defaultdict(list)  # by conversation: messages of scripts, which the server does not know
        super().__init__(self.handler())

    def with_fields(self, body):
        body = json.loads(body)
        for name, value in self.fields.items():
            body[name] = body.get(name, {}) | value if isinstance(value, dict) else value
        return json.dumps(body).encode()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def conversation(self, id):
        """A conversation as the page reads it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream)
        connection.request("GET", f"/v1/conversations/{id}")
        read = json.load(connection.getresponse())
        connection.close()
        return read | {"messages": read["messages"] + self.played[id]}

    def handler(between):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.close_connection = True
                if between.away:
                    return None
                scripted, chat = between.scripted, self.path == "/v1/chat/completions"
                if chat and scripted is not None:
                    between.scripted = None
                    return self.play(scripted, json.loads(body))
                id = self.path.removeprefix("/v1/conversations/")
                if self.command == "GET" and between.played.get(id):
                    return self.tell(between.conversation(id))
                return self.pass_on(between.with_fields(body) if chat else body)

            do_GET = do_POST = do_DELETE = do_PUT = answer

            def pass_on(self, body):
                connection = http.client.HTTPConnection("127.0.0.1", between.upstream)
                try:
                    headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP | {"content-length"}}
                    connection.request(self.command, self.path, body or None, headers)
                    response = connection.getresponse()
                    self.send_response(response.status)
                    for name, value in response.getheaders():
                        if name.lower() not in HOP:
                            self.send_header(name, value)
                    self.send_header("Connection", "close")
                    self.end_headers()
                    self.copy(response)
                except (OSError, http.client.HTTPException):
                    pass  # either side is gone: the other one sees its connection end
                finally:
                    connection.close()

            def copy(self, response):
                streamed, events = "event-stream" in (response.getheader("Content-Type") or ""), 0
                while (part := response.readline() if streamed else response.read1(1 << 16)) and not between.away:
                    self.wfile.write(part)
                    self.wfile.flush()
                    if streamed and part.startswith(b"data:"):
                        events += 1
                        if events == MIDDLE and between.stall:
                            between.stall.touch()
                        time.sleep(between.delay_s)

            def tell(self, value):
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(json.dumps(value).encode())

            def play(self, pieces, asked):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                deltas = [piece if isinstance(piece, dict) else {"content": piece} for piece in pieces]
                try:
                    for delta in deltas:
                        self.event(json.dumps({"choices": [{"index": 0, "delta": delta}]}))
                    id = asked["kvik"]["conversation"]
                    between.played[id] += [*asked["messages"], answer_of(deltas)]
                    self.event(json.dumps(last_event(id, len(between.conversation(id)["messages"]))))
                    self.event("[DONE]")
                except OSError:
                    pass  # the page stopped listening

            def event(self, data):
                self.wfile.write(f"data: {data}\n\n".encode())
                self.wfile.flush()
                time.sleep(between.delay_s)

        return Handler


def answer_of(deltas):
    """The message that a script says."""
    message = {"role": "assistant"}
    for name in ("content", "reasoning_content"):
        message[name] = "".join(delta.get(name) or "" for delta in deltas)
    calls = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", [])):
        whole = calls.setdefault(call["index"], {"id": call.get("id"), "type": "function", "function": {"name": "", "arguments": ""}})
        for name, part in call["function"].items():
            whole["function"][name] += part
    return {name: value for name, value in (message | {"tool_calls": list(calls.values())}).items() if value or name == "content"}


def last_event(conversation, messages):
    """How every streamed answer of a kept conversation ends."""
    cache = {"prompt_tokens": 100, "cached_tokens": 75, "by_tier": {"ram": 40, "host": 7, "disk": 25, "remote": 3}, "reason": "evicted",
             "evicted": {"seconds_ago": 12, "policy": "lru"},
             "stopped_at": {"token": 75, "message": 1, "role": "user", "before": "said before", "after": "said after"}}
    timings = {"cache_n": 75, "prompt_n": 25, "prompt_ms": 20.0, "predicted_n": 5, "predicted_ms": 50.0, "predicted_per_second": 100.0}
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "timings": timings,
            "kvik": {"cache": cache, "conversation": {"id": conversation, "name": None, "messages": messages}}}
