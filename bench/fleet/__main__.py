"""Measures a fleet of kviks behind a router on this machine; README.md says how.

    python -m bench.fleet table      placements with and without a shared tier, beside one node with all memory
    python -m bench.fleet scale      two nodes more under load
    python -m bench.fleet rolling    every node restarted under load
    python -m bench.fleet faults     a store that fails in every way
"""
import argparse
import pathlib
import re
import signal
import sys

from .changes import rolling, scale
from .paths import BINARY
from .placements import table
from .routers import PLACEMENTS
from .run import Bench
from .store_faults import store_faults

COMMANDS = {"table": table, "scale": scale, "rolling": rolling, "faults": store_faults}
# What `--sample` sets: enough to see that all of it works, in less than two minutes.
SAMPLE = {"requests": 80, "rounds": 1, "traffic": "conversations", "window": 10}
SAMPLE_OF = {
    "table": {"per_second": 20.0, "placements": "round_robin,cache_aware,events_load"},
    # Nodes start and end in seconds of the clock.
    "scale": {"per_second": 5.0},
    "rolling": {"per_second": 3.5},
    "faults": {"per_second": 8.0, "faults": "dead,corrupt,wrong"},
}


def size(text):
    """Bytes of a size such as 48MiB."""
    matched = re.fullmatch(r"(\d+)(MiB|GiB)", text)
    if not matched:
        raise argparse.ArgumentTypeError(f"{text} is no size such as 48MiB")
    return int(matched[1]) << {"MiB": 20, "GiB": 30}[matched[2]]


def arguments():
    parser = argparse.ArgumentParser(
        prog="python -m bench.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--kvik", type=pathlib.Path, default=BINARY)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cache", type=size, default=size("16MiB"), help="memory of a node's cache")
    parser.add_argument("--flags", default="", help="more flags of the nodes")
    parser.add_argument("--traffic", choices=["recorded", "conversations", "both"], default="both")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--per-second", type=float, default=10.0, help="requests a second, on average")
    parser.add_argument("--block-tokens", type=int, default=32, help="tokens for a recorded block of 512")
    parser.add_argument("--placements", default=",".join(PLACEMENTS))
    parser.add_argument("--faults", default="", help="some of the faults, with commas between them")
    parser.add_argument("--network", choices=["auto", "netem", "tbf", "proxy"], default="auto")
    parser.add_argument("--mbit", type=float, default=1000.0, help="bandwidth of each link, either way")
    parser.add_argument("--delay-ms", type=float, default=1.0, help="delay of each link, one way")
    parser.add_argument("--window", type=int, default=20, help="requests of a window of hit rates")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="a file to which every round adds a line")
    parser.add_argument("--sample", action="store_true", help="little of everything, for CI")
    args = parser.parse_args()
    if args.sample:
        # What is said beside it is more than its own.
        parser.set_defaults(**SAMPLE, **SAMPLE_OF[args.command])
        args = parser.parse_args()
    return args


def main():
    args = arguments()
    # Ended from outside it leaves no node and no namespace behind either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with Bench(args) as bench:
        bad = COMMANDS[args.command](bench)
    if bad:
        print(f"{bad} failed or wrong answers, or faults that never struck", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
