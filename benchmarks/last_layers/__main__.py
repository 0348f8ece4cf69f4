"""Run the comparison, or resume it, and write its results.

    GROUPDRO_CIFAR=.../cifar-100-python python -m benchmarks.last_layers [--seeds 5] [--only PROBLEM ...]

Every method of every problem and seed is stored in the cache as it ends, as are the trained networks, so that an
interrupted run resumes; all problems are run for one seed before the next. Fashion-MNIST is read from
GROUPDRO_FASHION_MNIST, or from where Debian's package dataset-fashion-mnist puts it.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # groupdro's own threads, read at import

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from benchmarks.last_layers import refitting, training
from benchmarks.last_layers.problems import PROBLEMS, QUICK, Problem, made_up
from benchmarks.last_layers.tables import (
    LOSS,
    METHODS,
    NETWORK,
    ONLINE,
    OURS,
    REWEIGHTING,
    SUBSAMPLE,
    WIDER,
    render,
)
from groupdro.estimators import SmallGroupWarning

HERE = Path(__file__).parents[1]
WHOLE: dict[str, Callable[[Problem, int], Any]] = {
    NETWORK: training.plain,
    ONLINE: training.online_group_dro,
    LOSS: training.group_dro_loss,
}


class Cell:
    """What is known of one problem and seed."""

    def __init__(self, cache: Path, name: str, seed: int):
        stem = "".join(c if c.isalnum() else "-" for c in name)
        self.name, self.seed = name, seed
        self.path, self.network = cache / f"{stem}-{seed}.json", cache / f"{stem}-{seed}.pt"
        self.methods: dict[str, Any] = json.loads(self.path.read_text())["methods"] if self.path.exists() else {}

    @property
    def run(self) -> dict[str, Any]:
        return {"problem": self.name, "seed": self.seed, "methods": {name: self.methods[name] for name in self._order}}

    @property
    def complete(self) -> bool:
        return len(self._order) == len(METHODS)

    @property
    def _order(self) -> list[str]:
        return [name for name in METHODS if name in self.methods]

    def store(self, found: dict[str, dict[str, Any]]) -> None:
        self.methods |= found
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.run, indent=1) + "\n")
        part.replace(self.path)
        for method, numbers in found.items():
            shown = "  ".join(f"{key} {value:.4g}" for key, value in numbers.items() if isinstance(value, float))
            print(f"{self.name}, seed {self.seed}: {method}: {shown}", flush=True)


def run_cell(cell: Cell, problem: Problem, first: Cell) -> None:
    """Run the methods that are not stored yet, but none that was given up on the first seed."""
    for name, train in WHOLE.items():
        if name not in cell.methods:
            begun = time.process_time()
            network = train(problem, cell.seed)
            seconds = time.process_time() - begun
            found = training.accuracies(training.outputs_of(network, problem.test.X).argmax(axis=1), problem.test)
            if name == NETWORK:
                torch.save(network.state_dict(), cell.network)
            cell.store({name: found | {"seconds": seconds}})
    network = training.make_network(problem.train)
    network.load_state_dict(torch.load(cell.network))
    frozen = refitting.freeze(network, problem)
    if SUBSAMPLE not in cell.methods:
        cell.store({SUBSAMPLE: refitting.subsample(frozen, cell.seed)})
    if REWEIGHTING not in cell.methods or WIDER not in cell.methods:
        both = refitting.reweighting(frozen, cell.seed)
        cell.store({REWEIGHTING: both["as published"], WIDER: both["C up to 100"]})
    for name, (robustness, l1_ratio) in OURS.items():
        if "given_up_after" in first.methods.get(name, {}):
            cell.store({name: first.methods[name]})
        if name not in cell.methods:
            cell.store({name: refitting.retrain(frozen, problem, robustness, l1_ratio)})


def compile_kernels() -> None:
    """Run ours once on rows of no interest, so that compilation is not timed."""
    for n_labels in (2, 3):
        problem = made_up(99, n_labels)
        network = training.make_network(problem.train)
        frozen = refitting.freeze(network, problem)
        for robustness, l1_ratio in OURS.values():
            refitting.retrain(frozen, problem, robustness, l1_ratio)


def write(cells: list[Cell], folder: Path) -> None:
    """Write the cells that are complete, and of a problem that has none what there is of its first seed."""
    complete = [cell for cell in cells if cell.complete]
    done = {cell.name for cell in complete}
    runs = [
        cell.run for cell in cells if cell in complete or (cell.methods and cell.seed == 0 and cell.name not in done)
    ]
    if runs:
        about = {"confidence": 0.95, "seconds": "CPU seconds of the process, one thread", "torch": torch.__version__}
        (folder / "last_layers.json").write_text(json.dumps(about | {"runs": runs}, indent=1) + "\n")
        (folder / "last_layers.md").write_text(render(runs))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.last_layers", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: 5)")
    parser.add_argument("--only", nargs="*", help="problems whose names contain one of these")
    parser.add_argument("--quick", action="store_true", help="made-up images: whether everything runs, in a minute")
    parser.add_argument("--cache", type=Path, default=HERE / ".cache" / "last_layers", help="where runs are kept")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where the tables go")
    parser.add_argument("--tables", action="store_true", help="run nothing: write the tables of what is kept")
    given = parser.parse_args(arguments)
    problems = QUICK if given.quick else PROBLEMS
    names = [name for name in problems if not given.only or any(part in name for part in given.only)]
    given.cache.mkdir(parents=True, exist_ok=True)
    if given.tables:
        write([Cell(given.cache, name, seed) for name in problems for seed in range(given.seeds)], given.results)
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", SmallGroupWarning)
    with threadpool_limits(1):
        compile_kernels()
        for seed in range(given.seeds):
            for name in names:
                cell = Cell(given.cache, name, seed)
                if not cell.complete:
                    run_cell(cell, problems[name](seed), Cell(given.cache, name, 0))
                write([Cell(given.cache, one, s) for one in problems for s in range(given.seeds)], given.results)


if __name__ == "__main__":
    main()
