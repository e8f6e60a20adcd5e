"""The habits of docs/coming-from.md, each tried: what works does, and what does not says what to do instead.

The second cell of a row is tried, by what it begins with:

- `kvik serve`: a server, which answers, or says at its start why not;
- `kvik stop`: beside a server of its own;
- `kvik`: a command of a user with a home directory;
- `/`: typed into `kvik chat`;
- `GET`, `POST`, `DELETE`: a route of a server, and a body.

The third cell is `works`, perhaps with a remark, or a part of the message in backticks, with `…` for anything.
"""
import re
import shlex
import subprocess

import pytest
from newcomer import MODEL, environment, hub
from server import ROOT, Server

PAGE = ROOT / "docs/coming-from.md"
ROW = re.compile(r"^\| [^|]+ \| `([^`|]+)` \| ([^|]+) \|$", re.M)
SMALL = {"KVIK_CACHE_RAM": "64MiB", "KVIK_CONTEXT": "1024", "KVIK_N_PREDICT": "8"}


def rows():
    """Pairs of what is tried and what comes of it."""
    return ROW.findall(PAGE.read_text())


def is_like(outcome, text):
    said = re.search(r"`([^`]+)`", outcome)[1]
    return re.search(".*".join(map(re.escape, said.split("…"))), text, re.S)


class User:
    """A user that has fetched a model once, and the server that this user runs."""

    def __init__(self, home, hub, server):
        self.home, self.server = home, server
        self.env = environment(home, hub, server.port) | SMALL | {"KVIK_MODELS_DIR": str(home / "models")}
        # Where servers write down their processes.
        self.env["XDG_RUNTIME_DIR"] = str(home)
        (home / "model.gguf").symlink_to(MODEL)
        (home / "notes.txt").write_text("The parcel is at the door.\n")

    def runs(self, command, stdin=None, **more):
        """Whether a command succeeds, and what it prints."""
        given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.home, env=self.env | more, timeout=120, capture_output=True, text=True, **given
        )
        return done.returncode == 0, done.stdout + done.stderr

    def tries(self, habit):
        """Whether a habit works, and what is said about it."""
        if habit.split()[1:2] == ["serve"]:
            return self.serves(habit)
        if habit == "kvik stop":
            with Server("--cache-ram", "64MiB", env=self.env) as other:
                return self.runs(habit, KVIK_PORT=str(other.port))
        if habit.startswith("kvik"):
            return self.runs(habit)
        if habit.startswith("/"):
            return self.types(habit)
        method, path, *body = habit.split(" ", 2)
        answer = self.server.request(method, path, body[0].encode() if body else None, {})
        return answer.status < 400, answer.text

    def serves(self, command):
        # The port is this test's, whatever the habit says.
        flags = shlex.split(command)[2:]
        flags = [word for at, word in enumerate(flags) if "--port" not in flags[max(at - 1, 0) : at + 1]]
        own = {name: value for name, value in self.env.items() if name != "KVIK_PORT"}
        try:
            with Server(*flags, env=own, cwd=self.home) as server:
                return True, server.logged()
        except AssertionError as error:
            return False, str(error)

    def types(self, line):
        works, text = self.runs("kvik chat --memory off", stdin=f"{line}\n")
        is_refused = "there is no command" in text or "/show takes" in text
        return works and not is_refused, text


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with hub() as models, Server("--context", "1024", "--cache-ram", "64MiB") as server:
        yield User(home, models, server)


def test_sixty_habits_are_in_the_table():
    assert len(rows()) >= 60
    assert len(rows()) == len(set(rows())), "none is there twice"


@pytest.mark.full
@pytest.mark.parametrize("tried,outcome", rows(), ids=[tried for tried, _ in rows()])
def test_a_habit(user, tried, outcome):
    works, text = user.tries(tried)
    assert works == outcome.startswith("works"), text
    assert works or is_like(outcome, text), text
