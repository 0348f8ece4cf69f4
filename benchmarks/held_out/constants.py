"""How often `compare` recommends a model that predicts the same for every row, or predicts at random."""

import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.dummy import DummyClassifier

from benchmarks.held_out.writing import CACHE, file_name, markdown, stored, write
from groupdro import GroupDROClassifier, UselessModelWarning, compare
from groupdro.compare import Comparison

__all__ = ["CONSTANT", "METRICS", "RANDOM", "constants", "contenders", "draw", "simulate"]

N_SETS = 125  # comparisons per metric
N_BOOTSTRAP = 100
CONSTANT, RANDOM = ("always yes", "always no", "class shares"), ("random by shares", "coin")
METRICS = ("risk", "log_loss", "accuracy", "balanced_accuracy", "recall", "precision", "f1", "false_positive_rate")
GUARDS = ("alone", "then log_loss", "floor")  # of one-sided rates
FLOORS = {"recall": "precision", "precision": "recall", "false_positive_rate": "recall"}  # metric with the floor
FLOOR = 0.2
COLUMNS = (
    "comparisons", "a constant", "random instead of plain training", "random instead of the coin",
    "any other than the baseline",
)  # fmt: skip

HEADER = f"""\
# Useless models among the contenders of `compare`

What `compare` recommends when five useless classifiers compete with its linear models: three constant ones (always the
positive class, never the positive class, and the shares of the classes as probabilities) and two random ones (classes
at random by their shares, and a coin). There are {N_SETS} simulated data sets per metric, of 300 to 1,200 rows in two
to five groups, whose slopes differ and whose positive class may be rare. In one comparison of four the coin is the
baseline, in the others plain training is. "First" is the metric that decides. One-sided rates come in equal parts
alone, with the log loss after them, and with a floor of {FLOOR:g} for another rate: of precision for recall, of recall
for precision and for the false positive rate. Bootstrap intervals use {N_BOOTSTRAP} resamples.

A constant should never be recommended. Random classes are not constant, and can be better than plain training by what
is asked for: a floor of {FLOOR:g} is one that they often reach, and their F1 is above that of a model that hardly ever
predicts the positive class. The coin's probabilities are the same for every row although its classes are not. "Any
other than the baseline" includes random ones.

"""


def draw(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, labels of which both classes occur, and groups."""
    rng = np.random.default_rng([seed, 11])
    n, n_groups = int(rng.integers(300, 1200)), int(rng.integers(2, 6))
    groups, X = rng.integers(0, n_groups, n), rng.normal(size=(n, 3))
    slopes, common, centre = rng.normal(size=n_groups), rng.normal(), rng.normal()
    y = X[:, 0] * slopes[groups] + X[:, 1] * common + centre + rng.logistic(size=n) > 0
    return X, y.astype(np.int64), groups


def contenders(seed: int) -> dict[str, DummyClassifier]:
    """Return the useless models."""
    return {
        "always yes": DummyClassifier(strategy="constant", constant=1),
        "always no": DummyClassifier(strategy="constant", constant=0),
        "class shares": DummyClassifier(strategy="prior"),
        "random by shares": DummyClassifier(strategy="stratified", random_state=seed),
        "coin": DummyClassifier(strategy="uniform", random_state=seed),
    }


def one_comparison(metric: str, seed: int, n_bootstrap: int = N_BOOTSTRAP) -> tuple[Comparison, str]:
    """Return the comparison of a data set, and the name of its baseline."""
    metrics: list[str] = [metric]
    options: dict[str, Any] = {}
    guard = guard_of(metric, seed)
    if guard == "then log_loss":
        metrics.append("log_loss")
    elif guard == "floor":
        options["floor"] = {FLOORS[metric]: FLOOR}
    baseline = "coin" if seed % 4 == 3 else "ERM"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UselessModelWarning)  # many of these data can hardly be predicted
        found = compare(
            *draw(seed), models=contenders(seed), metrics=metrics, baseline=baseline, cv=None,
            n_bootstrap=n_bootstrap, estimator=GroupDROClassifier(tol=1e-2), random_state=seed, **options,
        )  # fmt: skip
    return found, baseline


def guard_of(metric: str, seed: int) -> str:
    """Return what keeps useless models from winning by a one-sided rate; empty for other metrics."""
    return GUARDS[seed % 3] if metric in FLOORS else ""


def simulate(metric: str, seeds: Iterable[int], n_bootstrap: int = N_BOOTSTRAP) -> dict[str, int]:
    """Return how many comparisons there are, and how many recommend what."""
    counts = Counter(dict.fromkeys(COLUMNS, 0))
    for seed in seeds:
        found, baseline = one_comparison(metric, seed, n_bootstrap)
        other = found.recommended != baseline
        instead = "the coin" if baseline == "coin" else "plain training"
        counts["comparisons"] += 1
        counts["a constant"] += found.recommended in CONSTANT
        counts[f"random instead of {instead}"] += other and found.recommended in RANDOM
        counts["any other than the baseline"] += other
    return dict(counts)


def document(found: dict[tuple[str, str], dict[str, int]]) -> str:
    """Return the page, given the counts of each metric and guard."""
    total = {name: sum(counts[name] for counts in found.values()) for name in COLUMNS}
    rows = [
        [", ".join(filter(None, key)), *(counts[name] for name in COLUMNS)]
        for key, counts in [*found.items(), (("all", ""), total)]
    ]
    return HEADER + markdown(["first", *COLUMNS], rows) + "\n"


def constants(cache: Path = CACHE) -> None:
    found = {}
    for number, metric in enumerate(METRICS):
        for guard in GUARDS if metric in FLOORS else ("",):
            seeds = [seed for seed in range(N_SETS * number, N_SETS * (number + 1)) if guard_of(metric, seed) == guard]
            path = cache / "constants" / f"{file_name((metric, guard))}.json"
            found[metric, guard] = stored(path, lambda metric=metric, seeds=seeds: simulate(metric, seeds))
            print(metric, guard, found[metric, guard], flush=True)
    write("constants", document(found))
