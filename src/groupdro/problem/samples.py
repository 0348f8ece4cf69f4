"""Sampled risks and gradients for stochastic solvers."""

from typing import Any

import numpy as np

from groupdro.data import Draw
from groupdro.kernels.arguments import Drawn
from groupdro.problem.linear_model import scale_rows
from groupdro.problem.records import Evaluation
from groupdro.problem.single_pass import SinglePasses
from groupdro.utils.types import Floats, Indices

__all__ = ["Samples"]


class Samples(SinglePasses):
    """The part of a problem that evaluates drawn members or passes them to compiled steps."""

    @property
    def flat_here(self) -> Any:
        """Like `flat`, of the rows that this worker stores."""
        return self.data.flat_here(self.loss.kernel, intercept=self.model.fit_intercept)

    @property
    def flat(self) -> Any:
        """Rows, labels and loss in the form kernels take; None if loss, rows or their storage do not allow it."""
        return self.data.flat(self.loss.kernel, intercept=self.model.fit_intercept)

    def drawn_rows(self, members: Indices) -> Indices:
        """Return the stored rows of members for a compiled step, and count them as differences from a snapshot."""
        self._count(members.size, gradients=2)
        return self.data.rows_of(members)

    def sampled_difference(self, draw: Draw, at: Evaluation, w: Floats, q: Floats) -> tuple[Floats, Floats]:
        """Return the variance-reduced corrections to the snapshot's risks and gradient.

        These are, for the drawn rows, the losses at w minus those at the snapshot, by group, and the gradient at (w, q)
        minus that at the snapshot's own (w, q). Both slopes multiply the same x, and the snapshot's margins are known,
        so each drawn row is read once.

        Parameters
        ----------
        draw : Draw
            The drawn members.
        at : Evaluation
            The snapshot.
        w, q : ndarray
            The point of the step.

        Returns
        -------
        loss_difference : ndarray of shape (n_groups,)
            Unbiased for R(w) - R(snapshot).
        gradient_difference : ndarray, shaped as w
            Unbiased for grad F(w, q) - grad F(snapshot), without the penalty.
        """
        self._count(len(draw.members), gradients=2)
        draw = self.data.own(draw)
        rows, flat = self.data.rows_of(draw.members), self.flat_here
        change, gradient = np.zeros(self.data.n_groups), np.zeros(self.model.shape)
        drawn = Drawn(rows, draw.groups, draw.weights)
        if flat is None or not self.data.rows.fused_difference(flat, w, q, at.q, drawn, at.margins, change, gradient):
            X, y = self.data.rows.take(rows), self.data.y[rows]
            new, new_slope = self.loss.value_and_slope(self.model.outputs(X, w), y)
            old, old_slope = self.loss.value_and_slope(at.margins[rows], y)
            change = self._by_group(draw, new - old)
            weighted = scale_rows(new_slope, draw.weights * q[draw.groups])
            weighted -= scale_rows(old_slope, draw.weights * at.q[draw.groups])
            gradient = self.model.gradient(X, weighted)
        self.data.add_up(change, gradient)
        return change, gradient

    def sampled(self, draw: Draw, w: Floats, q: Floats) -> tuple[Floats, Floats]:
        """Estimate the group risks and the gradient of F(., q) at w from drawn members, without a snapshot.

        Parameters
        ----------
        draw : Draw
            The drawn members.
        w, q : ndarray
            The point of the step.

        Returns
        -------
        risks : ndarray of shape (n_groups,)
            Unbiased for R(w).
        gradient : ndarray, shaped as w
            Unbiased for grad F(w, q), without the penalty.
        """
        self._count(len(draw.members))
        draw = self.data.own(draw)
        rows = self.data.rows_of(draw.members)
        X = self.data.rows.take(rows)
        losses, slopes = self.loss.value_and_slope(self.model.outputs(X, w), self.data.y[rows])
        risks = self._by_group(draw, losses)
        gradient = self.model.gradient(X, scale_rows(slopes, draw.weights * q[draw.groups]))
        self.data.add_up(risks, gradient)
        return risks, gradient

    def _by_group(self, draw: Draw, values: Floats) -> Floats:
        """Add up weighted values of drawn members by group."""
        sums = np.bincount(draw.groups, weights=draw.weights * values, minlength=self.data.n_groups)
        return sums.astype(np.float64, copy=False)
