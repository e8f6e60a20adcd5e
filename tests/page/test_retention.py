"""The retention view: which positions each head kept, and what that was measured to cost."""
import random
import re

import pytest
from playwright.sync_api import expect

LAYERS, HEADS = 3, 2
MEASURED = [
    {"policy": f"{name}:{share},budget=all", "kv": "q8", "share_kept": share, "mean_percent": mean / share,
     "worst_percent": 2 * mean / share, "worst_task": "needle", "cases": 40}
    for name, mean in (("keydiff", 0.5), ("snapkv", 2.0), ("h2o", 5.0)) for share in (0.2, 0.5, 0.8)
]


def ranges(tokens, draw):
    """Positions that a head might keep: the first, the last, and some between."""
    kept = [at for at in range(tokens) if at < 4 or at >= tokens - 4 or draw.random() < 0.4]
    found = []
    for at in kept:
        if found and found[-1][1] == at:
            found[-1][1] += 1
        else:
            found.append([at, at + 1])
    return found


def positions(tokens, layers=LAYERS, heads=HEADS, seed=3):
    draw = random.Random(seed)
    return {"layers": layers, "heads": heads, "tokens": tokens, "kept": [ranges(tokens, draw) for _ in range(layers * heads)]}


class Fake:
    """A server that shows positions of its own making, and what was measured."""

    def __init__(self, page, measured=MEASURED, **size):
        self.requests = []

        def chat(route):
            self.requests.append(route.request.post_data_json)
            tokens = size.get("tokens", 40)
            shown = positions(**({"tokens": tokens} | size))
            kept = sum(to - at for rows in shown["kept"] for at, to in rows)
            all = tokens * len(shown["kept"])
            retain = {"policy": "keydiff:0.5,budget=head", "tokens": tokens, "positions_kept": kept, "measured": False,
                      "positions_dropped": all - kept, "share_kept": kept / all, "smallest_head": 9, "largest_head": 31,
                      "positions": shown}
            route.fulfill(json={"choices": [{"message": {"content": "Your dog is called Bolt."}}], "kvik": {"retain": retain}})

        page.route("**/v1/chat/completions", chat)
        page.route("**/v1/retention", lambda route: route.fulfill(json={"object": "retention", "measured": measured}))


@pytest.fixture
def show(open_page):
    def show(measured=MEASURED, size=None, **options):
        page = open_page(**options)
        fake = Fake(page, measured, **(size or {}))
        page.evaluate("location.hash = '#/retention'")
        return page, fake

    return show


def ask(page):
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_label("What was kept")).to_be_visible()


def test_the_request_names_policy_share_and_budget(show):
    page, fake = show()
    page.get_by_label("Policy").select_option("knorm,order=large")
    page.get_by_label("Budget").select_option("all")
    page.get_by_label("Keep").focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("output")).to_have_text("30%")
    page.get_by_label("Prompt").fill("What is my dog called?")
    ask(page)
    sent = fake.requests[-1]
    assert sent["messages"] == [{"role": "user", "content": "What is my dog called?"}]
    assert sent["kvik"]["retain"] == {"policy": "knorm", "keep": 0.3, "order": "large", "budget": "all", "show": True}


def test_the_picture_has_what_each_head_kept(show):
    page, _ = show()
    ask(page)
    rows = page.locator(".grid path")
    expect(rows).to_have_count(LAYERS * HEADS)
    for at, kept in enumerate(positions(40)["kept"]):
        drawn = rows.nth(at).get_attribute("d")
        assert re.findall(r"M(\d+) \d+h(\d+)", drawn) == [(str(a), str(b - a)) for a, b in kept]
    page.get_by_text("As a table").click()
    cells = page.locator("details tbody tr").nth(3).locator("td")
    kept = sum(b - a for a, b in positions(40)["kept"][3])
    expect(cells).to_have_text(["1", "1", str(kept), re.compile("%")])


