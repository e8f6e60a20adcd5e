"""Markdown in answers: what is shown, and that nothing that anybody writes becomes markup."""
import pytest
from acts import answers, ask, turns, wait_for_answers
from playwright.sync_api import expect

EVERYTHING = """# Title

A *soft* and **strong** word, ~~gone~~, `code <b>`, snake_case_name, 2 * 3 * 4,
and a second line with [a link](https://example.org/a_(b) "title") and https://example.org/c.

- one
- two
  - inner
    1. deep
- [x] done

3. three
4. four

> quoted
> > twice

| name | size |
| --- | ---: |
| a \\| b | 12 |

```python
def f():
    return "<script>alert(1)</script>"
```

Costs $5 or $6, but $e^{i\\pi} = -1$ and

$$
\\sum_i x_i * y_i * z_i
$$

![a picture](https://example.org/p.png)

***
The end"""

HOSTILE = [
    "<script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 1'>",
    "<svg onload=window.harmed=1><iframe src=javascript:harmed=1></iframe>",
    "[click](javascript:window.harmed=1) [data](data:text/html,<script>harmed=1</script>) [v](vbscript:x) [b](JaVaScRiPt:alert(1))",
    "[tab](java\tscript:alert(1)) [entity](&#106;avascript:alert(1)) <javascript:alert(1)>",
    "![x](javascript:window.harmed=1) ![y](https://example.org/\"onerror=\"harmed=1)",
    "```html\n</code></pre><script>window.harmed = 1</script>\n```",
    "```\"><img src=x onerror=window.harmed=1>\ncode\n```",
    "| <img src=x onerror=harmed=1> |\n| --- |\n| </td><script>harmed=1</script> |",
    "# <style>body{display:none}</style>\n- <base href=//evil>\n> <form action=//evil><input></form>",
    "$$\n<math><mtext><script>harmed=1</script></mtext></math>\n$$",
    "[file x\n](<b>)\n<!-- <b> --> <![CDATA[<b>]]> &lt;b&gt;",
]
FORBIDDEN = "script:not([src]), iframe, object, embed, form:not(.composer):not([method=dialog]), base, link[href*=evil], img, [onerror], [onload], style, .content svg, .content math"


def shown(open_page, conversation, text):
    page = open_page(f"#/chat/{conversation(turns('Show it.', text))}")
    wait_for_answers(page, 1)
    return page, answers(page)


def test_markdown_is_rendered(open_page, conversation):
    page, content = shown(open_page, conversation, EVERYTHING)
    expect(content.locator(".level-1")).to_have_text("Title")
    expect(content.locator("em")).to_have_text("soft")
    expect(content.locator("p strong")).to_have_text("strong")
    expect(content.locator("s")).to_have_text("gone")
    expect(content.locator("p code:not(.math)")).to_have_text("code <b>")
    expect(content.locator("p").first).to_contain_text("snake_case_name, 2 * 3 * 4,")
    expect(content.locator("p").first.locator("br")).to_have_count(1)
    links = content.locator("a").evaluate_all("all => all.map(a => [a.textContent, a.getAttribute('href'), a.rel])")
    rel = "noopener noreferrer nofollow"
    assert links == [["a link", "https://example.org/a_(b)", rel], ["https://example.org/c", "https://example.org/c", rel],
                     ["Image: a picture", "https://example.org/p.png", rel]]
    expect(content.locator("ul > li > ul > li > ol > li")).to_have_text("deep")
    expect(content.locator("li", has_text="done")).to_have_text("☑ done")
    expect(content.locator("ol[start='3'] > li")).to_have_text(["three", "four"])
    expect(content.locator("blockquote blockquote")).to_have_text("twice")
    assert content.locator("table td").all_inner_texts() == ["a | b", "12"]
    assert content.locator("table td").last.evaluate("cell => cell.style.textAlign") == "right"
    expect(content.locator("figure.code code")).to_have_text('def f():\n    return "<script>alert(1)</script>"')
    expect(content.locator("p code.math")).to_have_text("e^{i\\pi} = -1")
    expect(content.locator("pre.math")).to_have_text("\\sum_i x_i * y_i * z_i")
    expect(content).to_contain_text("Costs $5 or $6, but")
    expect(content.locator("hr")).to_have_count(1)


def test_words_and_addresses_end_as_their_script_has_it(page):
    names = "отчёт_новый_2026.txt, 报告_最终_版.txt, नमूना_नया"
    parse = "text => import('/page/markdown/inline.js').then(({ parseInline }) => parseInline(text))"
    assert page.evaluate(parse, names) == [names]
    for text, address in [("详见https://kvik.dev/文档。然后运行脚本", "https://kvik.dev/文档"), ("（https://kvik.dev）", "https://kvik.dev"),
                          ("“https://kvik.dev/a”", "https://kvik.dev/a")]:
        links = [part["children"] for part in page.evaluate(parse, text) if isinstance(part, dict)]
        assert links == [[address]], text


