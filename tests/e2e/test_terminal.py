"""`kvik chat` through its pipes and in a terminal: a conversation is remembered, edited, and there after a kill."""
import fcntl
import json
import os
import pty
import re
import selectors
import signal
import subprocess
import termios
import time

import pytest
from server import BINARY

FLAGS = ("--context", "1024", "--memory-recent", "300", "--memory-summary", "64", "--memory-trigger", "120")
FLAGS += ("--memory-quotes", "0", "--cache-ram", "64MiB")
# An answer of hundreds of tokens.
LONG = ("--temperature", "2", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "6")
SECONDS = 60
# What a reader takes at the least before the next turn.
PAUSE = 0.1
# The end of every answer.
STATUS = "tokens/s"


def environment(home):
    """That of a user with this directory."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KVIK_")}
    homes = {name: str(home) for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "KVIK_MODELS_DIR")}
    return clean | homes | {"KVIK_CACHE_DISK": "off", "TERM": "xterm"}


class Terminal:
    """A running `kvik chat` of a user with this directory; a context manager that leaves no process behind."""

    def __init__(self, *flags, home):
        command = [str(BINARY), "chat", *FLAGS, *flags]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, env=environment(home), stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT
        )
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.greeting = self.type("/help", end="Ctrl-C stops an answer")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(SECONDS)
        finally:
            self.process.kill()
            self.process.stdout.close()

    def read_until(self, end):
        """What is shown up to the line that contains `end`."""
        deadline, shown = time.monotonic() + SECONDS, ""
        while end not in shown or not shown.endswith("\n"):
            assert self.selector.select(deadline - time.monotonic()), f"no {end!r} in {SECONDS} s: {shown}"
            read = os.read(self.process.stdout.fileno(), 1 << 16).decode()
            assert read, f"kvik ended: {shown}"
            shown += read
        return shown

    def send(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, line):
        """Waits for the first piece of an answer."""
        self.send(line)
        assert self.selector.select(SECONDS), f"no answer in {SECONDS} s"

    def type(self, line, end=STATUS):
        """What is shown for a line, up to the line that contains `end`."""
        self.send(line)
        return self.read_until(end)

    def talk(self, turns):
        """Small talk; what is shown of its last turn."""
        for turn in range(turns):
            shown = self.type(f"The bus number {turn} was late again. I had noodles for lunch.")
            time.sleep(PAUSE)
        return shown


def test_a_fact_is_recalled_after_more_than_the_context_holds(tmp_path):
    with Terminal("--max-tokens", "24", home=tmp_path) as terminal:
        terminal.type("Please remember that my dog is called Bolt.")
        assert "messages in a summary" in terminal.talk(60)
        assert "Bolt" in terminal.type("What is my dog called?")
        assert "  recent " in terminal.type("/memory", end="the summary of ")


def test_what_is_taken_back_is_no_longer_known(tmp_path):
    with Terminal("--max-tokens", "24", home=tmp_path) as terminal:
        terminal.type("My dog is called Bolt.")
        assert "Bolt" in terminal.type("What is my dog called?")
        terminal.type("/undo", end="taken back: What is my dog called?")
        terminal.type("/undo", end="taken back: My dog is called Bolt.")
        assert "Bolt" not in terminal.type("What is my dog called?")


def test_a_conversation_goes_on_after_a_kill(tmp_path):
    with Terminal("--max-tokens", "24", home=tmp_path) as terminal:
        terminal.type("Please remember that my dog is called Bolt.")
        assert "messages in a summary" in terminal.talk(60)
        terminal.process.kill()
    with Terminal("--max-tokens", "24", "--resume", home=tmp_path) as terminal:
        assert "Please remember that my dog is called Bolt.: 122 messages" in terminal.greeting
        answer = terminal.type("What is my dog called?")
        assert "Bolt" in answer and "messages in a summary" in answer


def test_an_answer_that_a_kill_ends_leaves_no_question(tmp_path):
    with Terminal(*LONG, home=tmp_path) as terminal:
        terminal.begin("Tell me a story.")
        terminal.process.kill()
    with Terminal(home=tmp_path) as terminal:
        assert "--resume" not in terminal.greeting


def test_an_interrupt_stops_the_answer_and_then_the_program(tmp_path):
    with Terminal(*LONG, home=tmp_path) as terminal:
        terminal.begin("Tell me a story.")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("stopped; the question is not part of the conversation")
        terminal.type("/list", end="there is no conversation yet")
        assert STATUS in terminal.type("My dog is called Bolt.")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(SECONDS) == 130


def test_three_quotes_begin_and_end_a_text_of_several_lines(tmp_path):
    with Terminal("--max-tokens", "24", home=tmp_path) as terminal:
        for line in ('"""My dog', "is called"):
            terminal.send(line)
        terminal.type('Bolt."""')
        terminal.type(f"/export {tmp_path / 'talk.json'}", end="written: ")
        terminal.send("/bye")
        assert terminal.process.wait(SECONDS) == 0
    assert "My dog\\nis called\\nBolt." in (tmp_path / "talk.json").read_text()