def test_a_position_says_its_text_and_who_keeps_it(show):
    page, _ = show()
    ask(page)
    page.get_by_role("slider", name="Position").focus()
    says = page.locator(".position-says")
    expect(says).to_contain_text("Position 0 “<|im_start|>”: kept by all 6 heads.")
    shown = positions(40)
    dropped = {at: sum(not any(a <= at < b for a, b in row) for row in shown["kept"]) for at in range(40)}
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    expect(says).to_contain_text(re.compile(rf"Position 6 .*(kept by {6 - dropped[6]} of 6 heads: layer|dropped by all 6)"))
    expect(page.locator(".grid .cursor")).to_have_attribute("x", "6")
    expect(page.get_by_role("slider", name="Position")).to_have_attribute("aria-valuetext", re.compile("^Position 6 "))
    page.locator('.token[data-at="4"]').hover()
    expect(says).to_contain_text("Position 4 ")
    gone = [at for at, count in dropped.items() if count == 6]
    assert page.locator(".token.dropped").evaluate_all("all => all.map(e => Number(e.dataset.at))") == gone


def test_pure_functions_agree_with_counting(page):
    shown = positions(300, layers=4, heads=3)
    heads = page.evaluate("async (shown) => (await import('/page/retention/kept.js')).headsOf(shown)", shown)
    assert heads == [sum(any(a <= at < b for a, b in row) for row in shown["kept"]) for at in range(300)]
    words = page.evaluate("async () => (await import('/page/retention/kept.js')).numbersInWords([0, 1, 2, 5, 7, 8])")
    assert words == "0 to 2, 5, 7 to 8"
    family = page.evaluate("async () => (await import('/page/retention/policies.js')).family('knorm:0.3,order=large,budget=all')")
    assert family == "knorm,order=large,budget=all"


def test_a_large_model_and_a_long_prompt_are_drawn(show):
    page, _ = show(size={"tokens": 2000, "layers": 36, "heads": 8})
    ask(page)
    expect(page.locator(".grid path")).to_have_count(288)
    assert page.locator(".grid svg").bounding_box()["height"] <= 520


def test_measured_losses_are_drawn_and_listed(show):
    page, _ = show()
    panel = page.get_by_label("Measured loss", exact=True)
    expect(panel.locator("tbody tr")).to_have_count(9)
    expect(panel.locator("tbody tr").first).to_contain_text("keydiff")
    expect(panel.locator(".loss-line.mean")).to_have_count(1)
    before = panel.locator(".loss-line.mean").get_attribute("d")
    page.get_by_label("Policy").select_option("h2o")
    expect(panel.locator("tbody tr").first).to_contain_text("h2o,budget=all")
    drawn = panel.locator(".loss-line.mean").get_attribute("d")
    assert drawn != before
    # The largest worst loss is 50%, so a mean of 25% at 0.2 lies half-way up.
    assert drawn.startswith("M20.0 30.0L50.0 48.0")


def test_nothing_measured_is_said(show):
    page, _ = show(measured=[])
    expect(page.get_by_label("Measured loss", exact=True)).to_contain_text("kvik eval")


def test_a_refused_policy_is_said_and_can_be_changed(show, watch):
    watch.expect("400")
    page, fake = show()
    page.unroute("**/v1/chat/completions")
    page.get_by_label("Budget").select_option("calibrated")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("alert")).to_contain_text("kvik.retain")
    expect(page.get_by_role("button", name="Ask")).to_be_enabled()


def test_the_fields_of_the_form_lie_on_one_line(open_page):
    page = open_page("#/retention")
    box = lambda name: page.get_by_label(name, exact=True).bounding_box()  # noqa: E731
    tops = {name: page.locator(f".retention-fields label:text-is('{name}')").bounding_box()["y"] for name in ("Policy", "Budget", "Keep")}
    assert max(tops.values()) - min(tops.values()) < 1, tops
    fields = [box(name) for name in ("Policy", "Budget", "Keep")] + [page.get_by_role("button", name="Ask").bounding_box()]
    assert max(f["y"] for f in fields) - min(f["y"] for f in fields) < 1, fields
