"""The real problems of this benchmark, their halves, and what every measurement needs of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split

import groupdro as gd
from benchmarks import real_data
from benchmarks.real_data import Problem
from groupdro.data.grouping import read_groups
from groupdro.evaluation.outputs import row_losses

ALPHA = 1e-3
LOSS = {"binary": gd.losses.Logistic, "classes": gd.losses.Softmax, "regression": gd.losses.Squared}


def without_ones(problem: Problem) -> Problem:
    """Return a problem without its last column, which the intercept of the estimators replaces."""
    return replace(problem, X=np.ascontiguousarray(problem.X[:, :-1]))


def diabetes_by_specialty(fewest: int = 500) -> Problem:
    """Return the readmissions by age and specialty; combinations of few rows are one group."""
    problem, table = real_data.diabetes(), real_data.read_table("diabetes130")
    groups = table["age"] + " " + table["medical_specialty"].astype(str)
    sizes = groups.map(groups.value_counts())
    return replace(
        problem, name="diabetes: age x specialty", groups=groups.where(sizes >= fewest, "others").astype(str).to_numpy()
    )


def bike_with_hours() -> Problem:
    """Return the rentals by hour, with the hour among the columns."""
    problem, table = real_data.bike(), real_data.read_table("bike_sharing")
    hours = pd.get_dummies(table["hr"].astype(str)).to_numpy(np.float64)
    return replace(problem, name="bike: hour, known", X=np.hstack([hours, problem.X]))


def kdd_census() -> Problem:
    """Return the census by race and sex, as sparse rows without a column of ones.

    Codes whose coarser form is among the columns too are left out, as are the weights of the survey.
    """
    with np.load(real_data.data_folder() / "tabular" / "kdd_census.npz", allow_pickle=False) as stored:
        columns = {name: stored[name] for name in stored}
    names = {column: columns.pop(f"{column}__names") for column in [*columns] if f"{column}__names" in columns}
    groups = np.char.add(np.char.add(names["race"][columns["race"]], " "), names["sex"][columns["sex"]])
    y = np.where(columns["income"] == 1, 1.0, -1.0)
    left_out = {"race", "sex", "income", "split", "instance_weight_x100", "industry_code", "occupation_code",
                "country_father", "country_mother", "prev_state", "household_family_stat"}  # fmt: skip
    parts = []
    for name, column in columns.items():
        if name in left_out:
            continue
        if name in names:
            parts.append(np.eye(len(names[name]))[column])
        else:
            spread = column.std()
            parts.append((column / (spread if spread > 0 else 1.0))[:, None])  # zeros stay zeros
    return Problem("census: race x sex", sp.csr_array(np.hstack(parts)), y, groups, "binary")


def halves(problem: Problem, seed: int = 0) -> tuple[Problem, Problem]:
    """Return 70% of the rows to train on and 30% held out, alike in their groups."""
    train, held_out = train_test_split(
        np.arange(problem.X.shape[0]), test_size=0.3, random_state=seed, stratify=problem.groups
    )
    return part(problem, train), part(problem, held_out)


def part(problem: Problem, rows: np.ndarray) -> Problem:
    return replace(problem, X=problem.X[rows], y=problem.y[rows], groups=problem.groups[rows])


def some_rows(problem: Problem, n_rows: int, seed: int = 0) -> Problem:
    """Return a random part of the rows."""
    if problem.X.shape[0] <= n_rows:
        return problem
    return part(problem, np.random.default_rng(seed).choice(problem.X.shape[0], n_rows, replace=False))


def estimator(problem: Problem, **parameters: Any) -> Any:
    """Return our estimator with the penalty of all measurements."""
    kind = gd.GroupDRORegressor if problem.task == "regression" else gd.GroupDROClassifier
    return kind(**{"alpha": ALPHA, "tol": 1e-6} | parameters)


def group_risk(problem: Problem, domain: gd.domains.L2Domain | None = None) -> gd.Problem:
    """Return the problem of the worst group for `gd.solve`."""
    data = gd.GroupedData.from_arrays(problem.X, problem.y, problem.groups)
    return gd.Problem(data, LOSS[problem.task](), domain or gd.domains.L2Domain(penalty=ALPHA), fit_intercept=True)


def profile(model: BaseEstimator, problem: Problem) -> tuple[float, float]:
    """Return the average and the worst risk of any model, without a penalty."""
    losses = row_losses(model, problem.X, problem.y)
    risks = read_groups(problem.groups, len(losses), missing="own").means(losses)
    return float(losses.mean()), float(risks.max())
