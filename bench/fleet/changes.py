"""A fleet that changes under load: two more nodes, or a new version of each, one after the other."""
import dataclasses
import time

from . import figures
from .placements import share
from .run import in_thread, plain

DRAIN_S = 2
# What the hit rate is before: caches fill until then.
BEGIN = 0.4

COLUMNS = [
    ("what happens", lambda row: row["happens"]),
    ("tier", lambda row: "yes" if row["tier"] else "no"),
    *((name, lambda row, name=name: share(row[name])) for name in ("before", "during", "dip", "after")),
    ("new nodes", lambda row: share(row["new_share"])),
    ("TTFT p99 before", lambda row: f"{row['p99_before_ms']:.0f} ms"),
    ("p99 since", lambda row: f"{row['p99_since_ms']:.0f} ms"),
    ("took", lambda row: f"{row['took_s']:.1f} s"),
    ("failed", lambda row: f"{row['failed']:.0f}"),
    ("wrong", lambda row: f"{row['wrong']:.0f}"),
]


def scale(bench):
    """Two nodes more, at the same time, made known to the router while it runs."""
    def change(fleet):
        fleet.add()
        fleet.add()

    return _measured(bench, "scale", bench.setup, change)


def rolling(bench):
    """Each node is ended and started again, one after the other."""
    setup = dataclasses.replace(bench.setup, flags=(*bench.setup.flags, "--drain", str(DRAIN_S)))

    def change(fleet):
        for index in range(setup.nodes):
            fleet.restart(index)
            fleet.router.wait_for(setup.nodes)

    return _measured(bench, "rolling", setup, change)


def _measured(bench, command, setup, change):
    """A table for each kind of traffic, and the sum of what failed."""
    failed = 0
    for name, sessions in bench.traffics.items():
        shown = []
        for tier in (False, True) if bench.has_tier else (False,):
            tiered = dataclasses.replace(setup, tier=tier)
            for happens, rows in _rounds(bench, command, name, tiered, sessions, change).items():
                shown.append(figures.medians(rows) | {"happens": happens})
                failed += sum(row["failed"] + row["wrong"] for row in rows)
        print(f"\n## {command}, {name}: hit rate before, during, at worst in {bench.args.window} requests, and after\n")
        print(figures.table(COLUMNS, shown), flush=True)
    return failed


def _rounds(bench, command, name, setup, sessions, change):
    """Rows with the change and, in turns, without: hit rates of traffic go up and down by themselves."""
    rows = {command: [], "nothing": []}
    for number in range(bench.args.rounds):
        rows[command].append(_round(bench, command, name, setup, sessions, change, number))
        as_long = rows[command][-1]["took_s"]
        still = _round(bench, "nothing", name, setup, sessions, lambda _, s=as_long: time.sleep(s), number)
        rows["nothing"].append(still)
    return rows


def _round(bench, command, name, setup, sessions, change, number):
    begin_s = BEGIN * max(request.at_s for session in sessions for request in session)
    times = []

    def happening(fleet):
        def timed():
            began = figures.now()
            change(fleet)
            times.append(figures.now() - began)

        return [(begin_s, in_thread(timed))]

    outcomes, counted = bench.run(setup, sessions, happening)
    row = _row(outcomes, begin_s, times[0], bench.args.window)
    asked = counted["asked_tokens"]
    row |= {"tier": setup.tier, "new_share": sum(asked[setup.nodes:]) / sum(asked)}
    cut = figures.windows(outcomes, bench.args.window)
    bench.record(command=command, traffic=name, round=number, windows=cut, outcomes=plain(outcomes), **row)
    return row


def _row(outcomes, begin_s, took_s, count):
    since = figures.summary([one for one in outcomes if one.sent_s >= begin_s])
    before = figures.summary([one for one in outcomes if one.sent_s < begin_s])
    return figures.around(outcomes, begin_s, begin_s + took_s, count) | {
        "p99_before_ms": before["ttft_p99_ms"],
        "p99_since_ms": since["ttft_p99_ms"],
        "took_s": took_s,
        "failed": before["failed"] + since["failed"],
        "wrong": before["wrong"] + since["wrong"],
    }
