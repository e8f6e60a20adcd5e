"""The commands of the README's first screen and of the pages for newcomers and operators, done as they are written there,
and what they print.

The blocks of a page are one session of a shell, of a user with an empty home directory:

- `sh`: commands, each of which must succeed;
- `console`: a line that begins with `$ ` is a command, which lines with `> ` continue, and the lines behind it are what it prints; `…` stands for anything;
- a block whose fence names a file, as ```toml tenants.toml, is that file;
- `text` with the name of a command, as ```text kvik chat: lines that begin with `> ` are typed into it.

A block of `sh` whose fence ends in `elsewhere` needs another machine, or its administrator, and is left out.
"""
import os
import re
import shlex
import signal
import socket
import subprocess

import pytest
from newcomer import environment, hub
from server import ROOT, free_port

BLOCK = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.M | re.S)
PAGES = ("README.md", "docs/tutorial.md", "docs/operations.md")
SECONDS = 300
# Ends what a command has printed.
MARK = "--- end of a command ---"


def steps(page):
    """Pairs of a command of the shell and what it prints, or None where a page does not say."""
    text = (ROOT / page).read_text()
    if page == "README.md":
        text = text.split("\n## ")[0]
    for kind, about, text in BLOCK.findall(text):
        if about.endswith("elsewhere"):
            continue
        elif kind == "console":
            yield from typed(text)
        elif kind == "sh":
            yield text, None
        elif kind == "text" and about.startswith("kvik "):
            lines = "".join(f"{line[2:]}\n" for line in text.splitlines() if line.startswith("> "))
            yield f"printf %s {shlex.quote(lines)} | {about}", None
        elif about:
            yield f"printf %s {shlex.quote(text)} > {about}", None


def typed(text):
    """The commands of a block of `console`, each with the lines behind it."""
    for step in re.split(r"^\$ ", text, flags=re.M)[1:]:
        lines = step.splitlines(keepends=True)
        # As in a terminal, the lines of a command after its first begin with `> `.
        end = next((at for at, line in enumerate(lines[1:], 1) if not line.startswith("> ")), len(lines))
        more = [line.removeprefix("> ") for line in lines[1:end]]
        yield "".join([lines[0], *more]), "".join(lines[end:])


def printed(script, folder, variables):
    """What a session prints after each of its commands; processes that it has left behind are ended."""
    with (folder / "session.out").open("w+") as out:
        session = subprocess.Popen(
            ["bash", "-e", "-c", script], cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )
        try:
            status = session.wait(SECONDS)
        finally:
            for ending in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(session.pid, ending)
                except ProcessLookupError:
                    break
        out.seek(0)
        text = out.read()
    assert status == 0, text
    return text.split(f"{MARK}\n")[:-1]


def is_like(expected, text):
    """Whether a text is as a page says, with anything for each `…`."""
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, text.strip(), re.S)


@pytest.mark.full
@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_says(page, tmp_path):
    port = free_port()
    done = [(command.replace("8080", str(port)), expected) for command, expected in steps(page)]
    script = "".join(f"{command.rstrip()}\necho '{MARK}'\n" for command, _ in done)
    with hub() as models:
        texts = printed(script, tmp_path, environment(tmp_path, models, port))
    assert len(texts) == len(done)
    told = [(command, expected, text) for (command, expected), text in zip(done, texts) if expected is not None]
    others = [
        f"$ {command}prints\n{text}and the page says\n{expected}"
        for command, expected, text in told
        if not is_like(expected.replace("8080", str(port)), text)
    ]
    assert not others, "\n".join(others)


@pytest.mark.parametrize("more", [{}, {"LLAMA_API_KEY": "sesame"}], ids=["a port that is taken", "a key of llama-server"])
def test_a_session_whose_server_does_not_start_ends_with_a_message(more, tmp_path):
    serving = [command for command, _ in steps("docs/tutorial.md") if command.startswith(("kvik serve", "kvik health"))]
    script = "".join(serving[:2]).replace("--wait 60", "--wait 1")
    assert script.startswith("kvik serve") and "--wait 1" in script, script
    with socket.socket() as taken, hub() as models:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = free_port() if more else taken.getsockname()[1]
        with pytest.raises(AssertionError, match="does not answer; is `kvik serve` running there"):
            printed(script, tmp_path, environment(tmp_path, models, port) | more)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_no_page_waits_for_a_server_without_end(page):
    assert "until kvik health" not in page.read_text()


def test_blocks_are_read():
    assert list(typed("$ a\n> b\nc\nd\n$ e\n")) == [("a\nb\n", "c\nd\n"), ("e\n", "")]
    assert is_like("a … c", "a b\nb c\n") and not is_like("a … c", "a b")
    assert all(len(list(steps(page))) > 1 for page in PAGES)
