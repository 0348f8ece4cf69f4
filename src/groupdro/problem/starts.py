"""Readers of a problem's other arguments: a start, and numbers per group."""

from typing import Any

import numpy as np

from groupdro.problem.weight_sets import WeightSet
from groupdro.utils.arguments import error_prefix, short_repr
from groupdro.utils.types import Floats

__all__ = ["read_numbers", "read_start"]


_OFF_SIMPLEX = 1e-6  # allowed deviation of the sum of the initial group weights from 1


def read_start(
    start: Any, shape: tuple[int, ...], weight_set: WeightSet, n_groups: int
) -> tuple[Floats | None, Floats | None]:
    """Check and return the w and q to start from.

    Parameters
    ----------
    start : pair of ndarray or None
        The argument.
    shape : tuple of int
        Shape of w.
    weight_set : WeightSet
        The set that q must lie in.
    n_groups : int
        Number of groups.

    Returns
    -------
    w, q : ndarray or None
        The start, in float64.
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
        raise ValueError(f"start has a q outside {type(weight_set).__name__}.")
    return w, q


def read_numbers(values: Any, name: str, what: str, n_groups: int) -> Floats:
    """Return one finite number per group, or raise; `what` describes the numbers in the message."""
    with error_prefix(name):
        array = np.asarray(values)
        if array.dtype.kind not in "fiu" or array.shape != (n_groups,) or not np.isfinite(array).all():
            raise ValueError(f"{name} must have {n_groups} finite {what}, one per group, got {short_repr(values)}.")
    return array.astype(np.float64, copy=False)
