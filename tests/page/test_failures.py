"""What the page does when things go wrong: keys, full queues, servers that end, reloads, other tabs."""
import concurrent.futures
import json
import re

import pytest
from acts import answers, ask, kept, open_id, questions, turns, wait_for_answers, wait_until
from between import Between
from conftest import serve
from playwright.sync_api import expect

KEY = "a-key-of-the-test"
LONG = {"prompt": "Once upon a time", "n_predict": 1900, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def locked():
    with serve("--api-key", KEY) as server:
        yield server


def dialog(page):
    return page.get_by_role("dialog")


def test_a_key_is_asked_for_refused_and_remembered(open_page, locked, watch):
    watch.expect("401")
    page = open_page(port=locked.port)
    expect(dialog(page)).to_have_count(1)
    expect(dialog(page)).to_contain_text("This server requires a key")
    dialog(page).get_by_label("Key").fill("wrong")
    dialog(page).get_by_role("button", name="Use this key").click()
    expect(dialog(page)).to_contain_text("The server refused the key")
    dialog(page).get_by_label("Key").fill(KEY)
    dialog(page).get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("status").filter(has_text="kvik-tiny")).to_be_visible()
    ask(page, "Hello.")
    wait_for_answers(page, 1)
    page.reload()
    wait_for_answers(page, 1)
    expect(dialog(page)).to_have_count(0)
    assert page.evaluate("JSON.stringify(Object.keys(localStorage))") == '["kvik.key"]'
    assert KEY not in page.evaluate("document.documentElement.outerHTML + location.href")


def test_a_key_that_is_not_given_is_said(open_page, locked, watch):
    watch.expect("401")
    page = open_page(port=locked.port)
    expect(dialog(page)).to_have_count(1)
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    expect(page.get_by_role("alert").first).to_contain_text("key")
    expect(page.get_by_text("No key", exact=True)).to_be_visible()


def test_a_request_refused_after_the_question_was_answered_does_not_ask_again(open_page, locked, watch):
    watch.expect("401")
    page = open_page(port=locked.port)
    expect(dialog(page)).to_have_count(1)
    held = []
    page.route("**/v1/shelf", lambda route: held.append(route))
    page.reload()
    expect(dialog(page)).to_have_count(1)
    while not held:
        page.wait_for_timeout(10)
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    for route in held:
        route.continue_()
    expect(page.get_by_text("No key", exact=True)).to_be_visible()
    expect(dialog(page)).to_have_count(0)


# A browser that refuses storage, and one in which there is no room.
FORBIDDEN = "for (const name of ['localStorage', 'sessionStorage']) Object.defineProperty(window, name, {get() { throw new DOMException('no', 'SecurityError'); }})"
FULL = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }"


@pytest.mark.parametrize("refuses", [FORBIDDEN, FULL])
def test_what_a_browser_refuses_to_keep_lasts_as_long_as_the_page(open_page, locked, watch, refuses):
    watch.expect("401")
    page = open_page(port=locked.port)
    page.add_init_script(refuses)
    page.reload()
    dialog(page).get_by_label("Key").fill(KEY)
    dialog(page).get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("status").filter(has_text="kvik-tiny")).to_be_visible()
    ask(page, "Hello.")
    wait_for_answers(page, 1)
    expect(dialog(page)).to_have_count(0)


