"""Run the paper's experiments.

    python -m benchmarks.paper                     everything; prints the time taken, resumes where it stopped
    python -m benchmarks.paper restore             take the stored results as runs, to add to them
    python -m benchmarks.paper forget SET-UP --methods NAME ...   drop restored runs of methods whose code has changed
    python -m benchmarks.paper radius              the radius of the set-ups with 4,000 rows per group
    python -m benchmarks.paper runs [SET-UP ...]   tune and repeat, for some set-ups or all
    python -m benchmarks.paper complexity          evaluations until certified gaps, with the theorems' steps
    python -m benchmarks.paper tuned               the same with tuned steps, on two families of problems
    python -m benchmarks.paper timings             seconds of the chosen settings, one run at a time
    python -m benchmarks.paper collect             keep what the page needs, in benchmarks/results/
    python -m benchmarks.paper draw                figures
    python -m benchmarks.paper write               RESULTS.md from its template, verdicts of docs/from_the_paper.md

    python -m benchmarks.paper figure1 [--quick]   the paper's Figure 1 with the stored settings, in the paper's layout
    python -m benchmarks.paper figure2 [--quick]   the same for Figure 2
    python -m benchmarks.paper table1 [--quick]    the paper's Table 1, measured
    python -m benchmarks.paper commands [NAME ...] how long the quick ones take, which they announce

The figures and the table write to `--out` alone; they, `commands`, `restore` and `forget` are not part of everything.
`--seeds` and `--methods` limit the runs; what is left out is listed on the page.
"""

import argparse
import time
from pathlib import Path

from benchmarks.paper import again, collect, complexity, figures, page, radius, restore, timings, tuned
from benchmarks.paper.contenders import METHODS
from benchmarks.paper.setups import KNOWN, NEAR, SETUPS, available
from benchmarks.paper.store import RESULTS
from benchmarks.paper.tuning import chosen, repeat, tune


def runs(names: list[str], seeds: int | None, methods: list[str] | None) -> None:
    """Tune and repeat every set-up that is asked for."""
    for name in available(names):
        begun, setup = time.perf_counter(), SETUPS[name]
        fitting = [m for m, method in METHODS.items() if method.fits(setup) and (not methods or m in methods)]
        near = [KNOWN[name]] if name in KNOWN else [chosen(other) for other in NEAR[name]]
        tune(name, fitting, [*near, chosen(name)])
        repeat(name, fitting, seeds or setup.seeds)
        print(f"{name}: {(time.perf_counter() - begun) / 60:.1f} min", flush=True)


def choose_radius() -> None:
    """Choose the radius, unless that was done."""
    path = RESULTS / "paper_radius.parquet"
    if path.exists():
        print(f"radius: chosen already; delete {path} to choose it again", flush=True)
    else:
        radius.choose()


def _check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """End with a sentence if a name is unknown, or if there is nothing to forget."""
    setups = [] if given.stage == "commands" else given.names
    for kind, names, known in (("set-up", setups, SETUPS), ("method", given.methods or [], METHODS)):
        for name in names:
            if name not in known:
                parser.error(f"there is no {kind} {name!r}; there are: {', '.join(map(repr, known))}")
    if given.stage == "forget" and not (given.names and given.methods):
        parser.error("forget needs set-ups, and --methods with the names of methods")


def draw() -> None:
    """Draw every stored set-up, the complexity, and the paper's figures."""
    figures.draw()
    again.draw_stored()


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description="The paper's experiments.")
    stages = {
        "radius": choose_radius,
        "runs": lambda: runs(given.names, given.seeds, given.methods),
        "complexity": lambda: complexity.run(given.seeds),
        "tuned": tuned.run,
        "timings": lambda: timings.measure(available(given.names)),
        "collect": collect.collect,
        "draw": draw,
        "write": page.write,
    }
    apart = {name: lambda name=name: again.figure(name, given.quick, given.out) for name in again.FIGURES}
    apart |= {
        "restore": restore.restore,
        "forget": lambda: restore.forget(given.names, given.methods or []),
        "table1": lambda: again.table1(given.quick, given.out),
        "commands": lambda: again.measure_commands(given.names),
    }
    parser.add_argument("stage", nargs="?", default="all", choices=["all", *stages, *apart])
    parser.add_argument("names", nargs="*", metavar="SET-UP")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--quick", action="store_true", help="one seed and a tenth of CIFAR-100: minutes, not hours")
    parser.add_argument("--out", type=Path, default=Path("paper_again"), help="folder of the figures and their runs")
    given = parser.parse_args()
    _check(parser, given)
    begun = time.perf_counter()
    if given.stage in apart:
        apart[given.stage]()
    for name, stage in stages.items():
        if given.stage in (name, "all"):
            stage()
    print(f"in all: {(time.perf_counter() - begun) / 60:.1f} min", flush=True)


if __name__ == "__main__":
    main()
