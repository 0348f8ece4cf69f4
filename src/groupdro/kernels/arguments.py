"""Arguments of kernels as named tuples, which bundle many arrays at no cost inside a loop."""

from typing import Any, NamedTuple

__all__ = [
    "CsrData",
    "DenseData",
    "Drawn",
    "DualPoint",
    "LazyPlayer",
    "ProximalPlayer",
    "Sums",
    "Thresholds",
    "Turn",
    "WPlayer",
    "WeightPlayer",
]


class DenseData(NamedTuple):
    """Rows (n, d), labels, the loss's code and parameters, and whether the last entry of w is an intercept.

    offset, of shape (n,) or (0,), is added to the rows' outputs; empty if there is none.
    """

    X: Any
    y: Any
    offset: Any
    code: int
    parameter: tuple[float, float]
    intercept: bool


class CsrData(NamedTuple):
    """The same with compressed sparse rows. data has one value per entry, or a single one for all."""

    data: Any
    indices: Any
    indptr: Any
    y: Any
    offset: Any
    code: int
    parameter: tuple[float, float]
    intercept: bool


class Drawn(NamedTuple):
    """Rows drawn for each step, (K, s); group and weight of each draw, the same in all steps (1, s) or not (K, s)."""

    rows: Any
    groups: Any
    weights: Any


class DualPoint(NamedTuple):
    """A point of the dual: slopes of the loss for each member of a group, weights of the groups, and the model.

    heights, of shape (m,), has each group's mean of minus the conjugates of its slopes, plus its level. table, of shape
    (d, 2), has the coefficients and work space, which is zero at the start; for one of several workers there is a third
    column, of coefficients that stay. centre is the intercept that the last sweep ended with. All arrays are changed.
    """

    slopes: Any
    heights: Any
    q: Any
    table: Any
    centre: float


class Turn(NamedTuple):
    """Coordinates in which w is given.

    rotation, of shape (d, d) or (0, 0), is an orthogonal matrix whose columns are the coordinates; empty for those of
    the features. shift, of shape (d,) or (0,), is the point of the features at which the intercept is taken; empty for
    0.
    """

    rotation: Any
    shift: Any


class WPlayer(NamedTuple):
    """Iterate of w (changed), its snapshot and gradient there, the step size of each entry, and the domain."""

    w: Any
    snapshot: Any
    gradient: Any
    steps: Any
    penalty: float
    radius: float


class Thresholds(NamedTuple):
    """An L1 penalty and the bounds of each coefficient, finite, of shape (d,); empty if w lies in a ball instead."""

    l1: float
    low: Any
    high: Any


class WeightPlayer(NamedTuple):
    """The player q = least + share * s, where s is a distribution below caps (empty if there are none).

    logits are those of s (changed); centre has those of the snapshot, whose q and s are snapshot and moved. pull is the
    gradient of s at the snapshot. alpha is the share of the snapshot in the centre of a step.
    """

    logits: Any
    centre: Any
    pull: Any
    snapshot: Any
    moved: Any
    least: Any
    caps: Any
    share: float
    step: float
    alpha: float


class LazyPlayer(NamedTuple):
    """The implicit representation of w in sparse steps.

    features, of shape (d, 8), has for each feature: start, snapshot, gradient, u, late, and work space whose first
    entry is -1 at the start. u and late are zero at the start; the sum over all steps of z u is
    ``coefficients[7] * u - late``. All that a step needs of a feature lies in one cache line.

    gram, of shape (10,), has the inner products of start, snapshot, gradient and u with themselves; of start with
    snapshot and gradient, of snapshot with gradient; of u with start, snapshot and gradient.

    coefficients, of shape (8,), has p, r, t, z, which start as 1, 0, 0, 1, and their sums over the steps.

    free, of shape (4,), has the intercept: iterate, snapshot, gradient, and sum over the steps.

    All four are changed. step and free_step are the step sizes of the coefficients and of the intercept.
    """

    features: Any
    gram: Any
    coefficients: Any
    free: Any
    step: float
    free_step: float
    penalty: float
    radius: float


class ProximalPlayer(NamedTuple):
    """The representation of w in sparse steps with an L1 penalty or bounds, where features catch up when they are read.

    features, of shape (d, 8), has for each feature: w, its snapshot, the part of a step that stays the same (alpha
    times the snapshot less the step along the gradient), the sum of w over the steps, the number of steps made, the
    step that last drew it (-1 at the start), and work space. free is that of `LazyPlayer`. bounds, of shape (d, 2), is
    empty if there are none.

    sums, of shape (3, K), serve to make k steps at once where they are affine with slope rho. After a first change of
    delta the k-th leads to w + delta G_k, where G_k = 1 + rho + ... + rho^(k - 1); the rows have G_k, the sum of G_1 to
    G_k, and that of their squares. Nothing cancels in them, however close to one rho is.
    """

    features: Any
    sums: Any
    free: Any
    bounds: Any
    step: float
    free_step: float
    l1: float
    l2: float


class Sums(NamedTuple):
    """Accumulated sums over the steps: of w, of the logits, of the moving part of q, and of four measures.

    The measures are the geometries' squared gradients for w and q, and their squared distances of the half points from
    the snapshot for w and q.
    """

    w: Any
    logits: Any
    q: Any
    measures: Any
