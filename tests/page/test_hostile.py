"""Texts of others on the page while they stream. What else is shown as text is in test_markdown.py."""
import json

from acts import ask, turns, wait_for_answers, wide
from playwright.sync_api import expect
from test_markdown import FORBIDDEN

BAD = "<img src=x onerror='window.harmed=1'><script>harmed=1</script>\u202egnp.exe"
LONG = "\n\n".join(["W" * 400, BAD, "\u202eright to left " * 40, "| " + " | ".join("column" * 3 for _ in range(20)) + " |\n|" + " - |" * 20, "```\n" + "x" * 500 + "\n```"])


def test_nothing_that_is_said_makes_a_phone_scroll_sideways(open_page, conversation):
    id = conversation(turns(LONG, LONG, LONG, "\n".join(f"line {number}" for number in range(10_000))), "N" * 120)
    page = open_page(f"#/chat/{id}", width=390)
    wait_for_answers(page, 2)
    for action in ("Settings", "Send"):
        expect(page.get_by_role("button", name=action, exact=True)).to_be_in_viewport(ratio=1)
    assert not wide(page)
    page.evaluate("id => { location.hash = `#/memory/${id}`; }", id)
    expect(page.get_by_role("list", name="Messages by how they were read").get_by_role("listitem")).to_have_count(4)
    assert not wide(page)


def test_what_others_wrote_turns_no_sentence_of_the_page(open_page, watch):
    watch.expect("status of 500")
    page = open_page()
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=500, json={"error": {"message": "\u202elive", "code": "x"}}))
    ask(page, "Hello")
    expect(page.locator(".note")).to_have_text("\u2068live\u2069 Nothing of the answer is kept; the question is here to be sent again.")
    within = "text => import('/page/direction.js').then(({ within }) => within(text))"
    for text, isolated in (("Trip", "Trip"), ("\u05e9\u05dc\u05d5\u05dd", "\u2068\u05e9\u05dc\u05d5\u05dd\u2069"), ("a\u2069\u202eb", "\u2068ab\u2069")):
        assert page.evaluate(within, text) == isolated


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
