"""How often cross-validation chooses a model that is truly worse than plain training, and how often it finds a gain.

Data are simulated, so that the risk of every model on every group is known.
"""

import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.held_out.writing import CACHE, markdown, write
from groupdro import GroupDROClassifier, GroupDROClassifierCV, GroupDRORegressor, GroupDRORegressorCV
from groupdro.data.grouping import read_groups
from groupdro.evaluation.inference import least_falls
from groupdro.evaluation.resampling import Resampled, resample

N_FEATURES, N_TEST = 5, 20_000
N_SETS = {60: 1000, 300: 400}  # data sets by rows per group
ALPHA, ROBUSTNESS = 1e-3, (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
KINDS = ("symmetric", "opposite", "one bad group")
TASKS = ("regression", "classification")
N_BOOTSTRAP, CONFIDENCE = 500, 0.95
FACTORS = (1.0, 2.0, 4.0)  # error of groups other than the worst, of which the package uses the second

HEADER = f"""\
# The choice by cross-validation

How often `GroupDROClassifierCV` and `GroupDRORegressorCV` leave plain training, and how often the model that they
choose instead is truly worse on its worst group, of {N_SETS[60]:,} simulated data sets per line ({N_SETS[300]} with 300
rows per group). "Symmetric": three groups whose slopes differ by 120 degrees. "Opposite": five groups with slopes from
-1 to 1. In both, groups tie and robust training can gain little or nothing. "One bad group": four groups agree, and the
fifth, of the same size, has another slope, which plain training neglects; there, leaving plain training is right. True
risks are exact for regression, and those of {N_TEST:,} fresh rows per group for classification. One penalty, the
default values of `robustness`, five folds.

"Now" is the rule of the package. "Before" is the bootstrap of the worst group's loss itself, which fails where groups
tie. "Strict" would allow no more error in comparisons with other groups than with the worst one, "loose" twice as much
as now. "Bound holds": the lower confidence bounds on the gain of all values of `robustness` hold, at a nominal
{CONFIDENCE:.0%}, in brackets for the rule before. "Mean gain": of the chosen model over plain training on its worst
group, in percent of the largest possible.

"""


def slopes(kind: str) -> np.ndarray:
    """Return the coefficients by which the rows of each group were made."""
    n_groups = 3 if kind == "symmetric" else 5
    out = np.zeros((n_groups, N_FEATURES))
    if kind == "symmetric":
        angles = 2.0 * np.pi * np.arange(n_groups) / n_groups
        out[:, 0], out[:, 1] = np.cos(angles), np.sin(angles)
    else:
        out[:, 1] = 1.0
        out[:, 0] = np.linspace(-1.0, 1.0, n_groups) if kind == "opposite" else (1.0, 1.0, 1.0, 1.0, -0.5)
    return out


def draw(kind: str, task: str, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, labels and groups, with `size` rows per group."""
    coef = slopes(kind)
    groups = np.repeat(np.arange(len(coef)), size)
    X = rng.normal(size=(len(groups), N_FEATURES))
    outputs = (X * coef[groups]).sum(axis=1)
    if task == "regression":
        return X, outputs + rng.normal(size=len(groups)), groups
    return X, (rng.random(len(groups)) < 1.0 / (1.0 + np.exp(-2.0 * outputs))).astype(np.int64), groups


def true_risks(kind: str, coef: np.ndarray, intercept: float, test: tuple[np.ndarray, ...] | None) -> np.ndarray:
    """Return a model's risk on each group: exact for regression, on a large fresh sample for classification."""
    if test is None:
        return 0.5 * (np.square(slopes(kind) - coef).sum(axis=1) + intercept**2 + 1.0)
    X, y, groups = test
    outputs = X @ coef + intercept
    return np.bincount(groups, np.logaddexp(0.0, np.where(y == 1, -outputs, outputs))) / np.bincount(groups)


def simulate(kind: str, task: str, size: int, numbers: range) -> tuple[np.ndarray, np.ndarray]:
    """Return held-out losses (set, row, cell) and true risks (set, group, cell) of the models of each data set."""
    search, estimator = (
        (GroupDRORegressorCV, GroupDRORegressor) if task == "regression" else (GroupDROClassifierCV, GroupDROClassifier)
    )
    test = None if task == "regression" else draw(kind, task, N_TEST, np.random.default_rng(99))
    losses, risks = [], []
    for number in numbers:
        X, y, groups = draw(kind, task, size, np.random.default_rng([number, size]))
        chooser = search(alphas=[ALPHA], robustness=ROBUSTNESS, random_state=number)
        losses.append(chooser._search(X, y, groups=groups).held_out_losses()[1].astype(np.float32))
        models = [estimator(alpha=ALPHA, robustness=t, tol=1e-3).fit(X, y, groups=groups) for t in ROBUSTNESS]
        coefs = [(np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])) for model in models]
        risks.append(np.array([true_risks(kind, *coef, test) for coef in coefs]).T)
    return np.array(losses), np.array(risks)


