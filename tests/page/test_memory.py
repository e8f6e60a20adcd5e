"""The memory view: what an answer read of a conversation that is longer than the context."""
import json
import time

import pytest
from acts import ask, turns
from conftest import serve
from playwright.sync_api import expect

# Whether each band is as wide as its tokens are many, beside those of the recent messages; bands grow into their widths.
HAVE_WIDTHS = """tokens => {
  const widthOf = name => document.querySelector(`.now .band.${name}`)?.getBoundingClientRect().width ?? 0;
  const scale = widthOf("recent") / tokens.recent;
  return scale > 0 && Object.keys(tokens).every(name => Math.abs(widthOf(name) - Math.max(3, tokens[name] * scale)) < 2);
}"""
FACT = "Please remember this: My dog is called Bolt."
SECONDS = 90


@pytest.fixture(scope="module")
def small():
    """A server whose memory is soon full."""
    flags = ["--memory", "on", "--memory-recent", "300", "--memory-trigger", "200"]
    with serve(*flags) as server:
        yield server


@pytest.fixture(scope="module")
def long(small):
    """A conversation with a summary."""
    said = [FACT, "Got it."] + [f"Sentence {number} is about the weather in the north." if number % 2 == 0 else "I see." for number in range(60)]
    id = small.post("/v1/conversations", {"messages": turns(*said), "name": "long"}).json["id"]
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        body = {"messages": [{"role": "user", "content": "And what about the rain in the south?"}], "max_tokens": 8, "kvik": {"conversation": id}}
        assert small.post("/v1/chat/completions", body).status == 200
        # What a reader takes at the least before the next turn.
        time.sleep(0.1)
        if small.get(f"/v1/conversations/{id}/memory").json["summary"]:
            return id
    raise AssertionError(f"no summary was made in {SECONDS} s")


def test_what_an_answer_read_is_shown_in_bands(open_page, small, long):
    page = open_page(f"#/chat/{long}", port=small.port)
    expect(page.locator(".said .assistant").last).to_be_visible()
    ask(page, "What is my dog called?")
    expect(page.locator(".strip")).to_have_count(1)
    memory = last_memory(page, long)
    page.get_by_role("link", name="Memory", exact=True).last.click()
    bands = page.locator(".now .band")
    named = {"prefix": memory["tokens"]["prefix"], "summary": memory["tokens"]["summary"], "recent": memory["tokens"]["recent"]}
    named = {name: tokens for name, tokens in named.items() if tokens}
    assert named["summary"] > 0 and named["recent"] > 0
    page.wait_for_function(HAVE_WIDTHS, arg=named)
    expect(bands).to_have_count(len(named) + bool(memory["quotes"]))
    expect(page.locator(".legend")).to_contain_text(f"summary {named['summary']} tokens, of {memory['messages']['summarised']} messages")
    assert memory["quotes"], "the fact is old and its words are in the question"
    expect(page.locator(".quote").first).to_contain_text(FACT)
    expect(page.locator(".quote mark").first).to_have_text("dog")
    rows = page.get_by_role("list", name="Messages by how they were read").get_by_role("listitem")
    expect(rows.filter(has_text="in the summary")).to_have_count(memory["messages"]["summarised"] - quoted_among(memory))
    expect(rows.first).to_contain_text("quoted")
    expect(rows.last).to_contain_text("read whole")


def test_words_that_a_question_and_a_quote_share_are_whole_in_any_script(page):
    shared = "([question, quote]) => import('/page/memory/state.js').then(({ sharedWords }) => sharedWords(question, quote))"
    assert page.evaluate(shared, ["मेरे कुत्ते का नाम क्या है?", "मेरी बिल्ली का नाम लूना है।"]) == ["का", "नाम", "है"]


def quoted_among(memory):
    covered = memory["messages"]["prefix"] + memory["messages"]["summarised"]
    return sum(min(to, covered) - from_ for from_, to in memory["quotes"] if from_ < covered)


def last_memory(page, id):
    """What the server said of the last answer, as the page keeps it until the tab is closed."""
    reports = json.loads(page.evaluate(f"sessionStorage['kvik.reports.{id}']"))
    return reports[max(reports, key=int)]["memory"]


def test_bands_change_as_the_conversation_goes_on(open_page, small, long):
    page = open_page(f"#/chat/{long}", port=small.port)
    for number in range(1, 4):
        ask(page, f"Sentence {number} of the end.")
        expect(page.locator(".strip")).to_have_count(number)
    page.goto(page.url.replace("#/chat", "#/memory"))
    expect(page.get_by_role("list", name="What the last answers read").get_by_role("listitem")).to_have_count(2)


def test_the_summary_is_read_and_corrected(open_page, small, long):
    page = open_page(f"#/memory/{long}", port=small.port)
    field = page.get_by_label("Text of the summary")
    before = small.get(f"/v1/conversations/{long}/memory").json["summary"]
    expect(field).to_have_value(before["text"])
    first, end = before["messages"]
    expect(page.get_by_text(f"Stands for messages {first + 1} to {end}")).to_be_visible()
    correct = page.get_by_role("button", name="Correct the summary")
    expect(correct).to_be_disabled()
    field.fill("Facts: dog = Rex.")
    correct.click()
    expect(page.get_by_text("The next answer reads the corrected summary.")).to_be_visible()
    after = small.get(f"/v1/conversations/{long}/memory").json["summary"]
    assert after["text"] == "Facts: dog = Rex." and after["corrected"]
    expect(page.get_by_text(", corrected ")).to_be_visible()


def test_a_summary_that_is_too_long_is_refused_and_stays(open_page, small, long, watch):
    watch.expect("400")
    page = open_page(f"#/memory/{long}", port=small.port)
    field = page.get_by_label("Text of the summary")
    expect(field).not_to_have_value("")
    field.fill("word " * 2000)
    page.get_by_role("button", name="Correct the summary").click()
    expect(page.get_by_role("alert")).to_contain_text("tokens")
    expect(field).to_have_value("word " * 2000)


def test_a_short_conversation_has_no_summary(open_page, conversation):
    page = open_page(f"#/memory/{conversation(turns('Hello.', 'Hi.'))}")
    expect(page.get_by_text("There is none: nothing was let go")).to_be_visible()
    page.goto(page.url.split("#")[0] + "#/chat")
    page.get_by_role("link", name="Memory", exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Memory")
