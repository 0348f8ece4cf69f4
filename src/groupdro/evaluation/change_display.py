"""A plot of the changes of models relative to plain training."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from groupdro.evaluation.drawing import BLUE, GREY, ORANGE, Display, axes_for, axis_label, in_figures, set_title
from groupdro.utils.text import percent

__all__ = ["ChangeDisplay"]

Interval = tuple[float, float, float]


@dataclass(eq=False, repr=False, kw_only=True)
class ChangeDisplay(Display):
    """Improvements on a baseline for the worst group and over all rows, with confidence intervals; right is better.

    Parameters
    ----------
    models : list of str
        Names of the models.
    worst, mean : list of tuple of float
        By how much each model is better than the baseline for its worst group and over all rows, whether larger or
        smaller values of the metric are better: estimate, and both ends of its confidence interval.
    baseline : str
        Name of the baseline.
    confidence : float
        Level of the confidence intervals, which hold for all models at once.
    metric : str
        The metric.

    Attributes
    ----------
    ax_, figure_, legend_ : matplotlib objects
        Axes, figure and legend.
    worst_points_, mean_points_ : matplotlib artists
        The improvements.
    """

    models: list[str]
    worst: list[Interval]
    mean: list[Interval]
    baseline: str
    confidence: float
    metric: str = "risk"

    def plot(self, *, ax: Any = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        ChangeDisplay
            The display.
        """
        n, own_figure = len(self.models), ax is None
        (ax,) = axes_for(ax, (6.5, 1.9 + 0.45 * n))
        place, points = np.arange(n)[::-1], []
        for changes, colour, marker, label, shift in (
            (self.worst, ORANGE, "D", "worst group", 0.16),
            (self.mean, BLUE, "o", "all rows", -0.16),
        ):
            values = np.array(changes).reshape(n, 3)
            ax.hlines(place + shift, values[:, 1], values[:, 2], color=colour, lw=1.5, alpha=0.6)
            points.append(ax.plot(values[:, 0], place + shift, marker, color=colour, ms=5, label=label)[0])
        self.worst_points_, self.mean_points_ = points
        ax.axvline(0.0, color=GREY, lw=1, zorder=0)
        for k in place[1::2]:
            ax.axhspan(k - 0.5, k + 0.5, color=GREY, alpha=0.1, lw=0, zorder=-1)
        ax.set_yticks(place, [axis_label(name) for name in self.models])
        ax.set_ylim(-0.5, n - 0.5)
        metric = in_figures(self.metric)
        ax.set_xlabel(f"improvement of the {metric}")
        ax.set_ylabel("model")
        how = f"right of 0 is better; lines: {percent(self.confidence)}, for all models at once"
        set_title(ax, f"{metric} compared with {axis_label(self.baseline)}", how, own_figure=own_figure)
        self._add_legend(ax, "lower left", own_figure=own_figure)
        return self._drawn_on(ax)