def test_a_full_queue_gives_the_question_back(open_page, watch, tmp_path):
    watch.expect("429")
    stall = tmp_path / "stall"
    with (
        serve("--parallel", "1", "--queue", "2", env={"KVIK_TEST_STALL": str(stall)}) as server,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        page = open_page(port=server.port)
        page.get_by_label("Your question").fill("Is there room?")
        # No step is taken, so the queue stays full however slow the browser is; which of these are refused is open.
        stall.touch()
        busy = [pool.submit(server.open_stream, "/completion", LONG) for _ in range(12)]
        while sum(stream.done() and stream.result()[1].status == 429 for stream in busy) == 0:
            page.wait_for_timeout(20)
        page.get_by_role("button", name="Send").click()
        note = page.locator(".note")
        expect(note).to_contain_text("Too many requests wait at the server")
        expect(note).to_contain_text(re.compile(r"Send again in \d+ s\."))
        expect(page.get_by_label("Your question")).to_have_value("Is there room?")
        stall.unlink()
        assert kept(server, open_id(page)) == []
        for stream in busy:
            connection, response = stream.result()
            connection.sock.close()
            response.close()
        wait_until(page, lambda: server.metric("kvik_requests_waiting") + server.metric("kvik_requests_running") == 0)
        page.get_by_role("button", name="Send").click()
        wait_for_answers(page, 1)
        expect(page.locator(".note")).to_be_hidden()
        page.goto("about:blank")


def test_a_server_killed_in_mid_stream_leaves_a_draft(open_page, watch, tmp_path):
    watch.expect("ERR_|Failed to load")
    state, stall = {"KVIK_STATE_DIR": str(tmp_path / "state")}, tmp_path / "stall"
    with serve(env=state | {"KVIK_TEST_STALL": str(stall)}) as server, Between(server.port) as between:
        page = open_page(port=between.port)
        ask(page, "Please remember that my dog is called Bolt.")
        wait_for_answers(page, 1)
        between.stall, between.fields = stall, {"ignore_eos": True, "max_tokens": 1500, "kvik": {"stop_loops": False}}
        ask(page, "What is my dog called?")
        expect(page.locator(".answering .content")).not_to_be_empty()
        wait_until(page, stall.exists)
        server.kill()
        between.stall = None
        half_a_minute_passes(page)
        expect(page.locator(".note")).to_contain_text("The connection ended in the middle of the answer. Whether the server has answered is seen when it is back")
        expect(page.get_by_label("Your question")).to_have_value("What is my dog called?")
        expect(page.locator(".rest .content")).not_to_be_empty()
        # As long as it is away, that is what is said, and nothing is lost.
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".note")).to_contain_text("The server does not answer.")
        expect(page.get_by_label("Your question")).to_have_value("What is my dog called?")
        between.fields = {}
        with serve(env=state) as again:
            between.upstream = again.port
            page.get_by_role("button", name="Send").click()
            wait_for_answers(page, 2)
            assert [role for role, _ in kept(again, open_id(page))] == ["user", "assistant"] * 2
            page.goto("about:blank")


def half_a_minute_passes(page):
    """So long the page looks for a server whose connection was lost."""
    expect(page.locator(".answering .waiting")).to_contain_text("The connection was lost.")
    page.evaluate("(now => { performance.now = () => now() + 60_000; })(performance.now.bind(performance))")


def test_a_reload_in_mid_answer_gives_the_question_back(open_page, server, between):
    page = open_page(port=between.port)
    between.delay_s, between.scripted = 0.05, [f"word{number} " for number in range(300)]
    ask(page, "Count.")
    expect(page.locator(".answering .content")).to_contain_text("word3 ")
    page.reload()
    expect(page.get_by_label("Your question")).to_have_value("Count.")
    expect(page.locator(".note")).to_contain_text("was not finished")
    between.delay_s = 0
    page.get_by_role("button", name="Send").click()
    wait_for_answers(page, 1)
    page.reload()
    wait_for_answers(page, 1)
    expect(page.get_by_label("Your question")).to_have_value("")
    expect(page.locator(".note")).to_be_hidden()


@pytest.fixture
def stalled(tmp_path):
    """A server that takes no step any more once twenty events of an answer have passed, and the proxy before it."""
    stall = tmp_path / "stall"
    with serve("--memory", "on", env={"KVIK_TEST_STALL": str(stall)}) as server, Between(server.port) as between:
        between.stall, between.fields = stall, {"ignore_eos": True, "max_tokens": 1500, "kvik": {"stop_loops": False}}
        yield server, between


def begin_a_long_answer(page, between):
    ask(page, "Please tell me all that you know.")
    expect(page.locator(".answering .content")).to_contain_text(re.compile(".{20}"))
    while not between.stall.exists():
        page.wait_for_timeout(10)


def go_on(between):
    stall, between.stall = between.stall, None
    stall.unlink()


