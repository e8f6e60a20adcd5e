"""Does what the list of cases says with `import kvik`, and writes what came of it: speak.py LIST MODEL EMPTY_DIRECTORY

The runners of other languages write the same, to the byte.
"""
from __future__ import annotations

import json
import pathlib
import sys
from typing import Callable

import kvik
from cases import Line, quote, read_list

# What cases may need that Python has.
HAS = {"forms", "conversations"}
OPEN = {"as", "file", "disk", "conversations", "kv_bytes", "context_tokens", "threads", "parallel"}
NUMBERS: dict[str, Callable[[str], float]] = {
    "max_tokens": int, "min_tokens": int, "temperature": float, "top_p": float, "top_k": int, "min_p": float, "seed": int,
}
WORDS = {"tool_choice", "regex", "grammar", "retention"}
ASKED = {"prompt", "times", "conversation", "system", "user", "assistant"}
ANSWER = {*ASKED, "stop", "tools", "json_schema", "counts", "cancel_after", *WORDS, *NUMBERS}
KINDS = [
    (kvik.ClosedError, "closed"),
    (kvik.InvalidArgumentError, "argument"),
    (kvik.ModelError, "model"),
    (kvik.OutOfMemoryError, "memory"),
    (kvik.DiskError, "disk"),
    (kvik.RequestError, "request"),
    (kvik.InternalError, "internal"),
]


class Runner:
    def __init__(self, file: str, directory: pathlib.Path) -> None:
        self.file, self.directory = file, directory
        self.opened: kvik.Model | None = None

    @property
    def model(self) -> kvik.Model:
        if self.opened is None:
            raise kvik.ClosedError("no model is open")
        return self.opened

    def run(self, line: Line) -> str:
        try:
            return getattr(self, line.operation)(line)
        except kvik.Error as error:
            return f"error={kind(error)}"

    def open(self, line: Line) -> str:
        only(line, OPEN)
        places = {"disk_dir": line.find("disk"), "conversations_dir": line.find("conversations")}
        options = {name: self.directory / place for name, place in places.items() if place}
        options |= {name: int(line.get(name)) for name in OPEN if (line.find(name) or "").isdigit()}
        path = line.find("file") or self.file
        if line.get("as") == "part":
            with open(path, "rb") as file:
                self.opened = kvik.Model(kvik.FilePart(file.fileno()), **options)
        else:
            source = path if line.get("as") == "path" else pathlib.Path(path).read_bytes()
            self.opened = kvik.Model(source, **options)
        return "ok=yes"

    def close(self, _: Line) -> str:
        # It stays, so that the calls that follow are those of a closed model.
        if self.opened is not None:
            self.opened.close()
        return "ok=yes"

    def generate(self, line: Line) -> str:
        only(line, ANSWER)
        return answered(line, self.model.generate(line.prompt, **options(line)))

    def chat(self, line: Line) -> str:
        only(line, ANSWER)
        return answered(line, self.model.chat(messages(line), **options(line)))

    def conversation(self, line: Line) -> kvik.Conversation:
        return self.model.conversation(line.get("conversation"))

    def say(self, line: Line) -> str:
        only(line, ANSWER)
        return answered(line, self.conversation(line).say(messages(line), **options(line)))

    def messages(self, line: Line) -> str:
        return " ".join(f"{said.role}={quote(said.content)}" for said in self.conversation(line).messages())

    def conversations(self, _: Line) -> str:
        return " ".join(f"name={quote(one.name or '')} messages={one.messages}" for one in self.model.conversations())

    def remembered(self, line: Line) -> str:
        remembered = self.conversation(line).remembered()
        return f"summary={quote(remembered.summary if remembered else '')}"

    def correct(self, line: Line) -> str:
        self.conversation(line).correct(line.get("summary"))
        return "ok=yes"

    def take_back(self, line: Line) -> str:
        self.conversation(line).take_back(int(line.get("from")))
        return "ok=yes"

    def rename(self, line: Line) -> str:
        self.conversation(line).rename(line.get("name"))
        return "ok=yes"

    def delete(self, line: Line) -> str:
        self.conversation(line).delete()
        return "ok=yes"

    def count_tokens(self, line: Line) -> str:
        return f"tokens={self.model.count_tokens(line.prompt)}"

    def explain(self, line: Line) -> str:
        found = self.model.explain(line.prompt)
        return f"prompt={found.prompt_tokens} known={found.known_tokens} reason={found.reason.name.lower()}"

    def embed(self, line: Line) -> str:
        vector = self.model.embed(line.get("input"))
        return f"dimensions={len(vector)} bits={vector.astype('>f4').tobytes().hex()}"

    def keep(self, line: Line) -> str:
        return kept(self.model.keep_prompt(line.get("id"), messages(line)))

    def is_kept(self, line: Line) -> str:
        return kept(self.model.is_kept(line.get("id"), messages(line)))

    def keep_copies(self, line: Line) -> str:
        copies = int(line.get("copies"))
        for i in range(copies):
            try:
                self.model.keep_prompt(f"{line.get('id')}{i}", messages(line))
            except kvik.Error as error:
                return f"kept={i} error={kind(error)}"
        return f"kept={copies}"

    def forget(self, line: Line) -> str:
        return f"known={yes(self.model.forget_prompt(line.get('id')))}"

    def memory_pressure(self, line: Line) -> str:
        self.model.on_memory_pressure(kvik.MemoryPressure[line.get("level").upper()])
        return "ok=yes"

    def background(self, _: Line) -> str:
        self.model.on_background()
        return "ok=yes"

    def sampling(self, _: Line) -> str:
        settings = vars(self.model.sampling())
        numbers = {name: one.value if isinstance(one.value, int) else f"{one.value:.2f}" for name, one in settings.items()}
        return " ".join(f"{name}={numbers[name]} from={quote(one.source)}" for name, one in settings.items())

    def stats(self, _: Line) -> str:
        now = self.model.stats()
        return (
            f"running={now.running} waiting={now.waiting} prompt={now.prompt_tokens} cached={now.cached_tokens}"
            f" generated={now.generated_tokens}"
        )


