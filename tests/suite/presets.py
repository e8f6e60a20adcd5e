"""Plugin of pytest: llama-server's tests with one model, without a network, and without some of its internals.

What is taken out of the tests, so that they test the rest: words that only llama.cpp's own random numbers draw. A test that
would have failed by its words is noted.
"""
import sys

import pytest

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
