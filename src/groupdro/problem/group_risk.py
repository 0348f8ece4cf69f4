"""The group-risk problem: what every solver asks of the data, and the only place where its answers are counted."""

from typing import Any

import numpy as np

from groupdro.data import Draw, GroupedData
from groupdro.data.rows import DenseRows
from groupdro.kernels.dense import dense_difference, dense_pass
from groupdro.problem.domains import Domain, L2Domain, SimplexDomain
from groupdro.problem.intercept import best_shift
from groupdro.problem.loss_check import check_loss
from groupdro.problem.losses import Loss, ScalarLoss
from groupdro.problem.output_ball import OutputBall
from groupdro.problem.records import Constants, Counters, DualValue, Evaluation, References, scale_rows, term_sizes
from groupdro.problem.starts import read_numbers, read_start
from groupdro.utils.arguments import check_flag, check_kind
from groupdro.utils.threads import map_threads
from groupdro.utils.types import Array, Floats, Mask

__all__ = ["GroupRisk"]


OUTPUTS = 1e-5  # largest outputs for which bounds hold, relative to the radius of a ball that stands for all of space
INNER = 0.1  # of these, beyond which the outputs of a solution come near the limit
_PIECE_VALUES = 1 << 17  # numbers of X that are worth a thread
_EPS = float(np.finfo(np.float64).eps)


