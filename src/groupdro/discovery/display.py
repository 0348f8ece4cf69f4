"""A plot of the groups that were found."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from groupdro.evaluation.drawing import GREY, ORANGE, Display, axes_for, axis_label, in_figures, set_title
from groupdro.utils.text import percent
from groupdro.utils.types import Floats

__all__ = ["FoundGroupsDisplay"]

_LONGEST = 34  # characters of a condition


@dataclass(eq=False, repr=False, kw_only=True)
class FoundGroupsDisplay(Display):
    """By how much each group that was found is worse than the other rows, with simultaneous lower bounds.

    Parameters
    ----------
    groups : list of str
        Rules of the groups, worst first.
    difference, at_least : ndarray of shape (n_groups,)
        By how much each group is worse, and lower bounds.
    rows : list of int
        Number of rows of each group.
    level : float
        Probability with which all bounds hold.
    metric : str
        What is worse.
    metrics : list of str, optional
        What is worse in each group, if groups were searched by several metrics.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        Axes and figure.
    points_, bounds_ : matplotlib artists
        Differences, and lines from the lower bounds.
    """

    groups: list[str]
    difference: Floats
    at_least: Floats
    rows: list[int]
    level: float
    metric: str = "loss"
    metrics: list[str] | None = None

    def plot(self, *, ax: Any = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        FoundGroupsDisplay
            The display.
        """
        n, own_figure = len(self.groups), ax is None
        metrics = self.metrics or [""] * n
        names = [_wrapped(*each) for each in zip(self.groups, self.rows, metrics, strict=True)]
        n_lines = max((name.count("\n") + 1 for name in names), default=1)
        (ax,) = axes_for(ax, (7.5, 1.5 + n * max(0.4, 0.2 * n_lines)))
        place = np.arange(n)[::-1]
        self.bounds_ = ax.hlines(place, self.at_least, self.difference, color=ORANGE, lw=1.5, alpha=0.6)
        ax.plot(self.at_least, place, "|", color=ORANGE, ms=9)
        (self.points_,) = ax.plot(self.difference, place, "D", color=ORANGE, ms=5)
        ax.axvline(0.0, color=GREY, lw=1, zorder=0)
        ax.set_yticks(place, names)
        ax.set_ylim(-0.5, n - 0.5)
        what = in_figures(self.metric)
        ax.set_xlabel(f"{what}: worse than in the other rows by" if self.metrics is None else "worse by")
        ax.set_ylabel("rows with")
        how = f"tick: lower bound, {percent(self.level)} for all groups at once"
        set_title(ax, "Groups in which the model does worse", how, own_figure=own_figure)
        return self._drawn_on(ax)


def _wrapped(group: str, rows: int, metric: str) -> str:
    """Return the conditions of a group, each on a line of its own if they are long, its number of rows and metric."""
    conditions = [axis_label(condition, _LONGEST) for condition in group.split(" & ")]
    text = " & ".join(conditions)
    text = text if len(text) <= _LONGEST else " &\n".join(conditions)
    return f"{text}\n{rows} rows{metric and f', {in_figures(metric)}'}"
