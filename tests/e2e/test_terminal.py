"""`kvik chat`, driven through its pipes: a long conversation is remembered, and what was said is there after a kill."""
import os
import selectors
import signal
import subprocess
import time

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


class Terminal:
    """A running `kvik chat` of a user with this directory; a context manager that leaves no process behind."""

    def __init__(self, *flags, home):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("KVIK_")}
        clean |= {"XDG_CONFIG_HOME": str(home), "XDG_STATE_HOME": str(home), "KVIK_CACHE_DISK": "off"}
        command = [str(BINARY), "chat", *FLAGS, *flags]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=clean, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
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
