"""Both players between two snapshots: their positions, and the sums over the steps."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from groupdro.data import BatchPlan
from groupdro.geometry import Geometry, Round
from groupdro.kernels.arguments import FREE, MEASURES, Sums, WeightPlayer, record
from groupdro.oracle import Evaluation, Oracle
from groupdro.problem import Problem
from groupdro.problem.domains import Separable
from groupdro.utils.types import Floats, Indices

__all__ = ["InnerLoop", "Steps"]


@dataclass
class InnerLoop:
    """Both players between two snapshots.

    Attributes
    ----------
    oracle : Oracle
        The oracle of the problem.
    at : Evaluation
        The snapshot.
    geometry : Geometry
        The geometry of w.
    w_steps : ndarray or float
        Step size of w: one number, or one per entry.
    q_step, alpha : float
        Step size of the logits, and weight of the snapshot in the centre.
    w, w_centre : ndarray
        Mirror coordinates of the iterate (changed by steps) and of the snapshot.
    rotation : ndarray of shape (n_features, n_features) or (0, 0)
        Columns are the coordinates that `w_steps` refer to; empty for the original features. The loop works in these
        coordinates, in which ball and penalty look the same. Its inputs and outputs are in those of the features.
    shift : ndarray of shape (n_features,) or (0,)
        Point in feature space at which the loop takes the intercept, such as the mean, where it hardly depends on the
        coefficients; empty for the origin. The intercept is free, so any point will do.
    logits, logit_centre : ndarray of shape (n_groups,)
        The same for q.
    w_total, mirror_total, q_total, logit_total : ndarray
        Sums over the steps of w, of its mirror coordinates, of the moving part of q and of the logits.
    measures : record of `MEASURES`
        Sums over the steps of the squared gradient differences of w and q, and of the squared distances of w and q from
        the snapshot, as measured by the geometries.
    n_steps : int
        Number of steps made.
    """

    oracle: Oracle
    at: Evaluation
    geometry: Geometry
    w_steps: Floats | float
    q_step: float
    alpha: float
    w: Floats
    w_centre: Floats
    logits: Floats
    logit_centre: Floats
    rotation: Floats = field(default_factory=lambda: np.empty((0, 0)))
    shift: Floats = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        self.w = self.turned(self.w)
        self.logits = self.logits.copy()
        self.w_centre = self.turned(self.w_centre)
        self.snapshot = self.turned(self.at.w)
        self.gradient = self.turned_gradient(self.at.gradient)
        self.w_total = np.zeros_like(self.w)
        self.mirror_total = np.zeros_like(self.w)
        self.q_total = np.zeros_like(self.logits)
        self.logit_total = np.zeros_like(self.logits)
        self.measures = record(MEASURES)
        self.n_steps = 0
        self.values = self.problem.group_values(self.at.group_risks)

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.oracle.problem

    @property
    def separable(self) -> Separable | None:
        """Separate penalties and bounds of the coefficients, if steps in the loop's coordinates can use them."""
        turned = self.rotation.size or self.shift.size
        return self.problem.domain.separable if isinstance(self.geometry, Round) and not turned else None

    def turned(self, w: Floats) -> Floats:
        """Return w in the loop's own coordinates."""
        out = w.copy()
        d = len(self.rotation)
        if d:
            out[:d] = self.rotation.T @ w[:d]
        if self.shift.size:
            out[-1] += self.shift @ w[:-1]
        return out

    def turned_back(self, w: Floats) -> Floats:
        """Return w in the coordinates of the features."""
        out = w.copy()
        d = len(self.rotation)
        if d:
            out[:d] = self.rotation @ w[:d]
        if self.shift.size:
            out[-1] -= self.shift @ out[:-1]
        return out

    def turned_gradient(self, gradient: Floats) -> Floats:
        """Return a gradient in the loop's own coordinates."""
        out = gradient.copy()
        d = len(self.rotation)
        if self.shift.size:
            out[:-1] -= np.multiply.outer(self.shift, gradient[-1])
        if d:
            out[:d] = self.rotation.T @ out[:d]
        return out

    def iterate(self) -> Floats:
        """Return the iterate in mirror coordinates."""
        return self.turned_back(self.w)

    def mean_point(self) -> Floats:
        """Return the mean of w over the steps."""
        return self.turned_back(self.w_total / self.n_steps)

    def mean_mirror(self) -> Floats:
        """Return the mean of the mirror coordinates over the steps."""
        return self.turned_back(self.mirror_total / self.n_steps)

    def weight_player(self) -> WeightPlayer:
        """Return q in the form of kernels."""
        moving = self.problem.moving
        q = self.at.q
        return WeightPlayer(
            logits=self.logits,
            centre=self.logit_centre,
            pull=moving.share * self.values,
            snapshot=q,
            moved=moving.moved(q),
            least=moving.least,
            caps=moving.caps,
            share=moving.share,
            step=self.q_step,
            alpha=self.alpha,
        )

    def free_intercept(self) -> Any:
        """Return a free intercept as a record of `FREE`, of zeros without one."""
        d = self.problem.data.n_features
        if len(self.w) == d:
            return record(FREE)
        return record(FREE, iterate=self.w[d], snapshot=self.snapshot[d], gradient=self.gradient[d])

    def mean_weights(self) -> Floats:
        """Return the mean of q over the steps."""
        return self.problem.weight_geometry().mixed(self.q_total / self.q_total.sum())

    def totals(self) -> Sums:
        """Return the sums over the steps in the form of kernels."""
        return Sums(self.w_total, self.logit_total, self.q_total, self.measures)

    @property
    def ratio(self) -> float:
        """Squared gradient differences over alpha times squared distances, which the proof requires to be below 1/5."""
        gradients = self.measures["gradient_w"] + self.measures["gradient_q"]
        distances = self.measures["distance_w"] + self.measures["distance_q"]
        return float(gradients / (self.alpha * distances + 1e-300))


class Steps(ABC):
    """One implementation of the steps of an inner loop.

    Parameters
    ----------
    loop : InnerLoop
        The loop, modified by the steps.
    """

    def __init__(self, loop: InnerLoop):
        self.loop = loop

    @classmethod
    @abstractmethod
    def fits(cls, loop: InnerLoop) -> bool:
        """Return whether this implementation supports the loop's problem, geometries and steps."""

    @property
    def entries(self) -> float:
        """Cost of a drawn row, in entries of a dense row."""
        return float(self.loop.problem.data.n_features)

    @abstractmethod
    def run(self, plan: BatchPlan, members: Indices) -> None:
        """Make one step per row of `members`."""

    def flush(self) -> None:
        """Write out the iterate and the sums, if steps deferred that."""
        return
