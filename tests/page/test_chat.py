"""Chat on the page: what is said is the server's, and what can be done with it."""
import json
import re
import unicodedata
import urllib.parse

import pytest
from acts import answers, ask, kept, open_id, questions, turns, wait_for_answers, wait_until
from between import Between
from conftest import serve
from playwright.sync_api import expect


def test_what_is_said_is_kept_by_the_server(page, server):
    ask(page, "Please remember that my dog is called Bolt.")
    wait_for_answers(page, 1)
    ask(page, "What is my dog called?")
    wait_for_answers(page, 2)
    expect(answers(page).last).to_contain_text("Bolt")
    said = kept(server, open_id(page))
    assert [content for role, content in said if role == "assistant"] == answers(page).all_inner_texts()
    page.reload()
    wait_for_answers(page, 2)
    expect(questions(page)).to_have_text(["Please remember that my dog is called Bolt.", "What is my dog called?"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Please remember that my dog is called Bolt.")


def test_an_answer_says_what_was_reused(page, server):
    ask(page, "My cat is called Grace.")
    wait_for_answers(page, 1)
    ask(page, "What is my cat called?")
    wait_for_answers(page, 2)
    strip = page.locator(".strip").last
    figures = {words: int(number.replace(",", "")) for number, words in
               (text.split(" ", 1) for text in strip.locator(".figure").all_inner_texts()) if number.replace(",", "").isdigit()}
    assert figures["from RAM"] + figures["from disk"] + figures["computed"] == figures["prompt tokens"]
    assert figures["from RAM"] > 10 and figures["from disk"] == 0
    assert "from the shared store" not in figures
    widths = {part: strip.locator(f".bar .{part}").evaluate("e => e.getBoundingClientRect().width") for part in ("ram", "computed")}
    share = figures["from RAM"] / figures["prompt tokens"]
    assert abs(widths["ram"] / sum(widths.values()) - share) < 0.02
    expect(strip).to_contain_text("to the first token")
    strip.get_by_text("Why was this slow?").click()
    expect(strip).to_contain_text("The rest of the prompt was never seen before.")
    expect(strip.locator(".place mark")).to_contain_text("What is my cat called?")


def test_why_an_answer_was_slow_is_said_in_words(open_page, between):
    page = open_page(port=between.port)
    between.scripted = ["Good."]
    ask(page, "How are you?")
    wait_for_answers(page, 1)
    page.get_by_text("Why was this slow?").click()
    why = page.locator(".why")
    expect(why).to_contain_text("was evicted 12 s ago to make room (policy lru)")
    expect(why).to_contain_text("Reuse ended at token 75 in message 2 (user):")
    expect(why.locator(".reused")).to_have_text("said before")
    expect(why.locator("mark")).to_have_text("said after")
    expect(why).to_contain_text("20 ms were spent on computing 25 tokens")
    expect(page.locator(".bar")).to_have_attribute("aria-label", "75% of 100 prompt tokens reused")
    for tier, words in {"ram": "40 from RAM", "host": "7 from the host's memory", "remote": "3 from the shared store"}.items():
        expect(page.locator(".figures")).to_contain_text(words)
        expect(page.locator(f".bar .{tier}")).to_have_count(1)


def test_an_answer_is_shown_while_it_comes_and_can_be_stopped(open_page, server, between):
    page = open_page(port=between.port)
    between.delay_s, between.scripted = 0.05, [f"word{number} " for number in range(200)]
    ask(page, "Count.")
    expect(page.locator(".answering .content")).to_contain_text("word3 ")
    assert "word150" not in page.locator(".answering .content").inner_text()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".rest .content")).to_contain_text("word3 ")
    # Nothing of it is kept, and the question is there again.
    expect(page.get_by_label("Your question")).to_have_value("Count.")
    expect(page.locator(".note")).to_contain_text("You stopped the answer")
    assert kept(server, open_id(page)) == []


def test_a_stopped_answer_can_be_kept_as_it_is(open_page, server, between, conversation):
    first = conversation(turns("Hello.", "Hi."), "stopped")
    page = open_page(f"#/chat/{first}", port=between.port)
    expect(answers(page)).to_have_count(1)
    between.delay_s, between.scripted = 0.05, [f"word{number} " for number in range(200)]
    ask(page, "Count.")
    expect(page.locator(".answering .content")).to_contain_text("word3 ")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Keep it as it is").click()
    wait_for_answers(page, 2)
    said = kept(server, open_id(page))
    assert said[:3] == [("user", "Hello."), ("assistant", "Hi."), ("user", "Count.")]
    assert said[3][1].startswith("word0 word1 word2 word3 ")
    assert open_id(page) == first
    expect(page.get_by_label("Your question")).to_have_value("")


