"""The campaign: every promise tried at full size.

    python -m tests.campaign [WORD ...] [--scale 0.1] [--seed 0] [--jobs 2]

runs the checks whose name has one of the words, or all, and prints a table; failures are listed under it. Exit status 1
if there are any.
"""

import argparse
import sys
import time

from tests.campaign.checks import CHECKS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    chosen = [c for c in CHECKS if not options.words or any(word in c.name for word in options.words)]
    failures = []
    print("| check | promise | tried | failed | measured | seconds |\n|---|---|---|---|---|---|", flush=True)
    for check in chosen:
        begun = time.perf_counter()
        tally = check.run(max(1, round(check.full * options.scale)), options.seed, options.jobs)
        row = (check.name, check.promise, f"{tally.tried:,}", len(tally.failures), "; ".join(tally.figures))
        print("| " + " | ".join(map(str, row)) + f" | {time.perf_counter() - begun:.0f} |", flush=True)
        failures += [f"{check.name}: {failure}" for failure in tally.failures]
    print("\n" + "\n".join(failures))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
