"""Passes with several outputs in single precision, with a proven bound on the rounding error.

With u = 2^-24 and gamma_k = k u / (1 - k u), a sum of k products in single precision has an error of at most gamma_k
times the sum of their absolute values (Higham, Accuracy and Stability of Numerical Algorithms, 3.1), in any order. Here
k is at most `STRETCH`; longer sums, exponentials, losses and means use float64.

Outputs. w is rounded (u), ranges of columns are multiplied (gamma_k), summed in float64, and rounded (u):

    |computed - x.w_c|  <=  gamma_(k+4) |x| |w_c|  =: e_c,        by Cauchy-Schwarz over all ranges.

lse is 1-Lipschitz in the largest change of an output, so the error of a row's loss is at most max_c e_c + e_y. The mean
of this over a group is added to its risk, which makes it an upper bound.

Slopes. For any outputs u, loss(x.w') >= loss(u) + a.(x.w' - u) with the slopes a at u. So a lower bound needs only
loss(u) - a.u, computed in float64 at the stored outputs, and G = sum_r v_r x_r a_r'. In G, the weighted slopes are
rounded (u), and blocks of rows are multiplied (gamma_k):

    |computed - G|_F  <=  gamma_(k+4) | sum_r v_r |x_r| |a_r|' |_F  <=  gamma_(k+4) sum_r v_r |x_r| |a_r|.

Numbers below the smallest normal one may be lost: at most that much in each factor and product. If something overflows,
the pass in single precision is abandoned.
"""

from dataclasses import dataclass

import numpy as np

from groupdro.data.single_blocks import STRETCH
from groupdro.kernels.softmax import outputs_of, softmax_rows, softmax_values
from groupdro.oracle.evaluation import Evaluation, SingleRounding
from groupdro.problem import Problem
from groupdro.utils.threads import map_threads, one_blas_thread
from groupdro.utils.types import Array, Floats

__all__ = ["SinglePasses"]

_EPS = float(np.finfo(np.float64).eps)
_UNIT = 2.0**-24
_TINY = 2.0**-126  # the smallest normal number
_WORTH = 1 << 27  # multiplications per product from which single precision pays for an extra pass in float64


class _SoftmaxBuffers:
    """Buffers for the blocks of one thread. The next block overwrites them."""

    def __init__(self, n_outputs: int):
        self._doubles = np.empty((2, STRETCH, n_outputs))
        self._single = np.empty((STRETCH, n_outputs), np.float32)

    def of(self, place: slice) -> tuple[Floats, Floats, Array]:
        """Return two buffers in float64 and one in float32 with the size of a block."""
        n = place.stop - place.start
        return self._doubles[0, :n], self._doubles[1, :n], self._single[:n]


@dataclass(frozen=True, eq=False)
class _SoftmaxRows:
    """What a pass reads and sets for each row."""

    y: Array
    weights: Floats
    free: Floats
    margins: Array
    losses: Floats
    constants: Floats
    sizes: Floats

    def visit(self, place: slice, parts: Array, buffers: _SoftmaxBuffers, slopes: Floats) -> Array:
        """Set what belongs to a block, add to the sum of its weighted slopes, and return these in float32."""
        below, powers, weighted = buffers.of(place)
        outputs_of(parts, self.free, self.margins[place], below)
        np.exp(below, out=powers)
        softmax_rows(
            below,
            powers,
            self.y[place],
            self.weights[place],
            self.losses[place],
            self.constants[place],
            self.sizes[place],
            weighted,
            slopes,
        )
        return weighted


