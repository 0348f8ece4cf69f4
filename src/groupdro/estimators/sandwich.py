"""The frontier of average and worst between what models attain and what none can.

Average A and worst W of a model are convex, so that the pairs (A, W) which models attain or beat are a convex region.
Solving (1 - t) A + t W for some t gives a point of the region, and a half-plane that holds all of it. Its lower left
edge then lies between the chords of the points and the corners of the half-planes.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from groupdro.utils.types import Floats

__all__ = ["Sandwich"]


@dataclass(frozen=True, eq=False)
class Sandwich:
    """Points that are attained, and half-planes that hold for every model, by rising t.

    Attributes
    ----------
    t : ndarray of shape (n,)
        Robustness of each fit, rising.
    mean, worst : ndarray of shape (n,)
        Average and worst value of its model.
    lower : ndarray of shape (n,)
        What (1 - t) * average + t * worst is at least, for every model.
    atol : float
        Distance below which two values are one, as where all losses are zero but for rounding.
    """

    t: Floats
    mean: Floats
    worst: Floats
    lower: Floats
    atol: float = 0.0

    def hull(self) -> list[int]:
        """Return the points on the lower left edge of their convex hull, by rising average."""
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
        """Return the largest relative distance between what is attained and what is impossible, both ends included."""
        ends = ((self.mean[0], self.lower[0]), (self.worst[-1], self.lower[-1]))
        return max(self.next_t()[1], *(self._distance(high, low) for high, low in ends))

    def _distance(self, high: float, low: float) -> float:
        """Return the relative distance of what is attained from a bound."""
        return float((high - low) / max(abs(high), 1e-300)) if high - low > self.atol else 0.0

    def least_blend(self, t: float) -> float:
        """Return what (1 - t) * average + t * worst is at least, by the half-planes.

        A direction between two of them is a mixture of theirs with weights of at least 0, which bounds it by the same
        mixture of their bounds; outside of all, none does.
        """
        if not self.t[0] <= t <= self.t[-1]:
            return -np.inf
        if t == self.t[0]:
            return float(self.lower[0])
        k = int(np.searchsorted(self.t, t))
        share = (t - self.t[k - 1]) / (self.t[k] - self.t[k - 1])
        return float((1.0 - share) * self.lower[k - 1] + share * self.lower[k])

    def least_worst(self, mean: float) -> float:
        """Return what the worst value of models with an average of at most this is at least."""
        with np.errstate(divide="ignore", invalid="ignore"):
            bounds = (self.lower - (1.0 - self.t) * mean) / self.t
        return float(np.max(bounds[self.t > 0], initial=-np.inf))

    def least_mean(self, worst: float) -> float:
        """Return what the average of models with a worst value of at most this is at least."""
        with np.errstate(divide="ignore", invalid="ignore"):
            bounds = (self.lower - self.t * worst) / (1.0 - self.t)
        return float(np.max(bounds[self.t < 1], initial=-np.inf))

    def refutes(self, mean: float, worst: float) -> int | None:
        """Return the half-plane that most clearly has no model with this average and worst value, if any does."""
        short = self.lower - (1.0 - self.t) * mean - self.t * worst
        k = int(np.argmax(short))
        return k if short[k] > 0 else None

    def mixture(self, *, mean: float = np.inf, worst: float = np.inf) -> tuple[int, int, float] | None:
        """Return points a, b and the share of b whose mixture keeps both limits, as near as can be to the first.

        Mixtures of two models' coefficients attain at most the mixture of their values. With a limit of the mean alone,
        the mixture of least worst value is returned, and the other way round.
        """
        edge = self.hull()
        if mean < np.inf:  # as far right as the limit allows, where the worst value is least
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
