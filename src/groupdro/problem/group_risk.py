"""The group-risk problem: all operations of solvers on the data, and the only place where they are counted."""

import copy
from typing import Any

import numpy as np

from groupdro.data import GroupedData
from groupdro.data.rows import Rows
from groupdro.geometry import Geometry
from groupdro.problem.counting import Counters
from groupdro.problem.domains import Domain, penalty_room
from groupdro.problem.linear_model import LinearModel, scale_rows, term_sizes
from groupdro.problem.loss_check import check_loss
from groupdro.problem.losses import Loss
from groupdro.problem.offset_loss import with_offsets
from groupdro.problem.output_ball import OutputBall
from groupdro.problem.records import Constants, Evaluation, References
from groupdro.problem.samples import Samples
from groupdro.problem.set_check import check_domain, check_weight_set
from groupdro.problem.starts import read_numbers, read_start
from groupdro.problem.weight_sets import Simplex, WeightSet
from groupdro.utils.arguments import check_flag, check_kind
from groupdro.utils.types import Floats, Mask

__all__ = ["GroupRisk"]


class GroupRisk(Samples):
    """A loss of a linear model, averaged within groups, over a domain.

    The problem is to minimise over w the largest of the groups' values, or another aggregate: the saddle point of

        F(w, q) = sum_i q_i (R_i(w) + offset_i - reference_i) + penalty(w),
        R_i(w)  = mean over group i of loss(o + x.w, y),
        grad_w  = sum_i q_i mean over group i of loss'(o + x.w, y) x + grad penalty(w),

    where w lies in the domain and q in the set; o is the row's offset, or 0. Shapes: w is (n_features + fit_intercept,)
    or (n_features + fit_intercept, n_outputs); the intercept is the last entry or row, which nothing bounds. q, risks
    and references are (n_groups,).

    Parameters
    ----------
    data : GroupedData
        The rows.
    loss : Loss
        The loss of a row.
    domain : Domain
        Set of allowed coefficients, with their penalty.
    weight_set : WeightSet
        Set of allowed group weights. The default is the whole simplex, so that the worst group decides.
    fit_intercept : bool
        Whether to append an intercept.
    references : References, optional
        Bounds on each group's own minimum, which turn risks into excess risks.
    offsets : ndarray of shape (n_groups,), optional
        Constants added to the groups' risks, such as an allowance for small groups.
    start : pair of ndarray or None, optional
        The w and the q at which solvers begin; None for the domain's centre, or equal weights.
    counters : Counters, optional
        Counters to share with another problem on the same data.

    Attributes
    ----------
    counters : Counters
        Operations on the data so far.
    baseline : References
        Values subtracted from the risks: references minus offsets.
    single_precision : bool
        Whether passes multiply float32 rows in single precision where that pays, which is for many rows and several
        outputs. Their bounds account for the rounding.
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
        data, loss = with_offsets(data, loss)
        y = loss.encode(data.y)
        n_outputs = int(data.largest(np.array([float(loss.n_outputs(y))]))[0])
        check_loss(loss, y, n_outputs, fit_intercept=fit_intercept)
        self.model = LinearModel(data.n_features, n_outputs, fit_intercept)
        check_domain(domain, self.model)
        check_weight_set(weight_set, data.n_groups)
        self.data = data.with_labels(y, encoded=True)
        self.loss = loss.with_outputs(n_outputs)  # a single group may lack some classes
        self.domain, self.weight_set = domain, weight_set
        self.fit_intercept = fit_intercept
        self.regret = references is not None
        self.offsets = np.zeros(data.n_groups)
        if offsets is not None:
            self.offsets = read_numbers(offsets, "offsets", "numbers", data.n_groups)
        self._set_references(references if references is not None else References.none(data.n_groups))
        self.counters = counters if counters is not None else Counters()
        self.shape = self.model.shape
        self._start = read_start(start, self.shape, weight_set, data.n_groups)
        self._rounding: float | None = None
        self._norms: Floats | None = None
        self._output_ball: OutputBall | None = None
        self.single_precision = not self.unbounded and self._allows_single()

    def _set_references(self, references: References) -> None:
        centre = references.upper if references.centre is None else references.centre
        for name, values in (("upper", references.upper), ("lower", references.lower), ("central", centre)):
            read_numbers(values, "references", f"{name} bounds", self.n_groups)
        shifted = (values - self.offsets for values in (references.upper, references.lower, centre))
        upper, lower, self._centre = shifted
        self.references, self.baseline = references, References(upper, lower)

    # ------------------------------------------------------------------ parts of w

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return self.data.n_groups

    @property
    def n_rows(self) -> int:
        """Number of rows, over all workers, each counted once even if in several groups."""
        return self.data.n_total

    def coef(self, w: Floats) -> Floats:
        """Return the part of w (or of a gradient) that the domain constrains."""
        return self.model.coef(w)

    def intercept(self, w: Floats) -> Floats:
        """Return the free part of w (or of a gradient), empty without an intercept."""
        return self.model.intercept(w)

    def within_domain(self, w: Floats) -> Floats:
        """Return a copy of w, moved into the domain if outside: a point outside gives no upper bound."""
        w = w.copy()
        self.coef(w)[...] = self.domain.feasible(self.coef(w))
        return w

    def start(self) -> Floats:
        """Return the point at which solvers begin: the given one, or the domain's centre with intercept 0."""
        if self._start[0] is not None:
            return self.within_domain(self._start[0])
        w = np.zeros(self.shape)
        self.coef(w)[...] = self.domain.start(self.coef(w).shape)
        return w

    @property
    def given_start(self) -> tuple[Floats | None, Floats | None]:
        """The w and q given as a start."""
        return self._start

    def start_weights(self) -> Floats:
        """Return the group weights with which solvers begin: the given ones, or the centre of their set."""
        return self._start[1].copy() if self._start[1] is not None else self.weight_set.start(self.n_groups)

    def geometry(self) -> Geometry:
        """Return the geometry of w."""
        return self.domain.geometry(self.data.n_features)

    def bounded_geometry(self, at: Evaluation) -> Geometry:
        """Return the geometry of w on a set of finite radius, from which theoretical step sizes are derived.

        With a penalty and no radius, it is the ball that must contain the solution: the penalty at the solution cannot
        exceed a value that the evaluation shows to be attainable.
        """
        geometry = self.geometry()
        if np.isfinite(geometry.radius):
            return geometry
        room = self.objective(at.w, at.group_risks) - self.least_value
        return self.domain.within(room).geometry(self.data.n_features)

    def weight_geometry(self) -> Geometry:
        """Return the geometry of q."""
        return self.weight_set.geometry(self.n_groups)

    @property
    def weights_known(self) -> bool:
        """Whether compiled steps and quadratic programs support the set of group weights."""
        return self.weight_set.moving(self.n_groups) is not None

    # ------------------------------------------------------------------ passes over the data

    def evaluate(self, w: Floats, q: Floats) -> Evaluation:
        """Return margins, group risks and the weighted gradient at (w, q) by one pass over the data."""
        if self.single_precision:
            self._count(self.n_rows)
            single = self._evaluate_in_single(w, q, self.row_norms)
            if single is not None:
                return single
            self.single_precision = False  # it overflowed
        margins = np.empty((self.data.n_rows, *self.shape[1:]))
        losses, row_weights, norms = np.empty(self.data.n_rows), self.data.row_weights(q), self.row_norms
        rows, flat = self.data.rows, self.flat_here
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

        def visit(place: slice, block: Rows) -> tuple[Floats, float]:
            margins[place] = self.model.outputs(block, w)
            losses[place], slopes = self.loss.value_and_slope(margins[place], self.data.y[place])
            weighted = scale_rows(slopes, row_weights[place])
            return self.model.gradient(block, weighted), float(term_sizes(weighted, norms[place]).sum())

        gradient, mass = np.zeros(self.shape), 0.0
        for part, size in self.data.rows.map_blocks(visit):
            gradient += part
            mass += size
        return gradient, mass

    @property
    def row_norms(self) -> Floats:
        """Norm of each row, including the 1 of an intercept."""
        if self._norms is None:
            self._norms = self.model.row_norms(self.data.row_norms)
        return self._norms

    def warm_up(self) -> None:
        """Compile the kernels of a pass, which does not count towards a budget."""
        rows = np.zeros(min(1, self.data.n_rows), np.int64)
        margins = np.zeros((len(rows), *self.shape[1:]))
        slopes = self.loss.value_and_slope(margins, self.data.y[rows])[1]
        self.loss.conjugate(slopes, self.data.y[rows])
        self.loss.value(margins, self.data.y[rows])
        self.data.partial_means(np.zeros(self.data.n_rows))
        self.data.row_weights(np.zeros(self.n_groups))

    def risks(self, w: Floats) -> Floats:
        """Return the group risks at w, or upper bounds on them in single precision, in a pass without gradients."""
        if self.single_precision:
            self._count(self.n_rows, gradients=0)
            bounds = self._risks_in_single(w, self.row_norms)
            if np.isfinite(bounds).all():
                return bounds
            self.single_precision = False
        losses = np.empty(self.data.n_rows)
        for place, block in self.data.rows.blocks():
            losses[place] = self.loss.value(self.model.outputs(block, w), self.data.y[place])
        self._count(self.n_rows, gradients=0)
        return self.data.group_means(losses)

    def risks_at_zero(self) -> Floats:
        """Return the group risks of the zero model, which do not depend on X."""
        return self.data.group_means(self.loss.value(np.zeros((self.data.n_rows, *self.shape[1:])), self.data.y))

    def combine_rows(self, coefficients: Floats) -> Floats:
        """Return sum over rows of coefficient times x (without intercept) in one pass: the transposed product."""
        if self.single_precision:
            self._count(self.n_rows, gradients=0)
            combined = self._combine_in_single(coefficients)
            if np.isfinite(combined).all():
                return combined
            self.single_precision = False
        out = np.zeros((self.data.n_features, *self.shape[1:]))
        for place, block in self.data.rows.blocks():
            out += block.rmatvec(coefficients[place])
        self.data.add_up(out)
        self._count(self.n_rows, gradients=0)
        return out

    # ------------------------------------------------------------------ values

    def group_values(self, group_risks: Floats) -> Floats:
        """Return the values that q weights in the saddle function: risks plus offsets, minus the references' centre."""
        return group_risks - self._centre

    @property
    def least_value(self) -> float:
        """A trivial lower bound on the objective: losses and penalties are nonnegative."""
        return self.weight_set.support(-self.baseline.upper) + 0.0  # avoids minus zero

    def solution_set(self, upper: float) -> Domain | OutputBall:
        """Return a set that contains the solution, given that the optimum is at most `upper`.

        The penalty there is the optimum minus the aggregate of the values. If nothing bounds the coefficients, the set
        contains the models for which a bound is claimed.
        """
        if self.unbounded:
            return self.output_ball
        room = penalty_room(upper, self.least_value, np.abs(self.baseline.upper).max())
        return self.domain.within(room) if np.isfinite(upper) else self.domain

    @property
    def unbounded(self) -> bool:
        """Whether the user set neither a penalty nor a radius to bound the coefficients."""
        return bool(np.isfinite(self.domain.output_limit))

    @property
    def output_ball(self) -> OutputBall:
        """The models for which a bound holds if the coefficients are unbounded."""
        if self._output_ball is None:
            self._output_ball = OutputBall.of(self.data, self.domain.output_limit, centred=self.fit_intercept)
        return self._output_ball

    def objective(self, w: Floats, group_risks: Floats) -> float:
        """Return an upper bound on the objective at w: the worst value plus the penalty."""
        return self.weight_set.support(group_risks - self.baseline.lower) + self.domain.penalty_at(self.coef(w))

    # ------------------------------------------------------------------ related problems

    def group(self, i: int) -> "GroupRisk":
        """Return the problem of group i alone, with shared counters."""
        return self._of_risks(data=self.data.group(i), weight_set=Simplex(), offsets=None)

    def pooled(self) -> "GroupRisk":
        """Return the problem of all rows as one group, with equal weight for every group and shared counters."""
        return self.weighted(np.full(self.n_groups, 1.0 / self.n_groups))

    def weighted(self, q: Floats) -> "GroupRisk":
        """Return the problem of minimising sum_i q_i R_i as a single group, with shared counters."""
        total = np.array([(weights := self.data.row_weights(q)).sum()])
        self.data.add_up(total)
        return self._of_risks(data=self.data.as_one_group(weights / total), weight_set=Simplex(), offsets=None)

    def with_references(self, references: References) -> "GroupRisk":
        """Return the problem of the worst excess risk over the references, with shared counters."""
        changed = copy.copy(self)  # keeps values computed from the data
        changed.regret = True
        changed._set_references(references)
        return changed

    def starting_at(self, w: Floats | None, q: Floats | None = None) -> "GroupRisk":
        """Return the same problem with another start, with shared counters."""
        return self._changed(start=(w, q))

    def on(self, data: GroupedData, *, start: tuple[Floats | None, Floats | None]) -> "GroupRisk":
        """Return the same problem on other data, with another start and shared counters."""
        return self._changed(data=data, start=start)

    def with_data(self, data: GroupedData, loss: Loss) -> "GroupRisk":
        """Return the problem of risks on rows of another shape, starting from the centre, with shared counters."""
        return self._of_risks(data=data, loss=loss)

    def apart(self) -> "GroupRisk":
        """Return the same problem with separate counters, for `count_apart`."""
        return self._changed(counters=Counters())

    def _of_risks(self, **changes: Any) -> "GroupRisk":
        return self._changed(references=None, start=(None, None), **changes)

    def _changed(self, **changes: Any) -> "GroupRisk":
        names = ("data", "loss", "domain", "weight_set", "fit_intercept", "offsets", "counters")
        made = {name: getattr(self, name) for name in names}
        made |= {"references": self.references if self.regret else None, "start": self._start}
        problem = GroupRisk(**(made | changes))
        problem.single_precision = self.single_precision and (problem.single_precision or "data" not in changes)
        return problem

    # ------------------------------------------------------------------ constants

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
            Bound on w in the geometry's own norm.

        Returns
        -------
        Constants
            Bounds over all w within the radius.
        """
        norms = self.model.row_norms(self.data.row_norms if order == 2 else self.data.rows.largest())
        norms = np.where(self.counted_rows(), norms, 0.0)
        reach = np.multiply(norms, radius, where=norms > 0, out=np.zeros_like(norms))  # a row of zeros has reach 0
        lipschitz = self.loss.lipschitz(self.data.y, reach) * norms
        smoothness = self.loss.smoothness * norms**2
        largest = self.data.largest(np.array([lipschitz.max(initial=0.0), smoothness.max(initial=0.0)]))
        return Constants(
            lipschitz=float(largest[0]),
            smoothness=float(largest[1]),
            mean_square_smoothness=float(np.sqrt(self.data.group_means(smoothness**2).max())),
        )
