"""The terminal of the newcomer's script: what a screen shows, and the commands of a shell in it."""
import os

import pytest
from shell import Shell
from terminal_screen import Screen


@pytest.mark.parametrize(
    "written, text",
    [
        ("one\r\ntwo\r\n", "one\ntwo"),
        ("bar 10%\r\x1b[2Kbar 20%\r\x1b[Kdone\r\n", "done"),
        ("12345678901", "1234567890\n1"),
        ("\x1b[1;31mred\x1b[0m\x1b]0;title\x07\a \b\tx", "red     x"),
        ("a\r\nb\r\nc\r\nd\x1b[2A\rX\x1b[3B\rY", "a\nX\nc\nY"),
        ("a\r\nb\r\nc\x1b[1;1H\x1b[J", ""),
        ("abcdef\x1b[3D\x1b[Kx\x1b[1GY", "Ybcx"),
    ],
)
def test_a_screen_shows_what_was_written(written, text):
    screen = Screen(10, 3)
    # Sequences may come in pieces.
    for character in written:
        screen.feed(character)
    assert screen.text() == text


def test_a_screen_says_where_its_cursor_is():
    assert Screen().feed("a\r\nbc\x1b[6n") == "\x1b[2;3R"


def test_a_shell_shows_its_commands_one_after_the_other(tmp_path):
    with Shell(tmp_path, {"PATH": os.environ["PATH"]}) as shell:
        assert shell.run("echo one", 10) == ("$ echo one\none", None)
        shown, seen = shell.run(r"printf '1 of 2\r'; sleep 0.1; echo 2 of 2", 10, "1 of 2$")
        assert shown.endswith("\n2 of 2") and seen.endswith("\n1 of 2")
