"""Steps for several outputs of float32 rows in a spectral metric, with products in single precision.

With c the snapshot's coefficients, every point is stored as c + change. The change is in float32, with its components
along the metric's directions in float64. By linearity, a step needs no products with the directions: the components of
the centre and of the snapshot's gradient are known.
"""

import numpy as np

from groupdro.data import BatchPlan
from groupdro.geometry import Spectral
from groupdro.kernels.arguments import Drawn
from groupdro.kernels.spectral import aim, land, softmax_difference
from groupdro.solvers.steps.inner_loop import InnerLoop, Steps
from groupdro.utils.threads import map_threads
from groupdro.utils.types import Array, Floats, Indices

__all__ = ["SpectralSteps"]

_NOTHING: Floats = np.empty(0)
_NO_DIFFERENCE: Array = np.empty(0, np.float32)
_PIECE_ROWS = 200  # rows of a batch worth a thread


class SpectralSteps(Steps):
    """Steps of `kernels.spectral`."""

    def __init__(self, loop: InnerLoop):
        super().__init__(loop)
        assert isinstance(loop.geometry, Spectral)
        geometry: Spectral = loop.geometry
        self.geometry = geometry
        self.d = geometry.n_bound
        d = self.d
        snapshot = loop.snapshot
        gradient = loop.gradient
        V = geometry.directions
        self.directions = V.astype(np.float32)
        self.snapshot, self.gradient = (np.ascontiguousarray(a[:d], np.float32) for a in (snapshot, gradient))
        self.centre = (loop.w_centre[:d] - snapshot[:d]).astype(np.float32)
        self.change = (loop.w[:d] - snapshot[:d]).astype(np.float32)
        # Components of the snapshot, its gradient, the centre and the iterate along the directions, in float64.
        self.along_snapshot = V.T @ snapshot[:d]
        self.along_gradient = V.T @ gradient[:d]
        self.along_centre = V.T @ (loop.w_centre - snapshot)[:d]
        self.along = V.T @ (loop.w - snapshot)[:d]
        self.square = float(np.vdot(snapshot[:d], snapshot[:d]))
        self.free = loop.w[d:] - snapshot[d:]
        self.change_total = np.zeros(snapshot[:d].shape)
        self.free_total = np.zeros_like(self.free)
        self.aimed, self.half, self.added = (np.empty_like(self.change) for _ in range(3))

    @classmethod
    def fits(cls, loop: InnerLoop) -> bool:
        """Require float32 rows in this process, a loss supported by kernels, and a spectral metric."""
        problem = loop.problem
        known = problem.data.is_whole and problem.data.rows.single and problem.loss.in_blocks
        known = known and not problem.data.row_offsets.size
        return known and isinstance(loop.geometry, Spectral) and not loop.rotation.size

    def run(self, plan: BatchPlan, members: Indices) -> None:
        """Make one step per row of `members`."""
        loop = self.loop
        d = self.d
        at = loop.at
        weighting = loop.problem.weight_geometry()
        geometry = self.geometry
        groups = np.atleast_2d(plan.groups)
        weights = np.atleast_2d(plan.weights)
        step = float(loop.w_steps)
        alpha = loop.alpha
        free_step = step * geometry.free_scale
        free_gradient = loop.gradient[d:]
        free_centre = loop.w_centre[d:] - loop.snapshot[d:]
        for k, rows in enumerate(loop.oracle.drawn_rows(members)):
            drawn = Drawn(rows, groups[k % len(groups)], weights[k % len(weights)])
            # 1. The centre between snapshot and iterate.
            q_centre = alpha * loop.logit_centre + (1.0 - alpha) * loop.logits
            around = alpha * free_centre + (1.0 - alpha) * self.free
            # 2. The half point, along the snapshot's gradient.
            along, square = self._step(step, _NO_DIFFERENCE, self.along_gradient, self.half, _NOTHING)
            free = around - free_step * free_gradient
            q_half = weighting.point(weighting.step(q_centre, loop.q_step, -loop.values))
            # 3. The drawn rows' differences between there and the snapshot.
            values, bent, free_bent = self._difference(drawn, q_half, free)
            along_bent = np.asarray(self.directions.T @ bent, np.float64)
            loop.measures["distance_w"] += (
                self._squared_size(1.0 / geometry.scales, 1.0 / geometry.rest, along, square) / step
            )
            loop.measures["distance_w"] += float(np.vdot(free, free)) / free_step
            loop.measures["gradient_w"] += step * self._squared_size(
                geometry.scales, geometry.rest, along_bent, _square(bent)
            )
            loop.measures["gradient_w"] += free_step * float(np.vdot(free_bent, free_bent))
            # 4. The step, from the same centre.
            flat = bent.ravel()
            self.along, _ = self._step(step, flat, self.along_gradient + along_bent, self.change, self.change_total)
            self.free = around - free_step * (free_gradient + free_bent)
            loop.logits = weighting.step(q_centre, loop.q_step, -(loop.values + values))
            # 5. Sums for the next snapshot and the choice of step sizes.
            self.free_total += self.free
            loop.q_total += weighting.moved(weighting.point(loop.logits))
            loop.logit_total += loop.logits
            loop.measures["gradient_q"] += weighting.squared_gradient(loop.q_step, values, q_half)
            loop.measures["distance_q"] += weighting.squared_distance(loop.q_step, q_half, at.q)
        loop.n_steps += len(members)

    def _step(self, step: float, difference: Array, slope: Floats, out: Array, total: Floats) -> tuple[Floats, float]:
        """Step from the centre against gradient and difference, whose components along the directions are `slope`.

        Sets `out` to the change there and adds it to the total; returns its components and its squared norm. The centre
        lies between the snapshot's centre and the iterate, which may be `out` itself.
        """
        geometry = self.geometry
        alpha = self.loop.alpha
        shape = (-1,) + (1,) * (slope.ndim - 1)
        s = step * geometry.scales
        s0 = step * geometry.rest
        flat = (array.ravel() for array in (self.snapshot, self.centre, self.change))
        longer = aim(*flat, alpha, self.gradient.ravel(), difference, s0, self.aimed.ravel())
        centre = self.along_snapshot + alpha * self.along_centre + (1.0 - alpha) * self.along
        wanted = centre - s.reshape(shape) * slope
        have = centre - s0 * slope
        across = max(self.square + longer - float(np.vdot(have, have)), 0.0)
        shrink, shrink0 = geometry.shrinkage(wanted, across, s, s0)
        reached = wanted / shrink.reshape(shape)
        np.matmul(self.directions, (reached - have / shrink0).astype(np.float32), out=self.added)
        flat = (array.ravel() for array in (self.snapshot, self.aimed, self.added))
        return reached - self.along_snapshot, land(*flat, 1.0 / shrink0 - 1.0, out.ravel(), total.ravel())

    def _difference(self, drawn: Drawn, q: Floats, free: Floats) -> tuple[Floats, Array, Floats]:
        """Return the drawn rows' differences from the snapshot at the half point: values by group, gradient, free rows.

        Pieces depend only on the size of the batch, so that threads do not change the result.
        """
        loop = self.loop
        problem = self.loop.problem
        rows = drawn.rows
        margins = loop.at.margins
        y = problem.data.y
        n_outputs = problem.model.n_outputs
        shift = free[0].copy() if len(free) else np.zeros(n_outputs)
        if loop.shift.size:
            shift -= loop.shift @ self.half
        change = np.empty(len(rows))
        slopes = np.empty((len(rows), n_outputs), np.float32)
        n_pieces = max(1, min(8, len(rows) // _PIECE_ROWS))
        bounds = np.linspace(0, len(rows), n_pieces + 1).astype(np.int64)

        def piece(k: int) -> Array:
            place = slice(bounds[k], bounds[k + 1])
            X = problem.data.rows.take(rows[place]).dense()
            part = Drawn(rows[place], drawn.groups[place], drawn.weights[place])
            softmax_difference(part, y, margins, X @ self.half, shift, q, loop.at.q, change[place], slopes[place])
            return np.asarray(X.T @ slopes[place])

        gradient, *others = map_threads(piece, n_pieces)
        for other in others:
            gradient += other
        values = np.bincount(drawn.groups, weights=change, minlength=problem.n_groups).astype(np.float64, copy=False)
        total = slopes.sum(axis=0, dtype=np.float64)
        if loop.shift.size:
            gradient -= np.multiply.outer(loop.shift, total).astype(np.float32)
        return values, gradient, total[None] if len(free) else np.empty((0, n_outputs))

    @staticmethod
    def _squared_size(scales: Floats, rest: float, along: Floats, square: float) -> float:
        """Return the squared size in a metric, given the components along its directions and the squared norm."""
        squares = (along**2).reshape(len(scales), -1).sum(axis=1)
        return rest * square + float((scales - rest) @ squares)

    def flush(self) -> None:
        """Write out w and the sum of its iterates, keeping their mean inside the domain despite rounding."""
        loop = self.loop
        d = self.d
        loop.w = loop.snapshot.copy()
        loop.w[:d] += self.change
        loop.w[d:] += self.free
        mean = loop.snapshot.copy()
        mean[:d] += self.change_total / loop.n_steps
        mean[d:] += self.free_total / loop.n_steps
        loop.w_total = loop.mirror_total = loop.n_steps * loop.problem.within_domain(mean)


def _square(matrix: Array) -> float:
    flat = matrix.ravel()
    return float(np.einsum("i,i->", flat, flat, dtype=np.float64))
