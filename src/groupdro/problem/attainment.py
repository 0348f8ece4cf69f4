"""Whether a finite minimiser exists, judged by labels and outputs."""

import numpy as np

from groupdro.problem.group_risk import GroupRisk
from groupdro.problem.records import Evaluation
from groupdro.utils.types import Array

__all__ = ["is_separated", "unattained", "vanishes", "weighted_labels"]

_EPS = float(np.finfo(np.float64).eps)


def unattained(problem: GroupRisk) -> str | None:
    """Return why no finite minimiser exists, if the labels show it."""
    return problem.loss.unattained(weighted_labels(problem)) if problem.fit_intercept else None


def vanishes(problem: GroupRisk) -> bool:
    """Return whether the intercept alone can bring every loss to zero, or arbitrarily close to it."""
    return problem.fit_intercept and problem.loss.vanishes(weighted_labels(problem))


def is_separated(problem: GroupRisk, at: Evaluation) -> bool:
    """Return whether w classifies every row correctly, so that scaling it up drives all losses to zero."""
    counted = problem.counted_rows()
    margins = at.margins[counted]
    units = 64.0 if at.single is None else 2.0**40
    doubt = units * _EPS * float(np.linalg.norm(at.w)) * problem.row_norms[counted]  # possible effect of rounding
    best = np.abs(margins) if margins.ndim == 1 else np.diff(np.partition(margins, -2, axis=1)[:, -2:])[:, 0]
    clear = bool((best > doubt).all()) and problem.loss.separates(margins, problem.loss.labels(problem.data.y[counted]))
    return not problem.data.largest(np.array([float(not clear)]))[0]


def weighted_labels(problem: GroupRisk) -> Array:
    """Return the labels of rows with weight. With several workers, return as few as determine the same facts."""
    data, labels = problem.data, problem.loss.labels(problem.data.y[problem.counted_rows()])
    if data.is_whole:
        return labels
    if problem.model.n_outputs > 1:
        present = np.bincount(labels, minlength=problem.model.n_outputs).astype(np.float64)
        data.add_up(present)
        return np.flatnonzero(present)
    ends = np.array([-labels.min(initial=np.inf), labels.max(initial=-np.inf)])
    return data.largest(ends) * (-1.0, 1.0)
