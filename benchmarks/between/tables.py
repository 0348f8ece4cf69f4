"""How results are written, and how time is taken."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parents[1] / "results"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def write(name: str, text: str) -> None:
    """Write a result and print it."""
    (RESULTS / f"between_{name}.md").write_text(text)
    print(text, flush=True)


def best_times(ways: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, float]:
    """Return the best time of each, in turns: at most `rounds`, and no new one after so many seconds."""
    times, begun = dict.fromkeys(ways, np.inf), time.perf_counter()
    for k in range(rounds):
        if k >= 2 and time.perf_counter() - begun > seconds:
            break
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name] = min(times[name], time.perf_counter() - start)
    return times
