"""A server with memory, and Debian's chromium on its page. Every page that a test opens is watched: an error on its
console, or a request to anything but its own server, fails the test."""
import collections
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import pytest  # noqa: E402
from between import Between  # noqa: E402
from playwright.sync_api import expect, sync_playwright  # noqa: E402
from server import Server  # noqa: E402

CHROMIUM = os.environ.get("KVIK_CHROMIUM", "/usr/bin/chromium")
# A debug build reads the page from a folder, so that a change of it needs no build.
PAGE_ENV = {name: value for name, value in os.environ.items() if name == "KVIK_PAGE_DIR"}

expect.set_options(timeout=10_000)


def pytest_addoption(parser):
    parser.addoption("--part", default="0/1", metavar="N/M", help="of the tests of each file every Mth, from the Nth on")


def pytest_collection_modifyitems(config, items):
    part, parts = map(int, config.getoption("--part").split("/"))
    before, chosen, left = collections.Counter(), [], []
    for item in items:
        (chosen if before[item.path] % parts == part else left).append(item)
        before[item.path] += 1
    config.hook.pytest_deselected(items=left)
    items[:] = chosen


def serve(*flags, env=None, **more):
    """A server whose page is the one under test."""
    # Without drafts, a long answer is long: what happens in the middle of one is looked at.
    return Server("--threads", "2", "--speculate", "none", *flags, env=PAGE_ENV | (env or {}), **more)


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server():
    with serve("--memory", "on") as running:
        yield running


@pytest.fixture
def between(server):
    with Between(server.port) as proxy:
        yield proxy


class Watch:
    """What the pages of a test said and asked for."""

    def __init__(self):
        self.errors, self.foreign, self.expected = [], [], []

    def expect(self, pattern):
        """A browser reports failed requests on the console; a test that makes them fail says which."""
        self.expected.append(re.compile(pattern))

    def follow(self, page, port):
        page.on("pageerror", lambda error: self.errors.append(f"{error.message}\n{error.stack}"))
        page.on("console", lambda message: message.type == "error" and self.errors.append(f"{message.text} {message.location}"))
        own = (f"http://127.0.0.1:{port}/", f"blob:http://127.0.0.1:{port}/", "data:")
        page.on("request", lambda request: request.url.startswith(own) or self.foreign.append(request.url))

    def check(self):
        unexpected = [error for error in self.errors if not any(pattern.search(error) for pattern in self.expected)]
        assert unexpected == []
        assert self.foreign == []


@pytest.fixture
def watch():
    watch = Watch()
    yield watch
    watch.check()


@pytest.fixture
def open_page(browser, server, between, watch):  # pages close before what they are connected to
    """Opens the page in a browser of its own: `open_page("#/cache", width=390, theme="dark")`."""
    contexts = []

    def open_at(hash="", port=None, width=1280, theme="light", context=None, **options):
        if context is None:
            height = 844 if width < 500 else 800
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce", **options)
            contexts.append(context)
        page = context.new_page()
        watch.follow(page, port or server.port)
        page.goto(f"http://127.0.0.1:{port or server.port}/{hash}")
        return page

    yield open_at
    for context in contexts:
        context.close()


@pytest.fixture
def page(open_page):
    return open_page()


@pytest.fixture
def conversation(server):
    """Makes a conversation on the server; it is deleted after the test."""
    made = []

    def make(messages, name=None):
        answer = server.post("/v1/conversations", {"messages": messages} | ({"name": name} if name else {}))
        assert answer.status == 200, answer.text
        made.append(answer.json["id"])
        return made[-1]

    yield make
    for id in made:
        server.request("DELETE", f"/v1/conversations/{id}", None, {})