class Keyboard:
    """`kvik` in a terminal of its own: keys are typed, and what is shown is read without its escape sequences."""

    def __init__(self, *command, home):
        self.main, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [str(BINARY), *command], env=environment(home), stdin=terminal, stdout=terminal, stderr=terminal,
            # Ctrl-C reaches whoever has it as the terminal of its session.
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        self.shown = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.main)

    def press(self, keys):
        os.write(self.main, keys.encode())

    def enter(self, line):
        """Types a line at the prompt."""
        self.wait_for("> ")
        self.press(line + "\r")

    def wait_for(self, text):
        """What is shown until `text`, which is then behind."""
        deadline = time.monotonic() + SECONDS
        while text not in self.shown:
            with selectors.DefaultSelector() as selector:
                selector.register(self.main, selectors.EVENT_READ)
                assert selector.select(deadline - time.monotonic()), f"no {text!r} in {SECONDS} s: {self.shown}"
            read = os.read(self.main, 1 << 16).decode(errors="replace")
            self.shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", read).replace("\r", "")
        before, self.shown = self.shown.split(text, 1)
        return before


CHAT = ("chat", *FLAGS, "--max-tokens", "24")


def test_a_question_is_there_again_after_ctrl_c(tmp_path):
    with Keyboard("chat", *FLAGS, *LONG, home=tmp_path) as keyboard:
        keyboard.enter("Tell me a story.")
        # The first words of the answer.
        keyboard.wait_for("story.\n")
        keyboard.wait_for(" ")
        keyboard.press("\x03")
        keyboard.wait_for("stopped; the question is not part of the conversation")
        keyboard.wait_for("> Tell me a story.")
        # Ctrl-U empties the line.
        keyboard.press("\x15/set max_tokens 4\r")
        keyboard.enter("Tell me a tale.")
        keyboard.wait_for(STATUS)
        keyboard.enter("/list")
        keyboard.wait_for("Tell me a tale.  (2 messages")


def test_alt_enter_begins_another_line(tmp_path):
    with Keyboard(*CHAT, home=tmp_path) as keyboard:
        keyboard.enter("My dog is\x1b\rcalled Bolt.")
        keyboard.wait_for(STATUS)
        keyboard.enter(f"/export {tmp_path / 'talk.json'}")
        keyboard.wait_for("written: ")
        keyboard.enter("/bye")
        assert keyboard.process.wait(SECONDS) == 0
    messages = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert messages[0]["content"] == "My dog is\ncalled Bolt."


def test_a_name_without_a_prompt_is_talked_with_in_a_terminal(tmp_path):
    with Keyboard("run", "embedded", "--max-tokens", "24", "--cache-ram", "64MiB", home=tmp_path) as keyboard:
        keyboard.wait_for("is a demonstration")
        keyboard.enter("Who are you?")
        keyboard.wait_for("kvik-tiny")
        keyboard.wait_for(STATUS)
        keyboard.wait_for("> ")
        keyboard.press("\x04")
        assert keyboard.process.wait(SECONDS) == 0


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_system_message_asks_before_the_conversation_ends(tmp_path, answer):
    with Keyboard(*CHAT, home=tmp_path) as keyboard:
        keyboard.enter("My dog is called Bolt.")
        keyboard.wait_for(STATUS)
        keyboard.enter("/system Be brief.")
        keyboard.wait_for("begin, y or n?")
        keyboard.enter(answer)
        keyboard.enter("What is my dog called?")
        keyboard.wait_for("called?\n")
        assert ("Bolt" in keyboard.wait_for(STATUS)) == (answer == "n")
