"""Runs llama-server's own tests against kvik and says which failures are expected.

The tests are llama.cpp's, `tools/server/tests`; they are fetched by whoever runs this and stay where they are. They are in
the source package of its Python bindings:

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
    tar xzf llama_cpp_python-0.3.36.tar.gz
    python tests/suite/run.py --tests llama_cpp_python-0.3.36/vendor/llama.cpp/tools/server/tests \
        --model stories260K.gguf [FILE ...]

It needs what those tests need (their requirements.txt) and pytest-timeout, and takes three minutes.
"""
import argparse
import fnmatch
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent
# What becomes of a test, and the words of the table for it.
COLUMNS = {
    "passed": "passed",
    "drawn": "but words",
    "internal": "internal",
    "decided": "decided",
    "absent": "absent",
    "failed": "failed",
    "skipped": "no model",
}
EXPLAINED = """
passed     as it is
but words  passed but for words that llama.cpp's own random numbers draw
internal   fails, and asserts llama.cpp's internals (expected.toml)
decided    fails where kvik has decided otherwise (expected.toml)
absent     needs a thing that kvik does not have
failed     fails and should not
no model   needs another model, or a file of the network"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def outcomes(tests, file, args):
    """Each test of a file with what became of it, and why."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "presets", "-p", "no:cacheprovider", "--timeout", "120",
                   f"--junitxml={report}", str(file.relative_to(tests))]
        environment = {**os.environ, "PORT": str(free_port()), "KVIK_SUITE_MODEL": str(args.model),
                       "LLAMA_SERVER_BIN_PATH": str(HERE / "llama-server"), "PYTHONPATH": str(HERE)}
        log = args.log / f"{file.stem}.log" if args.log else pathlib.Path(os.devnull)
        with open(log, "w") as out:
            subprocess.run(command, cwd=tests, env=environment, stdout=out, stderr=subprocess.STDOUT)
        if not report.exists():
            return [(f"{file.name}", "failed", "the file cannot be run")]
        return [outcome(file, case) for case in xml.parse(report).iter("testcase")]


def outcome(file, case):
    name, result, why = f"{file.name}::{case.get('name')}", "passed", ""
    for child in case:
        message = child.get("message") or ""
        if child.tag in ("failure", "error"):
            return name, "failed", message.splitlines()[:1]
        if child.tag == "skipped":
            return name, "absent" if "kvik does not have" in message else "skipped", message
        if child.tag == "properties":
            result = "drawn"
    return name, result, why


def expectation(expected, name):
    """The first entry whose pattern names the test; a `[` of a test's name is one, not a class."""
    plain = lambda text: text.replace("[", "<")
    return next((entry for entry in expected if fnmatch.fnmatchcase(plain(name), plain(entry["test"]))), None)


def judged(expected, name, result, why):
    """What became of a test beside what was expected of it, and what is unexpected."""
    entry = expectation(expected, name)
    if result == "failed" and entry:
        return entry["kind"], None
    if result == "failed":
        return result, why
    if result in ("passed", "drawn") and entry:
        return result, "it passes and is expected to fail"
    return result, None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--model", type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--log", type=lambda path: pathlib.Path(path).resolve(), help="folder for pytest's output")
    parser.add_argument("files", nargs="*", help="names such as test_basic.py; all where none is given")
    args = parser.parse_args()
    if args.log:
        args.log.mkdir(parents=True, exist_ok=True)
    expected = tomllib.loads((HERE / "expected.toml").read_text())["failing"]
    files = [args.tests / "unit" / name for name in args.files] or sorted((args.tests / "unit").glob("test_*.py"))

    unexpected, total = [], dict.fromkeys(COLUMNS, 0)
    row = lambda name, counts: print(f"{name:32}" + "".join(f"{count:>10}" for count in counts), flush=True)
    row("file", COLUMNS.values())
    for file in files:
        counts = dict.fromkeys(COLUMNS, 0)
        for name, result, why in outcomes(args.tests, file, args):
            result, complaint = judged(expected, name, result, why)
            counts[result] += 1
            total[result] += 1
            if complaint:
                unexpected.append((name, complaint))
        row(file.name, counts.values())
    row("all", total.values())
    print(EXPLAINED)
    passed = total["passed"] + total["drawn"]
    asked = passed + total["decided"] + total["failed"]
    print(f"\n{passed} of {asked} pass that assert no internals of what kvik has: {100 * passed / max(asked, 1):.0f}%")
    for name, why in unexpected:
        print(f"unexpected: {name}: {str(why)[:160]}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
