"""The wheel: one command installs it, one further command answers."""
import os
import subprocess
import time

import pytest
from conftest import ROOT, only, report

# Made of a release build alone.
pytestmark = pytest.mark.full

PROGRAM = """
import sys, kvik

with kvik.Model(sys.argv[1]) as model:
    assert model.generate("Once upon a time", max_tokens=4).text()
    assert len(model.embedding("A garden").numbers) == 256
    try:
        model.embed("A garden")
    except ModuleNotFoundError as error:
        print(error.name)
"""


def clean(tmp_path):
    """A user who has nothing: no settings, no cache."""
    return {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "KVIK_CACHE_DISK": "off"}


def test_the_first_answer_comes_in_one_further_command(wheel, tmp_path):
    started = time.monotonic()
    asked = [wheel / "kvik", "run", "--max-tokens", "8", "Hello"]
    answer = subprocess.run(asked, env=clean(tmp_path), capture_output=True, text=True, timeout=60, check=True)
    took = time.monotonic() - started
    assert answer.stdout.strip(), answer.stderr
    report(f"wheel: the first answer in {took:.2f} s")


def test_the_package_is_there_for_every_python_and_needs_no_other(wheel):
    program = [wheel / "python", "-c", PROGRAM, ROOT / "models/tiny/kvik-tiny-q8_0.gguf"]
    said = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said == "numpy\n", "NumPy is for those who want its arrays"
    assert "-py3-none-" in only("wheels/kvik-*.whl").name, "a library that ctypes loads depends on no Python"


def test_pip_knows_its_files_and_removes_them(wheel):
    python = wheel / "python"
    version = subprocess.run([wheel / "kvik", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    shown = subprocess.run([python, "-m", "pip", "show", "-f", "kvik"], capture_output=True, text=True, check=True).stdout
    assert f"Version: {version}" in shown and "bin/kvik" in shown and "LICENSE-APACHE" in shown and "LICENSE-MIT" in shown
    subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", "kvik"], check=True)
    assert not (wheel / "kvik").exists()
