"""The frontier of average and worst, enclosed between attained points and proven half-planes.

Average A and worst W of a model are convex, so the pairs (A, W) that models attain or improve on form a convex region.
Minimising (1 - t) A + t W for some t gives a point of the region, and a half-plane that contains it. The lower left
boundary of the region then lies between the chords of the points and the corners of the half-planes.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from groupdro.utils.types import Floats

__all__ = ["Enclosure"]


@dataclass(frozen=True, eq=False)
class Enclosure:
    """Attained points, and half-planes that hold for every model, by ascending t.

    Attributes
    ----------
    t : ndarray of shape (n,)
        Robustness of each fit, ascending.
    mean, worst : ndarray of shape (n,)
        Average and worst value of its model.
    lower : ndarray of shape (n,)
        Lower bound on (1 - t) * average + t * worst over all models.
    atol : float
        Distance below which two values count as equal, as when all losses are zero up to rounding.
    """

    t: Floats
    mean: Floats
    worst: Floats
    lower: Floats
    atol: float = 0.0

    def hull(self) -> list[int]:
        """Return the points on the lower left edge of their convex hull, by ascending average."""
        order = np.lexsort((self.worst, self.mean))
        edge: list[int] = []
        for k in order.tolist():
            if edge and self.worst[k] >= self.worst[edge[-1]]:
                continue  # no better on the worst, and no better on average
            while len(edge) > 1 and self._turns_right(edge[-2], edge[-1], k):
                edge.pop()
            edge.append(k)
        return edge

    def _turns_right(self, a: int, b: int, c: int) -> bool:
        """Return whether b lies on or above the chord from a to c."""
        run, rise = self.mean[c] - self.mean[a], self.worst[c] - self.worst[a]
        return bool(rise * (self.mean[b] - self.mean[a]) <= run * (self.worst[b] - self.worst[a]))

    def next_t(self) -> tuple[float, float]:
        """Return the t at which the enclosure is widest, and its relative width there."""
        edge = self.hull()
        best, width = 0.0, 0.0
        for a, b in itertools.pairwise(edge):
            run, fall = self.mean[b] - self.mean[a], self.worst[a] - self.worst[b]
            t = float(run / (run + fall))
            chord = (1.0 - t) * self.mean[a] + t * self.worst[a]
            open_by = self._distance(chord, self.least_blend(t))
            if open_by > width:
                best, width = t, float(open_by)
        return best, width

    def width(self) -> float:
        """Return the largest relative distance between attained values and proven bounds, including both ends."""
        ends = ((self.mean[0], self.lower[0]), (self.worst[-1], self.lower[-1]))
        return max(self.next_t()[1], *(self._distance(high, low) for high, low in ends))

    def _distance(self, high: float, low: float) -> float:
        """Return the relative distance of an attained value from a bound."""
        return float((high - low) / max(abs(high), 1e-300)) if high - low > self.atol else 0.0

    def least_blend(self, t: float) -> float:
        """Return the lower bound on (1 - t) * average + t * worst that the half-planes imply.

        A direction between two half-planes is a nonnegative combination of theirs and is bounded by the same
        combination of their bounds. Outside the range of all, there is no bound.
        """
        if not self.t[0] <= t <= self.t[-1]:
            return -np.inf
        if t == self.t[0]:
            return float(self.lower[0])
        k = int(np.searchsorted(self.t, t))
        share = (t - self.t[k - 1]) / (self.t[k] - self.t[k - 1])
        return float((1.0 - share) * self.lower[k - 1] + share * self.lower[k])

    def least_worst(self, mean: float) -> float:
        """Return a lower bound on the worst value of models whose average is at most `mean`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            bounds = (self.lower - (1.0 - self.t) * mean) / self.t
        return float(np.max(bounds[self.t > 0], initial=-np.inf))

    def least_mean(self, worst: float) -> float:
        """Return a lower bound on the average of models whose worst value is at most `worst`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            bounds = (self.lower - self.t * worst) / (1.0 - self.t)
        return float(np.max(bounds[self.t < 1], initial=-np.inf))

    def refutes(self, mean: float, worst: float) -> int | None:
        """Return the half-plane that most clearly excludes this average and worst value, if any does."""
        short = self.lower - (1.0 - self.t) * mean - self.t * worst
        k = int(np.argmax(short))
        return k if short[k] > 0 else None

    def mixture(self, *, mean: float = np.inf, worst: float = np.inf) -> tuple[int, int, float] | None:
        """Return points a, b and the share of b whose mixture meets both limits, as close as possible to the first.

        A mixture of two models' coefficients attains at most the mixture of their values. With only a limit on the
        mean, the mixture with the smallest worst value is returned, and vice versa.
        """
        edge = self.hull()
        if mean < np.inf:  # as far right as the limit allows, where the worst value is smallest
            if self.mean[edge[0]] > mean:
                return None
            for a, b in itertools.pairwise(edge):
                if self.mean[b] > mean:
                    share = (mean - self.mean[a]) / (self.mean[b] - self.mean[a])
                    break
            else:
                a, b, share = edge[-1], edge[-1], 0.0
            if (1.0 - share) * self.worst[a] + share * self.worst[b] > worst:
                return None
        else:
            if self.worst[edge[-1]] > worst:
                return None
            for a, b in itertools.pairwise(edge):
                if self.worst[b] <= worst:
                    share = max((self.worst[a] - worst) / (self.worst[a] - self.worst[b]), 0.0)
                    break
            else:
                a, b, share = edge[-1], edge[-1], 0.0
        return a, b, float(share)
