import sys

from benchmarks.between import costs, frontiers, least_average, linear_bounds, wishes

COMMANDS = {
    "cost": costs.cost,
    "epochs": costs.epochs,
    "frontiers": frontiers.frontiers,
    "undetermined": least_average.undetermined,
    "headroom": linear_bounds.headrooms,
    "wishes": wishes.wishes,
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
