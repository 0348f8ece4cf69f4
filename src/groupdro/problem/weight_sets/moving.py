"""Sets of group weights in the form of kernels and quadratic programs: a share that moves, below caps."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from groupdro.geometry import Entropy, Geometry
from groupdro.kernels.mirror import capped_softmax, settle_logits
from groupdro.utils.types import Floats

__all__ = ["Moving", "MovingEntropy"]

_NONE: Floats = np.empty(0)


class Moving(NamedTuple):
    """The set of all q = least + share * s, where s is a distribution with s <= caps.

    Every box of weights has this form. Entropic steps are taken in s, whose gradient is `share` times that of q.

    Attributes
    ----------
    least : ndarray of shape (n_groups,)
        Fixed weight of every group; sums to 1 - share.
    share : float
        Total weight that moves.
    caps : ndarray of shape (n_groups,) or (0,)
        Upper bounds on s, which sum to at least one; empty if there are no caps.
    """

    least: Floats
    share: float = 1.0
    caps: Floats = _NONE

    def moved(self, q: Floats) -> Floats:
        """Return the s of weights q, which is arbitrary if nothing moves."""
        if self.share == 0.0:
            return np.full(len(q), 1.0 / len(q))
        return np.maximum(q - self.least, 0.0) / self.share

    def mixed(self, s: Floats) -> Floats:
        """Return the q with moving part s."""
        return self.least + self.share * s

    def fill(self, values: Floats) -> Floats:
        """Return the s with the largest <s, values>: filling from the largest value down, each up to its cap."""
        s = np.zeros(len(values))
        if not self.caps.size:
            s[np.argmax(values)] = 1.0
            return s
        order = np.argsort(-values, kind="stable")
        before = np.concatenate([[0.0], np.cumsum(self.caps[order])[:-1]])
        s[order] = np.clip(1.0 - before, 0.0, self.caps[order])
        return s

    def nearest(self, q: Floats) -> Floats:
        """Return the weights of the set whose moving part is closest to that of a given distribution."""
        if not q.any():
            return self.mixed(self.spread())  # no group had weight: all was on the extra group of all rows
        s = q / q.sum()
        if self.caps.size:
            capped_softmax(np.log(np.maximum(s, 1e-300)), self.caps, s)
        return self.mixed(s)

    def spread(self) -> Floats:
        """Return the s that is nearest to equal weights."""
        n = len(self.least)
        s = np.full(n, 1.0 / n)
        if self.caps.size:
            capped_softmax(np.zeros(n), self.caps, s)
        return s


@dataclass(frozen=True, eq=False)
class MovingEntropy(Geometry):
    """Entropic steps of the moving part s; mirror coordinates are its logits.

    If caps bind, the step is projected onto them in relative entropy, and the logits become those of the projection.
    What lies beyond a cap is forgotten, so a group whose value falls leaves its cap at once.
    """

    moving: Moving
    dual_order = np.inf
    radius = 1.0

    @property
    def _whole(self) -> Entropy:
        return Entropy(len(self.moving.least))

    @property
    def squared_diameter(self) -> float:  # type: ignore[override]
        """Logarithm of the number of groups, an upper bound for any set of s."""
        return self._whole.squared_diameter

    def mirror(self, point: Floats) -> Floats:
        """Return the logits of s."""
        return self._whole.mirror(self.moved(point))

    def point(self, mirror: Floats) -> Floats:
        """Return q."""
        if not self.moving.caps.size:
            return self.mixed(self._whole.point(mirror))
        s = np.empty_like(mirror)
        capped_softmax(mirror, self.moving.caps, s)
        return self.mixed(s)

    def moved(self, point: Floats) -> Floats:
        """Return the moving part of q."""
        return self.moving.moved(point)

    def mixed(self, moved: Floats) -> Floats:
        """Return the q with the given moving part."""
        return self.moving.mixed(moved)

    def interior(self, point: Floats) -> Floats:
        """Raise entries of s that are nearly zero, as far as caps allow."""
        s = self._whole.interior(self.moved(point))
        if self.moving.caps.size:
            capped_softmax(self._whole.mirror(s), self.moving.caps, s)
        return self.mixed(s)

    def step(self, centre: Floats, step: Any, gradient: Floats) -> Floats:
        """Step s against its own gradient."""
        moving = self.moving
        logits = self._whole.step(centre, step, moving.share * gradient)
        if moving.caps.size:
            s = np.empty_like(logits)
            level = capped_softmax(logits, moving.caps, s)
            settle_logits(logits, moving.caps, s, level)
        return logits

    def squared_gradient(self, step: Any, difference: Floats, point: Floats) -> float:
        """Measure the gradient difference in s."""
        return self._whole.squared_gradient(step, self.moving.share * difference, self.moved(point))

    def squared_distance(self, step: Any, a: Floats, b: Floats) -> float:
        """Measure the distance in s."""
        return self._whole.squared_distance(step, self.moved(a), self.moved(b))
