"""The packages under test: made by `.ci/packages`, installed in a clean place, and removed again."""
import os
import pathlib
import subprocess
import time
import venv

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = ROOT / "target"
REPORT = TARGET / "packages/report.txt"


def only(pattern):
    """The one file of this pattern below `target`."""
    found = sorted(TARGET.glob(pattern))
    assert len(found) == 1, f"target/{pattern}: {[path.name for path in found]}; `bash .ci/packages` makes it"
    return found[0]


def as_root(*argv):
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    return subprocess.run([*prefix, *map(str, argv)], check=True, capture_output=True, text=True)


def report(line):
    with REPORT.open("a") as file:
        print(line, file=file)


@pytest.fixture(scope="session")
def deb():
    """The .deb, installed; afterwards it is purged."""
    there = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", "kvik"], capture_output=True, text=True).stdout
    assert " installed" not in there, "a kvik is installed on this machine already, and stays as it is"
    path, started = only("debian/kvik_*.deb"), time.monotonic()
    as_root("dpkg", "--install", path)
    report(f".deb: {path.stat().st_size / 1e6:.1f} MB, installed in {time.monotonic() - started:.1f} s")
    try:
        yield path
    finally:
        as_root("dpkg", "--purge", "kvik")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """A clean environment of Python with the wheel in it: the folder of its commands."""
    path, place = only("wheels/kvik-*.whl"), tmp_path_factory.mktemp("venv")
    venv.create(place, with_pip=True)
    started = time.monotonic()
    subprocess.run(
        [place / "bin/python", "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", path],
        check=True,
    )
    report(f"wheel: {path.stat().st_size / 1e6:.1f} MB, installed in {time.monotonic() - started:.1f} s")
    return place / "bin"
