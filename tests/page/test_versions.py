"""Versions of a conversation: what is asked again or edited leaves what was said before, and arrows lead from one to the other."""
import re

import pytest
from acts import answers, ask, kept, open_id, questions, turns, violations, wait_for_answers
from playwright.sync_api import expect


def arrows(page, words):
    """The arrows between versions whose place these words say."""
    return page.get_by_role("group", name=words)


def again(page):
    return page.get_by_role("button", name="Ask again; this answer stays as a version")


def edit(page, at, text):
    """Asks something else in the place of a question."""
    page.get_by_role("button", name="Edit this question; this version stays").nth(at).click()
    page.get_by_label("The question, edited").fill(text)
    page.get_by_label("The question, edited").press("Enter")


@pytest.fixture
def begun(server):
    """Deletes after a test what it has begun: versions are conversations."""
    def ids():
        return {one["id"] for one in server.get("/v1/conversations?limit=1000").json["data"]}

    before = ids()
    yield
    for id in ids() - before:
        server.request("DELETE", f"/v1/conversations/{id}", None, {})


def test_an_answer_that_is_asked_for_again_costs_only_what_is_new(page, server, begun):
    name = "Please remember that my cat is called Ada."
    ask(page, name)
    wait_for_answers(page, 1)
    first = open_id(page)
    again(page).click()
    expect(arrows(page, "Version 2 of 2")).to_be_visible()
    wait_for_answers(page, 1)
    second = open_id(page)
    assert second != first and len(kept(server, first)) == len(kept(server, second)) == 2
    # Its prompt is that of the first answer, which was computed then.
    tokens = page.locator(".strip .figure").all_text_contents()
    prompt, reused = (int(re.sub(r"\D", "", next(text for text in tokens if words in text))) for words in ("prompt tokens", "from RAM"))
    assert prompt - reused <= 1

    # A reload finds both, and so does any other program; the page lists them as one.
    rows = page.get_by_role("list", name="Conversations").get_by_role("link").filter(has_text=name)
    expect(rows).to_have_count(1)
    page.reload()
    page.get_by_role("button", name="Version before").click()
    expect(arrows(page, "Version 1 of 2")).to_be_visible()
    assert open_id(page) == first
    assert {name, f"{name} (2)"} <= {one["name"] for one in server.get("/v1/conversations").json["data"]}


def test_an_answer_in_the_middle_keeps_what_came_behind_it(page, server, conversation, begun):
    id = conversation([{"role": "system", "content": "Be kind."}, *turns("Please remember that my dog is called Bolt.", "Fine.", "What is my dog called?", "WRONG", "Really?", "No.")], "again")
    page.goto(page.url.split("#")[0] + f"#/chat/{id}")
    again(page).nth(1).click()
    expect(arrows(page, "Version 2 of 2")).to_be_visible()
    wait_for_answers(page, 2)
    expect(answers(page).last).to_contain_text("Bolt")
    assert [content for _, content in kept(server, open_id(page))][:4] == ["Be kind.", "Please remember that my dog is called Bolt.", "Fine.", "What is my dog called?"]
    page.get_by_role("button", name="Version before").click()
    expect(answers(page)).to_have_text(["Fine.", "WRONG", "No."])
    expect(page.get_by_role("status").filter(has_text="Version 1 of 2")).to_have_count(1)


def test_a_question_with_a_picture_is_not_asked_again_without_it(page, server, conversation, begun):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}
    asked = {"role": "user", "content": [{"type": "text", "text": "What is on it?"}, picture]}
    id = conversation([asked, {"role": "assistant", "content": "A dog."}], "with a picture")
    page.goto(page.url.split("#")[0] + f"#/chat/{id}")
    for button in (again(page), page.get_by_role("button", name="Edit this question; this version stays")):
        button.click()
        expect(page.get_by_role("alert")).to_contain_text("has a part that is not text")
        page.get_by_role("button", name="Close this notice").click()
    expect(page.get_by_label("The question, edited")).to_have_count(0)
    assert open_id(page) == id
    assert [content for _, content in kept(server, id)] == [asked["content"], "A dog."]


