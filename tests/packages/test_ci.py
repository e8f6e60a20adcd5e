"""What CI is made of: functions of `.ci`, each in a shell of its own beside stand-ins of what it calls."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Answers where it is told to, with the folder that it serves.
STORE = """#!/usr/bin/env python3
import http.server, os, sys

class Store(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.path.basename(os.getcwd()).encode())

http.server.HTTPServer((sys.argv[2], int(sys.argv[4])), Store).serve_forever()
"""
SKIPPING = """
import pytest

@pytest.mark.parametrize("case", ["a case", "another"])
def test_a(case):
    pytest.skip("there is no\\nlibfoo: none")

@pytest.mark.skip(reason="there is no libbar")
def test_b(): ...

@pytest.mark.xfail
def test_c():
    assert False
"""


def shell(folder, script, *words, **variables):
    """Runs a script with the functions of CI, as `.ci/run` has them."""
    sources = "".join(f". '{ROOT}/.ci/{name}.sh'\n" for name in ("stage", "setup", "rust", "programs"))
    command = ["bash", "-euo", "pipefail", "-c", f"{sources}FULL=false\n{script}", "ci", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=60)


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_a_commit_has_its_number_with_its_history_and_without(tmp_path):
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    git(tmp_path, "init", "-q", "whole")
    numbers = []
    for count in (1, 2, 3):
        git(whole, "commit", "-q", "--allow-empty", "-m", f"The {count}th")
        assert shell(whole, "commit_number").stdout == f"{count}\n"
        git(tmp_path, "clone", "-q", "--depth", "1", f"file://{whole}", f"shallow-{count}")
        ran = shell(f"{shallow}-{count}", "commit_number")
        assert "this checkout has no history" in ran.stderr
        assert int(ran.stdout) == int(git(whole, "rev-parse", "HEAD")[:7], 16)
        numbers.append(ran.stdout)
    assert len(set(numbers)) == 3


def test_skipped_tests_are_counted_by_language_and_reason(tmp_path):
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    (tmp_path / "test_absent.py").write_text("import pytest\npytest.importorskip('no_module_of_this_name')\n")
    skipped = tmp_path / "skipped.txt"
    skipped.write_text("store::tests::one: KVIK_DATA is not set\n")
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conftest", tmp_path]
    env = os.environ | {"KVIK_SKIPPED": str(skipped)}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    counted = shell(tmp_path, 'count_skipped Rust -v; count_skipped Python -e; echo "$SKIPPED"', KVIK_SKIPPED=str(skipped))
    *lines, last = counted.stdout.splitlines()
    assert last == "1 tests of Rust skipped, 4 tests of Python skipped", counted.stdout + counted.stderr
    assert {"      2 there is no libfoo: none", "      1 there is no libbar", "      1 KVIK_DATA is not set"} <= set(lines)


def test_no_skipped_test_is_none(tmp_path):
    (tmp_path / "skipped.txt").touch()
    counted = shell(tmp_path, 'count_skipped Rust -v; echo "$SKIPPED"', KVIK_SKIPPED="skipped.txt")
    assert (counted.returncode, counted.stdout) == (0, "0 tests of Rust skipped\n"), counted.stderr


def test_what_counts_skipped_tests_is_beside_those_of_a_suite(pytestconfig):
    """pytest reads the `conftest.py` of a suite and of the folders above it."""
    read = [pytestconfig.pluginmanager.has_plugin(str(folder / "conftest.py")) for folder in (ROOT, ROOT / "tests/packages")]
    assert read == [True, True]


@pytest.mark.parametrize("unpacks, status, says", [("sbin/proxy", 0, ""), ("share/doc/proxy", 1, "has no program of that name")])
def test_an_unpacked_package_has_its_program(unpacks, status, says, tmp_path):
    stand_ins = 'apt-get() { touch proxy.deb; }; dpkg-deb() { mkdir -p "$3/usr/$1"; mkdir -p "$3/usr/$WHAT"; }\n'
    ran = shell(tmp_path, f"{stand_ins}unpack_package proxy", WHAT=unpacks)
    assert ran.returncode == status and says in ran.stderr, ran.stderr


def test_two_runs_at_once_have_a_store_each(tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        (folder / "target").mkdir(parents=True)
        (folder / "tests").symlink_to(ROOT / "tests")
        (folder / "venv/bin").mkdir(parents=True)
        (folder / "venv/bin/moto_server").write_text(STORE)
        (folder / "venv/bin/moto_server").chmod(0o755)
    script = """
        trap 'for aside in "${ASIDE[@]}"; do end_aside "$aside"; done' EXIT
        VENV=$PWD/venv
        asks() { curl -sSf -X PUT "$AWS_ENDPOINT_URL"; echo; }
        beside() {
            asks
            (
                cd "$1"
                ASIDE=() VENV=$PWD/venv
                with_store asks
            )
            asks
        }
        with_store beside "$1"
    """
    ran = shell(folders[0], script, folders[1])
    assert (ran.returncode, ran.stdout.split()) == (0, ["first", "second", "first"]), ran.stdout + ran.stderr
