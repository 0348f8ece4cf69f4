"""Headroom of ordinary models on real data, and its bounds against CVXPY."""

import warnings
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from tests.reference import convex

import groupdro as gd
from benchmarks import real_data
from benchmarks.between.problems import Problem, group_risk, halves, some_rows, without_ones
from benchmarks.between.tables import markdown, write

_ROUNDING = 1e-7  # relative: as far as Clarabel is trusted
_SMALL = 2000
_HEADER = """\
# Headroom

How much the worst group of a model fitted on 70% of the rows could gain at most from any linear model of the same
columns, with coefficients of norm at most "radius", on training and on held-out rows. Risks have no penalty.

"""
_CHECKED = f"""
## Bounds against CVXPY

The same on {_SMALL:,} of the training rows, where CVXPY with Clarabel finds the least worst risk in the same class: no
bound may be above it.

"""


def headrooms() -> None:
    warnings.simplefilter("ignore")
    rows: list[list[Any]] = []
    checked: list[list[Any]] = []
    for make in (real_data.adult, real_data.bank, real_data.diabetes):
        problem = without_ones(make())
        train, held_out = halves(problem)
        models = {
            "logistic regression": LogisticRegression(max_iter=1000).fit(train.X, train.y),
            "boosted trees": HistGradientBoostingClassifier(random_state=0).fit(train.X, train.y),
        }
        for name, model in models.items():
            for where, half in (("training", train), ("held out", held_out)):
                found = gd.headroom(model, half.X, half.y, half.groups)
                rows.append([problem.name, name, where, *_cells(found), found.message])
                print(rows[-1], flush=True)
        small = some_rows(train, _SMALL)
        for name, model in models.items():
            found = gd.headroom(model, small.X, small.y, small.groups)
            value = _least_worst(small, found.radius)
            sound = bool(found.least <= value * (1.0 + _ROUNDING))
            shortfall = (value - found.least) / value
            checked.append([problem.name, name, *_cells(found), f"{value:.6f}", f"{shortfall:.1e}", _yes(sound)])
            print(checked[-1], flush=True)
    columns = ["problem", "model", "rows", "worst risk", "bound", "radius", "headroom", "converged", "sentence"]
    small_columns = [*columns[:2], *columns[3:-1], "CVXPY", "shortfall", "sound"]
    write("headroom", _HEADER + markdown(columns, rows) + _CHECKED + markdown(small_columns, checked))


def _cells(found: Any) -> list[str]:
    bound = f"{found.least:.6f}"
    return [f"{found.worst:.6f}", bound, f"{found.radius:.4g}", f"{found.headroom:.2%}", _yes(found.converged)]


def _yes(true: bool) -> str:
    return "yes" if true else "no"


def _least_worst(problem: Problem, radius: float) -> float:
    """Return the least worst risk over |coef| <= radius by CVXPY."""
    reference = convex.worst_value(group_risk(problem, gd.domains.L2Domain(radius=radius)))
    return reference.value if reference.accurate else np.nan
