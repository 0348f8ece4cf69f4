"""Simulated rows: describing columns, losses without any group, and planted groups."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

N_CATEGORIES = 4
LOSSES = "skewed", "normal", "zero-one 5%", "zero-one 20%", "zero-one 80%", "clustered", "weighted"
_CLUSTER = 10  # rows
TAILS = "left", "right"


@dataclass(frozen=True, eq=False)
class Rows:
    """Describing columns and losses; clusters and weights where there are any."""

    columns: pd.DataFrame
    losses: np.ndarray
    inside: np.ndarray
    cluster: np.ndarray | None = None
    weights: np.ndarray | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """What `find_groups` takes."""
        return {
            "losses": self.losses,
            "columns": self.columns,
            "cluster": self.cluster,
            "sample_weight": self.weights,
        }


def describing(rng: np.random.Generator, n_rows: int, n_columns: int) -> pd.DataFrame:
    """Return normal numbers, and for a third of the columns four categories."""
    n_names = n_columns // 3
    numbers = {f"x{j}": rng.normal(size=n_rows) for j in range(n_columns - n_names)}
    names = {f"c{j}": rng.choice(list("pqrs"), n_rows) for j in range(n_names)}
    return pd.DataFrame({**numbers, **names})


def null(kind: str, n_rows: int, n_columns: int, seed: int) -> Rows:
    """Return losses that have nothing to do with the columns."""
    return planted(kind, n_rows, n_columns, seed, conditions=(), effect=1.0)


def tails(side: str, n_rows: int, share: float, seed: int) -> Rows:
    """Return losses of equal mean, which have a long tail on one side in some rows that a column describes."""
    rng = np.random.default_rng([seed, n_rows, round(100 * share)])
    columns = describing(rng, n_rows, 6)
    inside = columns["x0"].to_numpy() > NORMAL(1.0 - share)
    tail = rng.lognormal(-0.5, 1.0, n_rows)
    usual = 1.0 + 0.1 * rng.normal(size=n_rows)
    return Rows(columns, np.where(inside, tail if side == "right" else 2.0 - tail, usual), inside)


def planted(kind: str, n_rows: int, n_columns: int, seed: int, *, conditions: Any, effect: float) -> Rows:
    """Return losses whose mean is larger by a factor in a group.

    Losses in the group are the sum of two of the same distribution, the second one times the factor minus 1, or errors
    with a higher rate. Conditions are triples of a column, "<", ">" or "=", and a share of the rows or a category.
    """
    rng = np.random.default_rng([seed, n_rows, n_columns])
    columns = describing(rng, n_rows, n_columns)
    cluster = weights = None
    if kind == "clustered":
        cluster = np.arange(n_rows) // _CLUSTER
        shared = columns.iloc[::_CLUSTER].loc[lambda frame: frame.index.repeat(_CLUSTER)].reset_index(drop=True)
        for name in list(columns)[::2]:  # half of the columns belong to the cluster
            columns[name] = shared[name].iloc[:n_rows].to_numpy()
    inside = np.full(n_rows, len(conditions) > 0)
    for name, kind_of, value in conditions:
        column = columns[name].to_numpy()
        if kind_of == "=":
            inside &= column == value
        else:
            inside &= column > NORMAL(1.0 - value) if kind_of == ">" else column <= NORMAL(value)
    factor = np.where(inside, effect, 1.0)

    def two(draw: Any) -> np.ndarray:
        return draw() + (factor - 1.0) * draw()

    if kind.startswith("zero-one"):
        rate = float(kind.split()[1].rstrip("%")) / 100.0
        losses = (rng.random(n_rows) < rate * factor).astype(np.float64)
    elif kind == "normal":
        losses = rng.normal(size=n_rows) + factor
    elif kind == "clustered":
        losses = two(lambda: rng.exponential(size=n_rows)) * rng.exponential(size=n_rows // _CLUSTER + 1)[cluster]
    else:
        power = 1.0 if kind == "exponential" else 1.5
        losses = two(lambda: rng.exponential(size=n_rows) ** power)
    if kind == "weighted":
        weights = rng.exponential(size=n_rows)
    return Rows(columns, losses, inside, cluster, weights)


def NORMAL(share: float) -> float:
    """Return a quantile of the normal distribution."""
    from scipy.stats import norm

    return float(norm.ppf(share))