def test_a_question_is_edited_in_its_place(page, server, conversation, begun):
    id = conversation(turns("one", "two", "three", "four"), "before the edit")
    page.goto(page.url.split("#")[0] + f"#/chat/{id}")
    field = page.get_by_label("The question, edited")
    page.get_by_role("button", name="Edit this question; this version stays").last.click()
    expect(field).to_have_value("three")
    assert violations(page) == []
    field.fill("given up")
    page.get_by_role("button", name="Cancel").click()
    expect(questions(page)).to_have_text(["one", "three"])

    edit(page, 1, "What is my dog called?")
    expect(questions(page)).to_have_text(["one", "What is my dog called?"])
    wait_for_answers(page, 2)
    edit(page, 1, "What is it?")
    expect(questions(page)).to_have_text(["one", "What is it?"])
    expect(arrows(page, "Version 3 of 3")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("button", name="Version before").click()
    expect(questions(page)).to_have_text(["one", "What is my dog called?"])
    expect(page.get_by_role("button", name="Version before")).to_be_focused()
    page.get_by_role("button", name="Version before").click()
    expect(questions(page)).to_have_text(["one", "three"])
    assert open_id(page) == id
    assert [content for _, content in kept(server, id)] == ["one", "two", "three", "four"]


def test_versions_are_deleted_with_their_conversation_or_alone(page, server, conversation, begun):
    id = conversation(turns("one", "two"), "of three versions")
    page.goto(page.url.split("#")[0] + f"#/chat/{id}")
    for number in (2, 3):
        again(page).click()
        expect(arrows(page, f"Version {number} of {number}")).to_be_visible()
        wait_for_answers(page, 1)

    def delete(action):
        page.get_by_role("button", name="More actions with this conversation").click()
        page.get_by_role("button", name="Delete", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name=action, exact=True).click()

    third = open_id(page)
    delete("Delete this version only")
    expect(arrows(page, "of 2")).to_be_visible()
    assert server.get(f"/v1/conversations/{third}").status == 404
    second = open_id(page) if open_id(page) != id else None
    delete("Delete")
    expect(page.get_by_role("heading", level=1)).to_have_text("New conversation")
    assert [server.get(f"/v1/conversations/{one}").status for one in (id, second) if one] == [404] * (2 if second else 1)


def test_from_a_version_without_an_answer_one_comes_back(open_page, between, conversation, begun):
    id = conversation(turns("Count.", "one two"), "stopped version")
    page = open_page(f"#/chat/{id}", port=between.port)
    between.delay_s, between.scripted = 0.05, [f"word{number} " for number in range(200)]
    again(page).click()
    expect(page.locator(".answering .content")).to_contain_text("word3 ")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_label("Your question")).to_have_value("Count.")
    page.get_by_role("button", name="Version before").click()
    expect(answers(page)).to_have_text(["one two"])


def test_a_name_has_room_for_the_number_of_a_version(page, server, begun):
    ask(page, "\u5b57" * 60)
    wait_for_answers(page, 1)
    again(page).click()
    expect(arrows(page, "Version 2 of 2")).to_be_visible()
    wait_for_answers(page, 1)
    assert server.get(f"/v1/conversations/{open_id(page)}").json["name"].endswith("\u5b57 (2)")


def test_what_two_versions_share_is_known_without_reading_them(page):
    """The places of versions, of conversations that left each other at several messages; what another program keeps in
    their metadata is no way."""
    found = page.evaluate("""async () => {
        const { versionMetadata, versionsIn } = await import("/page/chat/versions.js");
        const messages = Array(9).fill({ role: "user", content: "" });
        const items = [];
        const begin = (name, of, count) => items.unshift({ id: `conv_${name}`, created: items.length, metadata: of ? versionMetadata(items.find(({ id }) => id === `conv_${of}`), count) : {} });
        begin("a"); begin("b", "a", 1); begin("c", "b", 1); begin("d", "b", 4); begin("e", "d", 2);
        items.push({ id: "conv_f", created: 0, metadata: { version_of: "conv_a:1 <b>" } }, { id: "conv_0", created: 0, metadata: { version_of: "conv_0:3 conv_0:3" } });
        // Deleted conversations are on the way of others.
        const known = items.filter(({ id }) => id !== "conv_b");
        const words = (all, { id }) => versionsIn(all, { id, messages }).said.map(({ index, position, ids }) => `${index}:${position + 1}/${ids.length}`).join(" ");
        let deep = items.at(-3);
        for (let count = 0; count < 99; count += 1) deep = { id: `conv_${String(count).padStart(24, "0")}`, created: 0, metadata: versionMetadata(deep, count * 2) };
        const second = [["9", "1"], ["1", "2"]].map(([id, version_begun]) => ({ id: `conv_${id}`, created: 0, metadata: { version_of: "conv_a:1", version_begun } }));
        const last = words([...second, { id: "conv_a", created: 0 }], { id: "conv_1" });
        return { last, all: items.map((item) => words(items, item)), known: known.map((item) => words(known, item)), longest: deep.metadata.version_of.length };
    }""")
    #                            e            d                    c      b                    a      f   0
    assert found["all"] == ["1:2/3 2:2/2", "1:2/3 2:1/2 4:2/2", "1:3/3", "1:2/3 2:1/2 4:1/2", "1:1/3", "", ""]
    assert found["known"] == ["1:3/3 2:2/2", "1:3/3 2:1/2", "1:2/3", "1:1/3", "", ""]
    assert found["longest"] <= 512
    assert found["last"] == "1:3/3", "versions of the same second have the order of their beginning"
