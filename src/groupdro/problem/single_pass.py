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

import numpy as np

from groupdro.data.single_blocks import STRETCH
from groupdro.kernels.softmax import softmax_rows, softmax_values
from groupdro.problem.counting import Counting
from groupdro.problem.linear_model import LinearModel
from groupdro.problem.losses import Loss
from groupdro.problem.records import Evaluation, SingleRounding
from groupdro.utils.threads import map_threads, one_blas_thread
from groupdro.utils.types import Array, Floats

__all__ = ["SinglePasses"]

_EPS = float(np.finfo(np.float64).eps)
_UNIT = 2.0**-24
_TINY = 2.0**-126  # the smallest normal number
_WORTH = 1 << 27  # multiplications per product from which single precision pays for an extra pass in float64


class SinglePasses(Counting):
    """The part of a problem that makes passes over float32 rows in single precision."""

    loss: Loss
    model: LinearModel

    #: Whether passes use single precision. Runs turn it off once rounding limits progress.
    single_precision: bool
    _rounding: float | None

    @property
    def rounding(self) -> float:
        """Bound the error of a sum of slopes times rows, in units of rounding of its terms' mass.

        It grows with the longest chain of additions: over the rows, over the entries of one, over workers and groups.
        """
        if self._rounding is None:
            longest = self.data.largest(np.array([float(self.data.rows.longest_sum())]))[0]
            self._rounding = 32.0 + 0.5 * (float(longest) + self.data.n_workers + self.data.n_groups)
        return self._rounding

    def combined_mass(self, mass: float) -> float:
        """Return `Evaluation.mass` of what `combine_rows` returns, given the mass of its terms."""
        return self._single_mass(mass) if self.single_precision else mass

    def _allows_single(self) -> bool:
        """Return whether the rows of all workers, the loss and the size of a product favour single precision."""
        allowed = self.data.rows.single and self.loss.in_blocks
        large = self.data.n_total * self.model.size >= _WORTH
        return large and not self.data.largest(np.array([float(not allowed)]))[0]

    def _evaluate_in_single(self, w: Floats, q: Floats, norms: Floats) -> Evaluation | None:
        """Return the evaluation at (w, q), or None if single precision overflows.

        Parameters
        ----------
        w, q : ndarray
            The point.
        norms : ndarray of shape (n_rows,)
            Norms of the rows, including the 1 of an intercept.

        Returns
        -------
        Evaluation or None
            The evaluation, with float32 outputs.
        """
        data, model, weights = self.data, self.model, self.data.row_weights(q)
        coef, free = self._single_parameters(w)
        n, pieces, n_outputs = data.n_rows, data.rows.single_pieces(), model.n_outputs
        margins, (losses, constants, sizes) = np.empty((n, n_outputs), np.float32), np.empty((3, n))
        gradients, slopes = np.zeros((len(pieces), *coef.shape)), np.zeros((len(pieces), n_outputs))

        def visit(k: int) -> None:
            weighted = np.empty((STRETCH, n_outputs), np.float32)
            for place, block in data.rows.single_blocks(pieces[k], n_outputs):
                mine = weighted[: place.stop - place.start]
                softmax_rows(
                    block.outputs(coef), free, data.y[place], weights[place], margins[place],
                    losses[place], constants[place], sizes[place], mine, slopes[k],
                )  # fmt: skip
                block.add_products(mine, gradients[k])

        with np.errstate(over="ignore", invalid="ignore"), one_blas_thread():
            map_threads(visit, len(pieces))
            gradient = np.zeros(model.shape)
            model.coef(gradient)[...] = gradients.sum(axis=0)
            if model.fit_intercept:
                gradient[-1] = slopes.sum(axis=0)
            means = data.partial_means(losses)
            allowance, tangents = data.partial_means(self._loss_errors(w, norms)), data.partial_means(constants)
            mass = np.array([(weights * sizes * norms).sum()])
            data.add_up(means, allowance, tangents, gradient, mass)
        if not (np.isfinite(means).all() and np.isfinite(gradient).all() and np.isfinite(tangents).all()):
            return None
        allowance += _EPS * (32.0 + n_outputs) * means
        single = SingleRounding(allowance, tangents)
        return Evaluation(w, q, margins, means + allowance, gradient, self._single_mass(float(mass[0])), single)

    def groups_in_single(self, w: Floats, norms: Floats) -> tuple[Array, Floats, Floats, Floats, SingleRounding] | None:
        """Return outputs, risks, gradients and masses of all groups at w; None if single precision overflows.

        Groups must be consecutive rows; `norms` are as for a pass.
        """
        data, model = self.data, self.model
        weights, (coef, free) = data.row_weights(np.ones(data.n_groups)), self._single_parameters(w)
        n, n_outputs = data.n_rows, model.n_outputs
        margins, (losses, constants, sizes) = np.empty((n, n_outputs), np.float32), np.empty((3, n))
        gradients = np.zeros((data.n_groups, *model.shape))

        def visit(i: int) -> None:
            weighted = np.empty((STRETCH, n_outputs), np.float32)
            slopes = gradients[i, -1] if model.fit_intercept else np.zeros(n_outputs)
            for place, block in data.rows.single_blocks(slice(*data.offsets[i : i + 2].tolist()), n_outputs):
                mine = weighted[: place.stop - place.start]
                softmax_rows(
                    block.outputs(coef), free, data.y[place], weights[place], margins[place],
                    losses[place], constants[place], sizes[place], mine, slopes,
                )  # fmt: skip
                block.add_products(mine, model.coef(gradients[i]))

        with np.errstate(over="ignore", invalid="ignore"), one_blas_thread():
            map_threads(visit, data.n_groups)
            means, masses, tangents = (data.partial_means(part) for part in (losses, sizes * norms, constants))
            allowance = data.partial_means(self._loss_errors(w, norms))
            data.add_up(means, masses, tangents, allowance, gradients)
        if not (np.isfinite(means).all() and np.isfinite(gradients).all() and np.isfinite(tangents).all()):
            return None
        allowance += _EPS * (32.0 + n_outputs) * means
        masses = np.array([self._single_mass(float(mass)) for mass in masses])
        return margins, means + allowance, gradients, masses, SingleRounding(allowance, tangents)

    def _risks_in_single(self, w: Floats, norms: Floats) -> Floats:
        """Return upper bounds on the group risks at w; not finite if single precision overflows."""
        data, pieces, n_outputs = self.data, self.data.rows.single_pieces(), self.model.n_outputs
        coef, free = self._single_parameters(w)
        losses = np.empty(data.n_rows)

        def visit(k: int) -> None:
            for place, block in data.rows.single_blocks(pieces[k], n_outputs):
                softmax_values(block.outputs(coef), free, data.y[place], losses[place])

        with np.errstate(over="ignore", invalid="ignore"), one_blas_thread():
            map_threads(visit, len(pieces))
            means, allowance = data.partial_means(losses), data.partial_means(self._loss_errors(w, norms))
            data.add_up(means, allowance)
            return means + allowance + _EPS * (32.0 + n_outputs) * means

    def _single_parameters(self, w: Floats) -> tuple[Array, Floats]:
        """Return the coefficients in float32, and the intercept or zeros."""
        with np.errstate(over="ignore"):
            coef = np.ascontiguousarray(self.model.coef(w), dtype=np.float32)
        return coef, np.array(w[-1]) if self.model.fit_intercept else np.zeros(self.model.n_outputs)

    def _loss_errors(self, w: Floats, norms: Floats) -> Floats:
        """Bound the error of each row's loss: max_c e_c + e_y."""
        d = self.data.n_features
        sizes = np.sqrt(np.square(w).sum(axis=0))
        relative = gamma(min(STRETCH, d) + 4)
        lost = 2.0 * _TINY * (d + np.sqrt(d) * norms)
        return norms * (relative * (sizes.max() + sizes[self.data.y])) + lost

    def _combine_in_single(self, coefficients: Floats) -> Floats:
        """Return the sum over rows of coefficients times x; not finite if single precision overflows."""
        data, pieces, n_outputs = self.data, self.data.rows.single_pieces(), self.model.n_outputs
        sums = np.zeros((len(pieces), data.n_features, n_outputs))

        def visit(k: int) -> None:
            for place, block in data.rows.single_blocks(pieces[k], n_outputs):
                block.add_products(coefficients[place].astype(np.float32), sums[k])

        with np.errstate(over="ignore", invalid="ignore"), one_blas_thread():
            map_threads(visit, len(pieces))
            out = np.asarray(sums.sum(axis=0))
            data.add_up(out)
        return out

    def _single_mass(self, mass: float) -> float:
        """Return the float64 mass with the same rounding error as these terms in single precision."""
        n, (d, n_outputs) = self.data.n_total, self.model.shape
        norms = n * (np.sqrt(self.data.mean_square_norm) + 1.0)  # bounds the sum of all rows' norms
        lost = _TINY * (n * np.sqrt(d * n_outputs) + norms * np.sqrt(n_outputs))
        return float(mass + (gamma(min(STRETCH, n) + 4) * mass + lost) / (_EPS * self.rounding))


def gamma(k: int) -> float:
    """Return the relative error bound of a sum of k products in single precision."""
    return k * _UNIT / (1.0 - k * _UNIT)
