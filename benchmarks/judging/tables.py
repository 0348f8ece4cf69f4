"""Ten real tables for comparisons with R: estimates of groups with their standard errors, and probabilities of rows.

``python -m benchmarks.judging tables`` writes them as CSV files next to this module; ``Rscript
benchmarks/judging/reference.R`` then writes what R's packages say of them.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from benchmarks.real_data import design_matrix, read_table
from groupdro.evaluation.heterogeneity import to_scale
from groupdro.evaluation.recalibration import ObservedOverExpected
from groupdro.evaluation.statistics import AreaUnderROC, Average, Statistic

FOLDER = Path(__file__).parent
N_ROWS = 250  # of each table of probabilities
FEWEST = 20  # held-out rows of a group
_CLIP = 1e-15

NUMBERS: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], Statistic]]] = {
    "error rate": ("logit", lambda y, p: _mean((p > 0.5) != y)),
    "area under ROC": ("logit", AreaUnderROC),
    "observed over expected": ("log", ObservedOverExpected),
    "log loss": ("log", lambda y, p: _mean(-np.log(np.maximum(np.where(y, p, 1.0 - p), _CLIP)))),
    "Brier score": ("plain", lambda y, p: _mean((p - y) ** 2)),
}


class Table(NamedTuple):
    """A table, its groups, and the number that is computed for each group."""

    name: str
    number: str
    groups: str
    positive: Callable[[pd.DataFrame], pd.Series]
    dropped: tuple[str, ...]


TABLES = (
    Table("adult", "error rate", "occupation", lambda t: t["income"].str.contains(">50K"), ("income", "split")),
    Table(
        "adult", "observed over expected", "native-country", lambda t: t["income"].str.contains(">50K"),
        ("income", "split"),
    ),
    Table("bank_marketing", "area under ROC", "job", lambda t: t["y"] == "yes", ("y",)),
    Table(
        "credit_default", "observed over expected", "EDUCATION", lambda t: t["default payment"] == 1,
        ("default payment",),
    ),
    Table(
        "compas", "error rate", "race", lambda t: t["two_year_recid"] == 1,
        ("two_year_recid", "is_recid", "c_charge_desc", "decile_score", "score_text"),
    ),
    Table(
        "diabetes130", "observed over expected", "medical_specialty", lambda t: t["readmitted"] != "NO",
        ("readmitted", "patient_nbr", "diag_1", "diag_2", "diag_3", "weight", "payer_code"),
    ),
    Table(
        "diabetes130", "log loss", "age", lambda t: t["readmitted"] != "NO",
        ("readmitted", "patient_nbr", "diag_1", "diag_2", "diag_3", "medical_specialty", "weight", "payer_code"),
    ),
    Table("heart_disease", "error rate", "site", lambda t: t["num"] > 0, ("num",)),
    Table(
        "communities_crime", "log loss", "state",
        lambda t: t["ViolentCrimesPerPop"] > t["ViolentCrimesPerPop"].median(),
        ("county", "community", "communityname string", "fold", "ViolentCrimesPerPop"),
    ),
    Table(
        "bike_sharing", "Brier score", "hr", lambda t: t["cnt"] > t["cnt"].median(),
        ("instant", "dteday", "casual", "registered", "cnt"),
    ),
)  # fmt: skip


def _mean(values: np.ndarray) -> Average:
    return Average(values.astype(np.float64), np.ones(len(values), dtype=bool))


def held_out(table: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels, probabilities of a logistic regression and groups of half of the rows, fitted on the others."""
    frame = read_table(table.name)
    y = table.positive(frame).to_numpy()
    X = design_matrix(frame.drop(columns=[*table.dropped, table.groups]))
    groups = frame[table.groups].astype(str).to_numpy()
    order = np.random.default_rng(0).permutation(len(y))
    fitted, rest = order[: len(y) // 2], order[len(y) // 2 :]
    model = LogisticRegression(max_iter=1000).fit(X[fitted], y[fitted])
    return y[rest], model.predict_proba(X[rest])[:, 1], groups[rest]


def by_group(table: Table, y: np.ndarray, p: np.ndarray, groups: np.ndarray) -> list[tuple[str, float, float]]:
    """Return the name, estimate and standard error of each group, on the scale of the number."""
    scale, make = NUMBERS[table.number]
    statistic, found = make(y, p), []
    for name in np.unique(groups):
        rows = np.flatnonzero(groups == name)
        if len(rows) < FEWEST:
            continue
        values, influence = statistic(rows, np.ones((1, len(rows))))
        estimates, errors = to_scale(values, np.sqrt(np.sum(influence**2, axis=1)), scale)
        if np.isfinite(estimates[0]) and errors[0] > 0:
            found.append((str(name), float(estimates[0]), float(errors[0])))
    return found


def tables() -> None:
    with (FOLDER / "spread_tables.csv").open("w", newline="") as of_groups, (
        FOLDER / "calibration_tables.csv"
    ).open("w", newline="") as of_rows:  # fmt: skip
        groups, rows = csv.writer(of_groups, lineterminator="\n"), csv.writer(of_rows, lineterminator="\n")
        groups.writerow(["table", "number", "scale", "group", "estimate", "error"])
        rows.writerow(["table", "positive", "probability", "weight"])
        for k, table in enumerate(TABLES):
            y, p, names = held_out(table)
            title = f"{table.name}, {table.groups}"
            for name, estimate, error in by_group(table, y, p, names):
                groups.writerow([
                    title, table.number, NUMBERS[table.number][0], name, f"{estimate:.6g}", f"{error:.6g}",
                ])  # fmt: skip
            weights = np.exp(np.random.default_rng(k).standard_normal(N_ROWS))
            for positive, probability, weight in zip(y[:N_ROWS], p[:N_ROWS], weights, strict=True):
                rows.writerow([title, int(positive), f"{probability:.6g}", f"{weight:.3g}"])
            print(title, flush=True)
