"""Texts of others on the page while they stream. What else is shown as text is in test_markdown.py."""
import json

from acts import ask
from playwright.sync_api import expect
from test_markdown import FORBIDDEN

BAD = "<img src=x onerror='window.harmed=1'><script>harmed=1</script>\u202egnp.exe"


def test_calls_of_tools_are_text_while_they_stream(open_page, between):
    page = open_page(port=between.port)
    page.evaluate("""forbidden => {
        window.seen = 0;
        new MutationObserver(() => { window.seen += document.querySelectorAll(forbidden).length; }).observe(document.body, {childList: true, subtree: true});
    }""", FORBIDDEN)
    call = {"index": 0, "id": BAD, "type": "function", "function": {"name": BAD, "arguments": ""}}
    pieces = [{"tool_calls": [{"index": 0, "function": {"arguments": letter}}]} for letter in json.dumps({"city": BAD})]
    between.delay_s, between.scripted = 0.002, [{"reasoning_content": BAD}, {"tool_calls": [call]}, *pieces]
    ask(page, BAD)
    expect(page.locator(".said details", has_text="Calls ")).to_contain_text("<script>", timeout=30_000)
    assert page.evaluate("[window.seen, window.harmed]") == [0, None]
