#!/usr/bin/env python3
"""A fixed set of requests over every route and dialect: whether the API answers what it answered before.

    tests/recorded.py --against OLD                       another binary's answers, to the byte
    tests/recorded.py --against OLD --disk                another binary's files on disk, read by this one
    tests/recorded.py --compare FILE --shape              a recording; generated text may differ, as between processors
    tests/recorded.py --record FILE                       a new recording, after an intended change of answers

`--kvik` is the binary under test [default: target/release/kvik]. Exits with 1 where answers differ. The texts of
errors are listed when they differ and bind with `--exact` only.
"""
import argparse
import gzip
import json
import pathlib
import sys

import server
from recorded.answers import record
from recorded.compare import compare
from recorded.disk import read_by_another


def main():
    args = arguments()
    if args.disk:
        sys.exit(0 if read_by_another(args.against, args.kvik) else 1)
    before = record(args.against) if args.against else read(args.compare) if args.compare else None
    after = record(args.kvik)
    if args.record:
        write(args.record, after)
    print(summary(after))
    if before is not None and not compare(before, after, args.shape, args.exact).report():
        sys.exit("recorded: the answers differ")
    if before is not None:
        print(f"recorded: {len(after)} answers are {'of the same shape' if args.shape else 'the same'}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvik", type=pathlib.Path, default=server.BINARY, metavar="BINARY")
    parser.add_argument("--against", type=pathlib.Path, metavar="BINARY")
    parser.add_argument("--compare", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--shape", action="store_true", help="types of values instead of values, but for errors")
    parser.add_argument("--exact", action="store_true", help="the texts of errors bind too")
    parser.add_argument("--disk", action="store_true", help="only what is left on disk; needs --against")
    args = parser.parse_args()
    if args.disk and not args.against:
        parser.error("--disk needs --against, the binary that fills the directory")
    return args


def read(path):
    with opened(path, "r") as file:
        return [json.loads(line) for line in file]


def write(path, answers):
    with opened(path, "w") as file:
        file.writelines(json.dumps(answer, ensure_ascii=False, separators=(",", ":")) + "\n" for answer in answers)


def opened(path, mode):
    """A file of lines, packed where its name says so."""
    return gzip.open(path, mode + "t", encoding="utf-8") if path.suffix == ".gz" else path.open(mode, encoding="utf-8")


def summary(answers):
    statuses = [answer["status"] for answer in answers]
    streams = sum("events" in answer for answer in answers)
    counts = ", ".join(f"{statuses.count(status)} of {status}" for status in sorted(set(statuses)))
    return f"{len(answers)} answers, {streams} of them streams: {counts}"


if __name__ == "__main__":
    main()
