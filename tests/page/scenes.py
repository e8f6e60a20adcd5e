"""What is looked at on the page: every view empty, full, with an error and with hostile text, and the servers that have it."""
import pathlib
import tempfile

import test_retention
import trees
from acts import TINY, ask, turns, without_template
from between import Between
from conftest import serve
from hub import Hub
from playwright.sync_api import expect

MODEL = TINY.read_bytes()
FORMATTED = """# A title

A paragraph with **bold**, *italic*, `code` and a [link](https://example.org).

1. one
2. two
   - inner

| column | another | a third |
| --- | --: | --- |
| a | 1 | text that is somewhat longer |
| b | 22 | text |

```python
def function(argument):
    return argument + 1  # a comment that makes this line longer than a phone is wide, so that it scrolls
```

> A quote.
"""
HOSTILE = "\n\n".join([
    "W" * 400,
    "<script>harmed = 1</script><img src=x onerror=harmed=1><b>not bold</b>",
    "\u202eright to left \u202d and back, then \u05e9\u05dc\u05d5\u05dd and \u0645\u0631\u062d\u0628\u0627 " * 4,
    "https://example.org/" + "a" * 200,
    "| " + " | ".join(f"column{at}" for at in range(30)) + " |\n|" + " - |" * 30 + "\n| " + " | ".join("x" * 20 for _ in range(30)) + " |",
    "```\n" + "x" * 500 + "\n```",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a" * 20,
])
LINES = "\n".join(f"line {number}" for number in range(10_000))


class World:
    """Servers in the states that are looked at."""

    def __init__(self, stack):
        files = {"tiny-Q8_0.gguf": MODEL}
        names = ("o/tiny", "o/a-name-that-is-much-longer-than-most-names-of-models-are-and-has-no-end")
        hub = stack.enter_context(Hub(dict.fromkeys(names, files) | {"o/broken": {"broken-Q8_0.gguf": MODEL[:5000]}}))
        place = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def shelf(name):
            env = {"KVIK_MODELS_DIR": str(place / name), "HF_ENDPOINT": hub.url}
            return stack.enter_context(serve("--shelf", "--context", "2048", "--cache-ram", "64MiB", env=env))

        self.plain = stack.enter_context(serve("--memory", "on"))
        self.between = stack.enter_context(Between(self.plain.port))
        self.empty, self.shelf = shelf("empty"), shelf("full")
        self.base = stack.enter_context(serve("-m", without_template(place)))
        for repository in hub.repositories:
            assert self.shelf.post("/api/pull", {"model": f"hf:{repository}", "stream": False}).status == 200
        for name in ("o/tiny", "o/broken"):
            self.shelf.post("/v1/shelf/load", {"model": name})
        says = {"full": [FORMATTED], "asked": [FORMATTED], "hostile": [HOSTILE], "lines": [LINES]}
        self.said = {name: self.begin(turns(HOSTILE if name == "hostile" else "What is it?", *texts, "And more?", "No."), name) for name, texts in says.items()}
        self.begin(turns(HOSTILE, "x"), "N" * 128)
        asked = turns("What is a prefix tree?", "A tree whose paths are prefixes.", "And a block?", "Sixteen tokens.")
        self.said["versions"] = self.begin(asked, "versions")
        for number, text in ((2, "What is a block?"), (3, "What is a token?")):
            said = [*asked[:2], {"role": "user", "content": text}, {"role": "assistant", "content": FORMATTED}]
            self.begin(said, f"versions ({number})", version_of=f"{self.said['versions']}:2")

    def begin(self, messages, name, **metadata):
        return self.plain.post("/v1/conversations", {"messages": messages, "name": name, "metadata": metadata}).json["id"]


SCENES = {}


def fails(page, route, status=503, message=None):
    """From now on a route answers with an error."""
    message = message or "The engine has work and has not gone on for 9 s."
    page.route(route, lambda asked: asked.fulfill(status=status, json={"error": {"message": message, "code": "of the test"}}))


def scene(at="", server="plain"):
    """A picture of the page at this address; the function does what is done before."""
    def add(function):
        SCENES[function.__name__.replace("_", "-")] = (at, server, function)
        return function
    return add


@scene(server="empty")
def start_without_models(page, world):
    expect(page.get_by_role("list", name="Models to fetch", exact=True)).to_be_visible()


@scene(server="shelf")
def start_with_models(page, world):
    expect(page.get_by_role("button", name="o/tiny")).to_be_visible()


@scene()
def start_without_an_answer(page, world):
    fails(page, "**/v1/shelf")
    page.reload()
    expect(page.locator(".start .error-text")).to_be_visible()


@scene(server="empty")
def start_with_an_error(page, world):
    page.get_by_role("button", name="Fetch smollm2:360m").click()
    expect(page.get_by_role("group", name="smollm2:360m").locator(".error-text")).to_be_visible()
    page.get_by_text("others").click()


@scene()
def start_with_one_model(page, world):
    expect(page.get_by_role("heading", name="kvik-tiny answers")).to_be_visible()


@scene(server="base")
def text_empty(page, world):
    expect(page.get_by_label("Text to continue")).to_be_visible()


@scene(server="base")
def text_full(page, world):
    page.get_by_label("Text to continue").fill(HOSTILE + LINES[:2000])


@scene("#/chat/asked")
def chat_full(page, world):
    # Every picture has one answer of the server itself.
    world.plain.request("DELETE", f"/v1/conversations/{world.said['asked']}/messages?from=4", None, {})
    page.reload()
    ask(page, "[file notes.txt]\nThe code is 1234.\n[end of file notes.txt]\n\nWhat is it?")
    expect(page.locator(".strip")).to_have_count(1)
    page.locator(".strip summary").click()


