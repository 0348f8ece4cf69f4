"""What the displays and the pages of the command line draw."""

from typing import Any, Self

import numpy as np

from groupdro.utils.arguments import short_repr
from groupdro.utils.text import group_name
from groupdro.utils.types import Floats, Indices

__all__ = [
    "BLUE",
    "GREY",
    "ORANGE",
    "Display",
    "axes_for",
    "axis_label",
    "bounds_window",
    "drawn_gaps",
    "heaviest_groups",
]

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8A8A8A"  # distinct to colour-blind readers too
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
    """Return the groups that bind, the heaviest first, at most `most` of them."""
    order = np.argsort(-q, kind="stable")[:most]
    return order[q[order] >= min(_BINDING, q.max())]


def axes_for(ax: Any, size: tuple[float, float], *, with_second: bool = False) -> list[Any]:
    """Return the axes that are given, or those of a new figure, with a second pair below where asked for."""
    if ax is not None:
        if not all(callable(getattr(ax, name, None)) for name in ("plot", "barh", "hlines")):
            raise TypeError(f"ax must be the axes of a figure or None, got {short_repr(ax)}.")
        return [ax]
    import matplotlib.pyplot as plt

    ratios = (3, 2) if with_second else (1,)
    axes = plt.subplots(
        len(ratios), 1, figsize=size, sharex=True, squeeze=False, layout="constrained", height_ratios=ratios
    )[1]
    return list(axes[:, 0])


def axis_label(group: Any, longest: int = 28) -> str:
    """Return a group's name as an axis shows it."""
    text = group_name(group)
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return text.replace("$", r"\$")  # a name, not mathematics


class Display:
    """What every display has after it was drawn."""

    ax_: Any
    figure_: Any

    def _drawn_on(self, *axes: Any) -> Self:
        """Keep the axes, the first of which are the main ones."""
        for ax in axes:
            ax.spines[["top", "right"]].set_visible(False)
        self.ax_, self.figure_ = axes[0], axes[0].figure
        return self
