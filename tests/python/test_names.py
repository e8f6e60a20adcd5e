"""Models by name: what the command `kvik` knows by a name, the package opens, and what neither knows is a missing file."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import MODEL, ROOT, SMALL

import kvik
from kvik import _names

# Answers as the command does: `here` is on the shelf, `hf:o/r` is fetched by a pull, all others are unknown.
COMMAND = """
import pathlib, sys
log = pathlib.Path(__file__).with_name("log")
words = [word for word in sys.argv[1:] if word != "--"]
log.open("a").write(" ".join(words) + "\\n")
name = words[-1]
pulled = "pull hf:o/r" in log.read_text()
if words[0] == "pull":
    sys.exit(0 if name == "hf:o/r" else 1)
if name == "here" or name == "hf:o/r" and pulled:
    print(sys.executable)
elif name.startswith("hf:"):
    sys.exit(f"error: {name} is not on this machine; `kvik pull {name}` fetches it")
else:
    sys.exit(f"error: there is no model at {name}, and none of this name: here")
"""


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The words with which the command was called, a line a call."""
    program = tmp_path / "kvik.py"
    program.write_text(COMMAND)
    command = tmp_path / "kvik"
    command.write_text(f"#!/bin/sh\nexec {sys.executable} {program} \"$@\"\n")
    command.chmod(0o755)
    (tmp_path / "log").touch()
    monkeypatch.setattr(_names, "command", lambda: str(command))
    return lambda: (tmp_path / "log").read_text().splitlines()


def test_a_path_is_never_looked_up(asked, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").write_text("a file")
    assert _names.path_of(str(tmp_path / "here")) == _names.path_of("~/here") == str(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    assert _names.path_of("here") == "here"
    for path in ("/nowhere/here", "./nothere", "nothere.gguf", "not here", "", pathlib.Path("nothere"), "nothere/"):
        with pytest.raises(kvik.ModelNotFoundError, match="no such file"):
            _names.path_of(path)
    assert asked() == []


def test_a_name_is_what_the_command_knows_by_it(asked):
    assert _names.path_of("here") == sys.executable
    assert asked() == ["show --path here"]
    with pytest.raises(FileNotFoundError, match="none of this name: here") as raised:
        kvik.Model("hare")
    assert isinstance(raised.value, kvik.ModelNotFoundError) and raised.value.filename == "hare"


@pytest.mark.parametrize("page", ["huggingface.co/o/r", "https://huggingface.co/o/r/resolve/main/m.gguf?download=true"])
def test_a_page_of_the_hub_is_looked_up(asked, page):
    with pytest.raises(kvik.ModelNotFoundError, match="none of this name"):
        _names.path_of(page)
    assert asked() == [f"show --path {page}"]


def test_a_model_of_the_hub_is_pulled_once(asked):
    assert _names.path_of("hf:o/r") == sys.executable
    assert asked() == ["show --path hf:o/r", "pull hf:o/r", "show --path hf:o/r"]
    assert _names.path_of("hf:o/r") == sys.executable
    assert asked()[3:] == ["show --path hf:o/r"]
    with pytest.raises(kvik.ModelNotFoundError, match="`kvik pull hf:o/other` says why"):
        _names.path_of("hf:o/other")


def test_without_the_command_a_name_is_a_missing_file(monkeypatch):
    monkeypatch.setattr(_names, "command", lambda: None)
    with pytest.raises(kvik.ModelNotFoundError, match="no command `kvik`"):
        kvik.Model("qwen3:0.6b")


def test_a_pulled_model_is_opened_by_its_name(tmp_path, monkeypatch):
    built = ROOT / os.environ.get("KVIK_TARGET", "target/release") / "kvik"
    command = str(built) if built.exists() else shutil.which("kvik")
    if command is None:
        pytest.skip("there is no command `kvik`")
    monkeypatch.setattr(_names, "command", lambda: command)
    monkeypatch.setenv("KVIK_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("HOME", str(tmp_path))
    subprocess.run([command, "pull", str(MODEL), "--name", "tiny:8m"], check=True, capture_output=True)
    with kvik.Model("tiny:8m", **SMALL) as model:
        assert repr(model).startswith("Model('tiny:8m', ")
        assert model.count_tokens("Hello") > 0
    # A pull of the family `smollm2` names its model so, and is asked for it again by the family.
    subprocess.run([command, "pull", str(MODEL), "--name", "smollm2:360m"], check=True, capture_output=True)
    assert _names.path_of("smollm2") == _names.path_of("smollm2:360m")
    with pytest.raises(kvik.ModelNotFoundError, match="did you mean `tiny:8m`"):
        kvik.Model("tiny:9m")
    with pytest.raises(kvik.ModelNotFoundError, match="qwen3:"):
        kvik.Model("qwen3:0.7b")
