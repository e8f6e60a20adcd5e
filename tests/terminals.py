"""`kvik` as a person has it: through pipes, and in a terminal of its own."""
import fcntl
import os
import pty
import re
import selectors
import subprocess
import termios
import time

from server import BINARY

SECONDS = 60
# What a reader takes at the least before the next turn.
PAUSE = 0.1
# The end of every answer.
STATUS = "tokens/s"
# An answer without an end: what was said is more likely each time.
LONG = ("--temperature", "0", "--repeat-penalty", "0.5", "--allow-loops")


def environment(home):
    """That of a user with this directory."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KVIK_")}
    homes = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "KVIK_MODELS_DIR")
    return clean | {name: str(home) for name in homes} | {"KVIK_CACHE_DISK": "off", "TERM": "xterm"}


class Terminal:
    """A running `kvik chat` in this environment; a context manager that leaves no process behind."""

    def __init__(self, *flags, env):
        command, pipe = [str(BINARY), "chat", *flags], subprocess.PIPE
        self.process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
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

    def talk(self, turns, until):
        """Small talk of so many turns, and of more until the last one shows this; how many there were."""
        deadline, turn, shown = time.monotonic() + SECONDS + 2 * turns, 0, ""
        while turn < turns or until not in shown:
            assert time.monotonic() < deadline, f"no {until!r} after {turn} turns: {shown}"
            shown = self.type(f"The bus number {turn} was late again. I had noodles for lunch.")
            turn += 1
            time.sleep(PAUSE)
        return turn

    def peak_bytes(self):
        """The peak of the process's memory in RAM."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]) * 1024


class Keyboard:
    """`kvik` in a terminal of its own: keys are typed, and what is shown is read without its escape sequences."""

    def __init__(self, *command, env):
        self.main, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [str(BINARY), *command], env=env, stdin=terminal, stdout=terminal, stderr=terminal,
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
        if self.main is not None:
            os.close(self.main)

    def hang_up(self):
        """Closes the terminal under the program."""
        os.close(self.main)
        self.main = None

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
