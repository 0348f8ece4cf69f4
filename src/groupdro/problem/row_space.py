"""The same problem with fewer features, if there are fewer rows than features."""

from dataclasses import replace

import numpy as np

from groupdro.data.read_rows import wrap_rows
from groupdro.problem.problem import Problem
from groupdro.utils.types import Indices, Mask

__all__ = ["fits_row_space", "in_row_space"]

_SAVED_PASSES = 10  # expected number of passes of a solver on rows in another basis


def fits_row_space(problem: Problem, n_rows: Indices) -> Mask:
    """Return the numbers of rows for which the factorisation costs less than it saves in a few passes."""
    d = problem.data.n_features
    n_outputs = problem.model.n_outputs
    possible = problem.domain.ball is not None and problem.data.is_whole and problem.data.rows.combinable
    return possible & (2 * n_rows <= d) & (n_rows <= 2 * _SAVED_PASSES * n_outputs)


def in_row_space(problem: Problem) -> Problem:
    """Return an equivalent problem whose features are coordinates in the row space.

    Ball and penalty are rotationally invariant, and only the part of w in the row space affects the outputs. With X' =
    Q R, the rows of X are those of R' in the basis Q, so n rows need only n features.

    Parameters
    ----------
    problem : Problem
        The problem of risks, on dense rows in a ball or with a penalty.

    Returns
    -------
    Problem
        A problem with the same optimum, in other coordinates of w.
    """
    X = problem.data.rows.dense().astype(np.float64)
    coordinates = np.ascontiguousarray(np.asarray(np.linalg.qr(X.T, mode="r")).T)
    data = replace(problem.data, rows=wrap_rows(coordinates))
    return problem.with_rows(data)
