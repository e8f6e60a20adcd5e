"""The models view on a real shelf: what there is, what it holds, and how models come and go."""
import urllib.parse

import pytest
from acts import TINY, ask, open_id, violations, wait_for_answers, wide, without_template
from conftest import serve
from hub import Hub
from playwright.sync_api import expect

MODEL = TINY.read_bytes()
# A model of the table of short names, as the stand-in of the hub has it.
SHORT, REPOSITORY = "smollm2:360m", "bartowski/SmolLM2-360M-Instruct-GGUF"


@pytest.fixture
def hub():
    files = {"tiny-Q8_0.gguf": MODEL}
    with Hub({"o/tiny": files, "o/other": files, "o/broken": {"broken-Q8_0.gguf": MODEL[:5000]}, REPOSITORY: files}) as hub:
        yield hub


@pytest.fixture
def shelf(tmp_path, hub):
    env = {"KVIK_MODELS_DIR": str(tmp_path / "models"), "HF_ENDPOINT": hub.url}
    with serve("--shelf", "--context", "2048", "--cache-ram", "64MiB", "--shelf-ram", "100MiB", env=env) as server:
        yield server


def pull(server, name):
    answer = server.post("/api/pull", {"model": f"hf:{name}", "stream": False})
    assert answer.status == 200, answer.text


def row(page, name):
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name))


def test_a_model_is_fetched_loaded_let_go_and_removed(shelf, open_page):
    page = open_page("#/models", port=shelf.port)
    expect(page.get_by_text("There are no models yet.")).to_be_visible()
    page.get_by_label("A model of the Hugging Face hub").fill("hf.co/o/tiny")
    page.get_by_role("button", name="Fetch", exact=True).click()
    fetched = page.get_by_role("group", name="hf.co/o/tiny")
    expect(fetched).to_contain_text("There")
    expect(row(page, "o/tiny")).to_contain_text("unloaded")
    page.get_by_role("button", name="Load o/tiny").click()
    expect(row(page, "o/tiny")).to_contain_text("loaded")
    expect(row(page, "o/tiny")).to_contain_text("64 MiB")
    expect(page.get_by_text("1 model in memory")).to_be_visible()
    page.get_by_role("button", name="Unload o/tiny").click()
    expect(row(page, "o/tiny")).to_contain_text("unloaded")
    page.get_by_role("button", name="Remove o/tiny").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("There are no models yet.")).to_be_visible()
    page.get_by_role("button", name="Close hf.co/o/tiny").click()
    expect(fetched).to_have_count(0)


def test_why_a_model_cannot_be_loaded_is_read_in_a_line_or_two(shelf, open_page):
    pull(shelf, "o/broken")
    assert shelf.post("/v1/shelf/load", {"model": "o/broken"}).status == 503
    page = open_page("#/models", port=shelf.port, width=800)
    why = page.get_by_role("cell", name="cannot be loaded")
    expect(why).to_be_visible()
    table = page.get_by_role("table").bounding_box()
    assert why.bounding_box()["width"] > 0.9 * table["width"]
    assert row(page, "o/broken").bounding_box()["height"] < 60
    assert not wide(page)


def test_a_first_model_is_chosen_fetched_and_asked_on_a_phone(shelf, open_page):
    page = open_page(port=shelf.port, width=390)
    expect(page.get_by_role("heading", name="Fetch a model to begin")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="no model yet")).to_be_visible()
    page.get_by_label("Your question").fill("Hello.")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    offer = page.get_by_role("list", name="Models to fetch", exact=True).get_by_role("listitem").filter(has_text=SHORT)
    expect(offer).to_contain_text("about 366.8 MiB")
    expect(offer).to_contain_text("0.4 billion parameters, Q8_0, Apache-2.0")
    assert violations(page) == [] and not wide(page)
    offer.get_by_role("button").click()
    # What is fetched for the first question answers it, and that is in sight.
    expect(page.get_by_role("list", name="Models of this server").get_by_role("button", name=SHORT)).to_have_attribute("aria-pressed", "true")
    answering = page.get_by_label("Model", exact=True)
    expect(answering).to_have_value(SHORT)
    expect(answering).to_be_in_viewport(ratio=1)
    ask(page, "Hello.")
    wait_for_answers(page, 1)
    expect(page.locator(".strip .model")).to_have_text(SHORT)
    expect(answering).to_be_in_viewport(ratio=1)
    assert [model["loads"] for model in shelf.get("/v1/shelf").json["models"]] == [1]


def test_the_model_of_a_conversation_is_seen_and_changed_at_the_question(shelf, open_page):
    for name in ("o/tiny", "o/other"):
        pull(shelf, name)
    page = open_page(port=shelf.port)
    page.get_by_role("button", name="o/tiny").click()
    ask(page, "Hello.")
    wait_for_answers(page, 1)
    page.reload()
    expect(page.get_by_label("Model", exact=True)).to_have_value("o/tiny")
    page.get_by_label("Model", exact=True).select_option("o/other")
    ask(page, "And?")
    wait_for_answers(page, 2)
    expect(page.locator(".strip .model")).to_have_text(["o/tiny", "o/other"])


