"""Last layers fitted again on held-out rows: what people use, and ours.

Deep feature reweighting follows the published code (Kirichenko, Izmailov and Wilson, ICLR 2023): an L1 logistic
regression of liblinear on standardised features. C is chosen on one half of the held-out rows by worst-group accuracy,
after a fit on a group-balanced subsample of the other half. Then twenty fits on group-balanced subsamples of all
held-out rows are averaged; their features are standardised as those of the training rows. For more than two labels
liblinear fits one against the rest, as that code does.
"""

import contextlib
import signal
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.last_layer import L1, PUBLISHED_GRID, WIDER_GRID
from benchmarks.last_layers.problems import Problem, Rows
from benchmarks.last_layers.training import accuracies, group_accuracies, outputs_of
from groupdro import GroupDROClassifier
from groupdro.torch import retrain_last_layer

N_REFITS = 20
LIMIT = 900.0  # CPU seconds of one call of ours, after which it is given up
GRIDS = {"as published": PUBLISHED_GRID, "C up to 100": WIDER_GRID}


class Frozen(NamedTuple):
    """A trained network, the features of all three parts, and CPU seconds that reading the held-out ones took."""

    network: nn.Sequential
    train: np.ndarray
    held_out: Rows
    test: Rows
    seconds: float


def freeze(network: nn.Sequential, problem: Problem) -> Frozen:
    body = network[:-1].eval()
    begun = time.process_time()
    X = outputs_of(body, problem.held_out.X)
    seconds = time.process_time() - begun
    held_out, test = problem.held_out._replace(X=X), problem.test._replace(X=outputs_of(body, problem.test.X))
    return Frozen(network, outputs_of(body, problem.train.X), held_out, test, seconds)


# ---------------------------------------------------------------------- what people use


def balanced(rows: Rows, rng: np.random.Generator) -> Rows:
    """Return all rows of the smallest group and as many of each other one."""
    members = [rng.permutation(np.flatnonzero(rows.groups == group)) for group in np.unique(rows.groups)]
    smallest = min(map(len, members))
    return rows.take(np.concatenate([some[:smallest] for some in members]))


def subsample(frozen: Frozen, seed: int) -> dict[str, Any]:
    """Fit a logistic regression on a group-balanced subsample."""
    begun = time.process_time()
    part = balanced(frozen.held_out, np.random.default_rng(seed))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(part.X, part.y)
    seconds = time.process_time() - begun
    return _found(model.predict(frozen.test.X), frozen, seconds)


class Scores(NamedTuple):
    """Coefficients of a linear model, one row per label, or one for two labels."""

    coef: np.ndarray
    intercept: np.ndarray

    def predict(self, X: np.ndarray) -> np.ndarray:
        scores = X @ self.coef.T + self.intercept
        return (scores[:, 0] > 0).astype(np.int64) if scores.shape[1] == 1 else scores.argmax(axis=1)


def sparse_logistic(X: np.ndarray, y: np.ndarray, C: float) -> tuple[Scores, int]:
    """Fit, and return how many of the fits stopped at liblinear's 100 iterations."""
    labels = np.unique(y)[-1:] if y.max() == 1 else np.unique(y)
    models = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        for label in labels:
            models.append(LogisticRegression(**L1, C=C, solver="liblinear", random_state=0).fit(X, y == label))
    scores = Scores(
        np.concatenate([model.coef_ for model in models]), np.concatenate([model.intercept_ for model in models])
    )
    return scores, sum(issubclass(one.category, ConvergenceWarning) for one in caught)


def reweighting(frozen: Frozen, seed: int) -> dict[str, dict[str, Any]]:
    """Fit deep feature reweighting with both grids.

    Work that both share is done once and counted in both: the fits of the smaller grid, and the refits where both
    choose the same C.
    """
    rng = np.random.default_rng(seed)
    begun = time.process_time()
    rows = frozen.held_out
    chosen_on, others = (rows.take(half) for half in np.split(rng.permutation(len(rows.y)), [len(rows.y) // 2]))
    part = balanced(others, rng)
    scaler = StandardScaler().fit(part.X)
    X, X_chosen_on = scaler.transform(part.X).astype(np.float64), scaler.transform(chosen_on.X)
    common = time.process_time() - begun
    worst, seconds = {}, {}
    for C in WIDER_GRID:
        begun = time.process_time()
        worst[C] = group_accuracies(sparse_logistic(X, part.y, C)[0].predict(X_chosen_on), chosen_on).min()
        seconds[C] = time.process_time() - begun
    refits: dict[float, dict[str, Any]] = {}
    found = {}
    for name, grid in GRIDS.items():
        best = max(grid, key=lambda C: worst[C])  # the first of equals, the largest, as the published code takes it
        if best not in refits:
            refits[best] = _average_of_refits(frozen, best, seed)
        one = refits[best]
        total = common + sum(seconds[C] for C in grid) + one["seconds"]
        found[name] = _found(one["predicted"], frozen, total) | {"C": best, "not_converged": one["not_converged"]}
    return found


def _average_of_refits(frozen: Frozen, C: float, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng([seed, 1])
    begun = time.process_time()
    scaler = StandardScaler().fit(frozen.train)
    fitted = []
    for _ in range(N_REFITS):
        part = balanced(frozen.held_out, rng)
        fitted.append(sparse_logistic(scaler.transform(part.X).astype(np.float64), part.y, C))
    scores = [one for one, _ in fitted]
    mean = Scores(np.mean([one.coef for one in scores], axis=0), np.mean([one.intercept for one in scores], axis=0))
    seconds = time.process_time() - begun
    return {
        "predicted": mean.predict(scaler.transform(frozen.test.X)),
        "seconds": seconds,
        "not_converged": sum(failed for _, failed in fitted),
    }


def _found(predicted: np.ndarray, frozen: Frozen, seconds: float) -> dict[str, Any]:
    """Return what is stored: reading the features is counted, as it is part of our one call too."""
    return accuracies(predicted, frozen.test) | {"seconds": seconds + frozen.seconds}


# ---------------------------------------------------------------------- ours


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError after so many CPU seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def retrain(frozen: Frozen, problem: Problem, robustness: float | str, l1_ratio: float) -> dict[str, Any]:
    """Call `retrain_last_layer` with its defaults but for robustness and the kind of penalty."""
    loader = DataLoader(TensorDataset(*(torch.from_numpy(part) for part in problem.held_out)), batch_size=1000)
    estimator = GroupDROClassifier(l1_ratio=l1_ratio) if l1_ratio else None
    begun = time.process_time()
    try:
        with at_most(LIMIT):
            result = retrain_last_layer(
                frozen.network, loader, robustness=robustness, estimator=estimator, inplace=False
            )
    except TimeoutError:
        return {"given_up_after": LIMIT}
    seconds = time.process_time() - begun
    return accuracies(outputs_of(result.model[-1], frozen.test.X).argmax(axis=1), frozen.test) | {
        "seconds": seconds,
        "alpha": result.alpha,
        "robustness": result.robustness,
        "status": result.classifier.status_,
        "zeros": float(np.mean(result.classifier.coef_ == 0)),
    }
