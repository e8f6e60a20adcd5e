"""The list of cases, and transcripts of it: lines of an operation and arguments. `cases.txt` says what they are."""
import pathlib
import re
from dataclasses import dataclass

LIST = pathlib.Path(__file__).resolve().with_name("cases.txt")
ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
LETTERS = {escape[1]: char for char, escape in ESCAPES.items()}
ARGUMENT = re.compile(r' (\w+)=(?:"((?:[^"\\]|\\.)*)"|([^ "]*))')


@dataclass(frozen=True)
class Line:
    """An operation and its arguments, in their order."""

    operation: str
    arguments: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.arguments if key == name]

    def find(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)

    def get(self, name: str) -> str:
        value = self.find(name)
        assert value is not None, f"`{name}` is missing: {self}"
        return value

    @property
    def prompt(self) -> str:
        return self.get("prompt") * int(self.find("times") or 1)

    @property
    def messages(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in self.arguments if name in ("system", "user", "assistant")]


def read_line(text: str) -> Line:
    operation = text.split(" ", 1)[0]
    at, arguments = len(operation), []
    while at < len(text):
        match = ARGUMENT.match(text, at)
        assert match, f"no argument at {text[at:]!r}"
        name, quoted, word = match.groups()
        arguments.append((name, word if quoted is None else unescape(quoted)))
        at = match.end()
    return Line(operation, tuple(arguments))


def read_list(path: pathlib.Path = LIST) -> list[Line]:
    lines = path.read_text(encoding="utf-8").split("\n")
    return [read_line(line) for line in lines if line and not line.startswith("#")]


def unescape(quoted: str) -> str:
    return re.sub(r"\\(.)", lambda match: LETTERS[match[1]], quoted)


def quote(text: str) -> str:
    return '"' + "".join(ESCAPES.get(char, char) for char in text) + '"'
