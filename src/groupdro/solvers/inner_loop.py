"""The steps of ALEG between two snapshots: readable, and fused into one compiled loop."""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from groupdro.data import BatchPlan, Draw, GroupedData
from groupdro.data.rows import CsrRows, DenseRows
from groupdro.geometry import Entropy, Euclidean, Geometry
from groupdro.kernels.blocks import entropic_block
from groupdro.kernels.epochs import dense_steps
from groupdro.kernels.sparse import csr_steps
from groupdro.problem import Evaluation, GroupRisk, ScalarLoss
from groupdro.solvers.row_blocks import RowBlocks, takes_blocks
from groupdro.utils.types import Floats, Indices

__all__ = ["InnerLoop"]


_SECONDS_A_PIECE = 0.05  # between pieces an interrupt can arrive
_SECONDS_A_VALUE = 5e-10
_STEPS_A_STRETCH = 64


def _reading_ahead(data: GroupedData, pieces: Iterator[Indices]) -> Iterator[Indices]:
    """Yield pieces while the system reads the rows of the next one: asking it to may take as long as the reading."""
    with ThreadPoolExecutor(1) as reader:
        members = None
        for ahead in pieces:
            reading = reader.submit(data.read_ahead, ahead)
            if members is not None:
                yield members
            reading.result()
            members = ahead
        if members is not None:
            yield members


@dataclass
class _Lazy:
    """What sparse steps keep instead of w: see `kernels.sparse`."""

    features: Floats
    gram: Floats
    coefficients: Floats
    free: Floats

    @classmethod
    def begin(cls, w: Floats, snapshot: Floats, gradient: Floats, d: int) -> "_Lazy":
        """Lay out the vectors by feature."""
        features, gram, free = np.zeros((d, 8)), np.zeros(10), np.zeros(4)
        vectors = (w[:d], snapshot[:d], gradient[:d])
        for k, vector in enumerate(vectors):
            features[:, k] = vector
            gram[k] = vector @ vector
        features[:, 5] = -1.0
        gram[4:7] = vectors[0] @ vectors[1], vectors[0] @ vectors[2], vectors[1] @ vectors[2]
        if len(w) > d:
            free[:3] = w[d], snapshot[d], gradient[d]
        return cls(features, gram, np.array([1.0, 0, 0, 1, 0, 0, 0, 0]), free)

    def write(self, w: Floats, points: Floats) -> None:
        """Set w to the iterate and add the sum of the iterates to points."""
        d, vectors = len(self.features), self.features[:, :4]
        points[:d] += vectors @ self.coefficients[4:] - self.features[:, 4]
        w[:d] = vectors @ self.coefficients[:4]
        if len(w) > d:
            w[d], points[d] = self.free[0], points[d] + self.free[3]


