"""The picture of README: a conversation with the built-in model, whose second answer reuses what the first one computed.

By hand, with a release build: `python -m tests.page.picture`. It writes docs/page.png, of the page in this checkout.
"""
import argparse
import os
import pathlib
import re
import sys
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from acts import ask, turns, wait_for_answers  # noqa: E402
from conftest import CHROMIUM, serve  # noqa: E402
from playwright.sync_api import expect, sync_playwright  # noqa: E402
from server import ROOT  # noqa: E402

PAGE = ROOT / "crates/kvik-server/page"
OUT = ROOT / "docs/page.png"
SIZE = {"width": 1080, "height": 720}
BYTES_MAX = 150_000
OTHERS = ("A letter to the bank", "Trains to Oslo", "Notes of the meeting")
QUESTIONS = ("Please remember that my dog is called Bolt.", "What is my dog called?")


def of_the_checkout(route):
    path = urllib.parse.urlparse(route.request.url).path
    route.fulfill(path=PAGE / (path.removeprefix("/page/") if path != "/" else "index.html"))


def take(browser, server, out):
    for name in OTHERS:
        assert server.post("/v1/conversations", {"name": name, "messages": turns("Hello.", "Hi.")}).status == 200
    page = browser.new_page(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
    page.route(re.compile(r"^http://[^/]+/(page/.*)?$"), of_the_checkout)
    page.goto(f"http://127.0.0.1:{server.port}/")
    for count, question in enumerate(QUESTIONS, 1):
        ask(page, question)
        wait_for_answers(page, count)
    page.get_by_role("button", name="Ask again").last.click()
    expect(page.get_by_role("group", name="Version 2 of 2")).to_be_visible()
    wait_for_answers(page, len(QUESTIONS))
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)
    page.screenshot(path=out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    args = parser.parse_args()
    with serve() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        take(browser, server, args.out)
        browser.close()
    size = args.out.stat().st_size
    print(f"{args.out}: {size:,} bytes")
    return 1 if size > BYTES_MAX else 0


if __name__ == "__main__":
    sys.exit(main())