class GroupRisk:
    """A loss of a linear model, averaged within groups, over a domain.

    The problem is to minimise over w the largest of the groups' values, which is the saddle point of

        F(w, q) = sum_i q_i (R_i(w) + offset_i - reference_i) + penalty(w),    w in the domain, q in the simplex,
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
        check_flag(fit_intercept, "fit_intercept")
        check_kind(counters, "counters", Counters | None, "Counters or None")
        check_kind(references, "references", References | None, "References or None")
        y = loss.encode(data.y)
        n_outputs = int(data.largest(np.array([float(loss.n_outputs(y))]))[0])
        check_loss(loss, y, n_outputs, fit_intercept=fit_intercept)
        if isinstance(domain, SimplexDomain):
            if n_outputs > 1:
                raise ValueError("domain: simplex weights need a loss of one output; got the softmax loss.")
            if fit_intercept:
                raise ValueError("fit_intercept must be False on the simplex, whose weights are all there is.")
        self.data = data.with_labels(y, encoded=True)
        self.loss = loss.with_outputs(n_outputs)  # a single group may lack the last classes
        self.domain = domain
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
        rows_of_w = data.n_features + fit_intercept
        self.shape: tuple[int, ...] = (rows_of_w,) if n_outputs == 1 else (rows_of_w, n_outputs)
        self._start = read_start(start, self.shape, data.n_groups)
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
        return w[: self.data.n_features]

    def intercept(self, w: Floats) -> Floats:
        """Return the free part of w (or of a gradient), empty without an intercept."""
        return w[self.data.n_features :]

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
        """Return the group weights with which solvers begin: those given, or equal ones."""
        return self._start[1].copy() if self._start[1] is not None else np.full(self.n_groups, 1.0 / self.n_groups)

    @property
    def passes(self) -> float:
        """Passes over the data so far."""
        return self.counters.row_reads / self.n_rows

    # ------------------------------------------------------------------ passes over the data

    def evaluate(self, w: Floats, q: Floats) -> Evaluation:
        """Return margins, group risks and the weighted gradient at (w, q) by one pass over the data."""
        margins = np.empty((self.data.n_rows, *self.shape[1:]))
        losses = np.empty(self.data.n_rows)
        row_weights = self.data.row_weights(q)
        rows = self.data.rows
        if isinstance(self.loss, ScalarLoss) and isinstance(rows, DenseRows) and rows.compilable:
            gradient, mass = self._compiled_pass(rows, w, row_weights, margins, losses)
        else:
            gradient, mass = self._blocked_pass(w, row_weights, margins, losses)
        means, masses = self.data.partial_means(losses), np.array([mass])
        self.data.add_up(means, gradient, masses)
        self.counters.add(grad_evals=self.n_rows, grad_evals_paper=self.n_rows, row_reads=self.n_rows)
        return Evaluation(w, q, margins, means, gradient, float(masses[0]))

    def _blocked_pass(self, w: Floats, row_weights: Floats, margins: Floats, losses: Floats) -> tuple[Floats, float]:
        """Set margins and losses, and return the gradient and the mass of its terms, block by block."""
        gradient, mass, norms = np.zeros(self.shape), 0.0, self.row_norms
        for place, block in self.data.rows.blocks():
            margins[place] = block @ self.coef(w) + self._offset(w)
            losses[place], slopes = self.loss.value_and_slope(margins[place], self.data.y[place])
            weighted = scale_rows(slopes, row_weights[place])
            self.coef(gradient)[...] += block.T @ weighted
            if self.fit_intercept:
                self.intercept(gradient)[...] += weighted.sum(axis=0)
            mass += float(term_sizes(weighted, norms[place]).sum())
        return gradient, mass

    def _compiled_pass(
        self, rows: DenseRows, w: Floats, row_weights: Floats, margins: Floats, losses: Floats
    ) -> tuple[Floats, float]:
        """Do the same by a kernel, in pieces that are fixed by the data, so that threads do not change the result."""
        assert isinstance(self.loss, ScalarLoss)
        code, parameter = self.loss.kernel
        norms = self.row_norms
        n_pieces = max(1, min(8, rows.X.size // _PIECE_VALUES))
        bounds = np.linspace(0, self.data.n_rows, n_pieces + 1).astype(np.int64)
        gradients = np.zeros((n_pieces, len(w)))

        def piece(k: int) -> float:
            work, mass = np.empty((2, max(len(w), 4))), 0.0
            for place in rows.stretches(bounds[k], bounds[k + 1]):
                mass += dense_pass(
                    rows.for_kernels, self.data.y, code, parameter, self.fit_intercept, w, row_weights, norms,
                    np.arange(place.start, place.stop), margins, losses, gradients[k], work,
                )  # fmt: skip
            return mass

        mass = sum(map_threads(piece, n_pieces))
        return gradients.sum(axis=0), float(mass)

    @property
    def row_norms(self) -> Floats:
        """Norm of each row, with the 1 that stands for an intercept."""
        if self._norms is None:
            self._norms = np.hypot(self.data.row_norms, 1.0) if self.fit_intercept else self.data.row_norms
        return self._norms

    def risks(self, w: Floats) -> Floats:
        """Return the group risks at w by one pass without a gradient."""
        losses = np.empty(self.data.n_rows)
        for place, block in self.data.rows.blocks():
            losses[place] = self.loss.value(block @ self.coef(w) + self._offset(w), self.data.y[place])
        self.counters.add(row_reads=self.n_rows)
        return self.data.group_means(losses)

    def risks_at_zero(self) -> Floats:
        """Return the group risks of the model that is zero, which X does not matter for."""
        return self.data.group_means(self.loss.value(np.zeros((self.data.n_rows, *self.shape[1:])), self.data.y))

    def combine_rows(self, coefficients: Floats) -> Floats:
        """Return sum over rows of coefficient times x (without intercept) by one pass: the transposed product."""
        out = np.zeros((self.data.n_features, *self.shape[1:]))
        for place, block in self.data.rows.blocks():
            out += block.T @ coefficients[place]
        self.data.add_up(out)
        self.counters.add(row_reads=self.n_rows)
        return out

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
        n_drawn, draw = len(draw.members), self.data.own(draw)
        rows, stored = self.data.rows_of(draw.members), self.data.rows
        self.counters.add(grad_evals=n_drawn, grad_evals_paper=2 * n_drawn, row_reads=n_drawn)
        if isinstance(self.loss, ScalarLoss) and isinstance(stored, DenseRows) and stored.compilable:
            loss_difference, gradient = np.zeros(self.n_groups), np.zeros(self.shape)
            dense_difference(
                stored.for_kernels, self.data.y, *self.loss.kernel, self.fit_intercept, w, q, at.q, rows, draw.groups,
                draw.weights, at.margins, loss_difference, gradient, np.empty(4),
            )  # fmt: skip
            self.data.add_up(loss_difference, gradient)
            return loss_difference, gradient
        X, y = stored.take(rows), self.data.y[rows]
        # Products with several outputs are most of the time of a step: rows of float32 are multiplied in float32, whose
        # rounding is far below what the draw leaves to chance.
        X = X if len(self.shape) > 1 else X.astype(np.float64, copy=False)
        outputs = np.asarray(X @ self.coef(w).astype(X.dtype, copy=False), dtype=np.float64)
        new, new_slope = self.loss.value_and_slope(outputs + self._offset(w), y)
        old, old_slope = self.loss.value_and_slope(at.margins[rows], y)
        change = np.asarray(draw.weights * (new - old), dtype=np.float64)
        loss_difference = np.bincount(draw.groups, weights=change, minlength=self.n_groups).astype(
            np.float64, copy=False
        )
        weighted = scale_rows(new_slope, draw.weights * q[draw.groups])
        weighted -= scale_rows(old_slope, draw.weights * at.q[draw.groups])
        gradient = np.empty(self.shape)
        self.coef(gradient)[...] = X.T @ weighted.astype(X.dtype, copy=False)
        if self.fit_intercept:
            self.intercept(gradient)[...] = weighted.sum(axis=0)
        self.data.add_up(loss_difference, gradient)
        return loss_difference, gradient

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
        n_drawn, draw = len(draw.members), self.data.own(draw)
        rows = self.data.rows_of(draw.members)
        X, y = self.data.rows.take(rows), self.data.y[rows]
        outputs = np.asarray(X @ self.coef(w), dtype=np.float64) + self._offset(w)
        losses, slopes = self.loss.value_and_slope(outputs, y)
        risks = np.bincount(draw.groups, weights=draw.weights * losses, minlength=self.n_groups).astype(np.float64)
        weighted = scale_rows(slopes, draw.weights * q[draw.groups])
        gradient = np.empty(self.shape)
        self.coef(gradient)[...] = X.T @ weighted
        if self.fit_intercept:
            self.intercept(gradient)[...] = weighted.sum(axis=0)
        self.data.add_up(risks, gradient)
        self.counters.add(grad_evals=n_drawn, grad_evals_paper=n_drawn, row_reads=n_drawn)
        return risks, gradient

    def _offset(self, w: Floats) -> Any:
        return w[-1] if self.fit_intercept else 0.0

    # ------------------------------------------------------------------ values

    def group_values(self, group_risks: Floats) -> Floats:
        """Return what the saddle function weighs by q: risks with offsets, less references."""
        return group_risks - self.baseline.upper

    def solution_domain(self, upper: float) -> Domain:
        """Return a domain that holds the solution, given that the optimum is at most `upper`.

        The penalty at the solution is the optimum less the worst value there. Losses are at least 0, so no value is
        below minus its reference.
        """
        if self.unbounded:
            return self.output_ball
        return self.domain.within(upper + float(self.baseline.upper.min())) if np.isfinite(upper) else self.domain

    @property
    def unbounded(self) -> bool:
        """Whether neither a penalty nor a radius of the user's bounds the coefficients."""
        return isinstance(self.domain, L2Domain) and self.domain.stand_in

    @property
    def output_ball(self) -> OutputBall:
        """The models for which a bound holds where the coefficients are unbounded."""
        if self._output_ball is None:
            assert isinstance(self.domain, L2Domain)
            limit = OUTPUTS * self.domain.radius
            self._output_ball = OutputBall.of(self.data, limit, centred=self.fit_intercept)
        return self._output_ball

    def is_far_away(self, w: Floats) -> bool:
        """Return whether the outputs at w come near the limit of the models for which a bound holds."""
        ball = self.output_ball if self.unbounded else None
        return ball is not None and not ball.size(self.coef(w)) <= INNER * ball.limit

    def objective(self, w: Floats, group_risks: Floats) -> float:
        """Return an upper bound of the objective at w: the worst value with the penalty."""
        return float((group_risks - self.baseline.lower).max()) + self.domain.penalty_at(self.coef(w))

    def unattained(self) -> str | None:
        """Say why no finite w is best, where that can be told from the labels."""
        return self.loss.unattained(self.weighted_labels()) if self.fit_intercept else None

    def vanishes(self) -> bool:
        """Tell whether the intercept alone brings every loss to zero, or as near as one likes."""
        return self.fit_intercept and self.loss.vanishes(self.weighted_labels())

    def separated(self, at: Evaluation) -> bool:
        """Return whether w puts every row on its right side, so that the losses vanish along it without end."""
        counted = self._counted_rows()
        margins = at.margins[counted]
        doubt = 64.0 * _EPS * float(np.linalg.norm(at.w)) * self.row_norms[counted]  # what rounding may have moved
        best = np.abs(margins) if margins.ndim == 1 else np.diff(np.partition(margins, -2, axis=1)[:, -2:])[:, 0]
        clear = bool((best > doubt).all()) and self.loss.separates(margins, self.data.y[counted])
        return not self.data.largest(np.array([float(not clear)]))[0]

    def weighted_labels(self) -> Array:
        """Return the labels of rows that count; over several workers, as few that tell as much about the losses."""
        labels = self.data.y[self._counted_rows()]
        if self.data.n_workers == 1:
            return labels
        if len(self.shape) > 1:
            present = np.bincount(labels, minlength=self.shape[1]).astype(np.float64)
            self.data.add_up(present)
            return np.flatnonzero(present)
        ends = np.array([-labels.min(initial=np.inf), labels.max(initial=-np.inf)])
        return self.data.largest(ends) * (-1.0, 1.0)

    def _counted_rows(self) -> Mask:
        return self.data.row_weights(np.ones(self.n_groups)) > 0

    # ------------------------------------------------------------------ sums over rows for dual bounds

    def dual_value(self, duals: Floats, row_weights: Floats) -> DualValue:
        """Return the weighted sum of the conjugates of duals, and what scales the rounding of such sums."""
        carried = row_weights > 0  # a row without weight adds nothing, whatever its dual
        conjugates, weights = self.loss.conjugate(duals, self.data.y)[carried], row_weights[carried]
        sizes, terms = (term_sizes(duals, norms)[carried] for norms in (1.0, self.row_norms))
        # Not by products: those of BLAS are running sums, where NumPy's own lose less than the certificate allows for.
        sums = np.array([(weights * part).sum() for part in (conjugates, np.abs(conjugates), sizes, terms)])
        self.data.add_up(sums)
        return DualValue(*map(float, sums))

    def slopes_at(self, at: Evaluation) -> Floats:
        """Return the slopes of the rows' losses at an evaluation."""
        return self.loss.value_and_slope(at.margins, self.data.y)[1]

    def balanced_slopes(self, at: Evaluation, row_weights: Floats) -> Floats:
        """Return slopes at the intercept that is best for the weights, repaired to a weighted sum of zero."""
        margins = at.margins + best_shift(self.loss, at.margins, self.data.y, row_weights, self._total)
        slopes = self.loss.value_and_slope(margins, self.data.y)[1]
        return self.loss.balance(slopes, self.data.y, row_weights, self._total)

    def _total(self, sums: Floats) -> Floats:
        """Return sums over all workers."""
        self.data.add_up(sums)
        return sums

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
        total = self._total(np.array([weights.sum()]))
        return self._of(self.data.as_one_group(weights / total))

    def with_references(self, references: References) -> "GroupRisk":
        """Return the problem of the worst regret against the references, counted together with this one."""
        return self._of(self.data, references=references, offsets=self.offsets, start=self._start)

    def starting_at(self, w: Floats, q: Floats | None = None) -> "GroupRisk":
        """Return the same problem with another start, counted together with this one."""
        return self.on(self.data, start=(w, q))

    def on(self, data: GroupedData, *, start: tuple[Floats | None, Floats | None]) -> "GroupRisk":
        """Return the same problem on other data, with another start, counted together with this one."""
        references = self.references if self.regret else None
        return self._of(data, references=references, offsets=self.offsets, start=start)

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
        norms = self.data.row_norms if order == 2 else self.data.rows.largest()
        if self.fit_intercept:
            norms = np.hypot(norms, 1.0)
        norms = np.where(self._counted_rows(), norms, 0.0)
        reach = np.multiply(norms, radius, where=norms > 0, out=np.zeros_like(norms))  # a row of zeros reaches nothing
        lipschitz = self.loss.lipschitz(self.data.y, reach) * norms
        smoothness = self.loss.smoothness * norms**2
        largest = self.data.largest(np.array([lipschitz.max(initial=0.0), smoothness.max(initial=0.0)]))
        return Constants(
            lipschitz=float(largest[0]),
            smoothness=float(largest[1]),
            mean_square_smoothness=float(np.sqrt(self.data.group_means(smoothness**2).max())),
        )
