"""Whether fits end as they did: bounds, status, passes and solver of some hundred small fits, with one thread.

    python -m tests.house.golden compare                 the fits of this tree with tests/house/golden.json
    python -m tests.house.golden compare --src OTHER/src the same of another tree
    python -m tests.house.golden record FILE             writes what the fits of this tree find

`compare` prints one line per difference and exits with 1 if one of them has no reason in `golden_changes`. Bounds may
differ by rounding, relative to the upper one, and a run may end an epoch earlier or later.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest import mock

from threadpoolctl import threadpool_limits

from tests.house import golden_estimators, golden_solves
from tests.house.environment import SOURCE, environment
from tests.house.golden_changes import CHANGES
from tests.house.golden_fit import FITS, Fit, Outcome

__all__ = ["RECORD", "STRICT", "Difference", "compare", "differences", "load", "reason_for", "run"]

assert FITS, (golden_estimators, golden_solves)  # which register the fits

RECORD = Path(__file__).with_name("golden.json")
STRICT = 1e-9  # relative difference of bounds on the machine and with the libraries of the record
TINY = 1e-9  # upper bounds below which differences are relative to this
EPOCHS = 1  # by which runs may differ in length

Difference = tuple[str, Any, Any]  # what differs, as recorded, and as found


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let fits use one thread, with which they give the same bits each time."""
    with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}), threadpool_limits(1):
        yield


def run(fit: Fit) -> Outcome:
    """Make a fit in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, one_thread():
        return fit.outcome(Path(folder))


def load(path: Path = RECORD) -> dict[str, Outcome]:
    """Read a record."""
    content = json.loads(path.read_text())
    return {name: dict(zip(content["columns"], row, strict=True)) for name, row in content["fits"].items()}


def dump(found: dict[str, Outcome]) -> str:
    """Return a record as text, with one line per fit."""
    columns = list(next(iter(found.values())))
    rows = [f"{json.dumps(name)}: {json.dumps(list(outcome.values()))}" for name, outcome in found.items()]
    lines = ",\n".join(rows)
    return f'{{"columns": {json.dumps(columns)},\n"fits": {{\n{lines}\n}}}}\n'


def differences(recorded: Outcome, found: Outcome, tolerance: float = STRICT) -> list[Difference]:
    """Return what differs between two outcomes of a fit by more than rounding.

    Parameters
    ----------
    recorded, found : Outcome
        What the fit found then, and what it finds now.
    tolerance : float
        Difference of the bounds, relative to the upper one. That of the parameters is 10,000 times this, because a
        bound hardly changes near its minimum.

    Returns
    -------
    list of Difference
        One entry per field that differs.
    """
    scale = max(abs(recorded["upper"]), TINY) if math.isfinite(recorded["upper"]) else TINY
    slack = {
        "upper": tolerance * scale,
        "lower": tolerance * scale,
        # Runs of as many epochs read as many rows: otherwise something is counted differently.
        "passes": 1e-9 if recorded["epochs"] == found["epochs"] else EPOCHS * recorded["passes_per_epoch"],
        "epochs": EPOCHS,
        "w_norm": 1e4 * tolerance * max(recorded["w_norm"], 1e-3),
        "w_dot": 1e4 * tolerance * max(recorded["w_norm"], 1e-3),
        "passes_per_epoch": math.inf,
    }
    return [
        (field, before, found[field])
        for field, before in recorded.items()
        if before != found[field] and not (field in slack and _is_close(before, found[field], slack[field]))
    ]


def _is_close(a: float, b: float, slack: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or abs(a - b) <= slack


def compare(
    names: Iterable[str], recorded: dict[str, Outcome], tolerance: float = STRICT
) -> dict[str, list[Difference]]:
    """Make fits again, and return the differences of each that has some; those whose table is missing are left out."""
    out = {}
    for name in names:
        if name not in FITS:
            out[name] = [("fit", "recorded", "is not made any more")]
        elif name not in recorded:
            out[name] = [("fit", "was not recorded", "is made")]
        elif FITS[name].possible:
            try:
                found = differences(recorded[name], run(FITS[name]), max(tolerance, FITS[name].rounding))
            except Exception as error:  # whatever a fit raises is a difference, and the others still count
                found = [("error", "none", f"{type(error).__name__}: {error}")]
            if found:
                out[name] = found
    return out


def reason_for(name: str) -> str | None:
    """Return why a fit differs from the record, where that was intended."""
    return next((reason for pattern, reason in CHANGES.items() if fnmatchcase(name, pattern)), None)


def _report(differing: dict[str, list[Difference]], n_compared: int) -> int:
    """Print differences, and return how many fits differ without a reason."""
    unexplained = 0
    for name, fields in differing.items():
        reason = reason_for(name)
        unexplained += reason is None
        print(f"{name}\n    {reason or 'NOT EXPLAINED'}")
        for field, before, now in fields:
            change = ""
            if isinstance(before, float) and isinstance(now, float):
                change = f"  ({now - before:+.2e})"
            print(f"    {field:9} {before!s:24} -> {now!s:24}{change}")
    explained = len(differing) - unexplained
    print(f"{n_compared} fits compared: {unexplained} differ, {explained} more for a known reason")
    unused = [pattern for pattern in CHANGES if not any(fnmatchcase(name, pattern) for name in differing)]
    if unused:
        print("Reasons of which no fit has need:", *unused, sep="\n    ")
    return unexplained


def main(arguments: list[str]) -> int:
    """Record or compare, in a process of its own with one thread and a cache of its own for compiled code."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.golden", description=__doc__.split("\n")[0])
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, of in (("record", "file to write"), ("compare", "record to compare with")):
        command = commands.add_parser(name)
        command.add_argument(
            "file", type=Path, help=of, **({"nargs": "?", "default": RECORD} if name == "compare" else {})
        )
        command.add_argument("--src", type=Path, default=SOURCE, help="source directory that holds groupdro")
        command.add_argument("--only", default="", help="part of the names of the fits to make")
        if name == "compare":
            command.add_argument("--tolerance", type=float, default=STRICT, help="relative difference of bounds")
    given = parser.parse_args(arguments)
    if not given.here:
        command = [sys.executable, "-m", "tests.house.golden", "--here", *arguments]
        return subprocess.run(command, env=environment(given.src), check=False).returncode
    if given.command == "record":
        chosen = [fit for name, fit in FITS.items() if given.only in name]
        missing = [fit.name for fit in chosen if not fit.possible]
        if missing:
            parser.error(f"GROUPDRO_DATA names no folder with the tables of {missing}")
        given.file.write_text(dump({fit.name: run(fit) for fit in chosen}))
        return 0
    recorded = load(given.file)
    names = [name for name in dict.fromkeys([*recorded, *FITS]) if given.only in name]
    missing = [name for name in names if name in FITS and not FITS[name].possible]
    if missing:
        print(f"{len(missing)} fits left out: GROUPDRO_DATA names no folder with their tables")
    return int(_report(compare(names, recorded, given.tolerance), len(names) - len(missing)) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
