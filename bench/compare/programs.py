"""The parts of every engine: its programs, how to run one, and how to pick a result."""
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable


@dataclass(frozen=True)
class Programs:
    kvik: Path
    peer: Path | None
    """The folder of llama-bench, llama-batched-bench and llama-quantize; of ik_llama.cpp also llama-sweep-bench. Or a program."""
    threads: int


@dataclass(frozen=True)
class Engine:
    """A program in one of its settings. `measure` gives the samples of each work, in tok/s; none where it cannot do that."""

    name: str
    measure: Callable = field(compare=False)
    peer: str | None = None
    """The name of the peer whose setting it is, or none: kvik's."""


def lengths(works, kind):
    """The tokens of the works of a kind, as llama-bench and `kvik bench` take them."""
    return ",".join(str(work.tokens) for work in works if work.kind == kind) or 0


def only(results, expected):
    """The one result that has these fields."""
    found = [result for result in results if expected.items() <= result.items()]
    if len(found) != 1:
        sys.exit(f"{len(found)} results with {expected} in\n{json.dumps(results, indent=1)}")
    return found[0]


def run(command, libraries=None):
    """What a program writes to standard output; an error ends everything."""
    return finished(command, libraries).stdout


def finished(command, libraries=None, folder=None):
    """A program that ended well, with what it wrote; an error ends everything. It runs in `folder`, or here."""
    done = started(command, libraries, capture_output=True, cwd=folder)
    if done.returncode:
        sys.exit(f"{' '.join(done.args)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def about(command, libraries=None):
    """A program's output about itself, on either stream and with any status: some end `--help` with an error."""
    return started(command, libraries, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout.strip()


def started(command, libraries, **settings):
    try:
        command = [str(part) for part in command]
        return subprocess.run(command, env=environment(libraries), text=True, stdin=subprocess.DEVNULL, **settings)
    except FileNotFoundError:
        sys.exit(f"{command[0]} is not there")


def environment(libraries):
    return os.environ | ({"LD_LIBRARY_PATH": str(libraries)} if libraries else {})
