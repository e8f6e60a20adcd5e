"""Counts the tests of Python that are skipped, as those of Rust are: KVIK_SKIPPED names the file to which each is appended.

It is here because `bench` has tests too, and because scripts in `tests` import the `conftest` of `tests/page`.
"""
import os


def pytest_runtest_logreport(report):
    note(report)


def pytest_collectreport(report):
    note(report)


def note(report):
    """Appends `FILE::TEST: REASON` where a test, or the collection of a file, was skipped."""
    path = os.environ.get("KVIK_SKIPPED")
    # To pytest, what fails as it is expected to was skipped as well.
    if not path or not report.skipped or hasattr(report, "wasxfail"):
        return
    # The name of a case may have spaces, which end a name in the list.
    name, reason = report.nodeid.split("[")[0], report.longrepr[2].removeprefix("Skipped: ")
    with open(path, "a") as file:
        # A single write, so that lines of several suites do not mix.
        file.write(f"{name}: {' '.join(reason.split())}\n")
