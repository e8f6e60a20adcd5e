"""The packages under test: made by `.ci/packages`, installed in a clean place, and removed again."""
import glob
import os
import pathlib
import subprocess
import sys
import time
import tomllib
import venv

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from server import BINARY, FULL  # noqa: E402
CRATE = ROOT / "crates/kvik"
UNITS = pathlib.Path("/usr/lib/systemd/system")
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
def installed(request):
    """The files of the .deb, at their places: of the .deb itself where a release is proven, else put there as its
    description says, since the tool that makes one takes longer to build than all of this."""
    if FULL:
        request.getfixturevalue("deb")
        listed = subprocess.run(["dpkg", "--listfiles", "kvik"], capture_output=True, text=True, check=True).stdout
        yield [pathlib.Path(line) for line in listed.splitlines()]
        return
    files = dict(assets())
    there = [str(path) for path in files if path.exists()]
    assert not there, f"these are on this machine already, and stay as they are: {there}"
    try:
        for path, (source, mode) in files.items():
            as_root("install", "-D", "-m", mode, source, path)
        yield list(files)
    finally:
        as_root("rm", "-f", *files)
        ours = {folder for path in files for folder in path.parents if "kvik" in folder.parts}
        # Folders before those that they are in.
        as_root("rmdir", *sorted((folder for folder in ours if folder.is_dir()), reverse=True))


def assets():
    """Where the .deb would have which file, with which mode."""
    described = tomllib.loads((CRATE / "Cargo.toml").read_text())["package"]["metadata"]["deb"]
    for source, place, mode in described["assets"]:
        found = [BINARY] if source == "target/release/kvik" else [pathlib.Path(path) for path in glob.glob(str(CRATE / source))]
        assert found, f"there is no {source}; `bash .ci/packages` makes it"
        for path in found:
            yield pathlib.Path("/", place, path.name if place.endswith("/") else ""), (path, mode)
    for unit in sorted((CRATE / described["maintainer-scripts"]).glob("kvik.s*")):
        yield UNITS / unit.name, (unit, "644")


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
