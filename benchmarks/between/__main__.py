import sys

from benchmarks.between import frontiers, least_average

COMMANDS = {
    "frontiers": frontiers.frontiers,
    "undetermined": least_average.undetermined,
}


def main() -> None:
    asked = sys.argv[1:]
    if not asked or not set(asked) <= {*COMMANDS, "all"}:
        raise SystemExit(f"usage: python -m benchmarks.between [{' | '.join(COMMANDS)} | all]")
    for name, command in COMMANDS.items():
        if name in asked or "all" in asked:
            command()


if __name__ == "__main__":
    main()
