"""The cache and retention views for everyone: no barrier that axe finds, in both themes, wide and narrow."""
import pytest
import test_retention
from acts import violations
from playwright.sync_api import expect
from trees import Fake, family, large

THEMES = [(width, theme) for width in (1280, 390) for theme in ("light", "dark")]


@pytest.mark.parametrize(("width", "theme"), THEMES)
def test_the_cache_view_has_no_barriers(open_page, width, theme):
    page = open_page(width=width, theme=theme)
    Fake(page, family())
    page.evaluate("location.hash = '#/cache'")
    page.locator('.icicle [data-id="n1-0"]').focus()
    expect(page.get_by_label("Text of this part")).to_be_visible()
    panel = page.get_by_label("Why was this slow")
    panel.locator("textarea").fill("Where does this go?")
    panel.get_by_role("button", name="Explain").click()
    expect(panel.locator(".divergence")).to_be_visible()
    for colour in ("tier", "age", "tenant"):
        page.get_by_label("Colour").and_(page.locator("select")).select_option(colour)
        page.wait_for_timeout(100)
        assert violations(page) == [], colour
    assert page.evaluate("document.querySelector('.sheet').scrollWidth <= innerWidth")


def test_a_large_tree_has_no_barriers(open_page):
    page = open_page()
    Fake(page, large(400, nodes_total=100_000))
    page.evaluate("location.hash = '#/cache'")
    expect(page.locator(".icicle .box").first).to_be_visible()
    assert violations(page) == []


@pytest.mark.parametrize(("width", "theme"), THEMES)
def test_the_retention_view_has_no_barriers(open_page, width, theme):
    page = open_page(width=width, theme=theme)
    test_retention.Fake(page, tokens=77, layers=6, heads=2)
    page.evaluate("location.hash = '#/retention'")
    test_retention.ask(page)
    page.get_by_text("As a table").click()
    assert violations(page) == []
    assert page.evaluate("document.querySelector('.sheet').scrollWidth <= innerWidth")
