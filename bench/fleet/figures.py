"""Figures of a run: percentiles, hit rates, windows of time, and tables of medians."""
import json
import math
import os
import pathlib
import platform
import statistics
import time


def percentile(values, percent):
    """The smallest value that is no less than so many percent of all (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan


def hit_rate(outcomes):
    """Cached tokens of the prompts that were answered, of all their tokens."""
    tokens = sum(one.prompt_tokens for one in outcomes)
    return sum(one.cached_tokens for one in outcomes) / tokens if tokens else math.nan


def summary(outcomes):
    """What a table says of a run; times in milliseconds."""
    answered = [one for one in outcomes if not one.error]
    waits = [one.first_s * 1000 for one in answered]
    return {
        "requests": len(outcomes),
        "failed": len(outcomes) - len(answered),
        "wrong": sum(one.wrong for one in answered),
        "hit_rate": hit_rate(answered),
        "prompt_tokens": sum(one.prompt_tokens for one in answered),
        "ttft_p50_ms": percentile(waits, 50),
        "ttft_p95_ms": percentile(waits, 95),
        "ttft_p99_ms": percentile(waits, 99),
    }


def windows(outcomes, count):
    """Windows of so many requests in the order in which they were sent: when, how many failed, and their hit rate."""
    ordered = sorted(outcomes, key=lambda one: one.sent_s)
    return [
        {
            "from_s": held[0].sent_s,
            "failed": sum(bool(one.error) for one in held),
            "hit_rate": hit_rate([one for one in held if not one.error]),
        }
        for held in (ordered[at:at + count] for at in range(0, len(ordered), count))
    ]


def around(outcomes, begin_s, end_s, count):
    """Hit rates before, during and after a change of a fleet, and of the worst requests in a row since."""
    answered = sorted((one for one in outcomes if not one.error), key=lambda one: one.sent_s)
    since = [one for one in answered if one.sent_s >= begin_s]
    rows = [since[at:at + count] for at in range(max(1, len(since) - count + 1))]
    return {
        # Caches are cold at first; what comes before is its second half.
        "before": hit_rate([one for one in answered if begin_s / 2 <= one.sent_s < begin_s]),
        "during": hit_rate([one for one in since if one.sent_s < end_s]),
        "dip": min(map(hit_rate, rows)),
        "after": hit_rate([one for one in since if one.sent_s >= end_s]),
    }


def medians(rows):
    """One row of medians for rows with the same keys; what is no number stays as in the first."""
    numbers = (int, float)
    return {
        key: statistics.median(row[key] for row in rows) if isinstance(value, numbers) else value
        for key, value in rows[0].items()
    }


def machine():
    """The processor, its cores, and how busy it was with other things."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name, load = names[0] if names else platform.processor(), os.getloadavg()[0]
    return f"{name}, {os.cpu_count()} cores, load {load:.1f} at the start"


def table(columns, rows):
    """A table in Markdown; columns are (title, how a row is shown there)."""
    shown = [[show(row) for _, show in columns] for row in rows]
    lines = [[title for title, _ in columns], ["---"] + ["---:"] * (len(columns) - 1), *shown]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def append(path, record):
    """A line of JSON at the end of a file, if one is wanted."""
    if path:
        with open(path, "a") as file:
            file.write(json.dumps(record) + "\n")


def now():
    """Seconds of a clock that never goes back."""
    return time.monotonic()
