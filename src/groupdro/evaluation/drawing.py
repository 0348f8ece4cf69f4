"""Helpers shared by the displays and the HTML pages."""

from typing import Any, Self

import numpy as np

from groupdro.utils.arguments import printable, short_repr
from groupdro.utils.text import group_name
from groupdro.utils.types import Floats, Indices

__all__ = [
    "BLUE",
    "GREY",
    "INK",
    "ORANGE",
    "Display",
    "axes_for",
    "axis_label",
    "bounds_window",
    "drawn_gaps",
    "heaviest_groups",
]

# Distinguishable for colour-blind readers. Printed in grey only ink stands out: the rest need markers of their own.
BLUE, ORANGE, GREY, INK = "#0072B2", "#D55E00", "#8A8A8A", "#333333"
_BINDING = 1e-3  # weight from which a group counts as binding


def bounds_window(upper: Floats, lower: Floats) -> tuple[float, float]:
    """Return the limits of an axis for the bounds of a run.

    The first lower bounds may be far off; the range where both bounds meet matters.

    Parameters
    ----------
    upper, lower : ndarray of shape (n_epochs,)
        The bounds.

    Returns
    -------
    bottom, top : float
        The limits.
    """
    final = float(upper[-1])
    height = 1.1 * max(upper[0] - final, 3.0 * (final - lower[-1]), 1e-3 * abs(final), 1e-12)
    return max(final - height, float(lower.min()) - height / 11), final + height


def drawn_gaps(upper: Floats, lower: Floats) -> Floats:
    """Return the gaps of a run, made positive for a logarithmic axis."""
    return np.maximum(upper - lower, max(1e-16 * abs(upper[-1]), 1e-300))


def heaviest_groups(q: Floats, most: int) -> Indices:
    """Return at most `most` binding groups, by descending weight."""
    order = np.argsort(-q, kind="stable")[:most]
    return order[q[order] >= min(_BINDING, q.max())]


def axes_for(ax: Any, size: tuple[float, float], *, with_second: bool = False) -> list[Any]:
    """Return the given axes, or those of a new figure, optionally with second axes below."""
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
    """Return a group's name as an axis label."""
    text = printable(group_name(group), keep="\n")
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return text.replace("$", r"\$")  # not to be read as mathematics


class Display:
    """Base of displays: attributes set by drawing."""

    ax_: Any
    figure_: Any

    def _drawn_on(self, *axes: Any) -> Self:
        """Store the axes, the main ones first."""
        for ax in axes:
            ax.spines[["top", "right"]].set_visible(False)
        self.ax_, self.figure_ = axes[0], axes[0].figure
        return self
