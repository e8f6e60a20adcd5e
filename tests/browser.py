"""Chromium for scripts, which have no fixtures of pytest."""
import contextlib
import os

from conftest import CHROMIUM
from playwright.sync_api import expect, sync_playwright

# An answer of a model on two cores may take so long.
ANSWER_SECONDS = 120


class Browser:
    """A browser; a context manager that leaves no process behind."""

    def __enter__(self):
        self.playwright = sync_playwright().start()
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        self.browser = self.playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        expect.set_options(timeout=ANSWER_SECONDS * 1000)
        return self

    def __exit__(self, *_):
        self.browser.close()
        self.playwright.stop()

    @contextlib.contextmanager
    def page(self, url, width=1280):
        """The page at an address, of a user who was never there."""
        context = self.browser.new_context(viewport={"width": width, "height": 800}, reduced_motion="reduce")
        try:
            page = context.new_page()
            page.goto(url)
            yield page
        finally:
            context.close()
