"""Boosted trees, linear models, and linear models on top of boosted trees, on held-out rows of real tables.

    python -m benchmarks.boosted_trees

writes `results/boosted_trees.md` and `results/boosted_trees.csv`. Every row is held out once, by five folds. Trees take
text as categories, linear models as indicators.
"""

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_predict

import groupdro as gd
from benchmarks import public_tables
from benchmarks.between.tables import RESULTS, markdown
from groupdro import datasets
from groupdro.data.given import read_clusters
from groupdro.data.grouping import read_groups
from groupdro.evaluation.inference import simultaneous_intervals
from groupdro.evaluation.outputs import row_losses
from groupdro.evaluation.resampling import resample

ALPHA = 1e-3
FOLDS = 5
REPEATS = 4  # of the five folds, for the tables with few rows
ROBUSTNESS = (0.0, 0.5, 1.0)
#: Which models are compared, and with which.
PAIRS = (
    ("trees", "linear 0"),
    ("trees", "linear 1"),
    ("stacked 0", "trees"),
    ("stacked 0.5", "stacked 0"),
    ("stacked 1", "stacked 0"),
    ("stacked 0.5", "trees"),
    ("stacked 1", "trees"),
)
#: What the trees for few rows are chosen from, on the training rows.
GRID = {"max_leaf_nodes": [3, 8], "learning_rate": [0.03, 0.1]}

_HEADER = f"""\
# Boosted trees and linear models

Held-out risks. Five folds hold every row out once. Risk is the log loss, and for bike half the squared error, in
hundreds of rentals squared.

- "linear r" is the linear model of the encoded columns with robustness r; 0 is plain training.
- "trees" is scikit-learn's histogram gradient boosting with its defaults.
- "stacked r" is the linear model with robustness r of the same columns and the out-of-fold output of the trees.

All linear models have alpha={ALPHA}. Folds of bike keep the hours of a day together.

"""
_PAIRS = """
## Changes

Change of the held-out risk from "against" to "model": in the group that is worst under "against", and over all rows.
Intervals are paired, resample rows (whole days for bike), and hold at 95% for all groups of a table together. "better"
and "worse" count the groups whose interval lies below and above zero.

"""
_BOUNDS = """
## What linear models could reach

The worst held-out risk of the trees, and what no linear model of the encoded columns with coefficients of norm at most
"radius" goes below on the same rows, even one fitted on them. The second line of each problem allows ten times the
norm.

"""
_SMALL = f"""
## Few rows

{REPEATS} times {FOLDS} folds. "tuned trees" choose leaves and learning rate by cross-validation on the training rows.
Average and worst held-out risk are means over the splits. Changes are from "linear 0", with 95% intervals that allow
for splits that share rows (Nadeau and Bengio).

"""


@dataclass(frozen=True)
class Task:
    """A table: the columns of linear models and of trees, the target, the groups, and what stays in one fold."""

    name: str
    linear: pd.DataFrame
    trees: pd.DataFrame
    y: pd.Series
    groups: pd.Series
    together: pd.Series | None = None

    @property
    def booster(self) -> Any:
        kind = HistGradientBoostingClassifier if self.y.dtype == bool else HistGradientBoostingRegressor
        return kind(random_state=0)

    @property
    def output(self) -> str:
        """The method of the trees whose out-of-fold values become a column."""
        return "decision_function" if self.y.dtype == bool else "predict"

    def folds(self, seed: int, rows: Any = None) -> list[tuple[np.ndarray, np.ndarray]]:
        """Divide rows, by default all, into folds; places are those among these rows."""
        rows = np.arange(len(self.y)) if rows is None else rows
        if self.together is not None:
            folds, kept = GroupKFold(FOLDS, shuffle=True, random_state=seed), self.together
        else:
            folds, kept = gd.GroupStratifiedKFold(FOLDS, random_state=seed), self.groups
        return list(folds.split(self.linear.iloc[rows], self.y.iloc[rows], kept.iloc[rows]))


def _task(name: str, X: pd.DataFrame, y: pd.Series, groups: pd.Series) -> Task:
    """Return a task in which trees take text as categories."""
    text = X.select_dtypes(exclude="number").columns
    return Task(name, X, X.astype(dict.fromkeys(text, "category")), y, groups)


def _bikes() -> Iterator[Task]:
    """Yield the rentals with the hour among the columns, then with one column for each hour of each kind of day."""
    (X, y, hour), day = public_tables.bike()
    crossed = hour.astype(str) + np.where(X["workingday"] == 1, ", work", ", no work")
    for name, columns in {"bike: hour": hour.astype(str), "bike: hour x working day": crossed}.items():
        yield Task(name, X.assign(hour=columns), X.assign(hour=hour), y, hour, day)


