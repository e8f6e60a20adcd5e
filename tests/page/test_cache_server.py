"""The cache view on a server of its own, whose cache holds what the test asked for."""
import hashlib
import json
import re

import pytest
from conftest import serve
from playwright.sync_api import expect


def tokens(first, count):
    """Token ids that no other `first` has; whole blocks are 16 of them."""
    return [200 + 97 * first + at % 90 for at in range(count)]


SHARED = tokens(1, 48)
ENDS = [tokens(2, 64), tokens(3, 32)]
OTHER = tokens(4, 32)
TOTAL = 48 + 64 + 32 + 32


def complete(server, prompt, key=None):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0}, **headers)
    assert answer.status == 200, answer.text


@pytest.fixture
def alone():
    with serve() as server:
        yield server


@pytest.fixture
def filled(alone):
    for end in ENDS:
        complete(alone, SHARED + end)
    complete(alone, OTHER)
    return alone


def boxes(page):
    """What each box says and how large a share of the picture it takes, by its tokens."""
    return page.evaluate(
        """() => [...document.querySelectorAll(".icicle .box")].map((box) => ({
            label: box.getAttribute("aria-label"),
            level: Number(box.getAttribute("aria-level")),
            share: box.getBoundingClientRect().width / box.parentElement.clientWidth,
        }))"""
    )


def box(page, words):
    return page.get_by_role("treeitem", name=re.compile(words))


def tab_to(page, name):
    """Reaches a button with the Tab key alone."""
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == name:
            return
    raise AssertionError(f"Tab does not reach {name}")


def test_known_requests_are_drawn_with_their_widths(filled, open_page):
    page = open_page("#/cache", port=filled.port)
    expect(page.locator(".icicle .box")).to_have_count(4)
    expect(page.locator(".tree-head")).to_contain_text(f"4 parts with {TOTAL} tokens")
    found = {}
    for each in boxes(page):
        own, start = map(int, re.search(r"(\d+) tokens after (\d+)", each["label"]).groups())
        found[own, start, each["level"]] = each["share"]
    weights = {(48, 0, 1): 144, (64, 48, 2): 64, (32, 48, 2): 32, (32, 0, 1): 32}
    assert found.keys() == weights.keys()
    for part, weight in weights.items():
        assert abs(found[part] - weight / TOTAL) < 0.01, part


def test_what_is_asked_while_one_looks_appears(filled, open_page):
    page = open_page("#/cache", port=filled.port)
    expect(page.locator(".icicle .box")).to_have_count(4)
    complete(filled, tokens(5, 160))
    expect(box(page, "160 tokens after 0")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^Prefill"))).to_contain_text(re.compile(r"[1-9]\d"))
    complete(filled, tokens(5, 160))
    expect(page.get_by_role("row", name=re.compile("^Of prompts"))).to_contain_text(re.compile(r"[1-9]\d?%"))


def test_a_part_is_pinned_unpinned_and_evicted_by_keyboard(filled, open_page, watch):
    watch.expect("404")  # what was evicted is read again at its end
    page = open_page("#/cache", port=filled.port)
    box(page, "48 tokens after 0").focus()
    details = page.get_by_label("Selected part")
    expect(details).to_contain_text("Other prefixes continue it")
    tab_to(page, "Pin")
    page.keyboard.press("Enter")
    expect(details).to_contain_text("A pin keeps it until it is removed.")
    pins = filled.get("/v1/cache/pins").json["data"]
    assert [pin["tokens"] for pin in pins] == [48]
    assert page.evaluate("document.activeElement.textContent") in ("Unpin", "Evict …")
    details.get_by_role("button", name="Unpin").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Remove the pin of 48 tokens?")
    page.keyboard.press("Enter")
    expect(details.get_by_role("button", name="Pin", exact=True)).to_be_visible()
    assert filled.get("/v1/cache/pins").json["data"] == []
    details.get_by_role("button", name="Evict").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("all that continues it")
    page.keyboard.press("Escape")
    expect(page.locator(".icicle .box")).to_have_count(4)
    details.get_by_role("button", name="Evict").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator(".icicle .box")).to_have_count(1)
    expect(details).to_contain_text("no longer in the cache")
    assert page.evaluate("document.activeElement.className") == "node-body"
    assert filled.get("/v1/cache").json["ram"]["tokens"] == 32


def test_a_part_that_was_evicted_meanwhile_is_said(filled, open_page, watch):
    watch.expect("404")
    page = open_page("#/cache", port=filled.port)
    box(page, "48 tokens after 0").focus()
    expect(page.get_by_label("Selected part")).to_contain_text("48 tokens")
    # Nobody polls now, so the picture still has what is gone.
    page.route("**/v1/stats", lambda route: route.abort())
    watch.expect("ERR_FAILED")
    assert filled.post("/v1/cache/evict", {"prompt": OTHER}).status == 200
    box(page, "32 tokens after 0").focus()
    expect(page.get_by_label("Selected part")).to_contain_text("no longer in the cache")


def test_a_text_of_the_cache_is_text(alone, open_page):
    hostile = "<script>document.title = 'hostile'</script><img src=x onerror=alert(1)> " * 3
    assert alone.post("/v1/completions", {"prompt": hostile, "max_tokens": 1}).status == 200
    page = open_page("#/cache", port=alone.port)
    page.locator(".icicle .box").first.focus()
    expect(page.get_by_label("Text of this part")).to_contain_text("<script>document.title")
    assert page.locator(".view-cache script, .view-cache img").count() == 0
    assert page.title() != "hostile"


def test_an_empty_cache_says_so(alone, open_page):
    page = open_page("#/cache", port=alone.port)
    expect(page.locator(".tree-head")).to_contain_text("The cache is empty.")
    for part in (".icicle", ".node"):
        expect(page.locator(part)).to_be_hidden()


