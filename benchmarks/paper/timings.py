"""Seconds of the chosen settings: seed 0 again, one run at a time, repeated if other processes were busy meanwhile.

What a method spends on a multiple of the rows hardly depends on the seed, so these runs are the clock of all seeds.
"""

import json
import time

import numpy as np
import pandas as pd
import psutil

from benchmarks.paper.runs import curve_of
from benchmarks.paper.store import CACHE, RESULTS
from benchmarks.paper.tuning import chosen

__all__ = ["QUIET", "TIMINGS", "clock", "measure", "n_settings"]

TIMINGS = "paper_timings.parquet"  # in the cache as well as in the results
QUIET = 0.2  # cores that other processes, the kernel and the host of a virtual machine may keep busy
TRIES = 3
_KEYS = ["setup", "method", "setting"]


def measure(names: list[str]) -> None:
    """Time every chosen setting of some set-ups that was not timed in quiet yet."""
    path = CACHE / TIMINGS
    kept = [pd.read_parquet(known) for known in (path, RESULTS / TIMINGS) if known.exists()][:1]
    timed = kept[0] if kept else pd.DataFrame(columns=[*_KEYS, "others"])
    for setup in names:
        for method, outputs in chosen(setup).items():
            for setting in sorted(set(outputs.values())):
                key = {"setup": setup, "method": method, "setting": json.dumps(setting)}
                same = (timed[_KEYS] == list(key.values())).all(axis=1)
                if (timed[same]["others"] <= QUIET).any():
                    continue
                curve = _timed(setup, method, setting)
                timed = pd.concat([part for part in (timed[~same], curve.assign(**key)) if len(part)])
                path.parent.mkdir(parents=True, exist_ok=True)
                timed.to_parquet(path, index=False)
                print(f"{setup} | {method} | {curve['seconds'].max():.1f} s | try {curve['tries'].max()}, others "
                      f"{curve['others'].max():.2f} cores", flush=True)  # fmt: skip


def _timed(setup: str, method: str, setting: tuple[int, ...]) -> pd.DataFrame:
    """Return the seconds at each stored multiple of the rows, from the quietest of a few tries."""
    found: list[pd.DataFrame] = []
    while len(found) < TRIES and not (found and found[-1]["others"].max() <= QUIET):
        begun, own, all_processes = time.perf_counter(), time.process_time(), _busy()
        points = curve_of(setup, method, setting, 0)
        others = _busy() - all_processes - (time.process_time() - own)
        share = max(0.0, others) / (time.perf_counter() - begun)
        curve = points[["multiples", "seconds", "load_start", "load_end"]].drop_duplicates("multiples")
        found.append(curve.sort_values("multiples").assign(others=share, tries=len(found) + 1))
    return min(found, key=lambda curve: curve["others"].max())


def _busy() -> float:
    """Return the seconds of processor time that all processes together have used since the machine started."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def clock(timed: pd.DataFrame, setup: str, method: str, setting: str, multiples: np.ndarray) -> np.ndarray | None:
    """Return the seconds at which a setting has spent multiples of the rows, if it was timed in quiet.

    Beyond the end of the timed run, as where another seed is solved later, its rate goes on.
    """
    own = timed[(timed[_KEYS] == [setup, method, setting]).all(axis=1) & (timed["others"] <= QUIET)]
    if not len(own):
        return None
    at, seconds = own["multiples"].to_numpy(float), own["seconds"].to_numpy(float)
    beyond = seconds[-1] * multiples / at[-1]
    return np.where(multiples > at[-1], beyond, np.interp(multiples, at, seconds))


def n_settings(timed: pd.DataFrame) -> int:
    """Return how many settings were timed."""
    return len(timed[_KEYS].drop_duplicates())