def _diabetes() -> Task:
    return _task("diabetes: age", *public_tables.first_admissions())


def large_tasks() -> Iterator[Task]:
    yield _task("adult: sex x race", *datasets.fetch_adult(return_X_y_groups=True))
    yield from _bikes()
    yield _task("bank: job", *datasets.fetch_bank_marketing(return_X_y_groups=True))
    yield _diabetes()


def small_tasks() -> Iterator[Task]:
    yield _task("heart: hospital", *datasets.fetch_heart_disease(return_X_y_groups=True))
    yield _task("german: sex", *datasets.fetch_german_credit(return_X_y_groups=True))


# ---------------------------------------------------------------------- fits


def _dense(columns: Any) -> np.ndarray:
    return columns.toarray() if hasattr(columns, "toarray") else columns


def linear_losses(task: Task, train: Any, test: Any, columns: tuple[Any, Any], robustness: float) -> Any:
    kind = gd.GroupDROClassifier if task.y.dtype == bool else gd.GroupDRORegressor
    model = kind(alpha=ALPHA, robustness=robustness)
    model.fit(columns[0], task.y.iloc[train], groups=task.groups.iloc[train])
    return row_losses(model, columns[1], task.y.iloc[test])


def split_losses(task: Task, train: Any, test: Any, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the held-out losses of every model on one split, and what the trees predict there."""
    encoder = public_tables.encoder().fit(task.linear.iloc[train])
    columns = tuple(_dense(encoder.transform(task.linear.iloc[rows])) for rows in (train, test))
    frames, y = (task.trees.iloc[train], task.trees.iloc[test]), task.y.iloc[train]
    trees = task.booster.fit(frames[0], y)
    inner = task.folds(seed + 1, train)
    scores = cross_val_predict(task.booster, frames[0], y, cv=inner, method=task.output)
    with_score = tuple(
        np.column_stack([score, part])
        for score, part in zip((scores, getattr(trees, task.output)(frames[1])), columns, strict=True)
    )
    losses = {"trees": row_losses(trees, frames[1], task.y.iloc[test])}
    for robustness in ROBUSTNESS:
        for name, both in {"linear": columns, "stacked": with_score}.items():
            losses[f"{name} {robustness:g}"] = linear_losses(task, train, test, both, robustness)
    predicted = trees.predict_proba(frames[1])[:, 1] if task.output == "decision_function" else trees.predict(frames[1])
    return losses, predicted


def held_out(task: Task) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the held-out loss of each row under each model, and the held-out predictions of the trees."""
    parts, predicted = [], np.empty(len(task.y))
    for train, test in task.folds(0):
        losses, predicted[test] = split_losses(task, train, test, 0)
        parts.append(pd.DataFrame(losses, index=test))
    models = ["trees", *(f"{name} {robustness:g}" for name in ("linear", "stacked") for robustness in ROBUSTNESS)]
    return pd.concat(parts).sort_index()[models], predicted


# ---------------------------------------------------------------------- what they say


def changes(task: Task, losses: pd.DataFrame) -> Iterator[list[Any]]:
    """Yield a line for each pair of models."""
    groups = read_groups(task.groups, len(task.y))
    clusters = read_clusters(task.together, len(task.y))
    everyone = read_groups(None, len(task.y))
    draw = functools.partial(resample, losses.to_numpy(), n_bootstrap=2000, seed=0, clusters=clusters)
    by_group, over_all = draw(groups), draw(everyone)
    for new, old in PAIRS:
        place = {"kind": losses.columns.get_loc(new), "against": losses.columns.get_loc(old)}
        found, overall = (simultaneous_intervals(one, 0.95, **place) for one in (by_group, over_all))
        worst = int(np.argmax(by_group.means[:, place["against"]]))
        cells = [_interval(found, worst), _interval(overall, 0)]
        counts = [int((found.high < 0).sum()), int((found.low > 0).sum()), len(groups.names)]
        yield [task.name, new, old, groups.names[worst], *cells, *counts]


def _interval(found: Any, i: int) -> str:
    return f"{found.estimates[i]:+.4f} ({found.low[i]:+.4f} to {found.high[i]:+.4f})"


class _Recorded(BaseEstimator):
    """Predictions that were made before, as a model."""

    def __init__(self, predicted: Any = None):
        self.predicted = predicted

    def predict(self, _: Any) -> Any:
        return self.predicted


class _RecordedClassifier(ClassifierMixin, _Recorded):
    classes_ = np.array([False, True])

    def predict_proba(self, _: Any) -> Any:
        return np.column_stack([1.0 - self.predicted, self.predicted])


class _RecordedRegressor(RegressorMixin, _Recorded):
    pass


def bounds(task: Task, predicted: np.ndarray) -> Iterator[list[Any]]:
    """Yield the least worst risk of linear models on all rows beside the trees' held-out one, for two norms."""
    model = (_RecordedClassifier if task.y.dtype == bool else _RecordedRegressor)(predicted)
    bound = functools.partial(
        gd.headroom, model, task.linear, task.y, task.groups, linear=public_tables.encoder(), tol=1e-3
    )
    first = bound()
    for found in (first, bound(radius=10.0 * first.radius)):
        cells = f"{found.worst:.4f}", f"{found.least:.4f}", f"{found.radius:.3g}", f"{found.headroom:.1%}"
        yield [task.name, *cells, found.n_columns, "yes" if found.converged else "no"]


# ---------------------------------------------------------------------- few rows


def few_rows(task: Task) -> Iterator[list[Any]]:
    """Yield a line for each model of a table with few rows."""
    values: dict[str, list[tuple[float, float]]] = {}
    for seed in range(REPEATS):
        for train, test in task.folds(seed):
            losses, _ = split_losses(task, train, test, seed)
            search = GridSearchCV(task.booster, GRID, scoring="neg_log_loss", cv=task.folds(seed + 1, train))
            search.fit(task.trees.iloc[train], task.y.iloc[train])
            losses["tuned trees"] = row_losses(search, task.trees.iloc[test], task.y.iloc[test])
            for name, of_rows in losses.items():
                risks = pd.Series(of_rows).groupby(task.groups.iloc[test].to_numpy()).mean()
                values.setdefault(name, []).append((of_rows.mean(), risks.max()))
    plain = np.array(values["linear 0"])
    for name in ("linear 0", "linear 0.5", "linear 1", "trees", "tuned trees", "stacked 0", "stacked 0.5", "stacked 1"):
        mean, worst = np.array(values[name]).mean(axis=0)
        cells = ["", ""] if name == "linear 0" else [_corrected(part) for part in (np.array(values[name]) - plain).T]
        yield [task.name, name, f"{mean:.4f}", f"{worst:.4f}", *cells]


def _corrected(differences: np.ndarray) -> str:
    """Return a mean over splits with the interval of Nadeau and Bengio (2003)."""
    n = len(differences)
    spread = np.sqrt((1.0 / n + 1.0 / (FOLDS - 1)) * differences.var(ddof=1))
    half = stats.t.ppf(0.975, n - 1) * spread
    mean = differences.mean()
    return f"{mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f})"


# ---------------------------------------------------------------------- writing


def main() -> None:
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", ConvergenceWarning)
    risks: list[list[Any]] = []
    pairs: list[list[Any]] = []
    limits: list[list[Any]] = []
    few: list[list[Any]] = []
    by_group: list[pd.DataFrame] = []
    for task in large_tasks():
        losses, predicted = held_out(task)
        means = losses.groupby(task.groups).mean()
        for model in losses:
            cells = f"{losses[model].mean():.4f}", f"{means[model].max():.4f}", means[model].idxmax()
            risks.append([task.name, model, *cells])
        means.insert(0, "rows", task.groups.value_counts())
        by_group.append(means.rename_axis("group").reset_index())
        by_group[-1].insert(0, "problem", task.name)
        pairs += changes(task, losses)
        limits += bounds(task, predicted)
        print(f"{task.name} is done.", flush=True)
    for task in small_tasks():
        few += few_rows(task)
    stored = pd.concat(by_group)
    stored.to_csv(RESULTS / "boosted_trees.csv", index=False, float_format="%.5f", lineterminator="\n")
    models = ["problem", "model", "average", "worst"]
    text = _HEADER + markdown([*models, "worst group"], risks)
    changed = ["problem", "model", "against", "group", "change there", "change over all rows"]
    text += _PAIRS + markdown([*changed, "better", "worse", "groups"], pairs)
    proved = ["problem", "trees", "no linear model below", "radius", "headroom", "columns", "converged"]
    text += _BOUNDS + markdown(proved, limits)
    text += _SMALL + markdown([*models, "change of the average", "change of the worst"], few)
    (RESULTS / "boosted_trees.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
