"""The multi-class logistic loss."""

import numpy as np

from groupdro.kernels import softmax as kernels
from groupdro.problem.losses import Loss, Product, Total, alone
from groupdro.utils.arguments import check_whole
from groupdro.utils.types import Array, Floats, Indices

__all__ = ["Softmax"]


class Softmax(Loss):
    """Multi-class logistic loss lse(u) - u_y of labels 0 .. C-1, with one output per class.

    |l'| <= sqrt 2, l'' <= 1/2 (Euclidean). With a = p - e_y, p in the simplex: l*(a) = sum_c p_c ln p_c.

    Parameters
    ----------
    n_classes : int, optional
        Number of classes; by default the largest label plus one.
    """

    name = "softmax"
    smoothness = 0.5
    in_blocks = True

    def __init__(self, n_classes: int | None = None):
        if n_classes is not None:
            check_whole(n_classes, "n_classes", least=2)
        self.n_classes = n_classes

    def encode(self, y: Array) -> Indices:
        """Check that labels are integers from 0."""
        if (y != np.floor(y)).any() or (y < 0).any():
            raise ValueError("y must be integers from 0 for the softmax loss. Encode labels first.")
        codes = y.astype(np.int64)
        if self.n_classes is not None and codes.max(initial=0) >= self.n_classes:
            raise ValueError(f"y has label {int(codes.max())}, but n_classes is {self.n_classes}.")
        return codes

    def n_outputs(self, y: Array) -> int:
        """Return the number of classes."""
        return self.n_classes if self.n_classes is not None else max(2, int(y.max()) + 1)

    def with_outputs(self, n_outputs: int) -> "Softmax":
        """Return the loss of this many classes."""
        return Softmax(n_outputs)

    def value_and_slope(self, u: Floats, y: Array) -> tuple[Floats, Floats]:
        """Return the loss and p - e_y."""
        losses, slopes = np.empty(len(y)), np.empty(u.shape)
        kernels.softmax_losses_and_slopes(u, y, losses, slopes)
        return losses, slopes

    def value(self, u: Floats, y: Array) -> Floats:
        """Return the loss."""
        return self._losses_and_probabilities(u, y)[0]

    def curvature_product(self, u: Floats, y: Array) -> Product:
        """Return the product with diag(p) - p p'."""
        p = self._losses_and_probabilities(u, y)[1]

        def times(along: Floats) -> Floats:
            out = np.empty_like(p)
            kernels.softmax_curvature(p, along, out)
            return out

        return times

    @staticmethod
    def _losses_and_probabilities(u: Floats, y: Array) -> tuple[Floats, Floats]:
        losses, p = np.empty(len(y)), np.empty(u.shape)
        kernels.losses_and_probabilities(u, y, losses, p)
        return losses, p

    def conjugate(self, duals: Floats, y: Array) -> Floats:
        """Return the negative entropy of p = duals + e_y, which must be a distribution up to rounding."""
        p = duals.copy()
        p[np.arange(len(y)), y] += 1.0
        inside = (p.min(axis=1) >= -1e-14) & (np.abs(p.sum(axis=1) - 1.0) <= 1e-12)
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = np.where(p > 0, p * np.log(p), 0.0).sum(axis=1)
        return np.where(inside, entropy, np.inf)

    def balance(self, duals: Floats, y: Array, row_weights: Floats, total: Total = alone) -> Floats:
        """Mix every p with one vector s so that the weighted mean of p becomes that of the labels."""
        C = duals.shape[1]
        # Use NumPy's pairwise sums, one class at a time: running sums over many rows lose digits that the bound needs.
        of_class = [(row_weights[y == c].sum(), (row_weights * duals[:, c]).sum()) for c in range(C)]
        sums = total(np.array(of_class).T.copy())
        mass = sums[0].sum()
        E = sums[0] / mass
        excess = sums[1] / mass  # P - E, since duals = p - e_y
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.where(excess > 0, excess / E, 0.0).max()  # t / (1 - t)
        if ratio == 0.0:
            return duals
        if not np.isfinite(ratio):  # for a class without weight, only p = e_y has the right mean
            return np.zeros_like(duals)
        t = ratio / (1.0 + ratio)
        s = np.maximum(ratio * E - excess, 0.0)  # times the ratio, by which a division could overflow
        if not s.any():  # the excesses are rounding errors of one sign
            return duals
        s /= s.sum()
        # duals = p - e_y, so the mixture (1 - t) p + t s has the duals (1 - t) (p - e_y) + t (s - e_y).
        mixed = (1.0 - t) * duals + t * s
        mixed[np.arange(len(y)), y] -= t
        return mixed

    def lipschitz(self, y: Array, reach: Floats) -> Floats:
        """Bound |l'| by sqrt 2."""
        del y
        return np.full_like(reach, np.sqrt(2.0))

    def vanishes(self, y: Array) -> bool:
        """Return whether all labels are equal."""
        return bool((y == y[0]).all())

    def separates(self, u: Floats, y: Array) -> bool:
        """Return whether every row's own class has the largest output."""
        own = u[np.arange(len(y)), y]
        others = u.copy()
        others[np.arange(len(y)), y] = -np.inf
        return bool((own > others.max(axis=1)).all())

    def unattained(self, y: Array) -> str | None:
        """Report classes without rows, whose intercept decreases forever."""
        missing = np.flatnonzero(np.bincount(y, minlength=self.n_outputs(y)) == 0)
        if len(missing):
            return f"no row has label {int(missing[0])}, whose intercept would decrease forever"
        return None
