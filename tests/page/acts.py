"""What a person does on the page, as the tests say it."""
import pathlib
import time
import urllib.parse

from playwright.sync_api import expect

TINY = pathlib.Path(__file__).resolve().parents[2] / "models/tiny/kvik-tiny-q8_0.gguf"
AXE = pathlib.Path(__file__).parent / "node_modules/axe-core/axe.min.js"


def ask(page, text):
    question = page.locator(".composer textarea")
    question.fill(text)
    question.press("Enter")


def answers(page):
    """The answers that are complete, without what an answer says below its text."""
    return page.locator(".said .message.assistant .content")


def questions(page):
    return page.locator(".said .message.user .content")


def wait_for_answers(page, count):
    expect(answers(page)).to_have_count(count)
    expect(page.locator(".answering")).to_have_count(0)


def wait_until(page, is_so, seconds=20):
    """Lets the page go on until it is so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not in {seconds} s"
        page.wait_for_timeout(20)


def open_id(page):
    """The id of the conversation that the address names."""
    return page.evaluate("location.hash").split("/")[2]


def turns(*texts):
    """Messages that take turns: question, answer, question, ..."""
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


def kept(server, id):
    """(role, content) of what the server keeps of a conversation."""
    return [(message["role"], message["content"]) for message in server.get(f"/v1/conversations/{urllib.parse.quote(id)}").json["messages"]]


def wide(page):
    """Elements that make the page scroll sideways."""
    return page.evaluate("document.documentElement.scrollWidth > innerWidth || document.querySelector('main').scrollWidth > innerWidth")


def without_template(place):
    """The file of a base model: without its template, and without the tokens by which it would be given ChatML."""
    file = place / "base.gguf"
    file.write_bytes(TINY.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_templatX").replace(b"<|im_start|>", b"<|xm_start|>"))
    return file


def violations(page):
    """Barriers that axe finds."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [(one["id"], one["help"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found]
