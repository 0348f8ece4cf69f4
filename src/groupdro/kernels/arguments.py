"""Arguments of kernels: named tuples, which bundle many arrays at no cost inside a loop, and records.

A record is a row of numbers with names, a NumPy structured type. Kernels change single records of numbers in place,
which a tuple does not allow. Arrays of records hold what a step needs of a feature in consecutive memory, so that a
step waits for memory once per feature. A kernel takes records of a single type, because names of compiled functions
distinguish such types only by a number that changes from process to process, and Numba keeps the functions on disk.
"""

from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "DUAL_FEATURE",
    "DUAL_SUMS",
    "ENDS",
    "FREE",
    "INNER_PRODUCTS",
    "LAZY_FEATURE",
    "MEASURES",
    "MIXTURE",
    "PROXIMAL_FEATURE",
    "CsrData",
    "DenseData",
    "Drawn",
    "DualPoint",
    "LazyPlayer",
    "PowerSums",
    "ProximalPlayer",
    "Sums",
    "Thresholds",
    "Turn",
    "WPlayer",
    "WeightPlayer",
    "record",
    "records",
]

_LINE = 64  # bytes of a cache line


def _kind(*numbers: str, counts: tuple[str, ...] = ()) -> Any:
    """Return a type of records of numbers and integers, of eight bytes each."""
    return np.dtype([(name, np.float64) for name in numbers] + [(name, np.int64) for name in counts], align=True)


def record(kind: Any, **values: Any) -> Any:
    """Return a single record with the given numbers; the others are zero."""
    out = np.zeros((), kind)
    for name, value in values.items():
        out[name] = value
    return out[()]


def records(kind: Any, n: int) -> Any:
    """Return records of zeros, of which each of 64 bytes lies within one cache line."""
    memory = np.zeros(n * kind.itemsize + _LINE, np.uint8)
    first = -memory.ctypes.data % _LINE
    return memory[first : first + n * kind.itemsize].view(kind)


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


#: A feature in a sweep over the dual: its coefficient, and its entry of a group's vector, which is zero between groups.
DUAL_FEATURE = _kind("w", "v")

#: Sums that a sweep keeps up to date: weighted mean of the heights, |w|^2, t, and the product of w with the rest.
DUAL_SUMS = _kind("height", "square", "t", "on_rest")


class DualPoint(NamedTuple):
    """A point of the dual: slopes of the loss for each member of a group, weights of the groups, and the model.

    heights, of shape (m,), has each group's mean of minus the conjugates of its slopes, plus its level. features, of
    shape (d,), are records of `DUAL_FEATURE`. rest, of shape (d,), has coefficients that stay, for one of several
    workers; otherwise it is empty. centre is the intercept that the last sweep ended with. All other arrays change.
    """

    slopes: Any
    heights: Any
    q: Any
    features: Any
    rest: Any
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


#: A free intercept: iterate, snapshot, gradient, and sum over the steps.
FREE = _kind("iterate", "snapshot", "gradient", "total")

#: Coefficients of the vectors whose combination is a point.
MIXTURE = _kind("start", "snapshot", "gradient", "u")

#: Inner products of these vectors with themselves, and of each with the others.
INNER_PRODUCTS = _kind(
    "start", "snapshot", "gradient", "u",
    "start_snapshot", "start_gradient", "snapshot_gradient", "u_start", "u_snapshot", "u_gradient",
)  # fmt: skip

#: A feature in sparse steps: its entries of the vectors, what u is late in the sum, the difference of the drawn rows'
#: gradients, and the step that last drew it, -1 at the start. One cache line.
LAZY_FEATURE = _kind("start", "snapshot", "gradient", "u", "late", "difference", "unused", counts=("drawn",))


class LazyPlayer(NamedTuple):
    """The implicit representation of w in sparse steps.

    features, of shape (d,), are records of `LAZY_FEATURE`, in which u, late and difference are zero at the start. The
    iterate is a mixture of their vectors, at the start 1 start + 1 u. The sum over the steps is the mixture `total`,
    minus late. products are the `INNER_PRODUCTS`. All of these, and free, are changed.

    step and free_step are the step sizes of the coefficients and of the intercept.
    """

    features: Any
    products: Any
    iterate: Any
    total: Any
    free: Any
    step: float
    free_step: float
    penalty: float
    radius: float


#: A feature in sparse steps that catches up when it is read: w, its snapshot, the part of a step that stays the same
#: (alpha times the snapshot less the step along the gradient), the sum of w over the steps, the difference of the drawn
#: rows' gradients, the half point, the number of steps made, and the step that last drew it, -1 at the start. One cache
#: line.
PROXIMAL_FEATURE = _kind("w", "snapshot", "pull", "total", "difference", "half", counts=("steps", "drawn"))

#: Lower and upper bound of a coefficient.
ENDS = _kind("low", "high")


class PowerSums(NamedTuple):
    """Sums of powers of rho, with which k steps are made at once where they are affine with slope rho.

    After a first change of delta, the k-th step leads to w + delta G_k, where G_k = 1 + rho + ... + rho^(k - 1). The
    arrays, of shape (K,), have G_k, the sum of G_1 to G_k, and that of their squares. Nothing cancels in them, however
    close to one rho is.
    """

    reached: Any
    total: Any
    squares: Any


class ProximalPlayer(NamedTuple):
    """The representation of w in sparse steps with an L1 penalty or bounds, where features catch up when they are read.

    features, of shape (d,), are records of `PROXIMAL_FEATURE`, and free is one of `FREE`; both are changed. bounds are
    records of `ENDS`, of shape (d,), or (0,) if there are none.
    """

    features: Any
    sums: PowerSums
    free: Any
    bounds: Any
    step: float
    free_step: float
    l1: float
    l2: float


#: The geometries' squared gradient differences for w and q, and squared distances of the half points from the snapshot.
MEASURES = _kind("gradient_w", "gradient_q", "distance_w", "distance_q")


class Sums(NamedTuple):
    """Accumulated sums over the steps: of w, of the logits, of the moving part of q, and of the `MEASURES`."""

    w: Any
    logits: Any
    q: Any
    measures: Any
