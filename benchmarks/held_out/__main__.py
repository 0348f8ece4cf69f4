import argparse
from pathlib import Path

from benchmarks.held_out import bike, choice, coverage, cv_cost, last_layer, metrics, reports, shift, tables, verdicts
from benchmarks.held_out.problems import TABLES
from benchmarks.held_out.writing import CACHE

COMMANDS = {
    "tables": tables.tables,
    "shift": shift.shift,
    "coverage": coverage.coverage,
    "reports": reports.reports,
    "metrics": metrics.metrics,
    "choice": choice.choice,
    "last_layer": last_layer.last_layer,
    "bike": bike.bike,
    "cv_cost": cv_cost.cv_cost,
    "verdicts": verdicts.verdicts,
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
            elif name in ("choice", "metrics", "reports"):
                command(asked.cache)
            else:
                command()


if __name__ == "__main__":
    main()
