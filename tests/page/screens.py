"""Pictures of every view (`scenes.py`) on a phone, a tablet and a desk, light, dark and as the system has it.

By hand: `python -m tests.page.screens OUT [--only WORD] [--width 390] [--theme dark]`. A table says where a page is wider
than its screen, cuts a text, has a control that nobody reaches, or a barrier that axe finds; the exit status is 1 then.
"""
import argparse
import contextlib
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from acts import violations, wide  # noqa: E402
from conftest import CHROMIUM  # noqa: E402
from playwright.sync_api import Error, sync_playwright  # noqa: E402
from scenes import SCENES, World  # noqa: E402

WIDTHS = (390, 800, 1400)
# What is chosen on the page, and what the browser says that its system has: each choice against the other one.
THEMES = {"light": ("light", "dark"), "dark": ("dark", "light"), "system": (None, "dark")}
GROUNDS = {"light": "rgb(246, 246, 244)", "dark": "rgb(21, 23, 25)"}
HEIGHT_MAX = 4000

# Texts that are cut without a sign of it, and controls that are off the screen or too small for a finger.
FLAWS = """() => {
    const found = [];
    const seen = (e) => e.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && e.getClientRects().length > 0 && !e.closest(".hidden-text, .skip");
    const say = (e, words) => found.push(`${e.tagName.toLowerCase()}.${e.className} "${(e.ariaLabel ?? e.textContent).trim().slice(0, 40)}" ${words}`);
    const scrolls = (e) => e && (["auto", "scroll"].includes(getComputedStyle(e).overflowX) && e.id !== "view" || scrolls(e.parentElement));
    for (const e of document.querySelectorAll("button, a[href], input, select, textarea, summary")) {
        if (!seen(e) || e.closest("dialog") !== document.querySelector("dialog")) continue;
        const { left, right, width, height } = e.getBoundingClientRect();
        if ((left < -1 || right > innerWidth + 1) && !scrolls(e)) say(e, "is off the screen");
        if (getComputedStyle(e).display !== "inline" && e.type !== "checkbox" && e.type !== "radio" && (width < 23.5 || height < 19.5)) say(e, `is ${Math.round(width)} x ${Math.round(height)} px`);
    }
    for (const e of document.querySelectorAll("body *")) {
        if (!seen(e) || ![...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
        const { overflowX, overflowY, textOverflow } = getComputedStyle(e);
        const hides = (overflow) => ["hidden", "clip"].includes(overflow);
        if (hides(overflowX) && e.scrollWidth > e.clientWidth + 1 && textOverflow !== "ellipsis") say(e, "is cut at its side");
        if (hides(overflowY) && e.scrollHeight > e.clientHeight + 6 && textOverflow !== "ellipsis") say(e, "is cut below");
    }
    return found;
}"""


def opened(browser, world, name, width, theme):
    """The page of a scene, in the state that is looked at."""
    at, server, act = SCENES[name]
    chosen, system = THEMES[theme]
    context = browser.new_context(viewport={"width": width, "height": 844 if width < 500 else 900}, color_scheme=system, reduced_motion="reduce")
    if chosen:
        context.add_init_script(f"localStorage.setItem('kvik.theme', '\"{chosen}\"')")
    page = context.new_page()
    view, _, said = at.removeprefix("#/").partition("/")
    hash = f"#/{view}/{world.said.get(said, said)}" if said else at
    page.goto(f"http://127.0.0.1:{getattr(world, server).port}/{hash}")
    page.wait_for_load_state("networkidle" if view not in ("cache", "models") else "load")
    act(page, world)
    if page.locator(".sheet").count():
        # A view that is read from top to bottom, in one picture.
        whole = page.evaluate("document.querySelector('#view').scrollHeight + document.querySelector('.top').offsetHeight")
        page.set_viewport_size({"width": width, "height": min(max(whole, page.viewport_size["height"]), HEIGHT_MAX)})
    page.wait_for_timeout(200)
    return page


def flaws(page, theme):
    """What is wrong with the page as it is shown."""
    found = ["is wider than its screen"] if wide(page) else []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    chosen, system = THEMES[theme]
    if ground != GROUNDS[chosen or system]:
        found.append(f"has the ground {ground}")
    found += page.evaluate(FLAWS)
    return found + [f"{rule}: {words}: {html[0] if html else ''}" for rule, words, html in violations(page)]


def look(browser, world, name, width, theme, out):
    """Makes a picture; returns what is wrong with it."""
    page = None
    try:
        page = opened(browser, world, name, width, theme)
        page.screenshot(path=out / f"{name}-{width}-{theme}.png")
        return flaws(page, theme)
    except (AssertionError, Error) as error:
        return [str(error).splitlines()[0]]
    finally:
        for context in browser.contexts:
            context.close()
        world.between.delay_s, world.between.scripted = 0, None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", default="", help="scenes with this word in their name")
    parser.add_argument("--width", type=int, action="append", help=f"of {WIDTHS}; all of them where none is given")
    parser.add_argument("--theme", choices=THEMES, action="append")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    names = [name for name in SCENES if args.only in name]
    pictures, found = 0, []
    with contextlib.ExitStack() as stack, sync_playwright() as playwright:
        world = World(stack)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        for name in names:
            for width in args.width or WIDTHS:
                for theme in args.theme or THEMES:
                    pictures += 1
                    for flaw in look(browser, world, name, width, theme, args.out):
                        found.append((name, width, theme, flaw))
                        print(f"{name:24} {width:5} {theme:6} {flaw}", flush=True)
        browser.close()
    print(f"{len(names)} scenes, {pictures} pictures, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
