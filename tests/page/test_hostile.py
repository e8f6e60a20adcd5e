"""Texts of others on the page, where parts meet: what a model wrote into a summary, what is quoted of a conversation, what
a search finds, and calls of tools while they stream. What else is shown as text is in test_markdown.py."""
import json

import pytest
from acts import ask, turns
from conftest import serve
from playwright.sync_api import expect
from test_markdown import FORBIDDEN

BAD = "<img src=x onerror='window.harmed=1'><script>harmed=1</script>\u202egnp.exe"
FACT = f"Please remember this: My dog is called Bolt. {BAD}"


@pytest.fixture(scope="module")
def small():
    """A server whose memory is soon full."""
    with serve("--memory", "on", "--memory-recent", "300", "--memory-trigger", "200") as server:
        yield server


@pytest.fixture(scope="module")
def remembered(small):
    """A conversation of hostile texts with a summary that is one."""
    said = [FACT, BAD] + [f"Sentence {number} of {BAD} is about the weather." if number % 2 == 0 else BAD for number in range(40)]
    id = small.post("/v1/conversations", {"messages": turns(*said), "name": BAD.replace("\u202e", "")}).json["id"]
    for _ in range(20):
        body = {"messages": [{"role": "user", "content": "And the rain in the south?"}], "max_tokens": 8, "kvik": {"conversation": id}}
        assert small.post("/v1/chat/completions", body).status == 200
        if small.get(f"/v1/conversations/{id}/memory").json["summary"]:
            assert small.post(f"/v1/conversations/{id}/memory", {"summary": BAD}).status == 200
            return id
    raise AssertionError("no summary was made")


def is_unharmed(page):
    return page.locator(FORBIDDEN).count() == 0 and page.evaluate("window.harmed") is None


def test_a_summary_and_what_is_quoted_are_text(open_page, small, remembered):
    page = open_page(f"#/chat/{remembered}", port=small.port)
    expect(page.locator(".said .assistant").last).to_be_visible()
    ask(page, "What is my dog called?")
    expect(page.locator(".strip")).to_have_count(1)
    assert is_unharmed(page)
    page.get_by_role("link", name="Memory", exact=True).last.click()
    expect(page.locator(".quote").first).to_contain_text("<script>harmed=1</script>")
    expect(page.get_by_label("Text of the summary")).not_to_have_value("")
    expect(page.get_by_role("list", name="Messages by how they were read").get_by_role("listitem").first).to_be_visible()
    assert is_unharmed(page)


def test_what_a_search_finds_is_text(open_page, small, remembered):
    page = open_page(port=small.port)
    page.get_by_label("Search conversations").fill("<script>")
    row = page.get_by_role("list", name="Conversations").get_by_role("link").first
    expect(row.locator("mark")).to_have_text("<script>")
    expect(row.locator(".excerpt")).to_contain_text("harmed=1")
    assert is_unharmed(page)


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
