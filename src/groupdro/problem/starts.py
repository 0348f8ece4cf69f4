"""What users give a problem besides the data: a start, and numbers of the groups."""

from typing import Any

import numpy as np

from groupdro.problem.weight_sets import WeightSet
from groupdro.utils.arguments import error_prefix, short_repr
from groupdro.utils.types import Floats

__all__ = ["read_numbers", "read_start"]


_OFF_SIMPLEX = 1e-6  # of the sum of group weights to begin with


def read_start(
    start: Any, shape: tuple[int, ...], weight_set: WeightSet, n_groups: int
) -> tuple[Floats | None, Floats | None]:
    """Return the w and q to begin with, after a look at them.

    Parameters
    ----------
    start : pair of ndarray or None
        What was given.
    shape : tuple of int
        Shape of w.
    weight_set : WeightSet
        Where q must lie.
    n_groups : int
        Number of groups.

    Returns
    -------
    w, q : ndarray or None
        Of float64.
    """
    if not (isinstance(start, tuple | list) and len(start) == 2):
        raise TypeError(f"start must be a pair of w and q, each an array or None, got {short_repr(start)}.")
    out: list[Floats | None] = []
    for name, given, wanted in (("w", start[0], shape), ("q", start[1], (n_groups,))):
        if given is None:
            out.append(None)
            continue
        if not (isinstance(given, np.ndarray) and given.dtype.kind in "fiu"):
            raise TypeError(f"start must have arrays of numbers, got {short_repr(given)} for {name}.")
        if given.shape != wanted:
            raise ValueError(f"start has a {name} of shape {given.shape}, but the problem's is {wanted}.")
        if not np.isfinite(given).all():
            raise ValueError(f"start has a {name} with NaN or infinite values.")
        out.append(given.astype(np.float64, copy=False))
    w, q = out
    if q is not None and ((q < 0).any() or abs(q.sum() - 1.0) > _OFF_SIMPLEX):
        raise ValueError("start has a q that is not a distribution: its entries must be at least 0 and sum to one.")
    q = None if q is None else q / q.sum()
    if q is not None and not weight_set.contains(q):
        raise ValueError(f"start has a q outside of {type(weight_set).__name__}.")
    return w, q


def read_numbers(values: Any, name: str, what: str, n_groups: int) -> Floats:
    """Return numbers of the groups, one each and finite, or refuse what is not; `what` says in words what they are."""
    with error_prefix(name):
        array = np.asarray(values)
        if array.dtype.kind not in "fiu" or array.shape != (n_groups,) or not np.isfinite(array).all():
            raise ValueError(f"{name} must have {n_groups} finite {what}, one per group, got {short_repr(values)}.")
    return array.astype(np.float64, copy=False)
