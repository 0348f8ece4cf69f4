"""Whether a finite minimiser exists, judged by labels and outputs."""

import numpy as np

from groupdro.problem.problem import Problem
from groupdro.utils.types import Array, Floats

__all__ = ["is_separated", "unattained", "vanishes", "weighted_labels"]

_EPS = float(np.finfo(np.float64).eps)


def unattained(problem: Problem) -> str | None:
    """Return why no finite minimiser exists, if the labels show it."""
    return problem.loss.unattained(weighted_labels(problem)) if problem.fit_intercept else None


def vanishes(problem: Problem) -> bool:
    """Return whether the intercept alone can bring every loss to zero, or arbitrarily close to it."""
    offsets = problem.data.row_offsets
    if offsets.size and float(np.ptp(offsets, axis=0).max()) > 0:  # equal labels are then not all fitted by a constant
        return False
    return problem.fit_intercept and problem.loss.vanishes(weighted_labels(problem))


def is_separated(problem: Problem, w: Floats, outputs: Array) -> bool:
    """Return whether w classifies every row correctly, so that scaling it up drives all losses to zero.

    Parameters
    ----------
    problem : Problem
        The problem.
    w : ndarray
        The parameters.
    outputs : ndarray of shape (n_rows,) or (n_rows, n_outputs)
        Outputs of the stored rows, with their offsets, in double precision.
    """
    counted = problem.counted_rows()
    margins = (outputs - problem.data.row_offsets if problem.data.row_offsets.size else outputs)[counted]
    doubt = 64.0 * _EPS * float(np.linalg.norm(w)) * problem.row_norms[counted]  # possible effect of rounding
    best = np.abs(margins) if margins.ndim == 1 else np.diff(np.partition(margins, -2, axis=1)[:, -2:])[:, 0]
    clear = bool((best > doubt).all()) and problem.loss.separates(margins, problem.data.y[counted])
    return not problem.data.largest(np.array([float(not clear)]))[0]


def weighted_labels(problem: Problem) -> Array:
    """Return the labels of rows with weight. With several workers, return as few as determine the same facts."""
    data = problem.data
    labels = problem.data.y[problem.counted_rows()]
    if data.is_whole:
        return labels
    if problem.model.n_outputs > 1:
        present = np.bincount(labels, minlength=problem.model.n_outputs).astype(np.float64)
        data.add_up(present)
        return np.flatnonzero(present)
    ends = np.array([-labels.min(initial=np.inf), labels.max(initial=-np.inf)])
    return data.largest(ends) * (-1.0, 1.0)
