"""A person's shell in a terminal: what is typed into it, and what the terminal then shows."""
import codecs
import fcntl
import os
import pty
import re
import selectors
import struct
import subprocess
import termios
import time

from terminal_screen import Screen

# The shell's mark before each prompt, as terminals ask for it; none is shown.
MARK = "133;A"


class Shell:
    """bash in a home directory; a context manager that leaves no process behind."""

    def __init__(self, home, variables):
        self.screen, self.decoder = Screen(), codecs.getincrementaldecoder("utf-8")("replace")
        self.main, terminal = pty.openpty()
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", self.screen.rows, self.screen.columns, 0, 0))
        own = {"TERM": "xterm-256color", "PS1": "$ ", "PROMPT_COMMAND": rf"printf '\033]{MARK}\007'", "VIRTUAL_ENV_DISABLE_PROMPT": "1"}
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], cwd=home, env=variables | own, stdin=terminal, stdout=terminal, stderr=terminal,
            # Ctrl-C reaches whoever has it as the terminal of its session.
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        self.prompts = 0

    def __enter__(self):
        self.waits(10)
        return self

    def __exit__(self, *_):
        # A shell that loses its terminal ends what runs in it.
        os.close(self.main)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()

    def run(self, line, seconds, glimpse=None):
        """What the terminal shows of a command, and what it showed when this pattern was first seen."""
        first, seen = self.presses(line), None
        for _ in self.until_prompt(seconds):
            if glimpse and seen is None and re.search(glimpse, self.shows(first)):
                seen = self.shows(first)
        return self.shows(first).removesuffix("\n$"), seen

    def waits(self, seconds):
        """Waits for the next prompt."""
        for _ in self.until_prompt(seconds):
            pass

    def until_prompt(self, seconds):
        """Reads until the shell has marked its prompt and the terminal shows it."""
        deadline = time.monotonic() + seconds
        while self.screen.told.count(MARK) <= self.prompts or not self.shows().endswith("$"):
            yield self.reads(deadline, "a prompt")
        self.prompts += 1

    def begins(self, line, text, seconds):
        """Types a command that goes on, waits until it shows a text, and returns its first line."""
        first = self.presses(line)
        self.until(first, text, seconds)
        return first

    def enters(self, line, text, seconds):
        """Types a line at the prompt of what runs, and waits for a text behind it."""
        self.settles(seconds)
        self.until(self.presses(line), text, seconds)

    def ends(self, line, first, seconds):
        """Types the last line at the prompt of what runs; returns what the terminal shows from the line `first` on."""
        self.settles(seconds)
        self.presses(line)
        self.waits(seconds)
        return self.shows(first).removesuffix("\n$")

    def shows(self, first=0):
        return self.screen.text(first)

    def until(self, first, text, seconds):
        deadline = time.monotonic() + seconds
        while text not in self.shows(first):
            self.reads(deadline, text)

    def settles(self, seconds):
        """Waits for the prompt of a conversation: what is typed before is echoed twice."""
        deadline = time.monotonic() + seconds
        while not self.shows().endswith("\n>"):
            self.reads(deadline, "a prompt")

    def presses(self, line):
        """Types a line; returns the number of the screen's line on which it stands."""
        os.write(self.main, line.encode() + b"\r")
        return self.screen.row

    def reads(self, deadline, awaited):
        with selectors.DefaultSelector() as selector:
            selector.register(self.main, selectors.EVENT_READ)
            if not selector.select(max(0, deadline - time.monotonic())):
                raise AssertionError(f"no {awaited!r} in time; the terminal shows:\n{self.shows()}")
        answer = self.screen.feed(self.decoder.decode(os.read(self.main, 1 << 16)))
        if answer:
            os.write(self.main, answer.encode())
