"""Constants of the theorems, in two forms that are never mixed: the published ones, and the tightest that we can prove.

Both players' blocks bound how the sampled operator changes, in the norm in which either player has diameter one:

    |w part| <= A |w - w'| + B |q - q'|,    |q part| <= C |w - w'|      (root mean squares over the sample)

so the operator's mean-square Lipschitz constant is at most the norm of [[A, B], [C, 0]]. With D^2 = R^2 / 2 the range
of the potential of w, G the largest Lipschitz constant of a row and L the root mean square smoothness of a group:

    ALEG, one row of every group       A = 2 D^2 L,            B = C = 2 D G sqrt(ln m)
    MPVR, a group and then a row       A = 2 D^2 L sqrt(m),    B = D G sqrt(2 m ln m),   C = 2 D G m sqrt(ln m)
    AL-SVRE, Euclidean, unscaled       A = L sqrt(m),          B = G sqrt(m),            C = G m

B of MPVR uses that a difference of weights sums to zero, so that the sum of its squares is at most half the square of
its 1-norm. The published forms replace the norm by Young's inequality and L by the largest smoothness of a row. For SMD
the tight form replaces the largest G by a group's root mean square in the part of w.
"""

import numpy as np

import groupdro as gd
from benchmarks.paper.methods.al_svre import euclidean_constant
from benchmarks.paper.methods.mpvr import sampling_constant
from benchmarks.paper.methods.smd import descent_constant
from groupdro.geometry import Euclidean

__all__ = ["step_factor"]


def step_factor(method: str, problem: gd.Problem, radius: float) -> float:
    """Return by what factor the steps of MPVR, AL-SVRE or SMD grow with tight constants in place of published ones."""
    ball = Euclidean(radius, 0.0, problem.data.n_features)
    constants, m = problem.constants(2.0, radius), problem.n_groups
    G, L, D, log_m = constants.lipschitz, constants.mean_square_smoothness, radius / np.sqrt(2.0), np.log(m)
    if method == "MPVR":
        A, B, C = 2 * D**2 * L * np.sqrt(m), D * G * np.sqrt(2 * m * log_m), 2 * D * G * m * np.sqrt(log_m)
        return sampling_constant(problem, ball, "importance") / _norm(A, B, C)
    if method == "AL-SVRE":
        return euclidean_constant(problem, radius) / _norm(L * np.sqrt(m), G * np.sqrt(m), G * m)
    rms = np.sqrt(problem.data.group_means(problem.data.row_norms**2).max())  # of logistic rows: G_ij = |x_ij|
    return float(descent_constant(problem, ball) / np.sqrt(2 * (D * rms) ** 2 + 2 * (radius * G) ** 2 * log_m))


def _norm(A: float, B: float, C: float) -> float:
    return float(np.linalg.norm(np.array([[A, B], [C, 0.0]]), 2))
