"""Whether fits of useless models warn, and fits of useful ones do not.

    GROUPDRO_DATA=... python -m benchmarks.useless_fits

Writes results/useless_fits.md. The data of the useless fits leave nothing to a robust linear model; the random ones
count as useful if, on fresh rows, the model's average over the groups that determine it is at least 5% below that of
the best constant.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.between.tables import markdown
from benchmarks.held_out import problems
from groupdro import GroupDROClassifier, GroupDRORegressor, SmallGroupWarning, UselessModelWarning

RECORD = Path(__file__).parent / "results" / "useless_fits.md"
N_USEFUL, LEAST_GAIN = 100, 0.05
MAX_TIME = 60.0
WARNINGS = UselessModelWarning, SmallGroupWarning


class Fit(NamedTuple):
    """A fitted model, and what it warns of: no gain on a constant, or few rows that determine it."""

    model: Any
    messages: list[str]


def fit(model: Any, X: np.ndarray, y: np.ndarray, groups: np.ndarray) -> Fit:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y, groups=groups)
    return Fit(model, [str(one.message) for one in caught if issubclass(one.category, WARNINGS)])


def rows(n: int, n_features: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return columns, scores and logistic noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, n_features))
    return X, X @ (0.5 * rng.normal(size=n_features)), rng.logistic(size=n)


def zip_codes() -> Fit:
    """Return a fit to areas of very different sizes, most of which have a few rows."""
    rng = np.random.default_rng(1)
    areas = rng.zipf(1.3, 180_000)
    areas = areas[areas <= 2000][:60_000]
    X, scores, noise = rows(len(areas))
    y = scores + 0.5 * rng.normal(size=2001)[areas] + noise > 0
    return fit(GroupDROClassifier(max_time=MAX_TIME), X, y, areas)


def row_numbers() -> Fit:
    table = problems.adult()
    part = np.arange(0, table.n_rows, 16)
    X = problems.design(table, np.arange(table.n_rows))[part]
    return fit(GroupDROClassifier(max_time=MAX_TIME), X, table.y[part], part)


def row_numbers_of_a_regression() -> Fit:
    X, scores, noise = rows(2000)
    return fit(GroupDRORegressor(max_time=MAX_TIME), X, scores + noise, np.arange(2000))


def contradiction() -> Fit:
    X, scores, noise = rows(4000)
    groups = np.arange(4000) % 2
    return fit(GroupDROClassifier(), X, np.where(groups, scores, -scores) + noise > 0, groups)


def labels_without_a_signal() -> Fit:
    X, _, noise = rows(20_000)
    return fit(GroupDROClassifier(), X, noise > 0, np.arange(20_000) % 5)


def penalty_of_ten_thousand() -> Fit:
    X, scores, noise = rows(4000)
    return fit(GroupDROClassifier(alpha=1e4), X, scores + noise > 0, np.arange(4000) % 3)


def one_group_of_noise() -> Fit:
    """Return a fit whose worst group has coin flips as labels, so that nothing else is learned."""
    X, scores, noise = rows(8000)
    groups = np.arange(8000) % 4
    return fit(GroupDROClassifier(), X, np.where(groups == 3, 0.0, 3.0 * scores) + noise > 0, groups)


USELESS: dict[str, Callable[[], Fit]] = {
    "about 2,000 zip codes as groups": zip_codes,
    "every row of Adult a group (every 16th row)": row_numbers,
    "every row of a regression a group": row_numbers_of_a_regression,
    "two groups with opposite slopes": contradiction,
    "labels that are coin flips": labels_without_a_signal,
    "alpha=10,000": penalty_of_ten_thousand,
    "one group of four with coin flips": one_group_of_noise,
}


def draw(seed: int, n: int, salt: int) -> tuple[bool, Any, np.ndarray, np.ndarray, np.ndarray]:
    """Return a random problem: whether it is one of classes, its estimator, columns, targets and groups.

    `seed` determines the problem, `salt` the rows.
    """
    rng = np.random.default_rng(seed)
    n_features, n_groups = int(rng.integers(1, 30)), int(rng.integers(2, 40))
    classes = bool(rng.random() < 0.5)
    coef = rng.normal(size=n_features) + rng.uniform(0.0, 0.7) * rng.normal(size=(n_groups, n_features))
    coef *= rng.uniform(0.5, 3.0) / np.linalg.norm(coef.mean(axis=0))
    scale, level = rng.uniform(0.5, 2.0, n_groups), rng.normal(size=n_groups)
    shares = rng.dirichlet(np.full(n_groups, 3.0))
    options = {
        "robustness": float(rng.choice([1.0, 0.7, 0.3])),
        "alpha": float(10.0 ** rng.uniform(-6.0, -2.0)),
        "objective": str(rng.choice(["risk", "excess_risk"])),
    }
    rng = np.random.default_rng([seed, salt])
    groups = rng.choice(n_groups, n, p=shares)
    X = rng.normal(size=(n, n_features))
    scores = (X * coef[groups]).sum(axis=1) + 0.3 * level[groups]
    if classes:
        return classes, GroupDROClassifier(**options), X, scores + rng.logistic(size=n) > 0, groups
    return classes, GroupDRORegressor(**options), X, scores + scale[groups] * rng.normal(size=n), groups


def gain_on_fresh_rows(model: Any, seed: int) -> float:
    """Return the relative improvement on the best constant, over the groups by their weight in the fit."""
    classes, _, X, y, groups = draw(seed, 100_000, 2)
    weight = dict(zip(model.groups_.tolist(), model.group_weights_, strict=True))
    sizes = np.bincount(groups)
    weights = np.array([weight.get(name, 0.0) for name in range(len(sizes))]) / np.maximum(sizes, 1)
    weights = weights[groups] / weights[groups].sum()
    if classes:
        share = weights @ y
        constant = -share * np.log(share) - (1.0 - share) * np.log(1.0 - share)
        outputs = model.decision_function(X)
        return 1.0 - float(weights @ np.logaddexp(0.0, np.where(y, -outputs, outputs)) / constant)
    return 1.0 - float(weights @ np.square(y - model.predict(X)) / (weights @ np.square(y - weights @ y)))


def useful_fits() -> tuple[int, int, int, int]:
    """Return warnings and number of useful fits, and the same for the fits drawn on the way that are not useful."""
    counts = np.zeros((2, 2), dtype=int)
    seed = 0
    while counts[1, 1] < N_USEFUL:
        _, model, X, y, groups = draw(seed, int(np.random.default_rng([seed, 0]).integers(300, 6000)), 1)
        done = fit(model, X, y, groups)
        useful = int(gain_on_fresh_rows(done.model, seed) >= LEAST_GAIN)
        counts[useful] += bool(done.messages), 1
        if useful and done.messages:
            print(seed, done.messages[0], flush=True)
        seed += 1
    return (*counts[1].tolist(), *counts[0].tolist())


def document() -> str:
    """Run all fits and return the page."""
    body = []
    for name, make in USELESS.items():
        done = make()
        said = "; ".join(message.split(": ")[0] for message in done.messages)
        body.append([name, done.model.status_, len(done.messages), said])
        print(body[-1], flush=True)
    warned, n, warned_others, others = useful_fits()
    return f"""\
# Useless fits

Fits whose data leave nothing to a robust linear model, and what they warn of.

{markdown(["fit", "status", "warnings", "message"], body)}
Of {n} random fits of useful models (2 to 40 groups, 300 to 6,000 rows, classes and numbers, risk and excess risk, three
values of `robustness`), {warned} warned. A model is useful if its loss on {100_000:,} fresh rows is at least
{LEAST_GAIN:.0%} below that of the best constant, averaged over the groups with their weights in the fit. Of the
{others} other fits that were drawn on the way, {warned_others} warned.
"""


def main() -> None:
    text = document()
    RECORD.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
