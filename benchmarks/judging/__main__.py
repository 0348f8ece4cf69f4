import argparse

from benchmarks.judging import calibration, differences, metric_frame, spread, tables

SIMULATIONS = {
    "spread": spread.spread,
    "calibration": calibration.calibration,
    "differences": differences.differences,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judging", description="How often statements hold.")
    parser.add_argument("part", choices=[*SIMULATIONS, "tables", "metric_frame"])
    parser.add_argument("--sets", type=int, default=1000, help="simulated data sets per line, in hundreds")
    asked = parser.parse_args()
    if asked.part == "tables":
        tables.tables()
    elif asked.part == "metric_frame":
        metric_frame.compare()
    else:
        SIMULATIONS[asked.part](asked.sets)


if __name__ == "__main__":
    main()
