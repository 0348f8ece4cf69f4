"""CPU seconds, seconds and memory of a search among a million rows and a hundred columns."""

import time
from pathlib import Path

import numpy as np
import pandas as pd

import groupdro as gd
from benchmarks.find_groups.writing import markdown, write

_NUMBERS, _NAMES = 80, 20


def speed(n_rows: int) -> None:
    """Search a table of random numbers and names with a planted group."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n_rows, _NUMBERS)).astype(np.float32)).add_prefix("x")
    for j in range(_NAMES):
        frame[f"c{j}"] = rng.choice([f"v{k}" for k in range(20)], n_rows)
    inside = (frame["x0"] > 1) & (frame["c1"] == "v3")
    losses = rng.exponential(size=n_rows) * np.where(inside, 1.5, 1.0)
    gd.find_groups(losses=losses[:2_000], columns=frame[:2_000])  # compiles
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _peak()
    begun, cpu = time.perf_counter(), time.process_time()
    found = gd.find_groups(losses=losses, columns=frame)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    memory = [f"{kib / 2**20:.2f}" for kib in (before, _peak())]
    row = [f"{n_rows:,}", _NUMBERS + _NAMES, found.n_conditions, f"{seconds:.0f}", f"{cpu:.0f}", *memory]
    write(
        "speed",
        f"# Speed\n\n{_NUMBERS} numbers in single precision and {_NAMES} columns of text with 20 categories, on two "
        f"cores. Memory of the process before the search, and at its peak. Found: {'; '.join(found.columns['group'])}."
        "\n\n"
        + markdown(["rows", "columns", "conditions", "seconds", "CPU seconds", "GiB before", "GiB at the peak"], [row]),
    )


def _peak() -> int:
    """Return the largest memory of this process in KiB, on Linux."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])
