#!/usr/bin/env python3
"""Attacks on a running server; the verdict of each says whether the server held, and the cost.

Every attack starts its own servers on loopback with bounded memory, sends the requests of a hostile or careless client,
and measures time, memory, leftovers and, where it matters, the waits of a neighbour that asks for one token every 100 ms.

    tests/attacks.py                      all attacks, with a table
    tests/attacks.py --only multiple-of   one attack; may be repeated
    tests/attacks.py --sample             smaller numbers, for CI
    tests/attacks.py --json FILE          the verdicts as JSON too

Exits with 1 if any attack is open or failed to run. KVIK_BINARY names another binary than target/release/kvik.
"""
import argparse
import dataclasses
import json
import pathlib
import resource
import sys

from attack import costs, doors, harness, kept, sockets  # noqa: F401  (importing them registers their attacks)

ROW = "{:<22} {:<8} {:>8} {:>10} {:>9} {:>12} {:>14}"


def main():
    args = arguments()
    raise_open_files()
    print(ROW.format("attack", "verdict", "seconds", "request s", "peak MiB", "neighb. p50", "neighb. worst"))
    verdicts = []
    for name in args.only or harness.ATTACKS:
        verdicts.append(harness.run(name, args.sample))
        report(verdicts[-1])
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(v) for v in verdicts], indent=1) + "\n")
    states = [v.state for v in verdicts]
    print(f"attacks: {len(states)} tried, " + ", ".join(f"{states.count(s)} {s}" for s in ("held", "open", "failed", "skipped")))
    sys.exit(not set(states) <= {"held", "skipped"})


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(harness.ATTACKS), metavar="NAME")
    parser.add_argument("--sample", action="store_true", help="smaller numbers, for CI")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def raise_open_files():
    """For more connections than a server takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def report(v):
    ms = lambda value: "-" if value is None else f"{value:.0f} ms"
    row = ROW.format(v.name, v.state, f"{v.seconds:.1f}", f"{v.worst_request_s:.2f}", f"{v.peak_mib:.0f}", ms(v.neighbour_p50_ms), ms(v.neighbour_worst_ms))
    print(row, flush=True)
    for text in v.problems[:4]:
        print(f"    {v.state}: {text}", flush=True)
    for text in v.notes:
        print(f"    {text}", flush=True)


if __name__ == "__main__":
    main()