class SinglePasses:
    """Passes over the float32 rows of a problem in single precision.

    Parameters
    ----------
    problem : Problem
        The problem.

    Attributes
    ----------
    allowed : bool
        Whether the rows of all workers, the loss and the size of a product favour single precision.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        refused = not (problem.data.rows.single and problem.loss.in_blocks) or problem.data.row_offsets.size > 0
        large = problem.data.n_features > 0 and problem.n_rows * problem.model.size >= _WORTH
        self.allowed = large and not problem.data.largest(np.array([float(refused)]))[0]

    def evaluate(self, w: Floats, q: Floats) -> Evaluation | None:
        """Return the evaluation at (w, q), with float32 outputs, or None if single precision overflows."""
        data = self.problem.data
        model = self.problem.model
        weights = data.row_weights(q)
        norms = self.problem.row_norms
        coef, free = self._parameters(w)
        n = data.n_rows
        parts = data.rows.parts()
        n_outputs = model.n_outputs
        margins = np.empty((n, n_outputs), np.float32)
        (losses, constants, sizes) = np.empty((3, n))
        gradients = np.zeros((len(parts), *coef.shape))
        slopes = np.zeros((len(parts), n_outputs))

        rows = _SoftmaxRows(data.y, weights, free, margins, losses, constants, sizes)

        def visit(k: int) -> None:
            buffers = _SoftmaxBuffers(n_outputs)
            for place, block in data.rows.single_blocks(parts[k], n_outputs):
                block.add_products(rows.visit(place, block.outputs(coef), buffers, slopes[k]), gradients[k])

        with np.errstate(over="ignore", invalid="ignore"), one_blas_thread():
            map_threads(visit, len(parts))
            gradient = np.zeros(model.shape)
            model.coef(gradient)[...] = gradients.sum(axis=0)
            if model.fit_intercept:
                gradient[-1] = slopes.sum(axis=0)
            means = data.partial_means(losses)
            allowance = data.partial_means(self._loss_errors(w))
            tangents = data.partial_means(constants)
            mass = np.array([(weights * sizes * norms).sum()])
            data.add_up(means, allowance, tangents, gradient, mass)
        if not (np.isfinite(means).all() and np.isfinite(gradient).all() and np.isfinite(tangents).all()):
            return None
        allowance += _EPS * (32.0 + n_outputs) * means
        single = SingleRounding(allowance, tangents)
        return Evaluation(w, q, margins, means + allowance, gradient, self.mass(float(mass[0])), single)

    def groups(self, w: Floats) -> tuple[Array, Floats, Floats, Floats, SingleRounding] | None:
        """Return outputs, risks, gradients and masses of all groups at w; None if single precision overflows.

        Groups must be consecutive rows.
        """
        data = self.problem.data
        model = self.problem.model
        weights = data.row_weights(np.ones(data.n_groups))
        norms = self.problem.row_norms
        coef, free = self._parameters(w)
        n = data.n_rows
        n_outputs = model.n_outputs
        margins = np.empty((n, n_outputs), np.float32)
        (losses, constants, sizes) = np.empty((3, n))
        gradients = np.zeros((data.n_groups, *model.shape))

        rows = _SoftmaxRows(data.y, weights, free, margins, losses, constants, sizes)

        def visit(i: int) -> None:
            buffers = _SoftmaxBuffers(n_outputs)
            slopes = gradients[i, -1] if model.fit_intercept else np.zeros(n_outputs)
            for place, block in data.rows.single_blocks(slice(*data.offsets[i : i + 2].tolist()), n_outputs):
                weighted = rows.visit(place, block.outputs(coef), buffers, slopes)
                block.add_products(weighted, model.coef(gradients[i]))

        with np.errstate(over="ignore", invalid="ignore"), one_blas_thread():
            map_threads(visit, data.n_groups)
            means, masses, tangents = (data.partial_means(part) for part in (losses, sizes * norms, constants))
            allowance = data.partial_means(self._loss_errors(w))
            data.add_up(means, masses, tangents, allowance, gradients)
        if not (np.isfinite(means).all() and np.isfinite(gradients).all() and np.isfinite(tangents).all()):
            return None
        allowance += _EPS * (32.0 + n_outputs) * means
        masses = np.array([self.mass(float(mass)) for mass in masses])
        return margins, means + allowance, gradients, masses, SingleRounding(allowance, tangents)

    def risks(self, w: Floats) -> Floats | None:
        """Return upper bounds on the group risks at w, or None if single precision overflows."""
        data = self.problem.data
        n_outputs = self.problem.model.n_outputs
        parts = data.rows.parts()
        coef, free = self._parameters(w)
        losses = np.empty(data.n_rows)

        def visit(k: int) -> None:
            buffers = _SoftmaxBuffers(n_outputs)
            for place, block in data.rows.single_blocks(parts[k], n_outputs):
                below, powers, margins = buffers.of(place)
                outputs_of(block.outputs(coef), free, margins, below)
                softmax_values(below, np.exp(below, out=powers), data.y[place], losses[place])

        with np.errstate(over="ignore", invalid="ignore"), one_blas_thread():
            map_threads(visit, len(parts))
            means = data.partial_means(losses)
            allowance = data.partial_means(self._loss_errors(w))
            data.add_up(means, allowance)
            bounds = means + allowance + _EPS * (32.0 + n_outputs) * means
        return np.asarray(bounds) if np.isfinite(bounds).all() else None

    def _parameters(self, w: Floats) -> tuple[Array, Floats]:
        """Return the coefficients in float32, and the intercept or zeros."""
        with np.errstate(over="ignore"):
            coef = np.ascontiguousarray(self.problem.model.coef(w), dtype=np.float32)
        return coef, np.array(w[-1]) if self.problem.model.fit_intercept else np.zeros(self.problem.model.n_outputs)

    def _loss_errors(self, w: Floats) -> Floats:
        """Bound the error of each row's loss: max_c e_c + e_y."""
        d = self.problem.data.n_features
        norms = self.problem.row_norms
        sizes = np.sqrt(np.square(w).sum(axis=0))
        relative = gamma(min(STRETCH, d) + 4)
        lost = 2.0 * _TINY * (d + np.sqrt(d) * norms)
        return norms * (relative * (sizes.max() + sizes[self.problem.data.y])) + lost

    def combine(self, coefficients: Floats) -> Floats | None:
        """Return the sum over rows of coefficients times x, or None if single precision overflows."""
        data = self.problem.data
        n_outputs = self.problem.model.n_outputs
        parts = data.rows.parts()
        sums = np.zeros((len(parts), data.n_features, n_outputs))

        def visit(k: int) -> None:
            for place, block in data.rows.single_blocks(parts[k], n_outputs):
                block.add_products(coefficients[place].astype(np.float32), sums[k])

        with np.errstate(over="ignore", invalid="ignore"), one_blas_thread():
            map_threads(visit, len(parts))
            out = np.asarray(sums.sum(axis=0))
            data.add_up(out)
        return out if np.isfinite(out).all() else None

    def mass(self, mass: float) -> float:
        """Return the float64 mass with the same rounding error as terms of this mass in single precision."""
        data = self.problem.data
        (d, n_outputs) = self.problem.model.shape
        n = data.n_total
        norms = n * (np.sqrt(data.mean_square_norm) + 1.0)  # bounds the sum of all rows' norms
        lost = _TINY * (n * np.sqrt(d * n_outputs) + norms * np.sqrt(n_outputs))
        return float(mass + (gamma(min(STRETCH, n) + 4) * mass + lost) / (_EPS * data.rounding))


def gamma(k: int) -> float:
    """Return the relative error bound of a sum of k products in single precision."""
    return k * _UNIT / (1.0 - k * _UNIT)