def test_a_summary_is_read_and_corrected_with_the_model_of_its_conversation(shelf, open_page, watch):
    watch.expect("409")
    for name in ("o/tiny", "o/other"):
        pull(shelf, name)
    page = open_page(port=shelf.port)
    page.get_by_role("button", name="o/tiny").click()
    ask(page, "Hello.")
    wait_for_answers(page, 1)
    id, asked = open_id(page), []
    summary = {"text": "Facts: none.", "covers": 1, "messages": [0, 1], "age_s": 1, "updates": 1, "kind": "summary", "corrected": False, "failed": None}

    def remembered(route):
        asked.append((route.request.method, urllib.parse.unquote(route.request.url.partition("?")[2])))
        route.fulfill(json={"object": "conversation.memory", "id": id, "summary": summary})

    page.route("**/memory?*", remembered)
    page.evaluate("id => { location.hash = `#/memory/${id}`; }", id)
    page.get_by_label("Text of the summary").fill("Facts: one.")
    page.get_by_role("button", name="Correct the summary").click()
    expect(page.get_by_text("The next answer reads the corrected summary.")).to_be_visible()
    assert set(asked) == {("GET", "model=o/tiny"), ("POST", "model=o/tiny")}
    page.unroute("**/memory?*")
    shelf.post("/v1/shelf/unload", {"model": "o/tiny"})
    while {model["status"] for model in shelf.get("/v1/shelf").json["models"]} != {"unloaded"}:
        page.wait_for_timeout(20)
    page.reload()
    expect(page.get_by_text("The summary is read with its model o/tiny, which is not in memory.")).to_be_visible()


def test_a_download_shows_how_far_it_is_and_can_be_stopped(shelf, open_page, hub):
    hub.bytes_per_s = 200_000
    page = open_page("#/models", port=shelf.port)
    page.get_by_label("A model of the Hugging Face hub").fill("hf:o/tiny")
    page.get_by_role("button", name="Fetch", exact=True).click()
    fetched = page.get_by_role("group", name="hf:o/tiny")
    expect(fetched.get_by_role("progressbar")).to_be_visible()
    expect(fetched).to_contain_text("% of ")
    page.get_by_role("button", name="Stop hf:o/tiny").click()
    expect(fetched).to_contain_text("it goes on from here")
    assert shelf.get("/v1/shelf").json["models"] == []
    for wrong in ("qwen3", "hf:o/nothing"):
        page.get_by_label("A model of the Hugging Face hub").fill(wrong)
        page.get_by_role("button", name="Fetch", exact=True).click()
        expect(page.get_by_role("group", name=wrong).locator(".error-text")).not_to_be_empty()


@pytest.fixture(autouse=True)
def refusals_are_expected(watch):
    watch.expect("400")  # a name that is no model's


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_the_models_view_has_no_barriers(shelf, open_page, width, theme):
    for name in ("o/tiny", "o/other"):
        pull(shelf, name)
    shelf.post("/v1/shelf/load", {"model": "o/tiny"})
    page = open_page("#/models", port=shelf.port, width=width, theme=theme)
    page.get_by_label("A model of the Hugging Face hub").fill("hf:o/nothing")
    page.get_by_role("button", name="Fetch", exact=True).click()
    expect(page.get_by_role("group", name="hf:o/nothing").locator(".error-text")).to_be_visible()
    expect(row(page, "o/other")).to_contain_text("unloaded")
    assert violations(page) == []
    assert page.evaluate("document.querySelector('.sheet').scrollWidth <= innerWidth")


def test_a_conversation_chooses_its_model(shelf, open_page):
    for name in ("o/tiny", "o/other"):
        pull(shelf, name)
    page = open_page(port=shelf.port)
    expect(page.get_by_text("2 models")).to_be_visible()
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("dialog").get_by_label("Model", exact=True).select_option("o/tiny")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    ask(page, "Hello.")
    wait_for_answers(page, 1)
    loads = {model["name"]: model["loads"] for model in shelf.get("/v1/shelf").json["models"]}
    assert loads == {"o/tiny": 1, "o/other": 0}
    page.reload()
    wait_for_answers(page, 1)
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_role("dialog").get_by_label("Model", exact=True)).to_have_value("o/tiny")


def test_an_answer_that_waits_for_its_model_says_so(shelf, open_page):
    pull(shelf, "o/tiny")
    page = open_page(port=shelf.port)
    held, told = [], shelf.get("/v1/shelf").json
    page.route("**/v1/chat/completions", lambda route: held.append(route))
    page.route("**/v1/shelf", lambda route: route.fulfill(json=told))
    told["models"][0] |= {"status": "loading", "waiting": 1}
    page.get_by_label("Your question").fill("Hello.")
    page.get_by_role("button", name="Send").click()
    says = page.locator(".answering .waiting")
    expect(says).to_have_text("The model o/tiny is loading")
    told["models"][0] |= {"status": "unloaded"}
    expect(says).to_have_text("The model o/tiny waits until there is room for it")
    held[0].continue_()
    wait_for_answers(page, 1)


def test_a_model_without_a_template_says_so_and_continues_texts(tmp_path, open_page):
    with serve("-m", without_template(tmp_path)) as server:
        page = open_page(port=server.port, width=390)
        expect(says_that_it_has_no_template(page)).to_contain_text("--chat-template FILE")
        assert violations(page) == [] and not wide(page)
        text = page.get_by_label("Text to continue")
        text.fill("Once upon a time")
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_role("button", name="Take back")).to_be_visible()
        went_on = text.input_value()
        assert went_on.startswith("Once upon a time") and len(went_on) > 20
        page.reload()
        expect(text).to_have_value(went_on)
        text.press("Control+Enter")
        expect(text).not_to_have_value(went_on)
        page.get_by_role("button", name="Take back").click()
        expect(text).to_have_value(went_on)


def test_a_model_with_a_template_is_asked_without_a_word(page):
    expect(page.locator("#server")).to_have_text("kvik-tiny")
    expect(page.get_by_role("heading", name="kvik-tiny answers")).to_be_visible()
    expect(says_that_it_has_no_template(page)).to_have_count(0)


def says_that_it_has_no_template(page):
    return page.get_by_role("status").filter(has_text="has no chat template")