def test_stopping_ends_the_work_of_the_server(open_page, tmp_path):
    stall = tmp_path / "stall"
    with serve("--memory", "on", env={"KVIK_TEST_STALL": str(stall)}) as server, Between(server.port) as between:
        page = open_page(port=between.port)
        between.stall, between.fields = stall, {"ignore_eos": True, "max_tokens": 1900, "kvik": {"stop_loops": False}}
        ask(page, "Please tell me all that you know.")
        expect(page.locator(".answering .content")).not_to_be_empty()
        wait_until(page, stall.exists)
        assert (server.metric("kvik_requests_running"), server.cancelled()) == (1, 0)
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        between.stall, between.fields = None, {}
        stall.unlink()
        wait_until(page, lambda: server.cancelled() == 1)
        page.get_by_role("button", name="Send").click()
        wait_for_answers(page, 1)
        assert len(kept(server, open_id(page))) == 2


def test_an_answer_that_was_complete_when_it_was_stopped_is_kept(open_page, server, between):
    page = open_page(port=between.port)
    between.delay_s = 0.3  # of what the server has said already
    ask(page, "Please remember that my dog is called Bolt.")
    expect(page.locator(".answering .content")).not_to_be_empty()
    wait_until(page, lambda: len(kept(server, open_id(page))) == 2)
    page.get_by_role("button", name="Stop").click()
    wait_for_answers(page, 1)
    assert len(kept(server, open_id(page))) == 2
    expect(page.get_by_label("Your question")).to_have_value("")


def test_a_conversation_is_called_by_its_first_words(page):
    name_of = "text => import('/page/chat/conversations.js').then(({ nameOf }) => nameOf(text))"
    unspaced = "KV Cache的前缀树管理与分页注意力相比" + "在边缘设备上有哪些优势和不足" * 4
    for text, name in [("My dog is Bolt.", "My dog is Bolt."), ("word " * 20, "word " * 11 + "word…"),
                       (unspaced, unspaced[:60] + "…"), ("𠮷" * 70, "𠮷" * 60 + "…"), (" ", "Conversation")]:
        assert page.evaluate(name_of, text) == name


def test_a_name_is_found_in_any_case_and_form(page, conversation):
    id = conversation(turns("Hello.", "Hi."), "ο δρόμος, Ko\u0308ln")
    page.route("**/v1/conversations?search=*", lambda route: route.fulfill(json={"data": [], "has_more": False}))
    page.goto(page.url.split("#")[0] + f"#/chat/{id}")
    rows = page.get_by_role("list", name="Conversations").get_by_role("link")
    for query in ["ΔΡΌΜΟΣ", "köln"]:
        page.get_by_label("Search conversations").fill("nothing has this name")
        expect(rows).to_have_count(0)
        page.get_by_label("Search conversations").fill(query)
        expect(rows).to_contain_text(["ο δρόμος"])
    with page.expect_download() as download:
        choose(page, "Export as JSON")
    assert unicodedata.normalize("NFC", download.value.suggested_filename) == "ο δρόμος_ Köln.json"


