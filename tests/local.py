"""An HTTP server of a test on a port of this machine, which answers on threads of its own until the test has ended."""
import http.server
import threading


class Quiet(http.server.ThreadingHTTPServer):
    """One whose clients may be killed."""

    daemon_threads = True

    def handle_error(self, *_):
        pass


class Local:
    """Answers by `handler`, a class of `http.server`; a context manager."""

    def __init__(self, handler):
        self.server = Quiet(("127.0.0.1", 0), handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
