"""The retention view on a real server: what it offers is what the server takes, and what is shown is what was kept."""
import re

from playwright.sync_api import expect

PROMPT = "Please remember that my dog is called Bolt and that the code of the shed is 4711. What is my dog called?"


def open_view(page):
    page.evaluate("location.hash = '#/retention'")
    expect(page.get_by_role("button", name="Ask")).to_be_visible()


def test_the_server_takes_every_policy_that_is_offered(page, server):
    choices = page.evaluate(
        """async () => {
            const { POLICIES, BUDGETS } = await import("/page/retention/policies.js");
            return [POLICIES.map(({ name }) => name), BUDGETS.map(({ value }) => value)];
        }"""
    )
    for policy in choices[0]:
        name, *options = policy.split(",")
        retain = {"policy": name, "keep": 0.5, "budget": "head"} | dict(option.split("=") for option in options)
        answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1, "kvik": {"retain": retain}})
        if name == "gated":
            # This model has no gates, and the answer says how it gets them.
            assert answer.status == 400 and "kvik eval --calibrate" in answer.text, answer.text
            continue
        assert answer.status == 200, (policy, answer.text)
        assert answer.json["kvik"]["retain"]["policy"].startswith(name)
    for budget in choices[1]:
        retain = {"policy": "knorm", "keep": 0.5, "budget": budget}
        answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1, "kvik": {"retain": retain}})
        assert answer.status == 200 or budget == "calibrated", (budget, answer.text)


def test_what_the_server_kept_is_drawn(page):
    open_view(page)
    page.get_by_label("Prompt").fill(PROMPT)
    page.get_by_label("Policy").select_option("sinks")
    page.get_by_role("button", name="Ask").click()
    kept = page.get_by_label("What was kept")
    expect(kept.locator(".grid path")).to_have_count(12)
    # Sinks keep the first positions and the latest: each row has a range that begins at 0, and a gap.
    for drawn in kept.locator(".grid path").evaluate_all("all => all.map(e => e.getAttribute('d'))"):
        starts = [int(start) for start in re.findall(r"M(\d+)", drawn)]
        assert starts[0] == 0 and len(starts) == 2, drawn
    expect(kept.locator(".token.dropped").first).to_be_visible()
    share = int(re.search(r"kept (\d+)% of what", kept.inner_text())[1])
    assert 45 <= share <= 55
    tokens = int(re.search(r"of what ([\d,]+) tokens", kept.inner_text())[1])
    assert kept.locator(".token").count() == tokens


def test_what_was_measured_is_what_the_server_says(page, server):
    measured = server.get("/v1/retention").json["measured"]
    open_view(page)
    panel = page.get_by_label("Measured loss", exact=True)
    if measured:
        expect(panel.locator("tbody tr")).to_have_count(len(measured))
    else:
        expect(panel).to_contain_text("Nothing was measured on this model yet.")