def only(line: Line, known: set[str]) -> None:
    """Fails where the list says more than this runner does."""
    unknown = {name for name, _ in line.arguments} - known
    assert not unknown, f"arguments that this runner does not know: {unknown}"


def messages(line: Line) -> list[kvik.Message]:
    return [kvik.Message(role, content) for role, content in line.messages]


def options(line: Line) -> dict[str, object]:
    numbers = {name: read(line.get(name)) for name, read in NUMBERS.items() if line.find(name)}
    words = {name: line.get(name) for name in WORDS if line.find(name)}
    forms = {name: json.loads(line.get(name)) for name in ("tools", "json_schema") if line.find(name)}
    return numbers | words | forms | {"stop": line.all("stop")}


def answered(line: Line, answer: kvik.Answer) -> str:
    cancel_after = int(line.find("cancel_after") or 0)
    pieces = []
    for piece in answer:
        pieces.append(piece)
        if len(pieces) == cancel_after:
            answer.cancel()
    report = answer.report
    assert report is not None
    finish = f"finish={report.finish.name.lower()} prompt={report.prompt_tokens}"
    if cancel_after:
        return finish
    text, reasoning = ("".join(str(p) for p in pieces if p.is_reasoning == thought) for thought in (False, True))
    calls = [piece.call for piece in pieces if piece.call]
    said = f"text={quote(text)}" + (f" reasoning={quote(reasoning)}" if reasoning else "")
    said += "".join(f" call={quote(call.name)} arguments={quote(call.arguments)}" for call in calls) + f" {finish}"
    if line.find("counts") == "no":
        return f"{said} generated={report.generated_tokens}"
    reason = report.reason.name.lower() if report.reason else ""
    counts = f"cached={report.cached_tokens} computed={report.computed_tokens} generated={report.generated_tokens}"
    return f"{said} {counts} reason={reason}"


def kept(state: kvik.KeptState) -> str:
    if not state.is_known or state.is_changed:
        return f"state={'changed' if state.is_changed else 'unknown'}"
    return f"state=kept warm={yes(state.is_warm)} tokens={state.tokens}"


def yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def kind(error: kvik.Error) -> str:
    return next(word for kind, word in KINDS if isinstance(error, kind))


def main() -> None:
    path, file, directory = sys.argv[1:]
    runner, skips = Runner(file, pathlib.Path(directory)), False
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    for line in read_list(pathlib.Path(path)):
        if line.operation == "case":
            skips = line.find("needs") not in (None, *HAS)
            print(f"case name={quote(line.get('name'))}" + (" skipped=yes" if skips else ""))
        elif not skips:
            print(f"{line.operation} {runner.run(line)}".rstrip(" "), flush=True)


if __name__ == "__main__":
    main()
