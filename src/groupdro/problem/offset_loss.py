"""Row offsets: a score per row, or one per row and class, that a linear model corrects.

An offset is stored with the label, whose meaning it changes: the encoded labels of such a loss are an array of shape
(n_rows, 1 + n_outputs), with the label first. So margins remain those of the linear model alone, and code that selects,
moves or divides labels takes the offsets along.
"""

import numpy as np

from groupdro.data import GroupedData
from groupdro.problem.losses import Loss, Product, Total, alone
from groupdro.utils.types import Array, Floats

__all__ = ["OffsetLoss", "with_offsets"]

_EPS = float(np.finfo(np.float64).eps)


def with_offsets(data: GroupedData, loss: Loss) -> tuple[GroupedData, Loss]:
    """Return data and a loss that includes the offsets of the rows, if there are any.

    A loss of a residual stays the same: the offset is subtracted from the target.
    """
    if data.y.ndim == 1 or isinstance(loss, OffsetLoss):
        return data, loss
    if not loss.of_residual:
        return data, OffsetLoss(loss)
    if data.y.shape[1] != 2:
        raise ValueError(f"offset must be one number per row for the {loss.name} loss, got {data.y.shape[1] - 1}.")
    # The digest of the data was computed with the offsets, before they may have been divided among workers.
    return data.with_labels(data.y[:, 0] - data.y[:, 1], encoded=True), loss


class OffsetLoss(Loss):
    """A loss of output plus row offset: l(u + o).

    Its slope and curvature in u are those of l at u + o, and its conjugate is l*(a) - a.o.

    Parameters
    ----------
    plain : Loss
        The loss l.
    """

    def __init__(self, plain: Loss):
        self._plain = plain
        self.name, self.smoothness = plain.name, plain.smoothness

    def __repr__(self) -> str:
        return f"OffsetLoss({self._plain!r})"

    @property
    def plain(self) -> Loss:
        """The loss l."""
        return self._plain

    def labels(self, y: Array) -> Array:
        """Return the labels without the offsets, in the encoding of l: integers if there are several outputs."""
        return y[:, 0].copy() if y.shape[1] == 2 else y[:, 0].astype(np.int64)

    def encode(self, y: Array) -> Floats:
        """Encode the labels, and keep the offsets."""
        return np.ascontiguousarray(np.column_stack([self._plain.encode(y[:, 0]), y[:, 1:]]), dtype=np.float64)

    def n_outputs(self, y: Array) -> int:
        """Return the number of outputs of the model, given encoded labels."""
        return self._plain.n_outputs(y[:, 0].astype(np.int64))

    def with_outputs(self, n_outputs: int) -> "OffsetLoss":
        """Return the loss with its number of outputs fixed."""
        return OffsetLoss(self._plain.with_outputs(n_outputs))

    def value_and_slope(self, u: Floats, y: Array) -> tuple[Floats, Floats]:
        """Return l and its slope at u + o."""
        return self._plain.value_and_slope(self._shifted(u, y), self.labels(y))

    def value(self, u: Floats, y: Array) -> Floats:
        """Return l at u + o."""
        return self._plain.value(self._shifted(u, y), self.labels(y))

    def curvature(self, u: Floats, y: Array) -> Floats:
        """Return the curvature of l at u + o."""
        return self._plain.curvature(self._shifted(u, y), self.labels(y))

    def curvature_product(self, u: Floats, y: Array) -> Product:
        """Return the product with the second derivative of l at u + o."""
        return self._plain.curvature_product(self._shifted(u, y), self.labels(y))

    def conjugate(self, duals: Floats, y: Array) -> Floats:
        """Return l*(duals) - duals.o, rounded up, because the terms may cancel and enter a bound."""
        terms = duals.reshape(len(y), -1) * y[:, 1:]
        rounding = 4.0 * _EPS * np.abs(terms).sum(axis=1)
        return self._plain.conjugate(duals, self.labels(y)) - terms.sum(axis=1) + rounding

    def balance(self, duals: Floats, y: Array, row_weights: Floats, total: Total = alone) -> Floats:
        """Balance duals as l does; offsets do not change the conjugate's domain."""
        return self._plain.balance(duals, self.labels(y), row_weights, total)

    def lipschitz(self, y: Array, reach: Floats) -> Floats:
        """Bound the slope over outputs |u + o| <= reach + |o|."""
        return self._plain.lipschitz(self.labels(y), reach + np.sqrt(np.square(y[:, 1:]).sum(axis=1)))

    @property
    def kernel(self) -> tuple[int, float] | None:
        """Code and parameter of l: kernels take labels with offsets as complex numbers."""
        return self._plain.kernel

    # Any offset becomes negligible as outputs or intercepts grow, so these depend only on the labels.

    def unattained(self, y: Array) -> str | None:
        """Return why a free intercept has no finite optimum for these labels."""
        return self._plain.unattained(y)

    def separates(self, u: Floats, y: Array) -> bool:
        """Return whether l tends to zero as these outputs are scaled up."""
        return self._plain.separates(u, y)

    def vanishes(self, y: Array) -> bool:
        """Return whether a constant output brings l to zero, or arbitrarily close."""
        return self._plain.vanishes(y)

    @staticmethod
    def _shifted(u: Floats, y: Array) -> Floats:
        return u + y[:, 1:].reshape(u.shape)
