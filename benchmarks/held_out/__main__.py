import argparse
from pathlib import Path

from benchmarks.held_out import (
    choice,
    constants,
    coverage,
    last_layer,
    metrics,
    reports,
    shift,
    tables,
    tails,
    verdicts,
)
from benchmarks.held_out.problems import TABLES
from benchmarks.held_out.writing import CACHE

COMMANDS = {
    "tables": tables.tables,
    "shift": shift.shift,
    "coverage": coverage.coverage,
    "reports": reports.reports,
    "metrics": metrics.metrics,
    "tails": tails.tails,
    "choice": choice.choice,
    "last_layer": last_layer.last_layer,
    "verdicts": verdicts.verdicts,
    "constants": constants.constants,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.held_out", description="Held-out rows of real tables.")
    parser.add_argument("parts", nargs="+", choices=[*COMMANDS, "all"])
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for finished parts")
    parser.add_argument(
        "--only", nargs="+", choices=list(TABLES), default=(), help="run these tables, write no document"
    )
    asked = parser.parse_args()
    for name, command in COMMANDS.items():
        if name in asked.parts or "all" in asked.parts:
            if name in ("tables", "verdicts"):
                command(asked.cache, asked.only)
            elif name in ("choice", "constants", "metrics", "reports", "tails"):
                command(asked.cache)
            else:
                command()


if __name__ == "__main__":
    main()
