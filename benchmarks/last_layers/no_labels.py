"""Last layers without group labels, and with a few: five problems, several seeds, with wrong labels too.

    GROUPDRO_CIFAR=.../cifar-100-python python -m benchmarks.last_layers.no_labels [--seeds 3] [--only PROBLEM ...]

Three problems of images and two of sentences (`problems`, `sentences`). A small network is trained by plain ERM, and
its last layer is fitted again on held-out rows:

- plain refit: scikit-learn's logistic regression on standardised features;
- AFR: its second stage by gradient descent, written anew, with the arguments that its readme gives for Waterbirds and
  for CelebA, and without the labelled validation rows that choose its step and arguments in the paper;
- chosen by the worst class: our weights and penalties, but those whose worst class is most accurate out of fold;
- `retrain_last_layer` without labels, with labels of 5 to 60 rows per group, in all as many as that times the number of
  groups, at random or as `rows_to_label` proposes, and with all labels;
- labelled rows alone: group DRO on 30 labelled rows per group, and no other row.

With wrong labels, a share of the held-out rows has the other label, and belongs to the group of that label; the
network and the test rows are as before. Seconds are CPU seconds of fitting, without the features, of one thread.
Every cell is stored in the cache as it ends, so that an interrupted run resumes.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # groupdro's own threads, read at import

import argparse
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from torch import nn

from benchmarks.last_layers import refitting, sentences, training
from benchmarks.last_layers.no_labels_tables import BY_CLASS, OURS, render
from benchmarks.last_layers.problems import PROBLEMS, Problem, made_up
from benchmarks.last_layers.training import accuracies
from groupdro import GroupDROClassifier, SmallGroupWarning
from groupdro.torch import LastLayerResult, retrain_last_layer, rows_to_label
from groupdro.torch.layers import layer_coefficients
from groupdro.torch.unlabelled import true_class_probabilities

HERE = Path(__file__).parents[1]
FLIPPED = 0.0, 0.05, 0.15
PER_GROUP = 5, 10, 30, 60
ALONE = 30
# Exponent, penalty, size and number of steps, as in the commands of the published readme.
AFR = {"AFR, as for Waterbirds": (10.0, 0.0, 0.01, 500), "AFR, as for CelebA": (1.44, 0.001, 0.02, 1000)}
AFR_NORM = 1.0

Numbers = dict[str, Any]


def problems(cache: Path) -> dict[str, Callable[[int], Problem]]:
    """Return the problems; the superclasses of CIFAR-100 are left out, whose hundred groups take minutes per fit."""
    images = {name: make for name, make in PROBLEMS.items() if "superclasses" not in name}
    return images | {
        "sentences, phrase 95%": lambda seed: sentences.planted(seed, cache),
        "sentences, classes": lambda seed: sentences.natural(seed, cache),
    }


class Task:
    """A frozen network with rows to refit its last layer on, and test rows."""

    def __init__(self, frozen: refitting.Frozen, flipped: float, seed: int):
        self.head = nn.Sequential(nn.Identity(), frozen.network[-1])
        self.test = frozen.test
        self.seed = seed
        rows = frozen.held_out
        wrong = np.random.default_rng([seed, 5]).random(len(rows.y)) < flipped
        self.X, self.y = rows.X, np.where(wrong, 1 - rows.y, rows.y)
        self.groups = 2 * self.y + rows.groups % 2
        self.n_groups = 4

    @property
    def batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.from_numpy(self.X), torch.from_numpy(self.y))]

    def judge(self, predicted: np.ndarray, seconds: float = 0.0) -> Numbers:
        found = accuracies(predicted, self.test)
        return {"worst": found["worst"], "average": found["average"], "seconds": seconds}

    def judge_network(self, network: nn.Module, seconds: float = 0.0) -> Numbers:
        return self.judge(training.outputs_of(network, self.test.X).argmax(axis=1), seconds)


def plain_refit(task: Task) -> Numbers:
    begun = time.process_time()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(task.X, task.y)
    seconds = time.process_time() - begun
    return task.judge(model.predict(task.test.X), seconds)


def published_reweighting(task: Task, arguments: tuple[float, float, float, int]) -> Numbers:
    """Minimise the weighted loss by gradient descent from the network's layer."""
    gamma, penalty, step, n_steps = arguments
    begun = time.process_time()
    X, y = torch.from_numpy(task.X), torch.from_numpy(task.y)
    layer = nn.Linear(X.shape[1], task.head[-1].out_features)
    layer.load_state_dict(task.head[-1].state_dict())
    first = [parameter.detach() for parameter in task.head[-1].parameters()]
    with torch.no_grad():
        own = layer(X).softmax(dim=1)[torch.arange(len(y)), y]
    weights = torch.exp(-gamma * own) / torch.bincount(y)[y]
    weights /= weights.sum()
    optimizer = torch.optim.SGD(layer.parameters(), lr=step)
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss = (weights * nn.functional.cross_entropy(layer(X), y, reduction="none")).sum()
        change = sum((new - old).square().sum() for new, old in zip(layer.parameters(), first, strict=True))
        (loss + penalty * change).backward()
        nn.utils.clip_grad_norm_(layer.parameters(), AFR_NORM)
        optimizer.step()
    return task.judge_network(layer, time.process_time() - begun)


