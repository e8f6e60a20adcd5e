"""The runners of the list of cases: those that are built, or those that KVIK_LANGUAGES names, and then all of these.

KVIK_TARGET is the build of the server and of the C library, `target/release` where nobody says.
"""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("KVIK_TARGET", "target/release")
os.environ.setdefault("KVIK_BINARY", str(BUILD / "kvik"))
sys.path.insert(0, str(ROOT / "tests"))

from server import TINY  # noqa: E402

MODEL = TINY / "kvik-tiny-q8_0.gguf"
LIST = pathlib.Path(__file__).with_name("cases.txt")
SANITIZED = "-std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -pedantic -g -fsanitize=address,undefined"
ASKED_FOR = os.environ.get("KVIK_LANGUAGES", "").split()


def rust(_):
    """What `cargo build -p kvik-examples --bin cases` leaves."""
    return [ROOT / "target/debug/cases"]


def c(folder):
    """Under the address sanitiser; the library itself as it is released."""
    runner, source = folder / "cases", LIST.with_suffix(".c")
    links = [f"-L{BUILD}", "-lkvik_c", f"-Wl,-rpath,{BUILD}"]
    includes = f"-I{ROOT / 'crates/kvik-c/include'}"
    if (BUILD / "libkvik_c.so").exists():
        subprocess.run(["cc", *SANITIZED.split(), includes, source, "-o", runner, *links], check=True)
    return [runner]


def python(_):
    """Of the interpreter that runs this, if it has the wheel."""
    has_it = importlib.util.find_spec("kvik") is not None
    return [pathlib.Path(sys.executable), "-B", LIST.with_name("speak.py")] if has_it else [pathlib.Path("the wheel")]


def kotlin(_):
    """What `bindings/kotlin` leaves there: takes the arguments of every runner."""
    return [ROOT / "target/ci-kotlin/cases"]


RUNNERS = {"rust": rust, "c": c, "python": python, "kotlin": kotlin}


@pytest.fixture(scope="session", params=RUNNERS)
def transcript(request, tmp_path_factory):
    """What one language says to the list, line for line."""
    folder = tmp_path_factory.mktemp(request.param)
    command = RUNNERS[request.param](folder)
    if not command[0].exists():
        assert request.param not in ASKED_FOR, f"{command[0]} is not there"
        pytest.skip(f"{command[0]} is not there")
    directory = folder / "directory"
    directory.mkdir()
    ran = subprocess.run([*command, LIST, MODEL, directory], capture_output=True, timeout=300)
    assert ran.returncode == 0, ran.stderr.decode(errors="replace")
    return request.param, ran.stdout.decode()


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """What a server says to the list."""
    from served import fields_of

    return fields_of(MODEL, tmp_path_factory.mktemp("served"))