def test_code_is_copied(open_page, conversation):
    page, content = shown(open_page, conversation, "```\na <b> c\n  d\n```")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    content.get_by_role("button", name="Copy").click()
    expect(content.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "a <b> c\n  d"
    content.get_by_role("button", name="Copied").click()
    page.wait_for_timeout(2000)
    expect(content.get_by_role("button", name="Copy", exact=True)).to_be_visible()


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_a_model_says_becomes_markup(open_page, conversation, text):
    page, content = shown(open_page, conversation, text)
    assert page.locator(FORBIDDEN).count() == 0
    addresses = page.locator("#view a").evaluate_all("all => all.map(a => a.protocol)")
    assert set(addresses) <= {"http:", "https:", "mailto:"}
    assert page.evaluate("window.harmed") is None


def test_hostile_text_while_it_streams(open_page, between):
    page = open_page(port=between.port)
    between.delay_s, between.scripted = 0.002, [letter for letter in "\n\n".join(HOSTILE)]
    page.evaluate("""forbidden => {
        window.seen = 0;
        new MutationObserver(() => { window.seen += document.querySelectorAll(forbidden).length; }).observe(document.body, {childList: true, subtree: true});
    }""", FORBIDDEN)
    ask(page, "Harm me.")
    expect(page.locator(".said .assistant .content")).to_contain_text("&lt;b&gt;", timeout=30_000)
    assert page.evaluate("[window.seen, window.harmed]") == [0, None]


def test_a_streamed_answer_looks_as_it_does_when_it_is_whole(open_page, between):
    page = open_page(port=between.port)
    between.delay_s, between.scripted = 0.002, [EVERYTHING[at:at + 3] for at in range(0, len(EVERYTHING), 3)] + [" "] * 400
    ask(page, "Say everything.")
    expect(page.locator(".answering .content")).to_contain_text("The end")
    live = page.locator(".answering .content").inner_html()
    wait_for_answers(page, 1)
    assert live == answers(page).inner_html()


def test_names_questions_system_prompts_and_files_are_text(open_page, conversation, server):
    bad = "<img src=x onerror='window.harmed=1'><script>harmed=1</script>"
    messages = [{"role": "system", "content": bad}, {"role": "user", "content": f"[file {bad}]\n{bad}\n[end of file {bad}]\n\n{bad}"},
                {"role": "assistant", "content": "Fine.", "reasoning_content": bad,
                 "tool_calls": [{"id": "1", "type": "function", "function": {"name": bad, "arguments": f'{{"a": "{bad}"}}'}}]},
                {"role": "tool", "tool_call_id": "1", "content": bad}]
    page = open_page(f"#/chat/{conversation(messages, bad)}")
    wait_for_answers(page, 1)
    expect(page.get_by_role("heading", level=1)).to_have_text(bad)
    expect(page.locator(".message.user p.plain")).to_have_text(bad)
    expect(page.locator(".message.user summary")).to_have_text(f"File {bad}")
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_role("textbox", name="System prompt")).to_have_value(bad)
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_contain_text(bad)
    page.locator("input[type=file]").set_input_files([{"name": "<b>x.txt", "mimeType": "text/plain", "buffer": b"<b>"}])
    expect(page.get_by_role("list", name="Files")).to_contain_text("<b>x.txt")
    assert page.locator(FORBIDDEN).count() == 0 and page.evaluate("window.harmed") is None


def test_texts_made_to_be_slow_are_not(page):
    slow = page.evaluate("""async () => {
        const { renderMarkdown } = await import("/page/markdown/render.js");
        const { partsOf } = await import("/page/chat/files.js");
        const spaces = " ".repeat(99000);
        const texts = ["*a ".repeat(30000), "[".repeat(60000), "`a``b```c".repeat(8000), ">".repeat(50000), "$a ".repeat(30000),
            Array.from({length: 1000}, (_, depth) => " ".repeat(depth) + "- x").join("\\n"), "|a\\n".repeat(20000), "[a](".repeat(15000),
            "![".repeat(30000), "_a".repeat(30000), "a|b\\n-|-\\n".repeat(5000), "https://".repeat(20000), "\\\\(".repeat(30000),
            "# a" + " ".repeat(3200) + "b", "# " + "#".repeat(99000) + "b", "```" + spaces + "`", "~".repeat(99000) + "`", "a|b\\n-" + spaces + "x",
            "` " + "a".repeat(99000) + "`", `[a](${" ".repeat(1990)}x y)`.repeat(500), `https://a${".".repeat(1980)}b `.repeat(500),
            "|".repeat(2000) + "\\n" + "-|".repeat(1998) + "-\\n" + "|\\n".repeat(2000)];
        const files = ["[file a]\\n".repeat(50000), Array.from({length: 50000}, (_, name) => `[file ${name}]`).join("\\n")];
        const took = (read) => (text) => { const start = performance.now(); read(text); return [performance.now() - start, text.slice(0, 8)]; };
        return [...texts.map(took(renderMarkdown)), ...files.map(took(partsOf))].filter(([ms]) => ms > 3000);
    }""")
    assert slow == []