def retrain(task: Task, groups: list[int | None] | np.ndarray | None) -> tuple[LastLayerResult, Numbers]:
    begun = time.process_time()
    result = retrain_last_layer(task.head, task.batches, groups=groups, inplace=False)
    return result, task.judge_network(result.model, time.process_time() - begun)


def without_labels(task: Task) -> dict[str, Numbers]:
    """Refit without labels, as chosen and as the worst class would choose."""
    result, found = retrain(task, None)
    chosen = result.weighting.chosen
    found |= {"gamma": chosen.gamma, "share": chosen.share, "alpha": chosen.alpha, "value": chosen.value}
    other = max(result.weighting.trials, key=lambda trial: trial.worst_class)
    coef, intercept = layer_coefficients(task.head[-1])
    scores = task.X @ coef.T + intercept
    weights = np.exp(-other.gamma * true_class_probabilities(scores, task.y)) / np.bincount(task.y)[task.y]
    model = GroupDROClassifier(robustness=0.0, alpha=other.alpha, random_state=0)
    model.fit(task.X, task.y, weights / weights.mean(), groups=np.zeros(len(task.y), int), offset=scores[:, 0])
    predicted = model.decision_function(task.test.X, offset=(task.test.X @ coef.T + intercept)[:, 0]) > 0
    by_class = task.judge(predicted.astype(np.int64), found["seconds"]) | {"gamma": other.gamma, "alpha": other.alpha}
    return {OURS: found, BY_CLASS: by_class}


def with_some(task: Task, per_group: int, how: str) -> Numbers:
    """Refit with the labels of some rows."""
    n_rows = min(per_group * task.n_groups, len(task.y) - 1)
    rows = np.random.default_rng([task.seed, per_group]).permutation(len(task.y))[:n_rows]
    begun = time.process_time()
    if how == "proposed":
        rows = rows_to_label(task.head, task.batches, n_rows, random_state=task.seed)
    seconds = time.process_time() - begun
    groups: list[int | None] = [None] * len(task.y)
    for row in rows:
        groups[row] = int(task.groups[row])
    result, found = retrain(task, groups)
    found["seconds"] += seconds
    return found | {"agreement": result.spread.agreement, "present": len(np.unique(task.groups[rows]))}


def labelled_alone(task: Task, how: str) -> Numbers:
    """Fit the labelled rows and no others."""
    n_rows = min(ALONE * task.n_groups, len(task.y) - 1)
    rows = np.random.default_rng([task.seed, ALONE]).permutation(len(task.y))[:n_rows]
    if how == "proposed":
        rows = rows_to_label(task.head, task.batches, n_rows, random_state=task.seed)
    begun = time.process_time()
    X = task.X[rows].astype(np.float64)
    model = GroupDROClassifier(alpha=0.01 * float(X.var(axis=0).mean()), random_state=0)
    model.fit(X, task.y[rows], groups=task.groups[rows])
    return task.judge(model.predict(task.test.X), time.process_time() - begun)


