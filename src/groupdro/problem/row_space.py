"""The same problem with fewer features, if there are fewer rows than features."""

from dataclasses import replace

import numpy as np

from groupdro.data.dense_rows import DenseRows
from groupdro.problem.group_risk import GroupRisk
from groupdro.utils.types import Indices, Mask

__all__ = ["fits_row_space", "in_row_space"]


def fits_row_space(problem: GroupRisk, n_rows: Indices) -> Mask:
    """Return the numbers of rows for which the factorisation costs less than it saves in a few passes."""
    possible = problem.domain.ball is not None and problem.data.is_whole
    return possible & problem.data.rows.row_space_pays(n_rows, problem.model.n_outputs)


def in_row_space(problem: GroupRisk) -> GroupRisk:
    """Return an equivalent problem whose features are coordinates in the row space.

    Ball and penalty are rotationally invariant, and only the part of w in the row space affects the outputs. With X' =
    Q R, the rows of X are those of R' in the basis Q, so n rows need only n features.

    Parameters
    ----------
    problem : GroupRisk
        The problem of risks, on dense rows in a ball or with a penalty.

    Returns
    -------
    GroupRisk
        A problem with the same optimum, in other coordinates of w and with shared counters.
    """
    X = problem.data.rows.dense().astype(np.float64)
    coordinates = np.ascontiguousarray(np.asarray(np.linalg.qr(X.T, mode="r")).T)
    data = replace(problem.data, rows=DenseRows(coordinates))
    return problem.with_data(data, problem.loss)