@scene("#/chat/hostile")
def chat_hostile(page, world):
    page.locator(".messages").evaluate("e => { e.scrollTop = 0; }")


@scene("#/chat/hostile")
def chat_hostile_end(page, world):
    pass


@scene("#/chat/lines")
def chat_lines(page, world):
    page.locator(".messages").evaluate("e => { e.scrollTop = 0; }")


@scene("#/chat/versions")
def chat_versions(page, world):
    expect(page.get_by_role("group", name="Version 1 of 3")).to_be_visible()


@scene("#/chat/versions")
def chat_editing(page, world):
    page.get_by_role("button", name="Edit this question; this version stays").last.click()
    page.get_by_label("The question, edited").fill(HOSTILE[:600])


@scene("#/chat/full")
def chat_failed(page, world):
    fails(page, "**/v1/chat/completions", 500, HOSTILE[:600])
    ask(page, "What is it?")
    expect(page.locator(".note")).to_be_visible()


@scene("#/chat/versions")
def chat_delete(page, world):
    page.get_by_role("button", name="More actions with this conversation").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()


@scene()
def key_wanted(page, world):
    fails(page, "**/v1/**", 401, "a key is required")
    page.reload()
    expect(page.get_by_role("dialog")).to_be_visible()


@scene()
def server_loading(page, world):
    fails(page, "**/health")
    page.reload()
    expect(page.get_by_role("status").filter(has_text="The model is loading")).to_be_visible()


@scene(server="base")
def text_error(page, world):
    fails(page, "**/v1/completions", 500, HOSTILE[:600])
    page.get_by_label("Text to continue").fill("Once upon a time")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".text .error-text")).to_be_visible()


@scene("#/chat/full", "between")
def chat_answering(page, world):
    world.between.delay_s, world.between.scripted = 0.02, [f"word{number} " for number in range(500)]
    ask(page, "Count.")
    expect(page.locator(".answering .content")).to_contain_text("word30 ")


@scene("#/chat/full", "between")
def chat_stopped(page, world):
    chat_answering(page, world)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".note")).to_contain_text("You stopped")


@scene("#/chat/full")
def chat_list(page, world):
    toggle = page.locator("#list-toggle")
    if toggle.is_visible():
        toggle.click()
    page.get_by_label("Search conversations").fill("x")
    expect(page.locator(".excerpt").first).to_be_visible()


@scene("#/chat/full")
def chat_settings(page, world):
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_role("dialog")).to_be_visible()


@scene("#/chat/full")
def chat_more(page, world):
    page.get_by_role("button", name="More actions").click()


@scene("#/chat/nothing-of-this-name")
def chat_missing(page, world):
    expect(page.get_by_role("alert")).to_be_visible()


@scene("#/chat/full")
def chat_unread(page, world):
    fails(page, "**/v1/conversations/conv_*")
    page.reload()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


@scene("#/memory")
def memory_empty(page, world):
    pass


@scene("#/memory/full")
def memory_full(page, world):
    page.wait_for_timeout(300)


@scene("#/memory/hostile")
def memory_hostile(page, world):
    page.wait_for_timeout(300)


@scene("#/chat/full")
def memory_error(page, world):
    fails(page, "**/v1/conversations/*/memory", message=HOSTILE[:600])
    page.evaluate("location.hash = location.hash.replace('chat', 'memory')")
    expect(page.locator("#view .error-text, [role=alert]").first).to_be_visible()


@scene("#/retention")
def cache_full(page, world):
    trees.Fake(page, trees.large(400))
    page.evaluate("location.hash = '#/cache'")
    page.locator(".icicle [data-id]").first.focus()
    expect(page.get_by_label("Text of this part")).to_be_visible()


@scene("#/retention")
def cache_hostile(page, world):
    tree = trees.family()
    fake = trees.Fake(page, tree | {"nodes": [one | {"tenant": "W" * 200} for one in tree["nodes"]]})
    fake.texts["n1-0"] = HOSTILE
    page.evaluate("location.hash = '#/cache'")
    page.locator('.icicle [data-id="n1-0"]').focus()
    expect(page.get_by_label("Text of this part")).to_be_visible()


@scene("#/retention")
def cache_error(page, world):
    fails(page, "**/v1/cache/tree**")
    page.evaluate("location.hash = '#/cache'")
    expect(page.locator(".tree .error-text")).to_be_visible()


@scene("#/cache", "base")
def cache_empty(page, world):
    page.wait_for_timeout(300)


@scene("#/retention")
def retention_empty(page, world):
    page.wait_for_timeout(300)


@scene()
def retention_full(page, world):
    test_retention.Fake(page, tokens=77, layers=6, heads=2)
    page.evaluate("location.hash = '#/retention'")
    test_retention.ask(page)


@scene("#/retention")
def retention_error(page, world):
    fails(page, "**/v1/chat/completions", 400, HOSTILE[:600])
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#view .error-text").first).to_be_visible()


@scene()
def models_error(page, world):
    fails(page, "**/v1/shelf")
    page.evaluate("location.hash = '#/models'")
    expect(page.locator(".models .error-text")).to_be_visible()


@scene("#/models", "empty")
def models_empty(page, world):
    expect(page.get_by_text("There are no models yet.")).to_be_visible()


@scene("#/models", "shelf")
def models_full(page, world):
    page.get_by_label("A model of the Hugging Face hub").fill("hf:o/" + "n" * 80)
    page.get_by_role("button", name="Fetch", exact=True).click()
    expect(page.locator(".pull .error-text").first).to_be_visible()


@scene("#/models")
def models_one(page, world):
    page.wait_for_timeout(300)
