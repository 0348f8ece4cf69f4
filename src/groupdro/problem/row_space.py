"""The same problem in fewer features, where there are fewer rows than features."""

from dataclasses import replace

import numpy as np

from groupdro.data.rows import DenseRows
from groupdro.problem.domains import L2Domain
from groupdro.problem.group_risk import GroupRisk
from groupdro.utils.types import Indices, Mask

__all__ = ["fits_row_space", "in_row_space"]

_PASSES = 10  # that a solver may be expected to make


def fits_row_space(problem: GroupRisk, n_rows: Indices) -> Mask:
    """Tell for which numbers of rows the factorisation costs less than it saves in a few passes."""
    n_outputs = int(np.prod(problem.shape[1:]))
    possible = isinstance(problem.domain, L2Domain) and isinstance(problem.data.rows, DenseRows)
    possible = possible and problem.data.n_workers == 1
    return possible & (2 * n_rows <= problem.data.n_features) & (n_rows <= 2 * _PASSES * n_outputs)


def in_row_space(problem: GroupRisk) -> GroupRisk:
    """Return a problem of the same values whose features are coordinates in the space of the rows.

    Ball and penalty look the same along every direction, and only the part of w in the rows' space meets the data. With
    X' = Q R the rows of X are those of R' in the basis Q, so n rows need n features.

    Parameters
    ----------
    problem : GroupRisk
        The problem of risks, on dense rows in a ball or with a penalty.

    Returns
    -------
    GroupRisk
        A problem with the same optimum, whose w is not that of the old one, and with counters of its own.
    """
    X = problem.data.rows.take(np.arange(problem.n_rows)).astype(np.float64)
    coordinates = np.ascontiguousarray(np.asarray(np.linalg.qr(X.T, mode="r")).T)
    data = replace(problem.data, rows=DenseRows(coordinates))
    return GroupRisk(data, problem.loss, problem.domain, fit_intercept=problem.fit_intercept, offsets=problem.offsets)
