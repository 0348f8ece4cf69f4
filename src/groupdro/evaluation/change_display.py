"""A plot of the changes of models relative to plain training."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from groupdro.evaluation.drawing import BLUE, GREY, ORANGE, Display, axes_for, axis_label
from groupdro.utils.text import percent

__all__ = ["ChangeDisplay"]

Interval = tuple[float, float, float]


@dataclass(eq=False, repr=False, kw_only=True)
class ChangeDisplay(Display):
    """Changes of a metric for the worst group and over all rows, with confidence intervals; left of zero is better.

    Parameters
    ----------
    models : list of str
        Names of the models.
    worst, mean : list of tuple of float
        How much worse each model is for its worst group and over all rows: estimate, and both ends of its confidence
        interval.
    baseline : str
        Name of the baseline model.
    confidence : float
        Level of the confidence intervals.
    metric : str
        The metric.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        Axes and figure.
    worst_points_, mean_points_ : matplotlib artists
        The changes.
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
        n = len(self.models)
        (ax,) = axes_for(ax, (6.5, 1.4 + 0.45 * n))
        place, points = np.arange(n)[::-1], []
        for changes, colour, marker, label, shift in (
            (self.worst, ORANGE, "D", f"worst group's {self.metric.replace('_', ' ')}", 0.16),
            (self.mean, BLUE, "o", "over all rows", -0.16),
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
        ax.set_xlabel(f"change from {self.baseline}, with simultaneous {percent(self.confidence)} intervals")
        ax.legend(frameon=False, loc="best")
        return self._drawn_on(ax)
