import argparse

from benchmarks.find_groups import chance, rivals

COMMANDS = {
    "nulls": (chance.nulls, 2_000),
    "planted": (chance.find_planted, 100),
    "coverage": (chance.coverage, 200),
    "rivals": (rivals.rivals, 100),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.find_groups", description="Groups that were found.")
    parser.add_argument("part", choices=[*COMMANDS])
    parser.add_argument("--number", type=int, help="number of simulated data sets, of rows for speed")
    asked = parser.parse_args()
    command, number = COMMANDS[asked.part]
    command(asked.number or number)


if __name__ == "__main__":
    main()
