"""A store that is dead, slow, full or lying: what it costs beside no store at all, and whether an answer is wrong."""
import dataclasses
import statistics
import sys

from . import faults, figures
from .placements import milliseconds, share
from .run import in_thread

# Part of the traffic after which the fault begins: by then the store holds something.
BEGIN = 0.25
AGAIN = "none again"

COLUMNS = [
    ("store", lambda row: row["store"]),
    ("hit rate", lambda row: share(row["hit_rate"])),
    ("TTFT p50", lambda row: milliseconds(row["ttft_p50_ms"])),
    ("p99", lambda row: milliseconds(row["ttft_p99_ms"])),
    ("p99 of no store", lambda row: "{:.2f} ({:.2f} to {:.2f})".format(*row["ratios"])),
    ("struck", lambda row: f"{row['struck']:.0f}"),
    ("failed", lambda row: f"{row['failed']:.0f}"),
    ("wrong", lambda row: f"{row['wrong']:.0f}"),
]


def store_faults(bench):
    """A table for each kind of traffic. What must not be: failed and wrong answers, and faults that never struck."""
    if not bench.has_tier:
        print("nothing to measure: this kvik has no shared tier, or Redis is missing")
        return 0
    # No store twice: how far two runs of the same are from each other.
    wanted = ["none", AGAIN, "well", *(bench.args.faults.split(",") if bench.args.faults else faults.NAMES)]
    bad = 0
    for name, sessions in bench.traffics.items():
        results = {fault: [] for fault in wanted}
        for number in range(bench.args.rounds):
            # Whoever is first in one round is last in the next.
            for fault in wanted[number % len(wanted):] + wanted[:number % len(wanted)]:
                results[fault].append(_round(bench, name, sessions, fault, number))
        print(f"\n## faults, {name}\n\n{figures.table(COLUMNS, _rows(results))}\n", flush=True)
        measured = [row for rows in results.values() for row in rows]
        bad += sum(row["failed"] + row["wrong"] for row in measured)
        bad += sum(row["store"] in faults.NAMES and not row["struck"] for row in measured)
    return bad


def _round(bench, name, sessions, fault, number):
    # Round robin asks the store most: what a session had is on another node.
    setup = dataclasses.replace(bench.setup, placement="round_robin", tier=fault not in ("none", AGAIN))
    begin_s = BEGIN * max(request.at_s for session in sessions for request in session)

    def happening(fleet):
        if fault == "full":
            return [(begin_s, in_thread(fleet.store.fill))]
        return [(begin_s, in_thread(fleet.network.arm))] if fault in faults.NAMES else []

    proxied = fault if fault in faults.NAMES else None
    outcomes, counted = bench.run(setup, sessions, happening, proxied)
    row = figures.summary(outcomes) | {"store": fault, "struck": counted["struck"]}
    print(f"  round {number + 1}: {fault}: {row}", file=sys.stderr)
    bench.record(command="faults", traffic=name, round=number, **row)
    return row


def _rows(results):
    """Medians of each fault, with its ratios to no store in the same round: their median, least and most."""
    without = [row["ttft_p99_ms"] for row in results["none"]]
    rows = []
    for measured in results.values():
        ratios = [row["ttft_p99_ms"] / base for row, base in zip(measured, without)]
        rows.append(figures.medians(measured) | {"ratios": (statistics.median(ratios), min(ratios), max(ratios))})
    return rows
