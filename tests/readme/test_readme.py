"""What the README says a program's author does from nothing to a first answer, done as it is written there.

In a section of a language, blocks of a shell are one session in the checkout, and a block whose fence names a file, as
```c first.c, is that file. The environment of Python is made elsewhere, and the wheel that CI built stands for the one that
`pip install .` builds in minutes. Where KVIK_TARGET names another build than the release's, that one is there, and the package
of Python as its sources: commands that build and install are left out, and the others find them.
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
# What another stage has built already.
BUILT_BEFORE = ("cargo build --release ", "bash bindings/kotlin/compile target/kotlin/kvik.jar ")
BUILT = os.environ.get("KVIK_TARGET", "target/release")


def parts(language):
    """The files in the section of a language, by their names, and its commands."""
    section = re.search(rf"^### {language}\n(.*?)^##", (ROOT / "README.md").read_text(), re.M | re.S)
    assert section, f"README.md has no section {language}"
    files, commands = {}, ""
    for kind, name, text in BLOCK.findall(section[1]):
        assert name or kind == "sh", f"a block of {kind} without a name"
        if name:
            files[name] = text
        else:
            commands += text
    return files, commands


def with_what_is_built(commands, built):
    """Commands of a shell, for the build under test."""
    if built == "target/release":
        return commands.replace("pip install .", "pip install kvik")
    lines = [line for line in commands.splitlines(keepends=True) if not line.startswith(BUILT_BEFORE)]
    # What pip of Debian asks for before it installs.
    lines = ['[[ -n ${VIRTUAL_ENV:-} ]]\n' if line.startswith("pip install ") else line for line in lines]
    return "".join(lines).replace("target/release", built)


def environment():
    """That of a user for whom PyPI has the wheel that CI built and nothing else."""
    here = {"PYTHONPATH": str(ROOT / "bindings/python")} if BUILT != "target/release" else {}
    here |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(ROOT / "target/wheels"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # As in Debian, on every machine.
    here |= {"PIP_REQUIRE_VIRTUALENV": "1"}
    return {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | here


def types(script):
    """What a session in the checkout prints, whose every command succeeds."""
    ran = subprocess.run(["bash", "-euxc", script], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("language", ["Python", "C", "Kotlin"])
def test_a_first_answer_in(language, tmp_path):
    files, commands = parts(language)
    there = [name for name in files if (ROOT / name).exists()]
    assert not there, f"{there} is in the checkout already"
    try:
        for name, text in files.items():
            (ROOT / name).write_text(text)
        said = types(with_what_is_built(commands, BUILT).replace("kvik-venv", str(tmp_path / "kvik-venv")))
    finally:
        for file in [ROOT / name for name in files]:
            file.unlink(missing_ok=True)
            file.with_suffix("").unlink(missing_ok=True)
    assert ANSWER in said, said


def test_an_environment_of_python_is_needed_for_what_is_built_before_too():
    written = "pip install .    # with Rust\ncargo build --release -p kvik-c\n"
    assert with_what_is_built(written, "target/release").startswith("pip install kvik ")
    script = with_what_is_built(written, "target/debug")
    types(f"VIRTUAL_ENV=here\n{script}")
    with pytest.raises(AssertionError):
        types(script)
