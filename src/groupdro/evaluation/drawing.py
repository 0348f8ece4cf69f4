"""What the displays and the pages of the command line draw."""

import numpy as np

from groupdro.utils.types import Floats, Indices

__all__ = ["bounds_window", "drawn_gaps", "heaviest_groups"]

_BINDING = 1e-3  # weight from which a group counts


def bounds_window(upper: Floats, lower: Floats) -> tuple[float, float]:
    """Return both ends of an axis for the bounds of a run.

    The first lower bounds may be far off; what counts is where both meet.

    Parameters
    ----------
    upper, lower : ndarray of shape (n_epochs,)
        The bounds.

    Returns
    -------
    bottom, top : float
        The ends.
    """
    final = float(upper[-1])
    height = 1.1 * max(upper[0] - final, 3.0 * (final - lower[-1]), 1e-3 * abs(final), 1e-12)
    return max(final - height, float(lower.min()) - height / 11), final + height


def drawn_gaps(upper: Floats, lower: Floats) -> Floats:
    """Return the gaps of a run, positive as a logarithmic axis needs them."""
    return np.maximum(upper - lower, max(1e-16 * abs(upper[-1]), 1e-300))


def heaviest_groups(q: Floats, most: int) -> Indices:
    """Return the groups that bind, the heaviest first, and at most so many."""
    order = np.argsort(-q, kind="stable")[:most]
    return order[q[order] >= min(_BINDING, q.max())]
