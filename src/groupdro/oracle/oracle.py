"""How a problem is evaluated: all passes over the data, and the only place where they are counted."""

import contextlib
import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np

from groupdro.data import Draw
from groupdro.data.rows import Rows
from groupdro.kernels.arguments import Drawn
from groupdro.oracle.counters import Counters
from groupdro.oracle.evaluation import Evaluation
from groupdro.oracle.single import SinglePasses
from groupdro.problem import Problem
from groupdro.problem.linear_model import scale_rows, term_sizes
from groupdro.utils.arguments import check_kind
from groupdro.utils.types import Floats, Indices

__all__ = ["Oracle"]

T = TypeVar("T")


@dataclass
class _Precision:
    """The precision of passes, which oracles of related problems share."""

    single: bool


class Oracle:
    """Evaluates a problem, and owns what changes while it is solved: counters and precision.

    Parameters
    ----------
    problem : Problem
        The problem. With several workers, all must make the oracle together.

    Attributes
    ----------
    problem : Problem
        The problem.
    counters : Counters
        Operations on the data so far, including those by the oracles that `on` has made of this one.
    """

    def __init__(self, problem: Problem):
        check_kind(problem, "problem", Problem, "a Problem")
        self.problem = problem
        self.counters = Counters()
        self._single_passes = SinglePasses(problem)
        self._precision = _Precision(single=not problem.unbounded)

    def on(self, problem: Problem) -> Self:
        """Return an oracle for a related problem, which shares counters and precision."""
        oracle = copy.copy(self)
        oracle.problem = problem
        if problem.data is not self.problem.data:
            oracle._single_passes = SinglePasses(problem)
        return oracle

    # ------------------------------------------------------------------ precision

    @property
    def single_precision(self) -> bool:
        """Whether passes multiply float32 rows in single precision.

        That pays for many rows and several outputs. Bounds account for the rounding.
        """
        return self._precision.single and self._single_passes.allowed

    def use_double(self) -> None:
        """Make all further passes in double precision."""
        self._precision.single = False

    def combined_mass(self, mass: float) -> float:
        """Return `Evaluation.mass` of what `combine_rows` returns, given the mass of its terms."""
        return self._single_passes.mass(mass) if self.single_precision else mass

    def singly(self, make: Callable[[SinglePasses], T | None], *, gradients: int) -> T | None:
        """Return the result of a pass in single precision; None if it is not in use, or overflows for good."""
        if not self.single_precision:
            return None
        self.counters.add(self.problem.n_rows, gradients=gradients)
        found = make(self._single_passes)
        if found is None:
            self.use_double()
        return found

    # ------------------------------------------------------------------ passes over the data

    def evaluate(self, w: Floats, q: Floats) -> Evaluation:
        """Return margins, group risks and the weighted gradient at (w, q) by one pass over the data."""
        single = self.singly(lambda passes: passes.evaluate(w, q), gradients=1)
        if single is not None:
            return single
        problem = self.problem
        data = self.problem.data
        margins = np.empty((data.n_rows, *problem.shape[1:]))
        losses = np.empty(data.n_rows)
        row_weights = data.row_weights(q)
        norms = problem.row_norms
        flat = problem.flat_here
        done = None if flat is None else data.rows.fused_pass(flat, w, row_weights, norms, margins, losses)
        gradient, mass = done or self._blocked_pass(w, row_weights, norms, margins, losses)
        means = data.partial_means(losses)
        masses = np.array([mass])
        data.add_up(means, gradient, masses)
        self.count_pass()
        return Evaluation(w, q, margins, means, gradient, float(masses[0]))

    def _blocked_pass(
        self, w: Floats, row_weights: Floats, norms: Floats, margins: Floats, losses: Floats
    ) -> tuple[Floats, float]:
        """Set margins and losses, and return the gradient and the mass of its terms, block by block."""
        problem = self.problem
        model = problem.model
        loss = problem.loss
        y = problem.data.y

        def visit(place: slice, block: Rows) -> tuple[Floats, float]:
            margins[place] = problem.outputs(block, place, w)
            losses[place], slopes = loss.value_and_slope(margins[place], y[place])
            weighted = scale_rows(slopes, row_weights[place])
            return model.gradient(block, weighted), float(term_sizes(weighted, norms[place]).sum())

        gradient = np.zeros(self.problem.shape)
        mass = 0.0
        for part, size in self.problem.data.rows.map_blocks(visit):
            gradient += part
            mass += size
        return gradient, mass

    def risks(self, w: Floats) -> Floats:
        """Return the group risks at w, or upper bounds on them in single precision, in a pass without gradients."""
        bounds = self.singly(lambda passes: passes.risks(w), gradients=0)
        if bounds is not None:
            return bounds
        data = self.problem.data
        loss = self.problem.loss
        losses = np.empty(data.n_rows)
        for place, block in data.rows.blocks():
            losses[place] = loss.value(self.problem.outputs(block, place, w), data.y[place])
        self.count_columns(data.n_features)
        return data.group_means(losses)

    def combine_rows(self, coefficients: Floats) -> Floats:
        """Return sum over rows of coefficient times x (without intercept) in one pass: the transposed product."""
        combined = self.singly(lambda passes: passes.combine(coefficients), gradients=0)
        if combined is not None:
            return combined
        data = self.problem.data
        out = np.zeros((data.n_features, *self.problem.shape[1:]))
        for place, block in data.rows.blocks():
            out += block.rmatvec(coefficients[place])
        data.add_up(out)
        self.count_columns(data.n_features)
        return out

    def warm_up(self) -> None:
        """Compile the kernels of a pass, which does not count towards a budget."""
        data = self.problem.data
        loss = self.problem.loss
        rows = np.zeros(min(1, data.n_rows), np.int64)
        margins = np.zeros((len(rows), *self.problem.shape[1:]))
        slopes = loss.value_and_slope(margins, data.y[rows])[1]
        loss.conjugate(slopes, data.y[rows])
        loss.value(margins, data.y[rows])
        data.partial_means(np.zeros(data.n_rows))
        data.row_weights(np.zeros(self.problem.n_groups))

    # ------------------------------------------------------------------ samples

    def drawn_rows(self, members: Indices) -> Indices:
        """Return the stored rows of members for a compiled step, and count them as differences from a snapshot."""
        self.counters.add(members.size, gradients=2)
        return self.problem.data.rows_of(members)

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
        self.counters.add(len(draw.members), gradients=2)
        model = self.problem.model
        loss = self.problem.loss
        data = self.problem.data
        draw = data.own(draw)
        rows = data.rows_of(draw.members)
        flat = self.problem.flat_here
        change = np.zeros(data.n_groups)
        gradient = np.zeros(model.shape)
        drawn = Drawn(rows, draw.groups, draw.weights)
        if flat is None or not data.rows.fused_difference(flat, w, q, at.q, drawn, at.margins, change, gradient):
            X = data.rows.take(rows)
            y = data.y[rows]
            new, new_slope = loss.value_and_slope(self.problem.outputs(X, rows, w), y)
            old, old_slope = loss.value_and_slope(at.margins[rows], y)
            change = self._by_group(draw, new - old)
            weighted = scale_rows(new_slope, draw.weights * q[draw.groups])
            weighted -= scale_rows(old_slope, draw.weights * at.q[draw.groups])
            gradient = model.gradient(X, weighted)
        data.add_up(change, gradient)
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
        self.count_draw(draw)
        model = self.problem.model
        loss = self.problem.loss
        data = self.problem.data
        draw = data.own(draw)
        rows = data.rows_of(draw.members)
        X = data.rows.take(rows)
        losses, slopes = loss.value_and_slope(self.problem.outputs(X, rows, w), data.y[rows])
        risks = self._by_group(draw, losses)
        gradient = model.gradient(X, scale_rows(slopes, draw.weights * q[draw.groups]))
        data.add_up(risks, gradient)
        return risks, gradient

    def _by_group(self, draw: Draw, values: Floats) -> Floats:
        """Add up weighted values of drawn members by group."""
        sums = np.bincount(draw.groups, weights=draw.weights * values, minlength=self.problem.n_groups)
        return sums.astype(np.float64, copy=False)

    # ------------------------------------------------------------------ counting

    @property
    def passes(self) -> float:
        """Passes over the data so far."""
        return self.counters.row_reads / self.problem.n_rows

    def count_pass(self) -> None:
        """Count a pass with gradients."""
        self.counters.add(self.problem.n_rows)

    def count_columns(self, n_features: int) -> None:
        """Count a pass over some columns without gradients, as a fraction of a pass."""
        n_rows = round(self.problem.n_rows * n_features / max(self.problem.data.n_features, 1))
        self.counters.add(n_rows, gradients=0)

    def count_draw(self, draw: Draw) -> None:
        """Count drawn members whose derivatives were computed."""
        self.counters.add(len(draw.members))

    def count_shifts(self, n_evals: int) -> None:
        """Count shifts of a free intercept at which all rows were evaluated from stored margins, without reading X."""
        self.counters.add_shifted(n_evals * self.problem.n_rows)

    def uncounted(self) -> contextlib.AbstractContextManager[None]:
        """Suspend counting, for evaluations for a trace or a final check."""
        return self.counters.suspended()

    def count_together(self, other: Counters) -> None:
        """Add the counts of another oracle, used by all workers together."""
        self.counters.add_counts(other.counts)

    def count_apart(self, others: Iterable[Counters]) -> None:
        """Add the counts of other oracles, each used by one worker."""
        total = np.zeros(len(Counters.NAMES))
        for other in others:
            total += other.counts
        self.problem.data.add_up(total)
        self.counters.add_counts(total)
