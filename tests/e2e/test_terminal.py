"""`kvik chat` through its pipes and in a terminal: a conversation is remembered, edited, and there after a kill."""
import http.server
import json
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server import BINARY  # noqa: E402
from terminals import LONG, SECONDS, STATUS, Keyboard, Terminal, environment  # noqa: E402

FLAGS = ("--context", "1024", "--memory-recent", "300", "--memory-summary", "64", "--memory-trigger", "120")
FLAGS += ("--memory-quotes", "0", "--cache-ram", "64MiB")
# Thousands of tokens fit, of a second or more.
LONG += ("--context", "8192", "--cache-ram", "64MiB")


def chat(*flags, home):
    """A running `kvik chat` of a user with this directory, which loads the model itself."""
    return Terminal(*FLAGS, *flags, env=environment(home))


def test_a_fact_is_recalled_after_more_than_the_context_holds(tmp_path):
    with chat("--max-tokens", "24", home=tmp_path) as terminal:
        terminal.type("Please remember that my dog is called Bolt.")
        terminal.talk(60, "messages in a summary")
        assert "Bolt" in terminal.type("What is my dog called?")
        assert "  recent " in terminal.type("/memory", end="the summary of ")


def test_what_is_taken_back_is_no_longer_known(tmp_path):
    with chat("--max-tokens", "24", home=tmp_path) as terminal:
        terminal.type("My dog is called Bolt.")
        assert "Bolt" in terminal.type("What is my dog called?")
        terminal.type("/undo", end="taken back: What is my dog called?")
        terminal.type("/undo", end="taken back: My dog is called Bolt.")
        assert "Bolt" not in terminal.type("What is my dog called?")


def test_a_conversation_goes_on_after_a_kill(tmp_path):
    with chat("--max-tokens", "24", home=tmp_path) as terminal:
        terminal.type("Please remember that my dog is called Bolt.")
        turns = terminal.talk(60, "messages in a summary")
        terminal.process.kill()
    with chat("--max-tokens", "24", "--continue", home=tmp_path) as terminal:
        assert f"Please remember that my dog is called Bolt.: {2 * turns + 2} messages" in terminal.greeting
        answer = terminal.type("What is my dog called?")
        assert "Bolt" in answer and "messages in a summary" in answer


def test_an_answer_that_a_kill_ends_leaves_no_question(tmp_path):
    with Terminal(*LONG, env=environment(tmp_path)) as terminal:
        terminal.begin("Tell me a story.")
        terminal.process.kill()
    with chat(home=tmp_path) as terminal:
        assert "--continue" not in terminal.greeting


def test_an_interrupt_stops_the_answer_and_then_the_program(tmp_path):
    with Terminal(*LONG, env=environment(tmp_path)) as terminal:
        terminal.begin("Tell me a story.")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("stopped; the question is not part of the conversation")
        terminal.type("/list", end="there is no conversation yet")
        assert STATUS in terminal.type("My dog is called Bolt.")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(SECONDS) == 130


def test_three_quotes_begin_and_end_a_text_of_several_lines(tmp_path):
    with chat("--max-tokens", "24", home=tmp_path) as terminal:
        for line in ('"""My dog', "is called"):
            terminal.send(line)
        terminal.type('Bolt."""')
        terminal.type(f"/export {tmp_path / 'talk.json'}", end="written: ")
        terminal.send("/bye")
        assert terminal.process.wait(SECONDS) == 0
    assert "My dog\\nis called\\nBolt." in (tmp_path / "talk.json").read_text()


def keyboard(*command, home):
    """`kvik` in a terminal of a user with this directory."""
    return Keyboard(*command, env=environment(home))


CHAT = ("chat", *FLAGS, "--max-tokens", "24")


# Once the line is taken, and once the answer has begun.
@pytest.mark.parametrize("shown", ["story.\n", "Once"])
def test_a_question_is_there_again_after_ctrl_c(tmp_path, shown):
    with keyboard("chat", *LONG, home=tmp_path) as keys:
        keys.enter("Tell me a story.")
        keys.wait_for(shown)
        keys.press("\x03")
        keys.wait_for("stopped; the question is not part of the conversation")
        keys.wait_for("> Tell me a story.")
        # Ctrl-U empties the line.
        keys.press("\x15/set max_tokens 4\r")
        keys.enter("Tell me a tale.")
        keys.wait_for(STATUS)
        keys.enter("/list")
        keys.wait_for("Tell me a tale.  (2 messages")


def test_alt_enter_begins_another_line(tmp_path):
    with keyboard(*CHAT, home=tmp_path) as keys:
        keys.enter("My dog is\x1b\rcalled Bolt.")
        keys.wait_for(STATUS)
        keys.enter(f"/export {tmp_path / 'talk.json'}")
        keys.wait_for("written: ")
        keys.enter("/bye")
        assert keys.process.wait(SECONDS) == 0
    messages = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert messages[0]["content"] == "My dog is\ncalled Bolt."


def files_with(folder, text):
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def talk_of_umbrellas(*flags, home):
    """A conversation in a terminal, which is left."""
    with keyboard(*CHAT, *flags, home=home) as keys:
        keys.enter("Who keeps purple umbrellas?")
        keys.wait_for(STATUS)
        keys.enter("/bye")
        assert keys.process.wait(SECONDS) == 0


