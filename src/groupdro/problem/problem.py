"""The group-risk problem: what is solved, as a value that never changes."""

import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self

import numpy as np

from groupdro.data import GroupedData
from groupdro.data.rows import Rows
from groupdro.geometry import Geometry
from groupdro.losses import Loss
from groupdro.problem.domains import Domain, penalty_room
from groupdro.problem.group_minima import GroupMinima
from groupdro.problem.linear_model import LinearModel
from groupdro.problem.loss_check import check_loss
from groupdro.problem.output_ball import OutputBall
from groupdro.problem.set_check import check_domain, check_weight_set
from groupdro.problem.weight_sets import Moving, Simplex, WeightSet
from groupdro.utils.arguments import check_flag, check_kind, error_prefix, short_repr
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["Constants", "Problem"]


@dataclass(frozen=True)
class Constants:
    """Lipschitz and smoothness constants of the rows' losses, in the norm of the geometry of w.

    Attributes
    ----------
    lipschitz : float
        G = max over rows of the loss's Lipschitz constant in w.
    smoothness : float
        L = max over rows of the Lipschitz constant of the loss's gradient.
    mean_square_smoothness : float
        Max over groups of its root mean square, which suffices for guarantees in expectation.
    """

    lipschitz: float
    smoothness: float
    mean_square_smoothness: float


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """A loss of a linear model, averaged within groups, over a domain.

    The problem is to minimise over w the largest of the groups' values, or another aggregate: the saddle point of

        F(w, q) = sum_i q_i (R_i(w) + offset_i - minimum_i) + penalty(w),
        R_i(w)  = mean over group i of loss(o + x.w, y),
        grad_w  = sum_i q_i mean over group i of loss'(o + x.w, y) x + grad penalty(w),

    where w lies in the domain and q in the set; o is the row's offset, or 0. Shapes: w is (n_features + fit_intercept,)
    or (n_features + fit_intercept, n_outputs); the intercept is the last entry or row, which nothing bounds. q, risks
    and minima are (n_groups,).

    A problem never changes. `Oracle` evaluates it and counts the work.

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
    group_minima : GroupMinima, optional
        Bounds on each group's own minimum, which turn risks into excess risks.
    offsets : ndarray of shape (n_groups,), optional
        Constants added to the groups' risks, such as an allowance for small groups.

    Attributes
    ----------
    model : LinearModel
        The shape of w.
    baseline : GroupMinima
        Values subtracted from the risks: minima minus offsets.
    """

    data: GroupedData
    loss: Loss
    domain: Domain
    weight_set: WeightSet = Simplex()  # noqa: RUF009  # a constant
    _: KW_ONLY
    fit_intercept: bool = False
    group_minima: GroupMinima | None = None
    offsets: Floats = None  # type: ignore[assignment]  # zeros by default
    model: LinearModel = field(init=False)
    baseline: GroupMinima = field(init=False)

    def __post_init__(self) -> None:
        check_kind(self.data, "data", GroupedData, "GroupedData")
        check_kind(self.loss, "loss", Loss, "a loss, such as Logistic()")
        check_kind(self.domain, "domain", Domain, "a domain, such as L2Domain(radius=1.0)")
        check_kind(self.weight_set, "weight_set", WeightSet, "a set of group weights, such as Simplex()")
        check_flag(self.fit_intercept, "fit_intercept")
        check_kind(self.group_minima, "group_minima", GroupMinima | None, "GroupMinima or None")
        data = self.data
        loss = self.loss
        if data.row_offsets.size and loss.of_residual:
            _check_offsets(data.row_offsets, 1)
            data = data.without_offsets(data.y - data.row_offsets)
        y = loss.encode(data.y)
        n_outputs = int(data.largest(np.array([float(loss.n_outputs(y))]))[0])
        _check_offsets(data.row_offsets, n_outputs)
        check_loss(loss, y, n_outputs, fit_intercept=self.fit_intercept)
        model = LinearModel(data.n_features, n_outputs, self.fit_intercept)
        check_domain(self.domain, model)
        check_weight_set(self.weight_set, data.n_groups)
        offsets = np.zeros(data.n_groups) if self.offsets is None else self.offsets
        for name, values in (self.group_minima.bounds if self.group_minima is not None else {}).items():
            _read_numbers(values, "group_minima", f"{name} bounds", data.n_groups)
        self._set(
            data=data.with_labels(y, encoded=True),
            loss=loss.with_outputs(n_outputs),  # a single group may lack some classes
            model=model,
            offsets=_read_numbers(offsets, "offsets", "numbers", data.n_groups),
        )

    def __init_subclass__(cls) -> None:
        raise TypeError("Problem cannot be extended, because no bound would hold: pass a loss, domain or weight set.")

    def _set(self, **parts: Any) -> None:
        """Set parts of a problem that is being made, and what follows from them."""
        for name, value in parts.items():
            object.__setattr__(self, name, value)
        minima = GroupMinima.exact(np.zeros(self.n_groups)) if self.group_minima is None else self.group_minima
        object.__setattr__(self, "baseline", minima.minus(self.offsets))

    def __repr__(self) -> str:
        data = self.data
        size = f"{data.n_total} rows x {data.n_features} columns in {data.n_groups} groups"
        parts = [size, repr(self.loss), repr(self.domain), repr(self.weight_set)]
        parts += ["fit_intercept=True"] if self.fit_intercept else []
        parts += ["excess risks"] if self.group_minima is not None else []
        return f"Problem({', '.join(parts)})"

    # ------------------------------------------------------------------ shapes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of w."""
        return self.model.shape

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

    # ------------------------------------------------------------------ sets

    def within_domain(self, w: Floats) -> Floats:
        """Return a copy of w, moved into the domain if outside: a point outside gives no upper bound."""
        w = w.copy()
        self.coef(w)[...] = self.domain.feasible(self.coef(w))
        return w

    def centre(self) -> Floats:
        """Return the point at which solvers begin by default: the domain's centre, with a central intercept."""
        w = np.zeros(self.shape)
        self.coef(w)[...] = self.domain.start(self.coef(w).shape)
        self.intercept(w)[...] = self._central_output
        return w

    @property
    def curvature(self) -> float:
        """A bound on the curvature of a row's loss or, if it has none, a group's largest average at the centre."""
        if np.isfinite(self.loss.smoothness):
            return self.loss.smoothness

        def largest() -> float:
            outputs = np.full(self.data.n_rows, self._central_output)
            if self.data.row_offsets.size:
                outputs += self.data.row_offsets
            return float(self.data.group_means(self.loss.curvature(outputs, self.data.y)).max()) or 1.0

        return self.data.remembered(("curvature", repr(self.loss), self.fit_intercept), largest)

    @property
    def _central_output(self) -> float:
        data = self.data
        if not self.fit_intercept or self.model.n_outputs > 1:
            return 0.0

        def total(sums: Floats) -> Floats:
            data.add_up(sums)
            return sums

        def found() -> float:
            weights = data.balanced_weights()
            return self.loss.central_output(data.y, data.row_offsets, weights, total)

        return data.remembered(("central output", repr(self.loss)), found)

    def central_weights(self) -> Floats:
        """Return the group weights with which solvers begin by default: the centre of their set."""
        return self.weight_set.start(self.n_groups)

    def geometry(self) -> Geometry:
        """Return the geometry of w."""
        return self.domain.geometry(self.data.n_features)

    def bounded_geometry(self, w: Floats, group_risks: Floats) -> Geometry:
        """Return the geometry of w on a set of finite radius, from which theoretical step sizes are derived.

        With a penalty and no radius, it is the ball that must contain the solution: the penalty at the solution cannot
        exceed a value that is attained at some w.
        """
        geometry = self.geometry()
        if np.isfinite(geometry.radius):
            return geometry
        room = self.objective(w, group_risks) - self.least_value
        return self.domain.within(room).geometry(self.data.n_features)

    def weight_geometry(self) -> Geometry:
        """Return the geometry of q."""
        return self.weight_set.geometry(self.n_groups)

    @property
    def weights_known(self) -> bool:
        """Whether compiled steps and quadratic programs support the set of group weights."""
        return self.weight_set.moving(self.n_groups) is not None

    @property
    def moving(self) -> Moving:
        """The set of group weights in the form of compiled steps and quadratic programs, if these support it."""
        moving = self.weight_set.moving(self.n_groups)
        assert moving is not None
        return moving

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
        limit = self.domain.output_limit
        centred = self.fit_intercept
        key = "output ball", limit, centred
        return self.data.remembered(key, lambda: OutputBall.of(self.data, limit, centred=centred))

    # ------------------------------------------------------------------ values

    def group_values(self, group_risks: Floats) -> Floats:
        """Return the values that q weights in the saddle function: risks plus offsets, minus the minima's centre."""
        return group_risks - self.baseline.centre

    @property
    def least_value(self) -> float:
        """A trivial lower bound on the objective: losses and penalties are nonnegative."""
        return self.weight_set.support(-self.baseline.upper) + 0.0  # avoids minus zero

    def objective(self, w: Floats, group_risks: Floats) -> float:
        """Return an upper bound on the objective at w: the worst value plus the penalty."""
        return self.weight_set.support(group_risks - self.baseline.lower) + self.domain.penalty_at(self.coef(w))

    def risks_of_constant(self) -> Floats:
        """Return the group risks of a model without columns, with the central intercept."""
        outputs = np.full((self.data.n_rows, *self.shape[1:]), self._central_output)
        if self.data.row_offsets.size:
            outputs += self.data.row_offsets
        return self.data.group_means(self.loss.value(outputs, self.data.y))

    @property
    def unit_of_loss(self) -> float:
        """The smallest of these risks that is positive: outliers of other groups do not change what is negligible."""
        risks = self.risks_of_constant()
        usable = risks[(risks > 0) & np.isfinite(risks)]
        return float(usable.min()) if usable.size else 0.0

    # ------------------------------------------------------------------ rows

    def outputs(self, X: Rows, rows: Indices | slice, w: Floats) -> Floats:
        """Return the outputs at w for some of the stored rows, whose part of X is given."""
        outputs = self.model.outputs(X, w)
        if self.data.row_offsets.size:
            outputs += self.data.row_offsets[rows]
        return outputs

    @property
    def row_norms(self) -> Floats:
        """Norm of each stored row, including the 1 of an intercept."""
        key = "row norms", self.fit_intercept
        return self.data.remembered(key, lambda: self.model.row_norms(self.data.row_norms))

    @property
    def flat(self) -> Any:
        """Rows, labels and loss in the form kernels take; None if loss, rows or their storage do not allow it."""
        return self.data.flat(self.loss.kernel, intercept=self.fit_intercept)

    @property
    def flat_here(self) -> Any:
        """Like `flat`, of the rows that this worker stores."""
        return self.data.flat_here(self.loss.kernel, intercept=self.fit_intercept)

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
        if self.data.row_offsets.size:
            reach += np.linalg.norm(self.data.row_offsets.reshape(self.data.n_rows, -1), axis=1)
        lipschitz = self.loss.lipschitz(self.data.y, reach) * norms
        smoothness = self.curvature * norms**2
        largest = self.data.largest(np.array([lipschitz.max(initial=0.0), smoothness.max(initial=0.0)]))
        return Constants(
            lipschitz=float(largest[0]),
            smoothness=float(largest[1]),
            mean_square_smoothness=float(np.sqrt(self.data.group_means(smoothness**2).max())),
        )

    # ------------------------------------------------------------------ related problems

    def group(self, i: int) -> Self:
        """Return the problem of group i alone."""
        return self._of_risks(data=self.data.group(i), weight_set=Simplex(), offsets=np.zeros(1))

    def pooled(self) -> Self:
        """Return the problem of all rows as one group, with equal weight for every group."""
        return self.weighted(np.full(self.n_groups, 1.0 / self.n_groups))

    def weighted(self, q: Floats) -> Self:
        """Return the problem of minimising sum_i q_i R_i as a single group."""
        total = np.array([(weights := self.data.row_weights(q)).sum()])
        self.data.add_up(total)
        data = self.data.as_one_group(weights / total)
        return self._of_risks(data=data, weight_set=Simplex(), offsets=np.zeros(1))

    def with_minima(self, group_minima: GroupMinima) -> Self:
        """Return the problem of the worst excess risk over these minima."""
        return self._changed(group_minima=group_minima)

    def with_group_of_all(self, name: Any, row_weights: Floats | None) -> Self:
        """Return the problem of risks with one more group, of all rows with the given or equal weights."""
        data = self.data.with_group_of_all(name, row_weights)
        return self._of_risks(data=data, offsets=np.append(self.offsets, 0.0))

    def with_rows(self, data: GroupedData, loss: Loss | None = None, n_outputs: int | None = None) -> Self:
        """Return the same problem on other rows in the same groups, without any checks.

        Labels must be in the encoding of the loss; `dataclasses.replace(problem, data=...)` encodes and checks.
        """
        outputs = self.model.n_outputs if n_outputs is None else n_outputs
        model = replace(self.model, n_features=data.n_features, n_outputs=outputs)
        return self._changed(data=data, loss=self.loss if loss is None else loss, model=model)

    def _of_risks(self, **changes: Any) -> Self:
        return self._changed(group_minima=None, **changes)

    def _changed(self, **changes: Any) -> Self:
        """Return a copy with other parts, which fit those that stay."""
        problem = copy.copy(self)
        problem._set(**changes)
        return problem


def _check_offsets(offsets: Floats, n_outputs: int) -> None:
    """Raise unless there are no offsets, or one per row and output."""
    if offsets.size and offsets.shape[1:] != (() if n_outputs == 1 else (n_outputs,)):
        n_given = offsets.shape[1] if offsets.ndim > 1 else 1
        raise ValueError(f"offset must be {n_outputs} numbers per row for these labels, got {n_given}.")


def _read_numbers(values: Any, name: str, what: str, n_groups: int) -> Floats:
    """Return one finite number per group, or raise; `what` describes the numbers in the message."""
    with error_prefix(name):
        array = np.asarray(values)
        if array.dtype.kind not in "fiu" or array.shape != (n_groups,) or not np.isfinite(array).all():
            raise ValueError(f"{name} must have {n_groups} finite {what}, one per group, got {short_repr(values)}.")
    return array.astype(np.float64, copy=False)