def test_an_answer_goes_on_after_a_reload(open_page, stalled):
    server, between = stalled
    page = open_page(port=between.port)
    begin_a_long_answer(page, between)
    said = page.locator(".answering .content").inner_text()[:20]
    page.reload()
    expect(page.locator(".live .message.user")).to_contain_text("Please tell me all that you know.")
    expect(page.locator(".answering .content")).to_contain_text(said)
    expect(page.locator(".note")).to_be_hidden()
    go_on(between)
    wait_for_answers(page, 1)
    assert answers(page).inner_text().startswith(said)
    assert [role for role, _ in kept(server, open_id(page))] == ["user", "assistant"]
    expect(page.locator(".strip")).to_contain_text("generated")
    expect(page.get_by_label("Your question")).to_have_value("")
    page.goto("about:blank")


def test_an_answer_is_found_when_a_lost_connection_is_back(open_page, stalled, watch):
    watch.expect("ERR_|Failed to load")
    server, between = stalled
    page = open_page(port=between.port)
    begin_a_long_answer(page, between)
    between.away = True
    go_on(between)
    expect(page.locator(".answering .waiting")).to_contain_text("The connection was lost.")
    between.away = False
    wait_for_answers(page, 1)
    expect(page.locator(".note")).to_be_hidden()
    expect(page.get_by_label("Your question")).to_have_value("")
    assert [role for role, _ in kept(server, open_id(page))] == ["user", "assistant"]
    page.goto("about:blank")


def test_whether_there_is_an_answer_is_seen_when_a_server_is_back_later(open_page, stalled, watch):
    watch.expect("ERR_|Failed to load")
    server, between = stalled
    page = open_page(port=between.port)
    begin_a_long_answer(page, between)
    between.away = True
    go_on(between)
    half_a_minute_passes(page)
    expect(page.locator(".note")).to_contain_text("Whether the server has answered is seen when it is back")
    expect(page.get_by_label("Your question")).not_to_have_value("")
    expect(page.locator(".rest")).not_to_contain_text("It is not kept")
    while server.metric("kvik_requests_running") > 0:
        page.wait_for_timeout(10)
    between.away = False
    wait_for_answers(page, 1)
    expect(page.get_by_label("Your question")).to_have_value("")
    expect(page.locator(".rest")).to_have_count(0)
    page.goto("about:blank")


def test_an_answer_is_followed_and_stopped_in_another_tab(open_page, stalled):
    server, between = stalled
    first = open_page(port=between.port)
    begin_a_long_answer(first, between)
    second = open_page(f"#/chat/{open_id(first)}", port=between.port, context=first.context)
    expect(second.locator(".answering .content")).not_to_be_empty()
    second.get_by_role("button", name="Stop").click()
    expect(second.locator(".note")).to_contain_text("You stopped the answer")
    expect(first.locator(".rest .content")).not_to_be_empty()
    go_on(between)
    while server.metric("kvik_requests_running") > 0:
        first.wait_for_timeout(10)
    assert kept(server, open_id(first)) == []
    for page in first, second:
        page.goto("about:blank")


def test_what_was_being_written_outlives_a_reload(page):
    page.get_by_label("Your question").fill("half a thou")
    page.reload()
    expect(page.get_by_label("Your question")).to_have_value("half a thou")


def test_a_change_in_one_tab_is_seen_in_the_other(open_page, conversation, server):
    id = conversation(turns("Hello.", "Hi."), "two tabs")
    first = open_page(f"#/chat/{id}")
    second = open_page(f"#/chat/{id}", context=first.context)
    wait_for_answers(second, 1)
    ask(first, "What is my dog called?")
    wait_for_answers(first, 2)
    wait_for_answers(second, 2)
    expect(questions(second).last).to_have_text("What is my dog called?")
    assert answers(second).all_inner_texts() == answers(first).all_inner_texts()
    first.get_by_role("button", name="More actions with this conversation").click()
    first.get_by_role("button", name="Delete").click()
    first.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(second.get_by_role("list", name="Conversations").get_by_text("two tabs")).to_have_count(0)
    expect(second.get_by_role("alert")).to_have_text("This conversation was deleted in another tab.")


