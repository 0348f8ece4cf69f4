"""The squared loss by its second moments: each group becomes about as many rows as there are columns."""

import numpy as np

from groupdro.data import GroupedData
from groupdro.losses import Squared
from groupdro.problem.problem import Problem
from groupdro.utils.types import Floats

__all__ = ["compress", "compressed_rows"]

_BLOCK_VALUES = 1 << 20  # 8 MiB


def compressed_rows(problem: Problem) -> float:
    """Return how many rows a problem is compressed to; infinite for other losses, sparse rows and several workers."""
    if not (isinstance(problem.loss, Squared) and problem.data.rows.combinable and problem.data.is_whole):
        return np.inf
    return float(np.minimum(problem.data.group_sizes, problem.data.n_features + 2).sum())


def compress(problem: Problem) -> Problem | None:
    """Return a problem with the same group risks for every w up to rounding, and few rows per group. Reads X once.

    With S_i the mean over group i of z z', z = (1, x, y), its risk is (b, w, -1)' S_i (b, w, -1) / 2. Every table R
    with R'R = S_i therefore stands for the group. If there is an intercept b, the first column of R has to be constant,
    as the column of ones is: a reflection of its rows makes it so. Rounding is relative to S, so small residuals keep
    half of their digits. The result is None if a moment overflows.
    """
    data = problem.data
    n_groups = problem.n_groups
    tables = []
    weights = []
    for i in range(n_groups):
        group = data.group(i)
        weight = group.member_weights
        table = np.column_stack([np.ones(group.n_rows), group.rows.dense(), group.y])
        if len(table) > table.shape[1]:
            moments = _moments(table, weight)
            if not np.isfinite(moments).all():
                return None
            table = _root(moments)
            weight = np.full(len(table), 1.0 / len(table))
        tables.append(table)
        weights.append(weight)
    rows = np.vstack(tables)
    groups = np.repeat(np.arange(n_groups), [len(table) for table in tables])
    return problem.with_rows(GroupedData.from_arrays(rows[:, 1:-1], rows[:, -1], groups, np.concatenate(weights)))


def _moments(table: Floats, weight: Floats) -> Floats:
    """Return the weighted sum of the products of a table's rows with themselves, block by block."""
    step = max(1, _BLOCK_VALUES // table.shape[1])
    moments = np.zeros((table.shape[1], table.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(table), step):
            scaled = table[start : start + step] * np.sqrt(weight[start : start + step])[:, None]
            moments += scaled.T @ scaled
    return moments


def _root(moments: Floats) -> Floats:
    """Return a table with these mean products, whose first column consists of ones."""
    k = len(moments)
    sizes = np.sqrt(np.diag(moments))
    sizes[sizes == 0.0] = 1.0
    values, vectors = np.linalg.eigh(moments / np.outer(sizes, sizes))
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T * sizes
    normal = root[:, 0] - np.linalg.norm(root[:, 0]) / np.sqrt(k)
    square = float(normal @ normal)
    if square > 0.0:
        root -= np.outer(normal, 2.0 * (normal @ root) / square)
    return np.sqrt(k) * root
