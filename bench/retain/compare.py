#!/usr/bin/env python3
"""Runs kvpress and kvik on the same prompts, and prints how much of what they keep is the same. See README.md.

The flags are those of kvpress_kept.py, but for --out.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TEST = ["cargo", "test", "--workspace", "--test", "retain_golden", "--", "--nocapture"]


def main():
    with tempfile.TemporaryDirectory() as golden:
        subprocess.run([sys.executable, HERE / "kvpress_kept.py", *sys.argv[1:], "--out", golden], check=True)
        done = subprocess.run(TEST, cwd=HERE.parents[1], env=dict(os.environ, RETAIN_GOLDEN=golden))
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
