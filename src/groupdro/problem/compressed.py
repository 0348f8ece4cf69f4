"""Compression for the squared loss: QR reduces each group to as many rows as there are columns."""

from functools import partial

import numpy as np

from groupdro.data import GroupedData
from groupdro.problem.group_risk import GroupRisk
from groupdro.utils.threads import interruptibly
from groupdro.utils.types import Floats

__all__ = ["compress"]

_ROWS_PER_PIECE = 1024
_LONG = 1 << 20  # numbers; their factorisation takes a substantial part of a second


def compress(problem: GroupRisk) -> GroupRisk:
    """Return a problem with the same group risks for every w, and at most n_features + 1 rows per group.

    With [X_i, y_i] = Q R, |X_i w - y_i|^2 = |R (w, -1)|^2 for every w. Reads X once.
    """
    data = problem.data
    rows, targets, sizes = [], [], []
    for i in range(data.n_groups):
        group = data.group(i)
        table = np.column_stack([group.rows.dense(), group.y])
        if len(table) > table.shape[1]:
            table = _triangle(np.sqrt(group.member_weights)[:, None] * table)
            table *= np.sqrt(len(table))  # the mean over the new rows must equal the sum over R
        else:
            table *= np.sqrt(group.member_weights * len(table))[:, None]
        rows.append(table[:, :-1])
        targets.append(table[:, -1])
        sizes.append(len(table))
    problem.count_pass()
    small = GroupedData.from_arrays(np.vstack(rows), np.concatenate(targets), np.repeat(np.arange(len(sizes)), sizes))
    return problem.on(small, start=(problem.start(), problem.start_weights())).apart()


def _triangle(table: Floats) -> Floats:
    """Return R of table = Q R, computed in pieces that fit in the cache and between which an interrupt can arrive."""
    triangle, step = np.empty((0, table.shape[1])), max(_ROWS_PER_PIECE, 2 * table.shape[1])
    for start in range(0, len(table), step):
        stacked = np.vstack([triangle, table[start : start + step]])
        factor = partial(np.linalg.qr, stacked, mode="r")
        triangle = np.asarray(interruptibly(factor) if stacked.size > _LONG else factor())
    return triangle
