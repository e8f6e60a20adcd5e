"""A hub of models on this machine, with the routes of the Hugging Face hub that kvik asks: searches, listings, redirects and
ranges."""
import hashlib
import http.server
import json
import re
import time
import urllib.parse

from local import Local

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(Local):
    """Serves `repositories`, as {"owner/repo": {"file.gguf": bytes}}, from where `url` says; a context manager.

    Files come from another path behind a redirect, `bytes_per_s` at a time.
    """

    def __init__(self, repositories, bytes_per_s=None):
        self.repositories, self.bytes_per_s = repositories, bytes_per_s
        self.asked = []
        super().__init__(self.handler())

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def listing(self, files):
        siblings = [
            {"rfilename": name, "size": len(content), "lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}}
            for name, content in files.items()
        ]
        return json.dumps({"sha": COMMIT, "siblings": siblings}).encode()

    def found(self, query):
        word = urllib.parse.parse_qs(query)["search"][0].lower()
        names = [name for name in self.repositories if word in name.lower()]
        return json.dumps([{"id": name, "downloads": 1000 - at, "gated": False} for at, name in enumerate(names)]).encode()

    def handler(hub):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                hub.asked.append(self.path)
                if match := re.fullmatch(r"/api/models\?(.*)", self.path):
                    return self.answer(200, hub.found(match[1]))
                if match := re.match(r"/api/models/([^/]+/[^/?]+)(/revision/[^?]*)?\?", self.path):
                    files = hub.repositories.get(match[1])
                    return self.answer(200, hub.listing(files)) if files else self.answer(404, b"{}")
                if match := re.match(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path):
                    if match[2] in hub.repositories.get(match[1], {}):
                        return self.answer(302, b"", Location=f"/blobs/{match[1]}/{match[2]}")
                if match := re.match(r"/blobs/([^/]+/[^/]+)/(.+)", self.path):
                    return self.part_of(hub.repositories[match[1]][match[2]])
                return self.answer(404, b"")

            def part_of(self, content):
                asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                if not asked:
                    return self.answer(200, content)
                start, end = int(asked[1]), min(int(asked[2] or len(content) - 1), len(content) - 1)
                return self.answer(206, content[start : end + 1], **{"Content-Range": f"bytes {start}-{end}/{len(content)}"})

            def answer(self, status, body, **headers):
                self.send_response(status)
                for name, text in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, text)
                self.end_headers()
                step = len(body) if hub.bytes_per_s is None else max(1, hub.bytes_per_s // 50)
                try:
                    for at in range(0, len(body), max(1, step)):
                        self.wfile.write(body[at : at + step])
                        if hub.bytes_per_s:
                            time.sleep(0.02)
                except OSError:
                    self.close_connection = True

        return Handler
