"""The text that a terminal shows, after the characters that programs wrote to it."""
import re

# A sequence of a terminal: cursor and lines, a title or a mark, a character set, one letter.
ESCAPE = re.compile(r"\x1b(?:\[([?>]?[\d;]*)([ -/]*[@-~])|\]([^\x07\x1b]*)(?:\x07|\x1b\\)|[()].|[=>78cDEHM])")
# The longest sequence that is waited for.
ESCAPE_MAX = 256


class Screen:
    """Lines of a terminal of this size; those that have scrolled off it are kept above."""

    def __init__(self, columns=100, rows=30):
        self.columns, self.rows = columns, rows
        self.lines, self.row, self.column = [""], 0, 0
        # Titles and marks, in their order.
        self.told = []
        self.rest = ""

    def text(self, first=0):
        """The lines from this one on, without empty ones at their end."""
        return "\n".join(line.rstrip() for line in self.lines[first:]).rstrip()

    def feed(self, written):
        """Takes what a program wrote, and returns what the terminal answers."""
        text, self.rest, answers = self.rest + written, "", ""
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self.put(text[at])
                at += 1
                continue
            sequence = ESCAPE.match(text, at)
            if not sequence and len(text) - at < ESCAPE_MAX:
                self.rest = text[at:]
                break
            at = sequence.end() if sequence else at + 1
            answers += self.obey(sequence) if sequence else ""
        return answers

    def obey(self, sequence):
        numbers, command, told = sequence.groups()
        if told is not None:
            self.told.append(told)
        if command is None or numbers[:1] in ("?", ">"):
            return ""
        counts = [int(number or 0) for number in numbers.split(";")]
        if command == "n":
            return f"\x1b[{self.row - self.top() + 1};{self.column + 1}R"
        if command in MOVES:
            down, right = MOVES[command]
            self.move(self.row + down * max(1, counts[0]), self.column + right * max(1, counts[0]))
        elif command == "G":
            self.move(self.row, max(1, counts[0]) - 1)
        elif command in "Hf":
            row, column = (counts + [1, 1])[:2]
            self.move(self.top() + max(1, row) - 1, max(1, column) - 1)
        elif command in "JK":
            self.erase(command, counts[0])
        return ""

    def top(self):
        return max(0, len(self.lines) - self.rows)

    def move(self, row, column):
        top = self.top()
        self.row, self.column = min(max(top, row), top + self.rows - 1), min(max(0, column), self.columns - 1)
        self.lines += [""] * (self.row + 1 - len(self.lines))

    def erase(self, command, part):
        line, column = self.lines[self.row], self.column
        self.lines[self.row] = {0: line[:column], 1: " " * column + line[column:]}.get(part, "")
        if command == "J" and part == 0:
            self.lines[self.row + 1 :] = []
        elif command == "J" and part == 2:
            self.lines[self.top() :] = [""] * (len(self.lines) - self.top())

    def put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row += 1
            self.lines += [""] * (self.row + 1 - len(self.lines))
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character == "\t":
            self.move(self.row, self.column // 8 * 8 + 8)
        elif character.isprintable():
            self.write(character)

    def write(self, character):
        if self.column == self.columns:
            self.put("\r")
            self.put("\n")
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
        self.column += 1


# Lines down and columns to the right.
MOVES = {"A": (-1, 0), "B": (1, 0), "C": (0, 1), "D": (0, -1)}