def test_lines_of_a_deleted_conversation_are_in_no_file(tmp_path):
    """The history kept what was typed for ever, in the directory of settings, also with --memory off."""
    history = tmp_path / "kvik" / "chat" / "history"
    talk_of_umbrellas(home=tmp_path)
    assert history in files_with(tmp_path, "umbrellas") and history.stat().st_mode & 0o777 == 0o600
    with keyboard(*CHAT, home=tmp_path) as keys:
        keys.enter("/delete Who keeps purple umbrellas?")
        keys.wait_for("deleted: ")
        deadline = time.monotonic() + SECONDS
        while found := files_with(tmp_path, "umbrellas"):
            assert time.monotonic() < deadline, found
            time.sleep(0.2)
        keys.enter("/bye")
        assert keys.process.wait(SECONDS) == 0
    assert not files_with(tmp_path, "umbrellas")


def test_lines_that_are_not_to_be_kept_are_in_no_file(tmp_path):
    talk_of_umbrellas("--memory", "off", home=tmp_path)
    subprocess.run(
        [BINARY, *CHAT, "--memory", "off"], env=environment(tmp_path), input="Who keeps purple umbrellas?\n",
        capture_output=True, text=True, timeout=SECONDS, check=True,
    )
    assert not files_with(tmp_path, "umbrellas")


def test_a_name_without_a_prompt_is_talked_with_in_a_terminal(tmp_path):
    with keyboard("run", "embedded", "--max-tokens", "24", "--cache-ram", "64MiB", home=tmp_path) as keys:
        keys.wait_for("is a demonstration")
        keys.enter("Who are you?")
        keys.wait_for("kvik-tiny")
        keys.wait_for(STATUS)
        keys.wait_for("> ")
        keys.press("\x04")
        assert keys.process.wait(SECONDS) == 0


def test_raw_is_no_conversation(tmp_path):
    with keyboard("run", "--raw", "embedded", home=tmp_path) as keys:
        keys.wait_for("`kvik run --raw embedded TEXT` goes on with it")
        assert keys.process.wait(SECONDS) == 1


@pytest.mark.parametrize(
    "lines,code,error",
    [
        ("/list\n", 0, ""),
        ("/no-such-command\n/list\n", 1, "there is no command /no-such-command"),
        ("/load gone\n/list\n", 1, "error: there is no conversation `gone`"),
        ('/list\n"""My dog\nis called Bolt.\n', 1, "error: the input ends in a text that three quotes"),
    ],
)
def test_what_fails_through_a_pipe_is_apart_from_what_is_said(tmp_path, lines, code, error):
    command = [BINARY, *CHAT]
    done = subprocess.run(command, env=environment(tmp_path), input=lines, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == code and error in done.stderr, done
    assert "there is no conversation yet" in done.stdout and "error" not in done.stdout, done


def test_a_list_of_pictures_is_a_text(tmp_path):
    (tmp_path / "a.png").touch()
    words = [BINARY, "run", "--max-tokens", "4", "--cache-ram", "64MiB"]
    run = lambda prompt, piped: subprocess.run(
        [*words, prompt], env=environment(tmp_path), input=piped, capture_output=True, text=True, timeout=SECONDS
    )
    listed = run("Group these names", f"{tmp_path / 'a.png'}\n")
    assert listed.returncode == 0 and listed.stdout, listed
    typed = run(f"What is on {tmp_path / 'a.png'}?", "")
    assert typed.returncode == 1 and "text alone" in typed.stderr, typed


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_system_message_asks_before_the_conversation_ends(tmp_path, answer):
    with keyboard(*CHAT, home=tmp_path) as keys:
        keys.enter("My dog is called Bolt.")
        keys.wait_for(STATUS)
        keys.enter("/system Be brief.")
        keys.wait_for("begin, y or n?")
        keys.enter(answer)
        keys.enter("What is my dog called?")
        keys.wait_for("called?\n")
        assert ("Bolt" in keys.wait_for(STATUS)) == (answer == "n")


def test_a_server_ends_with_its_terminal(tmp_path):
    with keyboard("serve", "--port", "0", "--cache-ram", "64MiB", "--threads", "2", home=tmp_path) as keys:
        keys.wait_for("Try it:")
        keys.hang_up()
        assert keys.process.wait(SECONDS) == 0


class Hostile(http.server.BaseHTTPRequestHandler):
    """What looks like a kvik, with a model that says what clears a screen, in two pieces."""

    SAID = "a\x1b", "[2Jb"
    MODEL = {"name": "m", "aliases": [], "source": "m", "status": "loaded"}

    def do_GET(self):
        shelf = {"object": "shelf", "bytes": None, "can_pull": False, "models": [self.MODEL]}
        self.answer(json.dumps(shelf if self.path == "/v1/shelf" else {}))

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        pieces = [json.dumps({"choices": [{"delta": {"content": piece}}]}) for piece in self.SAID]
        self.answer("".join(f"data: {event}\n\n" for event in (*pieces, "[DONE]")))

    def answer(self, text):
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        """Says nothing."""


def test_a_terminal_obeys_nothing_that_a_model_says(tmp_path):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = ("run", "--url", f"http://127.0.0.1:{server.server_port}", "Hello")
        with keyboard(*words, home=tmp_path) as keys:
            # Sequences that are obeyed are not among what is shown.
            keys.wait_for("a\ufffd[2Jb")
        piped = subprocess.run(
            [BINARY, *words], env=environment(tmp_path), stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=True
        )
        server.shutdown()
    assert piped.stdout == b"a\x1b[2Jb\n", "a program reads what was said"