def test_conversations_are_searched_renamed_exported_and_deleted(page, server, conversation):
    id = conversation(turns("Where is Oslo?", "In Norway."), "a trip")
    conversation(turns("Hello.", "Hi."), "something else")
    page.goto(page.url.split("#")[0] + f"#/chat/{id}")
    rows = page.get_by_role("list", name="Conversations").get_by_role("link")
    page.get_by_label("Search conversations").fill("TRI")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("a trip")
    page.get_by_label("Search conversations").fill("nothing has this name")
    expect(page.get_by_text("Nothing was found.")).to_be_visible()
    page.get_by_label("Search conversations").fill("")

    choose(page, "Rename")
    page.get_by_role("dialog").get_by_label("Name").fill("旅" * 43)
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_contain_text("128 bytes at most, and this one has 129")
    expect(page.get_by_role("dialog").get_by_label("Name")).to_have_value("旅" * 43)
    page.get_by_role("dialog").get_by_label("Name").fill("a voyage")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("a voyage")
    expect(rows.first).to_contain_text("a voyage")
    assert server.get("/v1/conversations/a%20voyage").json["id"] == id

    with page.expect_download() as download:
        choose(page, "Export as JSON")
    exported = json.loads(download.value.path().read_text())
    assert download.value.suggested_filename == "a voyage.json"
    assert exported == {"name": "a voyage", "metadata": {}, "messages": turns("Where is Oslo?", "In Norway.")}
    with page.expect_download() as download:
        choose(page, "Export as Markdown")
    assert "In Norway." in download.value.path().read_text()

    choose(page, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert server.get(f"/v1/conversations/{id}").status == 200
    choose(page, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(rows.filter(has_text="a voyage")).to_have_count(0)
    assert server.get(f"/v1/conversations/{id}").status == 404


def choose(page, action):
    page.get_by_role("button", name="More actions with this conversation").click()
    page.get_by_role("group", name="Actions with this conversation").get_by_role("button", name=action).click()


def test_settings_belong_to_a_conversation_and_are_sent(open_page, between, server):
    page = open_page(port=between.port)
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Temperature")).to_have_attribute("placeholder", "0 (kvik-tiny)")
    expect(dialog.get_by_label("Top k")).to_have_attribute("placeholder", "40 (kvik)")
    expect(dialog.get_by_label("Top k")).to_have_attribute("title", re.compile("kvik's own default"))
    expect(dialog.get_by_label("Seed")).to_have_attribute("placeholder", "random")
    dialog.get_by_label("System prompt").fill("You are brief.")
    dialog.get_by_label("Temperature").fill("0.25")
    dialog.get_by_label("Tokens at most").fill("7")
    dialog.get_by_label("Remember what no longer fits the context").uncheck()
    dialog.get_by_role("button", name="Save").click()
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Hello.")
    body = sent.value.post_data_json
    assert body["messages"] == [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Hello."}]
    assert (body["temperature"], body["max_tokens"], body["kvik"]["memory"]) == (0.25, 7, False)
    assert "top_p" not in body
    wait_for_answers(page, 1)
    # The system prompt is the conversation's now, so it is not sent again; the others are, also after a reload.
    page.reload()
    wait_for_answers(page, 1)
    expect(page.locator(".message.system")).to_contain_text("System prompt")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "And?")
    assert sent.value.post_data_json["messages"] == [{"role": "user", "content": "And?"}]
    assert sent.value.post_data_json["temperature"] == 0.25
    # Another conversation has its own.
    wait_for_answers(page, 2)
    page.get_by_role("link", name="New conversation").click()
    # The field of the one before may still be there for a moment, and what is written in it goes with it.
    expect(page.locator(".message")).to_have_count(0)
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Hello.")
    assert "temperature" not in sent.value.post_data_json and len(sent.value.post_data_json["messages"]) == 1


def set_temperature(page, value):
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("dialog").get_by_label("Temperature").fill(value)
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_settings_of_one_tab_leave_those_of_another(open_page, conversation):
    ids = [conversation(turns("Hello.", "Hi.")) for _ in range(2)]
    first = open_page(f"#/chat/{ids[0]}")
    second = open_page(f"#/chat/{ids[1]}", context=first.context)
    set_temperature(first, "0.72")
    # Tabs are processes, and what one keeps reaches the other a moment later.
    second.wait_for_function("id => localStorage['kvik.settings']?.includes(id)", arg=ids[0])
    set_temperature(second, "1.01")
    first.wait_for_function("id => localStorage['kvik.settings']?.includes(id)", arg=ids[1])
    kept_settings = json.loads(first.evaluate("localStorage['kvik.settings']"))
    assert kept_settings == {ids[0]: {"temperature": 0.72}, ids[1]: {"temperature": 1.01}}
    set_temperature(first, "")
    first.wait_for_function("id => !localStorage['kvik.settings'].includes(id)", arg=ids[0], timeout=5000)
    assert json.loads(first.evaluate("localStorage['kvik.settings']")) == {ids[1]: {"temperature": 1.01}}


def press_key(field, key, **fields):
    """A key as a browser reports it with these fields."""
    field.evaluate("""(e, [key, fields]) => {
        const event = new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true});
        for (const [name, value] of Object.entries(fields)) Object.defineProperty(event, name, {value});
        e.dispatchEvent(event);
    }""", [key, fields])


def test_a_key_of_an_input_method_sends_nothing(page, conversation):
    asked = []
    page.on("request", lambda request: request.method == "POST" and asked.append(request.url))
    question = page.get_by_label("Your question")
    question.fill("\u306b\u307b\u3093")
    for fields in ({"isComposing": True}, {"keyCode": 229}, {"repeat": True}):
        press_key(question, "Enter", **fields)
    page.goto(page.url.split("#")[0] + f"#/chat/{conversation(turns('one', 'two'))}")
    page.get_by_role("button", name="Edit this question; this version stays").click()
    edited = page.get_by_label("The question, edited")
    for key in ("Enter", "Escape"):
        press_key(edited, key, keyCode=229)
    expect(edited).to_have_value("one")
    assert [url for url in asked if not url.endswith("/api/show")] == []


def test_who_asks_twice_begins_one_conversation(page):
    begun = []
    page.on("request", lambda request: request.method == "POST" and request.url.endswith("/v1/conversations") and begun.append(request.url))
    question = page.get_by_label("Your question")
    question.fill("Asked twice?")
    page.evaluate("[1, 2].forEach(() => document.querySelector('.composer').requestSubmit())")
    wait_for_answers(page, 1)
    assert len(begun) == 1


def test_an_answer_that_repeats_itself_is_ended_with_a_note(open_page, between, server):
    sentence = "I am a small model that lives on your phone and answers every question. "
    between.fields = {"guided_regex": "(" + sentence.replace(".", r"\.") + "){10}"}
    page = open_page(port=between.port)
    ask(page, "Who are you?")
    expect(page.locator(".strip")).to_contain_text("The answer repeated itself, and was ended.")
    # What the server keeps of it is shown.
    expect(answers(page)).not_to_contain_text(sentence * 4)
    (_, said) = kept(server, open_id(page))[-1]
    assert 2 <= said.count("phone") <= 3, said
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("dialog").get_by_label("End an answer that only repeats itself").uncheck()
    page.get_by_role("button", name="Save").click()
    ask(page, "Who are you?")
    wait_for_answers(page, 2)
    expect(answers(page).last).to_contain_text((sentence * 10).strip())
    expect(page.locator(".strip").last).not_to_contain_text("repeated itself")


def test_thoughts_are_folded_and_calls_of_tools_are_shown(open_page, between):
    page = open_page(port=between.port)
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": ""}}
    between.scripted = [{"reasoning_content": "I think "}, {"reasoning_content": "long."}, "Done.",
                        {"tool_calls": [call]}, {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Oslo"}'}}]}]
    ask(page, "Think.")
    wait_for_answers(page, 1)
    thoughts = page.locator(".said details", has_text="Thoughts")
    expect(thoughts.locator("pre")).to_be_hidden()
    thoughts.locator("summary").click()
    expect(thoughts.locator("pre")).to_have_text("I think long.")
    page.get_by_text("Calls look_up").click()
    expect(page.locator(".said details", has_text="Calls look_up").locator("pre")).to_contain_text('"city": "Oslo"')


def test_files_are_given_as_text(page, server):
    files = [{"name": "notes.txt", "mimeType": "text/plain", "buffer": b"The code is 1234."}]
    page.locator("input[type=file]").set_input_files(files)
    expect(page.get_by_role("list", name="Files")).to_contain_text("notes.txt")
    page.locator("input[type=file]").set_input_files([{"name": "x.bin", "mimeType": "application/octet-stream", "buffer": b"\xff\xfe\x00"}])
    expect(page.get_by_role("alert")).to_contain_text("x.bin is not a text.")
    ask(page, "What is the code?")
    wait_for_answers(page, 1)
    expect(page.locator(".said .message.user summary")).to_have_text("File notes.txt")
    assert kept(server, open_id(page))[0][1] == "[file notes.txt]\nThe code is 1234.\n[end of file notes.txt]\n\nWhat is the code?"


def test_a_dropped_file_is_given_as_text(page):
    page.evaluate("""() => {
        const transfer = new DataTransfer();
        transfer.items.add(new File(["dropped text"], "dropped.md"));
        document.querySelector(".messages").dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
    }""")
    expect(page.get_by_role("list", name="Files")).to_contain_text("dropped.md")
    page.get_by_role("button", name="Remove dropped.md").click()
    expect(page.get_by_role("list", name="Files")).to_be_hidden()


def test_an_answer_goes_on_while_another_view_is_shown(open_page, between):
    page = open_page(port=between.port)
    between.delay_s, between.scripted = 0.03, [f"word{number} " for number in range(300)]
    ask(page, "Count.")
    expect(page.locator(".answering .content")).to_contain_text("word3 ")
    page.get_by_role("link", name="Retention").click()
    page.get_by_role("link", name="Chat", exact=True).click()
    page.get_by_role("list", name="Conversations").get_by_role("link", name="Count.").first.click()
    expect(page.locator(".answering .content")).to_contain_text("word59")


def test_what_was_said_is_found_with_what_stands_around_it(page, conversation):
    for name, said in (("a trip", "We go to the Hardanger\n\nplateau in June."), ("HARDANGER", "No."), ("other", "Nothing.")):
        conversation(turns("Where do we go?", said), name)
    page.reload()
    rows = page.get_by_role("list", name="Conversations").get_by_role("link")
    page.get_by_label("Search conversations").fill("hardANger")
    expect(rows).to_have_count(2)
    expect(rows.nth(1).locator(".excerpt")).to_have_text("We go to the Hardanger plateau in June.")
    expect(rows.nth(1).locator("mark")).to_have_text("Hardanger")
    expect(rows.nth(0).locator(".excerpt")).to_have_count(0)
    rows.nth(1).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("a trip")
    expect(rows).to_have_count(2)  # one may go on to the next
    page.get_by_label("Search conversations").fill("")
    expect(page.locator(".excerpt")).to_have_count(0)


def test_what_was_found_leads_to_its_message(page, conversation):
    said = [f"Message {number}." for number in range(80)]
    conversation(turns(*said[:3], "The lighthouse is red.", *said[4:]), "a long trip")
    page.reload()
    page.get_by_label("Search conversations").fill("lighthouse")
    page.get_by_role("list", name="Conversations").get_by_role("link").filter(has_text="lighthouse").click()
    expect(page.locator(".message[data-index='3']")).to_be_in_viewport()
    expect(page.locator(".said .message")).to_have_count(80)
    expect(page.locator(".message[data-index='3']")).to_be_in_viewport()


def test_a_search_goes_on_to_the_end_and_only_for_what_is_written_now(page, conversation):
    ids = [conversation(turns("Hello.", f"Number {number}."), f"paged {number}") for number in range(3)]
    asked = []

    def a_page(route):
        query = urllib.parse.parse_qs(urllib.parse.urlparse(route.request.url).query)
        asked.append((query["search"][0], query.get("after", [None])[0]))
        at = ids.index(query["after"][0]) + 1 if "after" in query else 0
        found = {"message": 1, "before": "", "text": query["search"][0], "after": ""}
        more = at + 1 < len(ids)
        route.fulfill(json={"object": "list", "data": [{"id": ids[at], "found": found}], "has_more": more, "next": ids[at] if more else None})

    page.reload()
    page.route("**/v1/conversations?search=**", a_page)
    page.get_by_label("Search conversations").press_sequentially("zebra", delay=20)
    expect(page.locator(".excerpt")).to_have_count(3)
    assert asked == [("zebra", None), ("zebra", ids[0]), ("zebra", ids[1])]


def choose_import(page, name, text):
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import").click()
    chooser.value.set_files([{"name": name, "mimeType": "application/json", "buffer": text.encode()}])


def test_an_exported_conversation_is_imported(page, server, conversation):
    messages = [{"role": "system", "content": "Be kind."}, *turns("Where is Oslo?", "In Norway.")]
    id = conversation(messages, "to be exported")
    page.goto(page.url.split("#")[0] + f"#/chat/{id}")
    wait_for_answers(page, 1)
    with page.expect_download() as download:
        choose(page, "Export as JSON")
    exported = download.value.path().read_text()
    for name, text in (("to be exported (2)", exported), (None, json.dumps({"messages": messages}))):
        choose_import(page, "x.json", text)
        page.wait_for_function("before => location.hash !== before", arg=f"#/chat/{id}")
        wait_for_answers(page, 1)
        id = open_id(page)
        read = server.get(f"/v1/conversations/{id}").json
        assert (read["name"], read["messages"]) == (name, messages)
        server.request("DELETE", f"/v1/conversations/{id}", None, {})


@pytest.mark.parametrize(("text", "says"), [
    ("{", "is not a conversation"), ("[1]", "is not a conversation"), ("null", "is not a conversation"),
    (json.dumps({"messages": [{"role": "nobody", "content": "x"}]}), "messages[0].role"),
])
def test_what_is_no_conversation_is_not_imported(page, server, watch, text, says):
    watch.expect("400")
    before = len(server.get("/v1/conversations?limit=1000").json["data"])
    choose_import(page, "x.json", text)
    expect(page.get_by_role("alert")).to_contain_text(says)
    assert len(server.get("/v1/conversations?limit=1000").json["data"]) == before
