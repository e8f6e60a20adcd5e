"""The types of the package: whole, and right where programs use it."""
import pathlib
import subprocess
import sys

from conftest import ROOT

import kvik

WRONG = """
import kvik

model = kvik.Model("model.gguf", kv_bytes="2GiB")
answer = model.chat([kvik.Message("user", "Hello")], max_token=5)
text: str = answer.report.finish
"""


def mypy(*arguments, cwd):
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "/dev/null", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_the_package_and_programs_that_use_it_are_typed_strictly(tmp_path):
    package = pathlib.Path(kvik.__file__).parent
    # By name, as a program finds it: what is checked is what was installed.
    checked = mypy("-p", "kvik", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    examples = sorted((ROOT / "examples/python").glob("*.py"))
    checked = mypy(*examples, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    assert (package / "py.typed").exists() and len(examples) == 2


def test_the_types_of_the_native_module_are_those_that_it_has():
    compare = [sys.executable, "-m", "mypy.stubtest", "--ignore-missing-stub"]
    allowed = ["--allowlist", ROOT / "tests/python/handles.txt", "kvik._native"]
    compared = subprocess.run([*compare, *allowed], capture_output=True, text=True)
    assert compared.returncode == 0, compared.stdout


def test_what_is_wrong_is_found(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    checked = mypy("wrong.py", cwd=tmp_path)
    for says in ('"kv_bytes"', '"max_token"', 'has no attribute "finish"', "Incompatible types in assignment"):
        assert says in checked.stdout, checked.stdout
