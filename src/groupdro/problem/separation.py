"""Separation: whether the loss of some rows can decrease forever while no row's loss increases."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from groupdro.losses import Logistic, Softmax
from groupdro.problem.problem import Problem
from groupdro.utils.threads import interruptibly
from groupdro.utils.types import Array, Floats

__all__ = ["has_separating_direction"]


_MOST_ENTRIES = 5_000_000
_SECONDS = 10.0
_CLEAR = 1e-5  # mean margin relative to the mean size of the entries, far above the linear program's tolerance
_PROGRAM = 1e-6  # margin relative to its terms that the program may treat as zero
_ROUNDED = 1e-13  # the same for rounding


def has_separating_direction(problem: Problem, q: Floats | None = None) -> bool:
    """Search for a direction with no negative and some positive margins, by a linear program.

    Along such a direction no row's loss increases, and the losses of rows with positive margins decrease forever. If
    these rows belong to the binding groups, which are those with weight in q, there is no finite minimiser, since every
    w can be improved. The program's answer is only a candidate, exact up to its tolerance; the direction itself is then
    verified on every row.

    Parameters
    ----------
    problem : Problem
        The problem.
    q : ndarray of shape (n_groups,), optional
        Group weights that prove the best lower bound. By default all groups are considered.

    Returns
    -------
    bool
        Whether such a direction was found. Also False if the program is too large or runs out of time, if several
        workers hold the rows, and for losses that always have a minimiser.
    """
    loss = problem.loss
    data = problem.data
    if not isinstance(loss, Logistic | Softmax) or not data.is_whole:
        return False
    counted = np.flatnonzero(problem.data.row_weights(np.ones(problem.n_groups)) > 0)
    n_outputs = problem.shape[1] if len(problem.shape) > 1 else 1
    if len(counted) * problem.shape[0] * (1 if n_outputs == 1 else 2 * (n_outputs - 1)) > _MOST_ENTRIES:
        return False
    X = sp.csr_array(data.rows.take(counted).dense()).astype(np.float64)
    if problem.fit_intercept:
        X = sp.hstack([X, sp.csr_array(np.ones((X.shape[0], 1)))], format="csr")
    y = data.y[counted]
    margins = _signed_rows(X, y, n_outputs)
    weights = (data.balanced_weights() if q is None else data.row_weights(q))[counted]
    if n_outputs > 1:
        weights = _of_wrong_classes(weights, y, n_outputs)
    size = float(np.abs(margins.data).sum()) / margins.shape[0]
    if size == 0.0 or not weights.sum() > 0:
        return False
    found = interruptibly(
        lambda: linprog(
            c=-np.asarray(weights @ margins).ravel() / (weights.sum() * size),
            A_ub=-margins,
            b_ub=np.zeros(margins.shape[0]),
            bounds=(-1.0, 1.0),
            method="highs",
            options={"time_limit": _SECONDS},
        )
    )
    if found.status != 0 or -found.fun <= _CLEAR:
        return False
    return _is_confirmed(margins, weights, found.x, _CLEAR * float(weights.sum()) * size)


def _is_confirmed(margins: Any, weights: Floats, direction: Floats, gain: float) -> bool:
    """Return whether no row has a negative margin along a direction, and the weighted sum of margins exceeds `gain`.

    Margins that are zero up to the program's tolerance are made zero up to rounding by a projection.
    """
    sizes = abs(margins)
    near = np.abs(margins @ direction) <= _PROGRAM * (sizes @ np.abs(direction))
    if near.any():
        edge = margins[np.flatnonzero(near)].toarray()
        unit = np.sqrt(np.square(edge).sum(axis=1, keepdims=True))
        edge /= np.where(unit > 0, unit, 1.0)
        for _ in range(2):  # the second time to remove rounding errors
            direction = direction - np.linalg.lstsq(edge, edge @ direction, rcond=None)[0]
    exact = margins.astype(np.longdouble) @ direction.astype(np.longdouble)
    never_negative = (exact >= -_ROUNDED * (sizes @ np.abs(direction))).all()
    return bool(never_negative and float((weights * exact).sum()) > gain)


def _of_wrong_classes(values: Floats, y: Array, n_outputs: int) -> Floats:
    """Return the rows' values in the order of the margins of several outputs."""
    return np.concatenate([values[y != c] for c in range(n_outputs)])


def _signed_rows(X: Any, y: Array, n_outputs: int) -> Any:
    """Return the matrix that takes a direction to the margins: one per row, or one per row and wrong class."""
    if n_outputs == 1:
        return sp.csr_array(X.multiply(y[:, None]))
    # Directions are flattened like w: (n_features, n_outputs), with the class index fastest.
    parts = []
    for c in range(n_outputs):
        wrong = y != c
        own = np.zeros((int(wrong.sum()), n_outputs))
        own[np.arange(len(own)), y[wrong]] = 1.0
        own[:, c] = -1.0
        rows = X[wrong].tocoo()
        pick = own[rows.row]  # each entry of X enters for two classes
        row, k = np.nonzero(pick)
        parts.append(
            sp.csr_array(
                (rows.data[row] * pick[row, k], (rows.row[row], rows.col[row] * n_outputs + k)),
                shape=(len(own), X.shape[1] * n_outputs),
            )
        )
    return sp.vstack(parts, format="csr")
