"""A plot of the groups that were found."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from groupdro.evaluation.drawing import GREY, ORANGE, Display, axes_for, axis_label
from groupdro.utils.text import percent
from groupdro.utils.types import Floats

__all__ = ["FoundGroupsDisplay"]

_LONGEST = 60  # characters of a rule


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
        n = len(self.groups)
        (ax,) = axes_for(ax, (7.5, 1.2 + 0.4 * n))
        place = np.arange(n)[::-1]
        self.bounds_ = ax.hlines(place, self.at_least, self.difference, color=ORANGE, lw=1.5, alpha=0.6)
        ax.plot(self.at_least, place, "|", color=ORANGE, ms=9)
        (self.points_,) = ax.plot(self.difference, place, "D", color=ORANGE, ms=5)
        ax.axvline(0.0, color=GREY, lw=1, zorder=0)
        names = [
            f"{axis_label(group, _LONGEST)}\n{rows} rows" for group, rows in zip(self.groups, self.rows, strict=True)
        ]
        ax.set_yticks(place, names)
        ax.set_ylim(-0.5, n - 0.5)
        what = self.metric.replace("_", " ")
        ax.set_xlabel(f"{what}: worse than elsewhere by, with lower bound ({percent(self.level)})")
        return self._drawn_on(ax)
