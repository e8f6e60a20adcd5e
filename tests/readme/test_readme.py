"""What the README says a program's author does from nothing to a first answer, done as it is written there.

In a section of a language, blocks of a shell are run one after the other in the checkout, and a block whose fence names a
file, as ```c first.c, is that file. The wheel that CI built stands for the one that `pip install .` builds in minutes. Where
KVIK_TARGET names another build than the release's, that one is there, and the package of Python as its sources: commands that
build and install are left out, and the others find them.
"""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.M | re.S)
# An answer of the embedded model to who it is.
ANSWER = "kvik-tiny"
# What another stage has built or installed already.
BUILT_BEFORE = ("cargo build --release ", "pip install ", "bash bindings/kotlin/compile target/kotlin/kvik.jar ")
BUILT = os.environ.get("KVIK_TARGET", "target/release")


def blocks(language):
    """Language, file, and text of each block in the section of a language."""
    section = re.search(rf"^### {language}\n(.*?)^##", (ROOT / "README.md").read_text(), re.M | re.S)
    assert section, f"README.md has no section {language}"
    return BLOCK.findall(section[1])


def with_what_is_built(text):
    """Commands of a shell, for the build under test."""
    lines = text.splitlines(keepends=True)
    if BUILT != "target/release":
        lines = [line for line in lines if not line.startswith(BUILT_BEFORE)]
    return "".join(lines).replace("target/release", BUILT).replace("pip install .", "pip install kvik")


@pytest.fixture
def environment(tmp_path):
    """A user with an empty environment of Python, for whom PyPI has the wheel that CI built and nothing else."""
    subprocess.run(["python3", "-m", "venv", tmp_path / "venv"], check=True)
    here = {"PYTHONPATH": str(ROOT / "bindings/python")} if BUILT != "target/release" else {}
    here |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(ROOT / "target/wheels"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return os.environ | here | {"PATH": f"{tmp_path / 'venv/bin'}:{os.environ['PATH']}"}


@pytest.mark.parametrize("language", ["Python", "C", "Kotlin"])
def test_a_first_answer_in(language, environment):
    written, said = [], ""
    try:
        for kind, name, text in blocks(language):
            if name:
                assert not (ROOT / name).exists(), f"{name} is in the checkout already"
                written.append(ROOT / name)
                written[-1].write_text(text)
            else:
                assert kind == "sh", f"a block of {kind} without a name"
                text = with_what_is_built(text)
                ran = subprocess.run(["bash", "-euc", text], cwd=ROOT, env=environment, capture_output=True, text=True)
                assert ran.returncode == 0, f"{text}{ran.stdout}{ran.stderr}"
                said += ran.stdout
    finally:
        for file in [*written, *(file.with_suffix("") for file in written)]:
            file.unlink(missing_ok=True)
    assert ANSWER in said, said
