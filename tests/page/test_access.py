"""Who does not see the page or has no mouse: axe finds no violation, and everything can be done by keyboard."""
import pytest
from acts import ask, kept, open_id, turns, violations, wait_for_answers, wide
from playwright.sync_api import expect

TEXT = "# Title\n\n- a\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\n```js\ncode\n```\n\n[link](https://example.org) $x^2$\n\n$$\ny\n$$\n\n> quote"


def test_a_long_name_leaves_room_on_a_phone_for_what_can_be_done(open_page, conversation):
    page = open_page(f"#/chat/{conversation(turns('Hello.', TEXT), 'a name much longer than a phone is wide ' * 3)}", width=390)
    wait_for_answers(page, 1)
    for name in ("Conversations", "Settings", "More actions with this conversation", "Send"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("view", ["chat", "memory", "cache", "retention", "models"])
def test_axe_finds_nothing(open_page, conversation, view, theme, width):
    messages = [{"role": "system", "content": "Be kind."}, *turns("Hello.", TEXT)]
    page = open_page(f"#/chat/{conversation(messages, 'for axe')}", width=width, theme=theme)
    wait_for_answers(page, 1)
    ask(page, "[file x.txt]\nx\n[end of file x.txt]\nAnd?")
    expect(page.locator(".strip")).to_have_count(1)
    page.locator(".strip summary").click()
    expect(page.locator(".place, .why p").first).to_be_visible()
    if view != "chat":
        page.goto(page.url.split("#")[0] + f"#/{view}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.wait_for_timeout(500)
    assert violations(page) == []
    assert not wide(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_dialogs_and_notices(open_page, conversation, theme, watch):
    page = open_page(f"#/chat/{conversation(turns('Hello.', 'Hi.'))}", theme=theme)
    wait_for_answers(page, 1)
    page.locator("input[type=file]").set_input_files([{"name": "x.bin", "mimeType": "text/plain", "buffer": b"\xff"},
                                                      {"name": "x.txt", "mimeType": "text/plain", "buffer": b"x"}])
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_role("button", name="Settings").click()
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="More actions").click()
    assert violations(page) == []


def test_a_theme_is_chosen_and_remembered(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == dark
    page.get_by_label("Theme").select_option("system")
    for theme, colour in (("dark", dark), ("light", light)):
        page.emulate_media(color_scheme=theme)
        assert page.evaluate(ground) == colour


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def reach(page, name, most=80):
    """Moves the focus by Tab to the element of this name."""
    for _ in range(most):
        focused = page.evaluate("(e => e.ariaLabel ?? e.labels?.[0]?.textContent ?? e.textContent.trim())(document.activeElement)")
        if focused == name:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"the keyboard did not reach {name}")


def test_everything_can_be_done_by_keyboard(page, server):
    # Where a question is written has the focus from the start.
    page.keyboard.type("Please remember that my dog is called Bolt.")
    press(page, "Shift+Enter")
    page.keyboard.type("Thank you.")
    press(page, "Enter")
    wait_for_answers(page, 1)
    id = open_id(page)
    assert kept(server, id)[0][1] == "Please remember that my dog is called Bolt.\nThank you."

    reach(page, "Skip to the content")
    press(page, "Enter")
    assert page.evaluate("document.activeElement.id") == "view"
    reach(page, "Settings")
    press(page, "Enter")
    reach(page, "Temperature")
    page.keyboard.type("0")
    press(page, "Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)

    reach(page, "More actions with this conversation")
    press(page, "Enter")
    reach(page, "Rename")
    press(page, "Enter")
    page.keyboard.type("by keyboard")
    press(page, "Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("by keyboard")

    page.get_by_label("Your question").focus()
    reach(page, "Why was this slow?", 200)
    press(page, "Enter")
    expect(page.locator(".why p").first).to_be_visible()

    reach(page, "Ask again; this answer stays as a version")
    with page.expect_response("**/v1/chat/completions"):
        press(page, "Enter")
    expect(page.get_by_role("group", name="Version 2 of 2")).to_be_visible()
    wait_for_answers(page, 1)
    assert open_id(page) != id and len(kept(server, id)) == 2

    reach(page, "Version before", 200)
    press(page, "Enter")
    # The other one has the focus on, and only its later version is left to go to.
    expect(page.get_by_role("button", name="Next version")).to_be_focused()
    expect(page.get_by_role("status").filter(has_text="Version 1 of 2")).to_have_count(1)

    reach(page, "Edit this question; this version stays", 200)
    press(page, "Enter")
    expect(page.get_by_label("The question, edited")).to_be_focused()
    press(page, "Escape")
    expect(page.get_by_role("button", name="Edit this question; this version stays")).to_be_focused()

    reach(page, "Search conversations", 200)
    page.keyboard.type("by keyboard")
    expect(page.get_by_role("list", name="Conversations").get_by_role("link")).to_have_count(2)
    reach(page, "More actions with this conversation", 200)
    press(page, "Enter")
    reach(page, "Delete")
    press(page, "Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Delete")
    press(page, "Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    reach(page, "Memory", 200)
    press(page, "Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Memory")


def test_an_answer_is_stopped_by_keyboard(open_page, between):
    page = open_page(port=between.port)
    between.delay_s, between.scripted = 0.03, [f"word{number} " for number in range(300)]
    page.keyboard.type("Count.")
    press(page, "Enter")
    expect(page.locator(".answering .content")).to_contain_text("word3 ")
    expect(page.get_by_role("status").filter(has_text="The answer is on its way.")).to_have_count(1)
    reach(page, "Stop")
    press(page, "Enter")
    expect(page.locator(".note")).to_contain_text("You stopped the answer")
    reach(page, "Keep it as it is", 200)


def test_the_list_of_a_narrow_page_opens_and_closes(open_page, conversation):
    id = conversation(turns("Hello.", "Hi."), "narrow")
    page = open_page(width=390)
    toggle = page.get_by_role("button", name="Conversations")
    expect(toggle).to_have_attribute("aria-expanded", "false")
    expect(page.get_by_label("Search conversations")).to_be_hidden()
    toggle.click()
    expect(page.get_by_label("Search conversations")).to_be_focused()
    press(page, "Escape")
    expect(toggle).to_be_focused()
    expect(page.get_by_label("Search conversations")).to_be_hidden()
    toggle.click()
    page.get_by_role("list", name="Conversations").get_by_role("link", name="narrow").click()
    assert open_id(page) == id
    expect(page.get_by_label("Search conversations")).to_be_hidden()