def simulated(kind: str, task: str, size: int, cache: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return what `simulate` does for all data sets; each hundred is one file in the cache."""
    cache.mkdir(parents=True, exist_ok=True)
    losses, risks = [], []
    for first in range(0, N_SETS[size], 100):
        path = cache / f"choice-{task}-{kind.replace(' ', '_')}-{size}-{first}.npz"
        if not path.exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = simulate(kind, task, size, range(first, first + 100))
            np.savez(path, losses=found[0], risks=found[1])
        with np.load(path) as stored:
            losses.append(stored["losses"])
            risks.append(stored["risks"])
    return np.concatenate(losses), np.concatenate(risks)


def falls_of_maximum(found: Resampled) -> np.ndarray:
    """Return lower bounds on the decrease of the worst mean by the bootstrap of the maximum, the rule before."""
    worst, again = found.means.max(axis=0), found.resampled_means.max(axis=1)
    falls = again[:, [0]] - again
    spread = falls.std(axis=0)
    moving = spread > 1e-12 * np.abs(worst)
    reach = np.quantile(((falls - falls.mean(axis=0))[:, moving] / spread[moving]).max(axis=1), CONFIDENCE)
    return np.where(moving, worst[0] - worst - reach * spread, -np.inf)


def chosen_cell(low: np.ndarray, found: Resampled, mean: np.ndarray) -> int:
    """Return the cell with the smallest robustness that is significantly better and within the budget."""
    worst = found.means.max(axis=0)
    affordable = (mean - mean[0]) / mean[0] <= (worst[0] - worst) / worst[0]
    able = np.flatnonzero((low > 0) & affordable & (np.array(ROBUSTNESS) > 0))
    return int(able[0]) if len(able) else 0


class Judged(NamedTuple):
    """What a rule did on all data sets of a line."""

    left: float
    worse: float
    gain: float  # mean
    holds: float


def judge_rules(losses: np.ndarray, risks: np.ndarray) -> dict[str, Judged]:
    """Apply all rules to the same held-out losses."""
    n_groups = risks.shape[1]
    grouping = read_groups(np.repeat(np.arange(n_groups), losses.shape[1] // n_groups), losses.shape[1])
    everyone, worst = np.ones(n_groups, dtype=bool), risks.max(axis=1)
    rows: dict[str, list[tuple[float, ...]]] = {}
    for number, own in enumerate(losses.astype(np.float64)):
        found = resample(own, grouping, n_bootstrap=N_BOOTSTRAP, seed=number)
        bounds = {"before": falls_of_maximum(found)}
        for factor in FACTORS:
            bounds[f"{factor:g}"] = least_falls(found, 0, everyone, CONFIDENCE, others=factor)
        gains = worst[number, 0] - worst[number]
        for rule, low in bounds.items():
            k = chosen_cell(low, found, own.mean(axis=0))
            holds = (low[1:] <= gains[1:]).all()
            rows.setdefault(rule, []).append((k > 0, k > 0 and gains[k] < 0, gains[k], holds))
    return {rule: Judged(*np.mean(found, axis=0)) for rule, found in rows.items()}


def row_of(kind: str, task: str, size: int, found: dict[str, Judged], best: float) -> list[str]:
    """Return a line of the table; `best` is the largest mean gain that any choice has."""
    before, strict, now, loose = (found[rule] for rule in ("before", *(f"{factor:g}" for factor in FACTORS)))
    return [
        kind, task, str(size), f"{before.left:.1%}", f"{now.left:.1%}", f"{before.worse:.1%}", f"{now.worse:.1%}",
        f"{strict.left:.1%}, {strict.worse:.1%}", f"{loose.left:.1%}, {loose.worse:.1%}",
        f"{strict.holds:.1%} ({before.holds:.1%})", f"{before.gain / best:.0%}", f"{now.gain / best:.0%}",
    ]  # fmt: skip


def document(rows: list[list[str]]) -> str:
    """Return the page."""
    columns = [
        "groups", "task", "rows per group", "left, before", "left, now", "truly worse, before", "truly worse, now",
        "strict: left, worse", "loose: left, worse", "bound holds", "mean gain, before", "mean gain, now",
    ]  # fmt: skip
    return HEADER + markdown(columns, rows) + "\n"


def choice(cache: Path = CACHE) -> None:
    rows = []
    for kind in KINDS:
        for task in TASKS:
            for size in N_SETS:
                losses, risks = simulated(kind, task, size, cache)
                worst = risks.max(axis=1)
                best = float(np.mean(worst[:, 0] - worst.min(axis=1)))
                rows.append(row_of(kind, task, size, judge_rules(losses, risks), best))
                print(rows[-1], flush=True)
    write("choice", document(rows))