def methods(flipped: float) -> dict[str, Callable[[Task], dict[str, Numbers]]]:
    """Return what is run, by the name of its first row."""
    one: dict[str, Callable[[Task], Numbers]] = {
        "network": lambda task: task.judge_network(task.head),
        "plain refit": plain_refit,
    }
    for name, arguments in AFR.items():
        one[name] = partial(published_reweighting, arguments=arguments)
    for how in ("random", "proposed"):
        for per_group in (ALONE,) if flipped else PER_GROUP:
            one[f"{per_group} per group, {how}"] = partial(with_some, per_group=per_group, how=how)
        if not flipped:
            one[f"{ALONE} per group, {how}, labelled rows alone"] = partial(labelled_alone, how=how)
    one["all labels"] = lambda task: retrain(task, task.groups)[1]
    named = {name: lambda task, name=name, run=run: {name: run(task)} for name, run in one.items()}
    return {**named, OURS: without_labels}


def run_cell(task: Task, flipped: float, known: dict[str, Numbers]) -> dict[str, Numbers]:
    """Run what is not known yet."""
    for name, run in methods(flipped).items():
        if name not in known:
            known |= run(task)
    return known


def frozen_network(name: str, make: Callable[[int], Problem], seed: int, cache: Path) -> refitting.Frozen:
    """Return a trained network with its features, from the cache if they are there."""
    stem = "".join(c if c.isalnum() else "-" for c in name)
    path = cache / f"no-labels-{stem}-{seed}.pt"
    problem = make(seed)
    if path.exists():
        network = training.make_network(problem.train)
        network.load_state_dict(torch.load(path))
    else:
        network = training.plain(problem, seed)
        torch.save(network.state_dict(), path)
    return refitting.freeze(network, problem)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.last_layers.no_labels", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--only", nargs="*", help="problems whose names contain one of these")
    parser.add_argument("--quick", action="store_true", help="made-up images: whether everything runs, in a minute")
    parser.add_argument("--cache", type=Path, default=HERE / ".cache" / "last_layers", help="where runs are kept")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where the tables go")
    parser.add_argument("--tables", action="store_true", help="run nothing: write the tables of what is kept")
    given = parser.parse_args(arguments)
    given.cache.mkdir(parents=True, exist_ok=True)
    chosen = {"made up": made_up} if given.quick else problems(given.cache)
    names = [name for name in chosen if not given.only or any(part in name for part in given.only)]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", SmallGroupWarning)
    warnings.filterwarnings("ignore", message=".* held-out rows")  # an old layer that is kept
    store = given.cache / "no_labels_cells.json"
    runs: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
    with threadpool_limits(1):
        for seed in range(0 if given.tables else given.seeds):
            for name in names:
                keys = {flipped: f"{name} | {seed} | {flipped:g}" for flipped in FLIPPED}
                if all(methods(flipped).keys() <= runs.get(key, {}).keys() for flipped, key in keys.items()):
                    continue
                frozen = frozen_network(name, chosen[name], seed, given.cache)
                if not runs:
                    without_labels(Task(frozen, 0.0, 0))  # compiles, so that this is not timed
                for flipped, key in keys.items():
                    if not methods(flipped).keys() <= runs.get(key, {}).keys():
                        runs[key] = run_cell(Task(frozen, flipped, seed), flipped, runs.get(key, {}))
                        store.write_text(json.dumps(runs, indent=1))
                        print(
                            key, {k: f"{v['worst']:.3f}/{v['average']:.3f}" for k, v in runs[key].items()}, flush=True
                        )
    about = {"confidence": 0.95, "seconds": "CPU seconds of one thread, without the features"}
    order = list(chosen)
    kept = [
        {"problem": name, "seed": int(seed), "flipped": float(flipped), "methods": found}
        for key, found in runs.items()
        for name, seed, flipped in [key.split(" | ")]
        if name in order and methods(float(flipped)).keys() <= found.keys()
    ]
    kept.sort(key=lambda run: (order.index(run["problem"]), run["seed"], run["flipped"]))
    (given.results / "no_labels.json").write_text(json.dumps(about | {"runs": kept}, indent=1) + "\n")
    (given.results / "no_labels.md").write_text(render(kept))


if __name__ == "__main__":
    main()
