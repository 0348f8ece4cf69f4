"""Seconds of the chosen settings: one run at a time, repeated if other work raised the load meanwhile."""

import os
import time

import pandas as pd

from benchmarks.paper.runs import curve_of
from benchmarks.paper.store import CACHE
from benchmarks.paper.tuning import chosen

__all__ = ["TIMINGS", "measure"]

TIMINGS = CACHE / "timings.parquet"
IDLE = 0.5  # load average below which the machine counts as idle
OWN = 1.1  # what the run itself adds to it
TRIES = 3
MOST_WAIT = 60.0  # seconds for the load of earlier work to fall


def measure(names: list[str]) -> None:
    """Time seed 0 of every chosen setting of some set-ups that was not timed in quiet yet."""
    rows = pd.read_parquet(TIMINGS).to_dict("records") if TIMINGS.exists() else []
    for setup in names:
        for method, outputs in chosen(setup).items():
            for setting in sorted(set(outputs.values())):
                key = {"setup": setup, "method": method, "setting": str(setting)}
                if any(all(row[k] == v for k, v in key.items()) and row["quiet"] for row in rows):
                    continue
                rows = [row for row in rows if any(row[k] != v for k, v in key.items())]
                rows.append(key | _timed(setup, method, setting))
                TIMINGS.parent.mkdir(parents=True, exist_ok=True)
                pd.DataFrame(rows).to_parquet(TIMINGS, index=False)
                print(rows[-1], flush=True)


def _timed(setup: str, method: str, setting: tuple[int, ...]) -> dict[str, float | bool]:
    best: dict[str, float | bool] = {}
    for attempt in range(1, TRIES + 1):
        until = time.monotonic() + MOST_WAIT
        while os.getloadavg()[0] >= IDLE and time.monotonic() < until:
            time.sleep(5.0)
        points = curve_of(setup, method, setting, 0)
        start, end = float(points["load_start"].max()), float(points["load_end"].max())
        best = {"seconds": float(points["seconds"].max()), "cpu": float(points["cpu"].max()), "load_start": start,
                "load_end": end, "quiet": start < IDLE and end < IDLE + OWN, "attempts": attempt}  # fmt: skip
        if best["quiet"]:
            break
    return best