def test_a_server_that_stops_is_said_and_the_picture_stays(filled, open_page, watch):
    watch.expect("net::ERR_")  # whichever way a request finds that nobody is there
    page = open_page("#/cache", port=filled.port)
    expect(page.locator(".icicle .box")).to_have_count(4)
    filled.kill()
    expect(page.get_by_label("Live numbers")).to_contain_text("The server does not answer.")
    expect(page.locator(".icicle .box")).to_have_count(4)
    box(page, "32 tokens after 0").focus()
    expect(page.get_by_label("Selected part")).to_contain_text("The server does not answer.")


def test_a_tenant_sees_its_own_and_the_admin_all(tmp_path, browser, open_page):
    lines = "".join(f'[tenant.{name}]\nkeys = ["sha256:{hashlib.sha256(name.encode()).hexdigest()}"]\n' for name in ("acme", "beta"))
    file = tmp_path / "tenants.toml"
    file.write_text(lines)
    file.chmod(0o600)
    with serve("--tenants", file, "--admin-key", "root") as server:
        complete(server, SHARED + ENDS[0], key="acme")
        complete(server, OTHER, key="beta")
        complete(server, tokens(5, 16), key="beta")
        seen = {}
        for key in ("acme", "beta", "root"):
            context = browser.new_context()
            context.add_init_script(f"localStorage.setItem('kvik.key', {json.dumps(json.dumps(key))})")
            page = open_page("#/cache", port=server.port, context=context)
            expect(page.locator(".tree-head")).to_contain_text("parts with" if key != "acme" else "1 part with")
            seen[key] = sorted(int(re.search(r"(\d+) tokens after", each["label"])[1]) for each in boxes(page))
            expect(page.get_by_label("Live numbers")).to_contain_text("server" if key == "root" else "Of your requests")
            if key == "root":
                page.get_by_label("Colour").and_(page.locator("select")).select_option("tenant")
                expect(page.get_by_role("list", name="Colours")).to_contain_text("beta")
            context.close()
        assert seen == {"acme": [112], "beta": [16, 32], "root": [16, 32, 112]}


def test_a_part_that_is_split_is_read_again(alone, open_page):
    first = "one two three four five six seven eight nine ten eleven twelve " * 8
    complete(alone, first + "The end is near the mill. " * 3)
    page = open_page("#/cache", port=alone.port)
    expect(page.locator(".icicle .box")).to_have_count(1)
    expect(page.locator(".icicle .box")).to_contain_text("one two three")
    page.locator(".icicle .box").focus()
    text = page.get_by_label("Text of this part")
    expect(text).to_contain_text("one two three four")
    complete(alone, first + "Another end is at the river. " * 3)
    ends = page.locator('.icicle [aria-level="2"]')
    expect(ends.nth(1)).to_be_visible()
    expect(page.locator('.icicle [aria-level="1"]')).to_contain_text("one two three four five")
    # What is left of the whole under its id begins elsewhere now.
    expect(page.locator('.icicle .box:not([aria-level="1"])').filter(has_text="one two three four five")).to_have_count(0)
    expect(text).not_to_contain_text("one two three four five")
    chosen = page.locator('.icicle [aria-selected="true"]').get_attribute("aria-label")
    tokens = re.search(r"(\d+) tokens after", chosen)[1]
    expect(page.get_by_label("Selected part").get_by_role("heading")).to_contain_text(f"{tokens} tokens")


def test_prompts_that_begin_alike_have_their_own_pins(alone, open_page):
    # Longer than the text of a pin that the server lists.
    beginning = tokens(1, 160)
    for end in (2, 3):
        complete(alone, beginning + tokens(end, 32))
        assert alone.post("/v1/cache/pin", {"prompt": beginning + tokens(end, 16 * end)}).status == 200
    page = open_page("#/cache", port=alone.port)
    details = page.get_by_label("Selected part")
    box(page, "160 tokens after 0").focus()
    unpin = details.get_by_role("button", name="Unpin")
    expect(unpin).to_have_text(["Unpin 192 tokens", "Unpin 208 tokens"])
    page.locator('.icicle [aria-level="2"]').first.focus()
    expect(unpin).to_have_text(["Unpin"])
    box(page, "160 tokens after 0").focus()
    expect(unpin).to_have_count(2)
    unpin.first.click()
    page.keyboard.press("Enter")
    # It stays pinned by the other one, whose button alone is left.
    expect(unpin).to_have_text(["Unpin"])
    assert [pin["tokens"] for pin in alone.get("/v1/cache/pins").json["data"]] == [208]


def test_a_page_that_is_open_leaves_requests_for_others(tmp_path, browser, open_page):
    file = tmp_path / "tenants.toml"
    file.write_text(f'[tenant.acme]\nkeys = ["sha256:{hashlib.sha256(b"acme").hexdigest()}"]\nrequests-per-minute = 60\n')
    file.chmod(0o600)
    with serve("--tenants", file, "--admin-key", "root") as server:
        complete(server, SHARED + ENDS[0], key="acme")
        context = browser.new_context()
        context.add_init_script("localStorage.setItem('kvik.key', '\"acme\"')")
        page = open_page("#/cache", port=server.port, context=context)
        expect(page.get_by_label("Live numbers")).to_contain_text("read less often")
        # Whatever is refused is an error on the console, which fails the test.
        left = []
        for _ in range(6):
            page.wait_for_timeout(2000)
            answer = server.get("/v1/models", Authorization="Bearer acme")
            left.append(int(answer.headers["x-ratelimit-remaining-requests"]))
        context.close()
        assert min(left) >= 30, left
