"""How fast one source tree is relative to another, with one thread.

    python -m tests.house.speed BEFORE_SRC AFTER_SRC [ITEM ...]

Processes of both trees work in turns, and the best time of each counts. CPU seconds are hardly changed by what else the
machine does; where both ratios differ much, it was busy. The whole takes a few minutes.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.house.environment import environment
from tests.house.speed_items import DATA

__all__ = ["main", "summary", "time_import", "time_item"]

LABELS = {
    "dense": "two epochs of ALEG, 100,000 x 1,024 float32",
    "sparse": "two epochs of ALEG, 100,000 x 50,000 CSR, 50 entries per row",
    "outputs": "two epochs of ALEG, 20,000 x 512, 10 classes",
    "adult": "fit of Adult by SQP",
    "small": "fit of 1,000 rows, mean of 150",
    "import": "import groupdro",
}
PAIRS = 2  # of processes: where the system puts their memory also changes times
ROUNDS = 5  # of each pair
IMPORTS = 10

Times = list[tuple[float, float, float]]  # CPU seconds, seconds by the clock, what the work came to


class Worker:
    """A process that works when it is told to."""

    def __init__(self, source: Path, item: str, folder: Path):
        command = [sys.executable, "-m", "tests.house.speed_items", item, str(folder)]
        self.process = subprocess.Popen(
            command, env=environment(source), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self) -> str:
        """Return the next line that the process prints: the first says that it is ready."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self.process.wait()}")
        return line

    def __call__(self) -> tuple[float, float, float]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        cpu, wall, value = json.loads(self.answer())
        return cpu, wall, value

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate()  # its input ends, and so does it


def time_item(item: str, sources: tuple[Path, Path], pairs: int = PAIRS, rounds: int = ROUNDS) -> tuple[Times, Times]:
    """Return the times of an item with either source, taken in turns."""
    times: tuple[Times, Times] = ([], [])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        DATA[item](folder)
        for pair in range(pairs):
            order = (0, 1) if pair % 2 == 0 else (1, 0)
            with contextlib.ExitStack() as stack:
                workers = {k: stack.enter_context(Worker(sources[k], item, folder)) for k in order}
                for worker in workers.values():
                    worker.answer()
                for _ in range(rounds):
                    for k in order:
                        times[k].append(workers[k]())
    return times


def time_import(sources: tuple[Path, Path], rounds: int = IMPORTS) -> tuple[Times, Times]:
    """Return the times of an import with either source, taken in turns after one of each."""
    times: tuple[Times, Times] = ([], [])
    for _ in range(rounds + 1):
        for source, kept in zip(sources, times, strict=True):
            before, begun = os.times(), time.perf_counter()
            subprocess.run([sys.executable, "-c", "import groupdro"], env=environment(source), check=True)
            wall, after = time.perf_counter() - begun, os.times()
            cpu = after.children_user + after.children_system - before.children_user - before.children_system
            kept.append((cpu, wall, 0.0))
    return times[0][1:], times[1][1:]


def summary(times: tuple[Times, Times]) -> dict[str, Any]:
    """Return the best times of both, their ratios, and whether both did the same work.

    Parameters
    ----------
    times : pair of list
        CPU seconds, seconds by the clock and what the work came to, before and after.

    Returns
    -------
    dict
        Best CPU seconds before and after, the ratios after / before by CPU and by the clock, and `same`.
    """
    best = [[min(time[k] for time in each) for k in (0, 1)] for each in times]
    values = [each[0][2] for each in times]
    return {
        "before": best[0][0],
        "after": best[1][0],
        "cpu": best[1][0] / best[0][0],
        "wall": best[1][1] / best[0][1],
        "same": abs(values[0] - values[1]) <= 1e-6 * max(abs(values[0]), 1e-9),
    }


def main(arguments: list[str]) -> int:
    """Print a line per item."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.speed", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("before", type=Path, help="source directory that holds groupdro")
    parser.add_argument("after", type=Path, help="the other one")
    parser.add_argument("items", nargs="*", metavar="ITEM", help=f"of {', '.join(LABELS)}; all by default")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="measurements per process")
    given = parser.parse_args(arguments)
    sources = given.before, given.after
    if unknown := [item for item in given.items if item not in LABELS]:
        parser.error(f"there is no item {unknown[0]!r}, only {', '.join(LABELS)}")
    if missing := [source for source in sources if not (source / "groupdro").is_dir()]:
        parser.error(f"{missing[0]} holds no groupdro")
    print(f"{'CPU seconds: before':>22} {'after':>9} {'ratio':>7} {'by clock':>9}")
    for item in given.items or LABELS:
        if item == "adult" and not os.environ.get("GROUPDRO_DATA"):
            print(f"{LABELS[item]}: GROUPDRO_DATA names no folder")
            continue
        timed = time_import(sources) if item == "import" else time_item(item, sources, rounds=given.rounds)
        found = summary(timed)
        other = "" if found["same"] else "  (other results: not the same work)"
        times = f"{found['before']:22.4f} {found['after']:9.4f} {found['cpu']:7.3f} {found['wall']:9.3f}"
        print(f"{times}  {item}: {LABELS[item]}{other}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
