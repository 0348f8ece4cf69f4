import argparse

from benchmarks.find_groups import chance, real, rivals, speed

COMMANDS = {
    "nulls": (chance.nulls, 2_000),
    "tails": (chance.tails, 1_000),
    "miscalibration": (chance.miscalibration, 1_000),
    "planted": (chance.find_planted, 100),
    "coverage": (chance.coverage, 40),
    "rivals": (rivals.rivals, 40),
    "problems": (real.problems, 1),
    "shortcuts": (real.shortcuts, 2),
    "speed": (speed.speed, 1_000_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.find_groups", description="Groups that were found.")
    parser.add_argument("part", choices=[*COMMANDS])
    parser.add_argument("--number", type=int, help="number of data sets or of splits; for speed, of rows")
    asked = parser.parse_args()
    command, number = COMMANDS[asked.part]
    command(asked.number or number)


if __name__ == "__main__":
    main()