@dataclass
class InnerLoop:
    """Both players between two snapshots.

    Attributes
    ----------
    at : Evaluation
        The snapshot.
    geometry : Geometry
        The geometry of w.
    w_steps : ndarray or float
        Step of w: a number, or one for each entry.
    q_step, alpha : float
        Step of the logits, and weight of the snapshot in the centre.
    w, w_centre : ndarray
        Mirror coordinates of the iterate (changed by steps) and of the snapshot.
    rotation : ndarray of shape (n_features, n_features) or (0, 0)
        Columns are the coordinates that `w_steps` belong to; empty for the features themselves. The loop works in
        these coordinates, in which ball and penalty look the same, and takes and gives those of the features.
    shift : ndarray of shape (n_features,) or (0,)
        Point of the features at which the loop takes the intercept, such as their mean, where it hardly depends on the
        coefficients; empty for the origin. The intercept is free, so that any point will do.
    logits, logit_centre : ndarray of shape (n_groups,)
        The same of q.
    points, mirrors, weights, logit_total : ndarray
        Sums over the steps of w, of its mirror coordinates, of q and of the logits.
    sums : ndarray of shape (4,)
        Sums over the steps of the squared gradient differences of w and q and the squared distances of w and q from
        the snapshot, as the geometries measure them.
    n_steps : int
        Steps made.
    """

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
        self.w, self.logits = self._turn(self.w), self.logits.copy()
        self.w_centre = self._turn(self.w_centre)
        self.snapshot, self.gradient = self._turn(self.at.w), self._turn_gradient(self.at.gradient)
        self.points, self.mirrors = np.zeros_like(self.w), np.zeros_like(self.w)
        self.weights, self.logit_total = np.zeros_like(self.logits), np.zeros_like(self.logits)
        self.sums = np.zeros(4)
        self.n_steps = 0
        self._lazy: _Lazy | None = None
        self._blocks: RowBlocks | None = None

    def _turn(self, w: Floats) -> Floats:
        """Return w in the loop's own coordinates."""
        out, d = w.copy(), len(self.rotation)
        if d:
            out[:d] = self.rotation.T @ w[:d]
        if self.shift.size:
            out[-1] += self.shift @ w[:-1]
        return out

    def _turn_back(self, w: Floats) -> Floats:
        """Return w in the coordinates of the features."""
        out, d = w.copy(), len(self.rotation)
        if d:
            out[:d] = self.rotation @ w[:d]
        if self.shift.size:
            out[-1] -= self.shift @ out[:-1]
        return out

    def _turn_gradient(self, gradient: Floats) -> Floats:
        """Return a gradient in the loop's own coordinates."""
        out, d = gradient.copy(), len(self.rotation)
        if self.shift.size:
            out[:-1] -= np.multiply.outer(self.shift, gradient[-1])
        if d:
            out[:d] = self.rotation.T @ out[:d]
        return out

    def iterate(self) -> Floats:
        """Return the iterate in mirror coordinates."""
        return self._turn_back(self.w)

    def mean_point(self) -> Floats:
        """Return the mean of w over the steps."""
        return self._turn_back(self.points / self.n_steps)

    def mean_mirror(self) -> Floats:
        """Return the mean of the mirror coordinates over the steps."""
        return self._turn_back(self.mirrors / self.n_steps)

    def run(
        self, problem: GroupRisk, plan: BatchPlan, n_steps: int, rng: np.random.Generator, *, replacement: bool = True
    ) -> None:
        """Make steps on fresh draws, in pieces short enough for an interrupt to arrive."""
        rows, make = problem.data.rows, self.readable_steps
        entries = float(problem.data.n_features)
        if self.can_fuse(problem):
            make = self.fused_steps
        elif (
            isinstance(rows, CsrRows)
            and problem.data.n_workers == 1
            and isinstance(problem.loss, ScalarLoss)
            and isinstance(self.geometry, Euclidean)
            and not self.rotation.size
            and np.size(self.w_steps) > 1
        ):
            make, entries = self.sparse_steps, 50.0 * rows.X.nnz / rows.n_rows  # entries are scattered
        seconds = (len(plan.groups) * (entries + 50.0) + 10.0 * problem.n_groups) * _SECONDS_A_VALUE
        piece = max(1, int(_SECONDS_A_PIECE / seconds))
        whole = None if replacement else problem.data.permute_steps(plan, n_steps, rng)
        # Steps that are too long may overflow; the ratio is then not finite, which is how the solver learns of it.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if not problem.data.in_memory:
                piece = max(piece, _STEPS_A_STRETCH)  # so that what is read at once is used at once
            bounds = [*range(0, n_steps, piece), n_steps]
            pieces = (
                whole[start:stop] if whole is not None else problem.data.draw_steps(plan, stop - start, rng)
                for start, stop in itertools.pairwise(bounds)
            )
            for members in pieces if problem.data.in_memory else _reading_ahead(problem.data, pieces):
                make(problem, plan, members)
            self.settle()

    def can_fuse(self, problem: GroupRisk) -> bool:
        """Tell whether `fused_steps` knows the problem."""
        rows = problem.data.rows
        return (
            problem.data.n_workers == 1
            and isinstance(problem.loss, ScalarLoss)
            and isinstance(self.geometry, Euclidean)
            and isinstance(rows, DenseRows)
            and rows.compilable
        )

    def readable_steps(self, problem: GroupRisk, plan: BatchPlan, members: Indices) -> None:
        """Make a step for each row of members."""
        at, geometry, entropy = self.at, self.geometry, Entropy(problem.n_groups)
        values = problem.group_values(at.group_risks)
        groups, weights = np.atleast_2d(plan.groups), np.atleast_2d(plan.weights)
        for k, drawn in enumerate(members):
            # 1. The centre between snapshot and iterate.
            w_centre = self.alpha * self.w_centre + (1.0 - self.alpha) * self.w
            q_centre = self.alpha * self.logit_centre + (1.0 - self.alpha) * self.logits
            # 2. The half point, along the snapshot's gradient.
            w_half = geometry.point(geometry.step(w_centre, self.w_steps, self.gradient))
            q_half = entropy.point(entropy.step(q_centre, self.q_step, -values))
            # 3. What the drawn rows show there beyond the snapshot.
            draw = Draw(drawn, groups[k % len(groups)], weights[k % len(weights)])
            loss_difference, sampled = problem.sampled_difference(draw, at, self._turn_back(w_half), q_half)
            gradient_difference = self._turn_gradient(sampled)
            # 4. The step, from the same centre.
            self.w = geometry.step(w_centre, self.w_steps, self.gradient + gradient_difference)
            self.logits = entropy.step(q_centre, self.q_step, -(values + loss_difference))
            # 5. What the next snapshot and the choice of steps need.
            self.points += geometry.point(self.w)
            self.mirrors += self.w
            self.weights += entropy.point(self.logits)
            self.logit_total += self.logits
            self.sums += (
                geometry.squared_gradient(self.w_steps, gradient_difference, w_half),
                entropy.squared_gradient(self.q_step, loss_difference, q_half),
                geometry.squared_distance(self.w_steps, w_half, self.snapshot),
                entropy.squared_distance(self.q_step, q_half, at.q),
            )
        self.n_steps += len(members)

    def fused_steps(self, problem: GroupRisk, plan: BatchPlan, members: Indices) -> None:
        """Make the same steps in one compiled loop: one output, dense rows, Euclidean w."""
        data, at = problem.data, self.at
        assert isinstance(self.geometry, Euclidean)
        assert isinstance(data.rows, DenseRows)
        assert isinstance(problem.loss, ScalarLoss)
        rows = data.rows_of(members)
        w_steps = np.broadcast_to(self.w_steps, self.w.shape)
        values = problem.group_values(at.group_risks)
        dense_steps(
            data.rows.for_kernels, data.y, *problem.loss.kernel, problem.fit_intercept, self.rotation, self.shift,
            rows, np.atleast_2d(plan.groups), np.atleast_2d(plan.weights), at.margins,
            self.w, self.snapshot, self.gradient, np.ascontiguousarray(w_steps),
            self.geometry.penalty, self.geometry.radius,
            self.logits, self.logit_centre, values, at.q, self.q_step, self.alpha,
            self.points, self.logit_total, self.weights, self.sums,
            np.empty((5, self.w.size)), np.empty((3, problem.n_groups)),
        )  # fmt: skip
        self.mirrors = self.points
        self.n_steps += len(members)
        drawn = rows.size
        problem.counters.add(grad_evals=drawn, grad_evals_paper=2 * drawn, row_reads=drawn)

    def single_rows(self, problem: GroupRisk) -> Callable[[GroupRisk, BatchPlan, Indices], None]:
        """Return the fastest way to make steps on one row each."""
        if self.can_fuse(problem):
            return self.fused_steps
        blocks = takes_blocks(problem, self.geometry, self.w_steps, self.alpha)
        return self.block_steps if blocks else self.readable_steps

    def block_steps(self, problem: GroupRisk, plan: BatchPlan, members: Indices) -> None:
        """Make the same steps on one row each, many at a time: several outputs, dense rows, one step for all entries.

        The snapshot is the centre too. Needs `settle` at the end.
        """
        geometry = self.geometry
        assert isinstance(geometry, Euclidean)
        if self._blocks is None:
            self._blocks = RowBlocks(problem, self.at, self.gradient, self.w)
        at, blocks, values = self.at, self._blocks, problem.group_values(self.at.group_risks)
        rows = problem.data.rows_of(members)[:, 0]
        work = np.empty((3, problem.n_groups))

        def make(place: slice, products: Floats, gram: Floats, betas: Floats, scales: Floats) -> None:
            entropic_block(
                products, gram, problem.data.y[rows[place]], plan.groups[place, 0], plan.weights[place, 0],
                blocks.coefficients, blocks.inner, self.w_steps, geometry.penalty, geometry.radius,
                self.logits, self.logit_centre, values, at.q, self.q_step, self.alpha, self.logit_total, self.weights,
                self.sums, betas, scales, blocks.totals, work,
            )  # fmt: skip

        blocks.advance(rows, make)
        self.n_steps += len(rows)

    def sparse_steps(self, problem: GroupRisk, plan: BatchPlan, members: Indices) -> None:
        """Make the same steps on sparse rows, at the cost of their entries: one output, one step for all features."""
        data, at = problem.data, self.at
        assert isinstance(self.geometry, Euclidean)
        assert isinstance(data.rows, CsrRows)
        assert isinstance(problem.loss, ScalarLoss)
        assert isinstance(self.w_steps, np.ndarray)
        if self._lazy is None:
            self._lazy = _Lazy.begin(self.w, self.snapshot, self.gradient, data.n_features)
        rows, lazy = data.rows_of(members), self._lazy
        csr_steps(
            *data.rows.for_kernels, data.y, *problem.loss.kernel, problem.fit_intercept,
            rows, plan.groups, plan.weights, at.margins,
            lazy.features, lazy.gram, self.n_steps, float(self.w_steps[0]), float(self.w_steps[-1]),
            self.geometry.penalty, self.geometry.radius, lazy.free,
            self.logits, self.logit_centre, problem.group_values(at.group_risks), at.q, self.q_step, self.alpha,
            lazy.coefficients, self.logit_total, self.weights, self.sums, np.empty((3, problem.n_groups)),
        )  # fmt: skip
        self.n_steps += len(members)
        problem.counters.add(grad_evals=rows.size, grad_evals_paper=2 * rows.size, row_reads=rows.size)

    def settle(self) -> None:
        """Write out the iterate and the sums of sparse and of blocked steps, which cost a pass over w."""
        if self._blocks is not None:
            self.w, self.points = self._blocks.iterate(), self.points + self._blocks.total()
            self.mirrors, self._blocks = self.points, None
        if self._lazy is not None:
            self._lazy.write(self.w, self.points)
            self.mirrors, self._lazy = self.points, None

    @property
    def ratio(self) -> float:
        """What the proof wants below one fifth: squared gradient differences over alpha times squared distances."""
        gradient_w, gradient_q, distance_w, distance_q = self.sums
        return float((gradient_w + gradient_q) / (self.alpha * (distance_w + distance_q) + 1e-300))