def test_a_text_is_read_as_it_is_written_whatever_stands_at_its_ends(page):
    blocks, spans, parts = page.evaluate("""async () => {
        const { parseBlocks } = await import("/page/markdown/blocks.js");
        const { parseInline } = await import("/page/markdown/inline.js");
        const { partsOf } = await import("/page/chat/files.js");
        const line = (text) => { const [{ type, level, text: said, language, aligns }] = parseBlocks(text); return [type, level ?? language ?? aligns?.join(" ") ?? null, said ?? null]; };
        const span = (text) => parseInline(text).map((part) => part.url ?? part.text ?? part);
        return [
            ["# C#", "## a b ##  ", "# #", "#a", "``` js x\\na", "~~~\\na", "``` a`", "a|b|c|d\\n:-|-:|:-:|-", "a|b\\n-"].map(line),
            ["` a `", "` `", "`\\na\\n`", "[a]( <https://b.c/> 't' )", "https://b.c/d)...", "https://b.c/(d)."].map(span),
            partsOf("x\\n[file a]\\n1\\n[file b]\\n[end of file a]\\n\\n[file c]\\n[end of file c]\\ny"),
        ];
    }""")
    assert blocks == [["heading", 1, "C#"], ["heading", 2, "a b"], ["heading", 1, ""], ["paragraph", None, "#a"], ["code", "js", "a"], ["code", "", "a"],
                      ["paragraph", None, "``` a`"], ["table", "left right center start", None], ["paragraph", None, "a|b\n-"]]
    assert spans == [["a"], [" "], ["a"], ["https://b.c/"], ["https://b.c/d", ")..."], ["https://b.c/(d)", "."]]
    assert parts == [{"text": "x"}, {"name": "a", "text": "1\n[file b]"}, {"text": "[file c]\n[end of file c]\ny"}]


def runs_from_the_right(content):
    """Whether the text of an element stands at its right side."""
    return content.evaluate("""e => {
        const words = document.createRange();
        words.selectNodeContents(e);
        const [text, box] = [words.getBoundingClientRect(), e.getBoundingClientRect()];
        return box.right - text.right < text.left - box.left;
    }""")


def test_a_text_runs_from_the_side_from_which_it_is_written(open_page, conversation):
    hebrew = "\u05e9\u05dc\u05d5\u05dd `code` \u05e9\u05dc\u05d5\u05dd"
    text = f"{hebrew}\n\nHello.\n\n# {hebrew}\n\n> {hebrew}\n\n- {hebrew}\n\n| {hebrew} | b |\n|---|---|\n| {hebrew} | 1 |\n\n```\n{hebrew}\n```"
    page = open_page(f"#/chat/{conversation(turns(f'{hebrew}.', text), hebrew)}")
    wait_for_answers(page, 1)
    content = answers(page)
    first, second = content.locator(":scope > p").all()
    for shown in (first, content.locator("h3"), content.locator("blockquote p")):
        assert runs_from_the_right(shown)
    assert not runs_from_the_right(second)
    for place in ("blockquote", "ul", "table"):
        expect(content.locator(place)).to_have_css("direction", "rtl")
    for code in (content.locator("pre code"), first.locator("code")):
        expect(code).to_have_css("direction", "ltr")
    name = page.locator(".rows .name").filter(has_text=hebrew).first
    for shown in (name, page.get_by_role("heading", level=1), page.locator(".message.user p.plain")):
        expect(shown).to_have_css("direction", "rtl")
    question = page.get_by_label("Your question")
    expect(question).to_have_css("direction", "ltr")
    question.fill(hebrew)
    expect(question).to_have_css("direction", "rtl")


def test_a_text_with_carriage_returns_grows_to_what_it_is(page):
    live, whole = page.evaluate("""async () => {
        const { createLiveMarkdown } = await import("/page/markdown/live.js");
        const { renderMarkdown } = await import("/page/markdown/render.js");
        const text = "One.\\r\\n\\r\\n- a\\r\\n- b\\r\\n- c\\r\\n- d\\r\\n- e\\r\\n- f\\r\\n- g\\r\\n- h\\r\\n\\r\\n# Three words here\\r\\n\\r\\nThe end.";
        const [live, whole] = [document.createElement("div"), document.createElement("div")];
        const markdown = createLiveMarkdown(live);
        for (let end = 1; end <= text.length; end += 1) markdown.update(text.slice(0, end));
        whole.append(...renderMarkdown(text));
        return [live.innerHTML, whole.innerHTML];
    }""")
    assert live == whole


def test_a_conversation_may_begin_with_calls_of_nothing(open_page, conversation):
    messages = [{"role": "user", "content": "Call."}, {"role": "assistant", "content": "Called.", "tool_calls": [{}]}]
    page = open_page(f"#/chat/{conversation(messages, 'Calls')}")
    wait_for_answers(page, 1)
    expect(answers(page)).to_contain_text("Called.")
    expect(page.locator(".message.assistant summary")).to_have_text("Calls no tool")