@pytest.mark.parametrize("pending", [False, True])
def test_a_deletion_that_is_not_complete_is_said(open_page, conversation, pending):
    page = open_page(f"#/chat/{conversation(turns('Hello.', 'Hi.'))}")
    wait_for_answers(page, 1)
    answer = {"deleted": False, "pending": True} if pending else {"deleted": True}
    page.route("**/v1/conversations/conv_*", lambda route: route.fulfill(json=answer) if route.request.method == "DELETE" else route.fallback())
    page.get_by_role("button", name="More actions with this conversation").click()
    page.get_by_role("button", name="Delete").click()
    dialog(page).get_by_role("button", name="Delete").click()
    rest = " What was computed for it goes as soon as that can be done." if pending else ""
    expect(page.get_by_text(f"The conversation is deleted.{rest}", exact=True)).to_be_visible()


def test_a_conversation_that_another_program_uses_is_said_to_be_busy(open_page, stalled, watch):
    watch.expect("409")
    server, between = stalled
    id = server.post("/v1/conversations", {"messages": turns("Hello.", "Hi."), "name": "busy"}).json["id"]
    page = open_page(f"#/chat/{id}", port=server.port)
    wait_for_answers(page, 1)
    body = {"messages": [{"role": "user", "content": "Go on."}], "stream": True, "ignore_eos": True, "max_tokens": 1900,
            "kvik": {"conversation": id}}
    begin = lambda: server.begin_stream("/v1/chat/completions", body)
    with server.stalled(between.stall, begin) as (connection, response):
        ask(page, "And me?")
        expect(page.locator(".note")).to_contain_text("Another tab or program is asking in this conversation.")
        expect(page.get_by_label("Your question")).to_have_value("And me?")
        response.close()
        connection.close()
    page.goto("about:blank")


def test_a_conversation_that_is_gone_is_said_to_be(open_page, watch):
    watch.expect("404")
    page = open_page("#/chat/conv_000000000000000000000000")
    expect(page.get_by_role("alert")).to_contain_text("There is no such conversation")


def changed_elsewhere(page, id):
    """Another tab says that it has changed a conversation."""
    page.evaluate("id => new BroadcastChannel('kvik').postMessage({id, deleted: false})", id)


def test_what_cannot_be_read_again_stays_and_what_was_not_read_is_tried_again(open_page, conversation, watch):
    watch.expect("429")
    id = conversation(turns("Hello.", "Hi."), "read once")
    page = open_page(f"#/chat/{id}")
    wait_for_answers(page, 1)
    page.route(f"**/v1/conversations/{id}", lambda route: route.fulfill(status=429, json={"error": {"message": "Too many requests.", "code": "rate_limit_exceeded"}}))
    changed_elsewhere(page, id)
    expect(page.get_by_role("alert").filter(has_text="could not be read again. Too many requests.")).to_be_visible()
    expect(answers(page)).to_have_text("Hi.")
    page.reload()
    expect(page.get_by_role("alert").filter(has_text="could not be read. Too many requests.")).to_be_visible()
    page.unroute(f"**/v1/conversations/{id}")
    page.get_by_role("button", name="Try again").click()
    wait_for_answers(page, 1)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_an_error_inside_a_stream_is_the_end_of_it(open_page, server):
    page = open_page()
    error = {"error": {"message": "The model failed.", "type": "server_error", "param": None, "code": "internal_error"}}
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in ({"choices": [{"delta": {"content": "Half"}}]}, error))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    ask(page, "Hello.")
    expect(page.locator(".note")).to_contain_text("The model failed.")
    expect(page.locator(".rest .content")).to_have_text("Half")
    assert kept(server, open_id(page)) == []


def test_a_model_that_loads_is_said_to_load(open_page, watch):
    watch.expect("503")
    page = open_page("#/retention")
    page.route("**/health", lambda route: route.fulfill(status=503, json={"error": {"message": "Loading model"}}))
    page.reload()
    expect(page.get_by_text("The model is loading")).to_be_visible()
    page.unroute("**/health")
    expect(page.get_by_text("kvik-tiny", exact=True)).to_be_visible()
