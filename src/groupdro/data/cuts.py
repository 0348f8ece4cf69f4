"""Where rows in the order of groups are divided among workers."""

import numpy as np

from groupdro.utils.types import Indices

__all__ = ["cuts_between", "row_cuts"]

_MOVED = 0.05  # share of a worker's rows by which a cut may move to the nearest border between groups


def row_cuts(offsets: Indices, n_workers: int) -> Indices:
    """Return where the rows of each worker begin, and where the last one's end.

    Workers have about the same number of rows. A cut is between two groups if a border is near, because what concerns a
    single group then needs no messages.

    Parameters
    ----------
    offsets : ndarray of shape (n_groups + 1,)
        Where each group begins and ends.
    n_workers : int
        Number of workers, at most that of the rows.

    Returns
    -------
    ndarray of shape (n_workers + 1,)
        The cuts, in increasing order.
    """
    n_rows = int(offsets[-1])
    even = n_rows * np.arange(n_workers + 1) // n_workers
    after = np.clip(np.searchsorted(offsets, even), 1, len(offsets) - 1)
    below = offsets[after - 1]
    above = offsets[after]
    nearest = np.where(even - below <= above - even, below, above)
    return np.where(np.abs(nearest - even) <= _MOVED * n_rows / n_workers, nearest, even)


def cuts_between(offsets: Indices, n_workers: int) -> bool:
    """Return whether all cuts are between groups, so that every group has one worker."""
    return bool(np.isin(row_cuts(offsets, n_workers), offsets).all())
