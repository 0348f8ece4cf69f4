"""The group-risk problem: what every solver asks of the data, and the only place where its answers are counted."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from groupdro.data import Draw, GroupedData
from groupdro.geometry import Geometry
from groupdro.kernels.arguments import Drawn
from groupdro.problem.domains import Domain
from groupdro.problem.linear_model import LinearModel, scale_rows, term_sizes
from groupdro.problem.loss_check import check_loss
from groupdro.problem.losses import Loss
from groupdro.problem.output_ball import OutputBall
from groupdro.problem.records import Constants, Counters, Evaluation, References
from groupdro.problem.set_check import check_domain, check_weight_set
from groupdro.problem.starts import read_numbers, read_start
from groupdro.problem.weight_sets import Simplex, WeightSet
from groupdro.utils.arguments import check_flag, check_kind
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["GroupRisk"]


class GroupRisk:
    """A loss of a linear model, averaged within groups, over a domain.

    The problem is to minimise over w the largest of the groups' values, or what else the set of group weights makes of
    them, which is the saddle point of

        F(w, q) = sum_i q_i (R_i(w) + offset_i - reference_i) + penalty(w),    w in the domain, q in the weight set,
        R_i(w)  = mean over group i of loss(x.w, y),
        grad_w  = sum_i q_i mean over group i of loss'(x.w, y) x + grad penalty(w).

    Shapes: w is (n_features + fit_intercept,) or (n_features + fit_intercept, n_outputs); the intercept is the last
    entry or row, free of radius and penalty. q, risks and references are (n_groups,).

    Parameters
    ----------
    data : GroupedData
        The rows.
    loss : Loss
        The loss of a row.
    domain : Domain
        Where the coefficients may lie.
    weight_set : WeightSet
        Which group weights count; by default all of the simplex, so that the worst group decides.
    fit_intercept : bool
        Whether to append an intercept.
    references : References, optional
        Bounds of each group's own minimum, which turn risks into regrets.
    offsets : ndarray of shape (n_groups,), optional
        Constants added to the groups' risks, such as an allowance for small groups.
    start : pair of ndarray or None, optional
        The w and the q at which solvers begin; None is the domain's centre, or equal weights.
    counters : Counters, optional
        Counters to share with another problem on the same data.

    Attributes
    ----------
    counters : Counters
        What was asked of the data so far.
    baseline : References
        What is subtracted from the risks: references less offsets.
    """

    def __init__(
        self,
        data: GroupedData,
        loss: Loss,
        domain: Domain,
        weight_set: WeightSet = Simplex(),  # noqa: B008  # a constant
        *,
        fit_intercept: bool = False,
        references: References | None = None,
        offsets: Floats | None = None,
        start: tuple[Floats | None, Floats | None] = (None, None),
        counters: Counters | None = None,
    ):
        check_kind(data, "data", GroupedData, "GroupedData")
        check_kind(loss, "loss", Loss, "a loss, such as Logistic()")
        check_kind(domain, "domain", Domain, "a domain, such as L2Domain(radius=1.0)")
        check_kind(weight_set, "weight_set", WeightSet, "a set of group weights, such as Simplex()")
        check_flag(fit_intercept, "fit_intercept")
        check_kind(counters, "counters", Counters | None, "Counters or None")
        check_kind(references, "references", References | None, "References or None")
        y = loss.encode(data.y)
        n_outputs = int(data.largest(np.array([float(loss.n_outputs(y))]))[0])
        check_loss(loss, y, n_outputs, fit_intercept=fit_intercept)
        self.model = LinearModel(data.n_features, n_outputs, fit_intercept)
        check_domain(domain, self.model)
        check_weight_set(weight_set, data.n_groups)
        self.data = data.with_labels(y, encoded=True)
        self.loss = loss.with_outputs(n_outputs)  # a single group may lack the last classes
        self.domain, self.weight_set = domain, weight_set
        self.fit_intercept = fit_intercept
        self.references = references if references is not None else References.none(data.n_groups)
        for name, bound in (("upper", self.references.upper), ("lower", self.references.lower)):
            read_numbers(bound, "references", f"{name} bounds", data.n_groups)
        self.regret = references is not None
        self.offsets = np.zeros(data.n_groups)
        if offsets is not None:
            self.offsets = read_numbers(offsets, "offsets", "numbers", data.n_groups)
        self.baseline = References(self.references.upper - self.offsets, self.references.lower - self.offsets)
        self.counters = counters if counters is not None else Counters()
        self.shape = self.model.shape
        self._start = read_start(start, self.shape, weight_set, data.n_groups)
        self._rounding: float | None = None
        self._norms: Floats | None = None
        self._output_ball: OutputBall | None = None

    # ------------------------------------------------------------------ parts of w

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return self.data.n_groups

    @property
    def n_rows(self) -> int:
        """Number of rows, each counted once however many groups hold it, wherever they are stored."""
        return self.data.n_total

    def coef(self, w: Floats) -> Floats:
        """Return the part of w (or of a gradient) that the domain concerns."""
        return self.model.coef(w)

    def intercept(self, w: Floats) -> Floats:
        """Return the free part of w (or of a gradient), empty without an intercept."""
        return self.model.intercept(w)

    def within_domain(self, w: Floats) -> Floats:
        """Return a copy of w, moved to the domain where it lies outside: an upper bound there would bound nothing."""
        w = w.copy()
        self.coef(w)[...] = self.domain.feasible(self.coef(w))
        return w

    def start(self) -> Floats:
        """Return the point at which solvers begin: the one given, or the domain's centre with no intercept."""
        if self._start[0] is not None:
            return self.within_domain(self._start[0])
        w = np.zeros(self.shape)
        self.coef(w)[...] = self.domain.start(self.coef(w).shape)
        return w

    @property
    def given_start(self) -> tuple[Floats | None, Floats | None]:
        """The w and the q at which solvers were asked to begin."""
        return self._start

    def start_weights(self) -> Floats:
        """Return the group weights with which solvers begin: those given, or the centre of their set."""
        return self._start[1].copy() if self._start[1] is not None else self.weight_set.start(self.n_groups)

    def geometry(self) -> Geometry:
        """Return how w moves."""
        return self.domain.geometry(self.data.n_features)

    def bounded_geometry(self, at: Evaluation) -> Geometry:
        """Return how w moves in a set of finite radius, from which theories derive their steps.

        With a penalty and no radius it is the ball that must hold the solution: the penalty at the solution cannot
        exceed what an evaluation shows possible.
        """
        geometry = self.geometry()
        if np.isfinite(geometry.radius):
            return geometry
        upper = self.objective(at.w, at.group_risks)
        return self.domain.within(upper - self.least_value).geometry(self.data.n_features)

    def weight_geometry(self) -> Geometry:
        """Return how q moves."""
        return self.weight_set.geometry(self.n_groups)

    @property
    def passes(self) -> float:
        """Passes over the data so far."""
        return self.counters.row_reads / self.n_rows

    # ------------------------------------------------------------------ counting

    def _count(self, n_rows: int, *, gradients: int = 1, read: bool = True) -> None:
        """Count rows, and the paper's count of the gradients of each; with `read`, as read from X."""
        evaluated = n_rows if gradients else 0
        reads = n_rows if read else 0
        self.counters.add(grad_evals=evaluated, grad_evals_paper=gradients * n_rows, row_reads=reads)

    def count_pass(self) -> None:
        """Count a pass with gradients that a module of this room made."""
        self._count(self.n_rows)

    def count_draw(self, draw: Draw) -> None:
        """Count drawn members whose derivatives a module of this room took."""
        self._count(len(draw.members))

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave what happens inside uncounted: evaluations for a trace or a final check."""
        with self.counters.suspended():
            yield

    def count_apart(self, others: Iterable[Counters]) -> None:
        """Count what was asked of problems with counters of their own, by all workers."""
        total = np.zeros(3)
        for other in others:
            total += other.counts
        self.data.add_up(total)
        self.counters.add(**dict(zip(Counters.NAMES, map(int, total), strict=True)))

    # ------------------------------------------------------------------ passes over the data

    def evaluate(self, w: Floats, q: Floats) -> Evaluation:
        """Return margins, group risks and the weighted gradient at (w, q) by one pass over the data."""
        margins = np.empty((self.data.n_rows, *self.shape[1:]))
        losses, row_weights, norms = np.empty(self.data.n_rows), self.data.row_weights(q), self.row_norms
        rows, flat = self.data.rows, self._flat_here
        done = None if flat is None else rows.fused_pass(flat, w, row_weights, norms, margins, losses)
        gradient, mass = done or self._blocked_pass(w, row_weights, norms, margins, losses)
        means, masses = self.data.partial_means(losses), np.array([mass])
        self.data.add_up(means, gradient, masses)
        self._count(self.n_rows)
        return Evaluation(w, q, margins, means, gradient, float(masses[0]))

    def _blocked_pass(
        self, w: Floats, row_weights: Floats, norms: Floats, margins: Floats, losses: Floats
    ) -> tuple[Floats, float]:
        """Set margins and losses, and return the gradient and the mass of its terms, block by block."""
        gradient, mass = np.zeros(self.shape), 0.0
        for place, block in self.data.rows.blocks():
            margins[place] = self.model.outputs(block, w)
            losses[place], slopes = self.loss.value_and_slope(margins[place], self.data.y[place])
            weighted = scale_rows(slopes, row_weights[place])
            gradient += self.model.gradient(block, weighted)
            mass += float(term_sizes(weighted, norms[place]).sum())
        return gradient, mass

    @property
    def _flat_here(self) -> Any:
        kernel = self.loss.kernel
        return None if kernel is None else self.data.rows.flat(self.data.y, kernel, intercept=self.fit_intercept)

    @property
    def flat(self) -> Any:
        """Rows, labels and loss as kernels take them; None where the loss, the rows or their place do not allow it."""
        return self.data.flat(self.loss.kernel, intercept=self.fit_intercept)

    @property
    def row_norms(self) -> Floats:
        """Norm of each row, with the 1 that stands for an intercept."""
        if self._norms is None:
            self._norms = self.model.row_norms(self.data.row_norms)
        return self._norms

    def risks(self, w: Floats) -> Floats:
        """Return the group risks at w by one pass without a gradient."""
        losses = np.empty(self.data.n_rows)
        for place, block in self.data.rows.blocks():
            losses[place] = self.loss.value(self.model.outputs(block, w), self.data.y[place])
        self._count(self.n_rows, gradients=0)
        return self.data.group_means(losses)

    def risks_at_zero(self) -> Floats:
        """Return the group risks of the model that is zero, which X does not matter for."""
        return self.data.group_means(self.loss.value(np.zeros((self.data.n_rows, *self.shape[1:])), self.data.y))

    def combine_rows(self, coefficients: Floats) -> Floats:
        """Return sum over rows of coefficient times x (without intercept) by one pass: the transposed product."""
        out = np.zeros((self.data.n_features, *self.shape[1:]))
        for place, block in self.data.rows.blocks():
            out += block.rmatvec(coefficients[place])
        self.data.add_up(out)
        self._count(self.n_rows, gradients=0)
        return out

    # ------------------------------------------------------------------ drawn members

    def drawn_rows(self, members: Indices) -> Indices:
        """Return the stored rows of members for a compiled step, counted as differences from a snapshot."""
        self._count(members.size, gradients=2)
        return self.data.rows_of(members)

    def sampled_difference(self, draw: Draw, at: Evaluation, w: Floats, q: Floats) -> tuple[Floats, Floats]:
        """Return what variance reduction adds to the snapshot's risks and gradient.

        For the drawn rows, the losses at w minus those at the snapshot, by group; and the gradient at (w, q) minus
        that at the snapshot's own (w, q). Both slopes multiply the same x, and the snapshot's margins are known, so
        each drawn row is read once.

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
        rows, flat = self.data.rows_of(draw.members), self._flat_here
        change, gradient = np.zeros(self.n_groups), np.zeros(self.shape)
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
        """Estimate the group risks and the gradient of F(., q) at w from a few members, without a snapshot.

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
        sums = np.bincount(draw.groups, weights=draw.weights * values, minlength=self.n_groups)
        return sums.astype(np.float64, copy=False)

    def own_losses(self, draw: Draw, models: Floats, *, read: bool = True) -> tuple[Floats, Floats]:
        """Return the loss of one member of each group under the group's own model, and its gradient there.

        Without `read` the rows were read just before, and are not counted as read again.
        """
        self._count(len(draw.members), read=read)
        rows = self.data.rows_of(draw.members)
        X = self.data.rows.take(rows).dense().astype(np.float64, copy=False)
        outputs = np.ascontiguousarray(np.einsum("md,md...->m...", X, models))
        losses, slopes = self.loss.value_and_slope(outputs, self.data.y[rows])
        return losses, np.asarray(np.einsum("md,m...->md...", X, slopes))

    # ------------------------------------------------------------------ values

    def group_values(self, group_risks: Floats) -> Floats:
        """Return what the saddle function weighs by q: risks with offsets, less references."""
        return group_risks - self.baseline.upper

    @property
    def least_value(self) -> float:
        """What the objective is at least: losses and penalties are at least 0, so no value is below its baseline."""
        return self.weight_set.support(-self.baseline.upper) + 0.0  # not minus zero

    def solution_set(self, upper: float) -> Domain | OutputBall:
        """Return a set that holds the solution, given that the optimum is at most `upper`.

        The penalty at the solution is the optimum less what the weight set makes of the values there. Where nothing
        bounds the coefficients, the set holds the models for which a bound is claimed.
        """
        if self.unbounded:
            return self.output_ball
        return self.domain.within(upper - self.least_value) if np.isfinite(upper) else self.domain

    @property
    def unbounded(self) -> bool:
        """Whether neither a penalty nor a radius of the user's bounds the coefficients."""
        return bool(np.isfinite(self.domain.output_limit))

    @property
    def output_ball(self) -> OutputBall:
        """The models for which a bound holds where the coefficients are unbounded."""
        if self._output_ball is None:
            self._output_ball = OutputBall.of(self.data, self.domain.output_limit, centred=self.fit_intercept)
        return self._output_ball

    def objective(self, w: Floats, group_risks: Floats) -> float:
        """Return an upper bound of the objective at w: the worst value with the penalty."""
        return self.weight_set.support(group_risks - self.baseline.lower) + self.domain.penalty_at(self.coef(w))

    # ------------------------------------------------------------------ related problems

    def group(self, i: int) -> "GroupRisk":
        """Return the problem of group i alone, counted together with this one."""
        return self._of(self.data.group(i))

    def pooled(self) -> "GroupRisk":
        """Return the problem of all rows as one group, with every group counted alike, counted together with this."""
        return self.weighted(np.full(self.n_groups, 1.0 / self.n_groups))

    def weighted(self, q: Floats) -> "GroupRisk":
        """Return the problem of sum_i q_i R_i as that of one group, counted together with this one."""
        weights = self.data.row_weights(q)
        total = np.array([weights.sum()])
        self.data.add_up(total)
        return self._of(self.data.as_one_group(weights / total))

    def with_references(self, references: References) -> "GroupRisk":
        """Return the problem of the worst regret against the references, counted together with this one."""
        return self._with(self.data, references, self._start)

    def starting_at(self, w: Floats, q: Floats | None = None) -> "GroupRisk":
        """Return the same problem with another start, counted together with this one."""
        return self.on(self.data, start=(w, q))

    def on(self, data: GroupedData, *, start: tuple[Floats | None, Floats | None]) -> "GroupRisk":
        """Return the same problem on other data, with another start, counted together with this one."""
        return self._with(data, self.references if self.regret else None, start)

    def with_data(self, data: GroupedData, loss: Loss) -> "GroupRisk":
        """Return the problem of risks on rows of another shape, from the centre, counted together with this one."""
        return GroupRisk(
            data,
            loss,
            self.domain,
            self.weight_set,
            fit_intercept=self.fit_intercept,
            offsets=self.offsets,
            counters=self.counters,
        )

    def apart(self) -> "GroupRisk":
        """Return the same problem with counters of its own, for `count_apart`."""
        out = self.on(self.data, start=self._start)
        out.counters = Counters()
        return out

    def _with(self, data: GroupedData, references: References | None, start: Any) -> "GroupRisk":
        return self._of(data, weight_set=self.weight_set, references=references, offsets=self.offsets, start=start)

    def _of(self, data: GroupedData, **more: Any) -> "GroupRisk":
        return GroupRisk(data, self.loss, self.domain, fit_intercept=self.fit_intercept, counters=self.counters, **more)

    # ------------------------------------------------------------------ constants

    @property
    def rounding(self) -> float:
        """Bound the error of a sum of slopes times rows, in units of rounding of its terms' mass.

        It grows with the longest chain of additions: over the rows, over the entries of one, over workers and groups.
        """
        if self._rounding is None:
            longest = self.data.largest(np.array([float(self.data.rows.longest_sum())]))[0]
            self._rounding = 32.0 + 0.5 * (float(longest) + self.data.n_workers + self.n_groups)
        return self._rounding

    def counted_rows(self) -> Mask:
        """Return which rows have weight in any group."""
        return self.data.row_weights(np.ones(self.n_groups)) > 0

    def constants(self, order: float, radius: float) -> Constants:
        """Bound the rows' losses on the domain.

        Parameters
        ----------
        order : {2, inf}
            Norm of x that is dual to the geometry of w: 2 for Euclidean, inf for entropy.
        radius : float
            Bound of w in the geometry's own norm.

        Returns
        -------
        Constants
            Bounds over all w within the radius.
        """
        norms = self.model.row_norms(self.data.row_norms if order == 2 else self.data.rows.largest())
        norms = np.where(self.counted_rows(), norms, 0.0)
        reach = np.multiply(norms, radius, where=norms > 0, out=np.zeros_like(norms))  # a row of zeros reaches nothing
        lipschitz = self.loss.lipschitz(self.data.y, reach) * norms
        smoothness = self.loss.smoothness * norms**2
        largest = self.data.largest(np.array([lipschitz.max(initial=0.0), smoothness.max(initial=0.0)]))
        return Constants(
            lipschitz=float(largest[0]),
            smoothness=float(largest[1]),
            mean_square_smoothness=float(np.sqrt(self.data.group_means(smoothness**2).max())),
        )
