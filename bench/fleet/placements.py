"""The table: placements with and without the shared tier, beside one node that has the memory of all."""
import dataclasses
import math
import sys

from . import figures
from .routers import PLACEMENTS

COLUMNS = [
    ("placement", lambda row: row["title"]),
    ("tier", lambda row: "yes" if row["tier"] else "no"),
    ("hit rate", lambda row: share(row["hit_rate"])),
    ("of ideal", lambda row: share(row["of_ideal"])),
    ("TTFT p50", lambda row: milliseconds(row["ttft_p50_ms"])),
    ("p95", lambda row: milliseconds(row["ttft_p95_ms"])),
    ("p99", lambda row: milliseconds(row["ttft_p99_ms"])),
    ("computed", lambda row: number(row["computed_tokens"])),
    ("busiest node", lambda row: share(row["busiest_share"])),
    ("MB nodes", lambda row: number(row["node_mb"], 1)),
    ("MB store", lambda row: number(row["store_mb"], 1)),
    ("failed", lambda row: number(row["failed"])),
    ("wrong", lambda row: number(row["wrong"])),
]


def number(value, digits=0):
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def share(value):
    return "-" if math.isnan(value) else f"{value * 100:.1f}%"


def milliseconds(value):
    return "-" if math.isnan(value) else f"{value:.0f} ms"


def setups(bench, wanted):
    """Every row of the table: its title and setup; those with a tier that this kvik lacks have no setup."""
    rows = [("one node with all memory", bench.setup.ideal)]
    for placement in wanted:
        for tier in (False, True):
            setup = dataclasses.replace(bench.setup, placement=placement, tier=tier)
            rows.append((PLACEMENTS[placement], setup))
    return rows


def measure(bench, title, setup, sessions, number):
    """One row of one round."""
    outcomes, counted = bench.run(setup, sessions)
    row = figures.summary(outcomes) | {
        "title": title,
        "tier": setup.tier,
        "computed_tokens": counted["computed_tokens"],
        "busiest_share": max(counted["asked_tokens"]) / sum(counted["asked_tokens"]),
        "node_mb": counted["bytes"]["nodes"] / 1e6,
        "store_mb": counted["bytes"]["store"] / 1e6,
    }
    print(f"  round {number + 1}: {title}, tier {setup.tier}: hit rate {share(row['hit_rate'])}, "
          f"p99 {milliseconds(row['ttft_p99_ms'])}, failed {row['failed']}", file=sys.stderr)
    return row


def table(bench):
    """Prints a table for each kind of traffic; rows take turns, round by round. The sum of failed requests."""
    wanted = bench.args.placements.split(",")
    failed = 0
    for name, sessions in bench.traffics.items():
        rows = setups(bench, wanted)
        results = {row: [] for row in rows}
        for number in range(bench.args.rounds):
            for title, setup in rows:
                if setup.tier and not bench.has_tier:
                    continue
                results[title, setup].append(measure(bench, title, setup, sessions, number))
                bench.record(command="table", traffic=name, round=number, **results[title, setup][-1])
        shown = with_ideal(results)
        print(f"\n## {name}\n\n{figures.table(COLUMNS, shown)}\n", flush=True)
        failed += sum(row["failed"] + row["wrong"] for measured in results.values() for row in measured)
    return failed


def with_ideal(results):
    """Medians of each row beside the hit rate of the first one; rows that were not measured are empty."""
    (ideal, *_), nothing = results.values(), math.nan
    best = figures.medians(ideal)["hit_rate"]
    shown = []
    for (title, setup), measured in results.items():
        empty = dict.fromkeys(ideal[0], nothing) | {"title": title, "tier": setup.tier}
        row = figures.medians(measured) if measured else empty
        shown.append(row | {"of_ideal": row["hit_rate"] / best if best else nothing})
    return shown
