"""Helpers shared by the displays and the HTML pages."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

import numpy as np

from groupdro.utils.arguments import printable, short_repr
from groupdro.utils.optional import import_extra
from groupdro.utils.text import group_name, metric_name
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
    "in_figures",
    "narrow_figures",
    "set_title",
]

# Distinguishable for colour-blind readers. Printed in grey they look alike, so each has a marker of its own.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8A8A8A"
_COLOURS = ORANGE, BLUE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
_MARKERS = "oDs^vP*X"
_CHARACTER = 0.6  # its width relative to the font size, on average
_PHONE = 4.8  # width in inches: text of 10 points is shrunk by a third on a screen of 390 pixels
_LONGEST_ON_PHONES = 20  # characters of a label, which leave two thirds of such a figure to the data
_LETTER = 0.55  # width of a character of an English text relative to the font size, on average
_TITLE = 10.0  # font size of titles: that of labels in matplotlib's default style
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


_widest: ContextVar[float] = ContextVar("_widest", default=np.inf)


@contextmanager
def narrow_figures() -> Iterator[None]:
    """Make new figures narrow enough that their text can be read on a phone."""
    token = _widest.set(_PHONE)
    try:
        yield
    finally:
        _widest.reset(token)


def axes_for(ax: Any, size: tuple[float, float], *, with_second: bool = False) -> list[Any]:
    """Return the given axes, or those of a new figure, optionally with second axes below."""
    if ax is not None:
        if not all(callable(getattr(ax, name, None)) for name in ("plot", "barh", "hlines")):
            raise TypeError(f"ax must be the axes of a figure or None, got {short_repr(ax)}.")
        return [ax]
    plt = import_extra("matplotlib.pyplot", "plot")
    size = min(size[0], _widest.get()), size[1]
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
    longest = longest if np.isinf(_widest.get()) else min(longest, _LONGEST_ON_PHONES)
    text = printable(group_name(group), keep="\n")
    if len(text) > longest:
        end = longest // 2 - 1
        text = f"{text[: longest - 1 - end]}…{text[-end:]}"
    return text.replace("$", r"\$")  # not to be read as mathematics


def in_figures(metric: str) -> str:
    """Return what a figure calls a metric."""
    return axis_label("average loss" if metric == "risk" else metric_name(metric))


def set_title(ax: Any, title: str, more: str, *, own_figure: bool) -> None:
    """Set a title, with lines below that say how to read the figure.

    Parameters
    ----------
    ax : matplotlib Axes
        The axes.
    title, more : str
        The title, and the lines below, which are wrapped to the width that there is.
    own_figure : bool
        Whether the figure has no other axes: the title then begins at its left edge, where there is more room.
    """
    room = 72.0 * ax.figure.get_figwidth() * (1.0 if own_figure else ax.get_position().width)
    width = max(int(room / (_LETTER * _TITLE)), 20)
    title = "\n".join([textwrap.fill(title[:1].upper() + title[1:], width), *textwrap.wrap(more, width)])
    if own_figure:
        ax.figure.suptitle(title, fontsize=_TITLE, x=0.01, ha="left", linespacing=1.4)
    else:
        ax.set_title(title, fontsize=_TITLE, loc="left", linespacing=1.4)


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
            Where to put it outside of the axes: "upper left", "lower left" or "right upper".
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
        n_columns = max(1, min(fitting, len(labels))) if place.startswith(("upper", "lower")) else 1
        self.legend_ = ax.figure.legend(handles, labels, loc=f"outside {place}", ncols=n_columns, frameon=False)
