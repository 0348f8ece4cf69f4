"""Helpers shared by the displays and the HTML pages."""

from typing import Any, Self

import numpy as np

from groupdro.utils.arguments import printable, short_repr
from groupdro.utils.optional import import_extra
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
    "colours_and_markers",
    "drawn_gaps",
    "heaviest_groups",
]

# Distinguishable for colour-blind readers. Printed in grey they look alike, so each has a marker of its own.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8A8A8A"
_COLOURS = ORANGE, BLUE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
_MARKERS = "oDs^vP*X"
_CHARACTER = 0.6  # its width relative to the font size, on average
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
    plt = import_extra("matplotlib.pyplot", "plot")
    ratios = (3, 2) if with_second else (1,)
    axes = plt.subplots(
        len(ratios), 1, figsize=size, sharex=True, squeeze=False, layout="constrained", height_ratios=ratios
    )[1]
    return list(axes[:, 0])


def colours_and_markers(n: int) -> list[tuple[str, str]]:
    """Return a colour and a marker for each of `n` models. The first colour is that of text in the current style."""
    import matplotlib as mpl

    colours = (mpl.rcParams["text.color"], *_COLOURS)
    return [(colours[k % len(colours)], _MARKERS[k % len(_MARKERS)]) for k in range(n)]


def axis_label(group: Any, longest: int = 28) -> str:
    """Return a name as an axis label. Long ones lose their middle: names often differ at their ends."""
    text = printable(group_name(group), keep="\n")
    if len(text) > longest:
        end = longest // 2 - 1
        text = f"{text[: longest - 1 - end]}…{text[-end:]}"
    return text.replace("$", r"\$")  # not to be read as mathematics


class Display:
    """Base of displays: attributes set by drawing."""

    ax_: Any
    figure_: Any
    legend_: Any = None

    def _drawn_on(self, *axes: Any) -> Self:
        """Store the axes, the main ones first."""
        for ax in axes:
            ax.spines[["top", "right"]].set_visible(False)
        self.ax_, self.figure_ = axes[0], axes[0].figure
        return self

    def _add_legend(self, ax: Any, place: str, *, own_figure: bool) -> None:
        """Add a legend.

        Parameters
        ----------
        ax : matplotlib Axes
            The axes.
        place : str
            Where to put it outside of the axes: "upper left" or "right upper".
        own_figure : bool
            Whether the figure has no other axes, so that there is room outside of these.
        """
        handles, labels = ax.get_legend_handles_labels()
        if not own_figure:
            self.legend_ = ax.legend(frameon=False, loc="best", fontsize="small")
            return
        from matplotlib.font_manager import FontProperties

        points = _CHARACTER * FontProperties(size="medium").get_size_in_points()
        longest = max(map(len, labels), default=0) + 6  # with its marker
        fitting = int(72.0 * ax.figure.get_figwidth() / points / longest)
        n_columns = max(1, min(fitting, len(labels))) if place.startswith("upper") else 1
        self.legend_ = ax.figure.legend(handles, labels, loc=f"outside {place}", ncols=n_columns, frameon=False)
