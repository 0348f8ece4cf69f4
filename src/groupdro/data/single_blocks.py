"""Products of float32 rows with several columns in float32, with sums short enough to keep rounding small.

A sum of k products in single precision has an error of at most k u / (1 - k u) times the sum of their absolute values,
in any order, with u = 2^-24. So no sum is longer than a range of `STRETCH` columns or a block of rows. Partial sums are
added up in float64.
"""

import numpy as np

from groupdro.kernels.softmax import add_up
from groupdro.utils.types import Array, Floats

__all__ = ["STRETCH", "SingleBlock", "SingleBuffers"]

STRETCH = 256  # columns, or rows, whose products are added up in single precision


class SingleBuffers:
    """Output buffers for the blocks of one thread. The next block overwrites them."""

    def __init__(self, n_features: int, n_outputs: int):
        self.parts = np.empty((-(-n_features // STRETCH), STRETCH, n_outputs), np.float32)
        self.product = np.empty((n_features, n_outputs), np.float32)


class SingleBlock:
    """At most `STRETCH` consecutive rows of float32."""

    def __init__(self, X: Array, buffers: SingleBuffers):
        self.X = X
        self._buffers = buffers

    def outputs(self, coef: Array) -> Array:
        """Return the contribution of each range of columns to X coef, of shape (n_stretches, n_rows, n_outputs)."""
        n, d = self.X.shape
        parts = self._buffers.parts[:, :n]
        whole = d // STRETCH
        cut = whole * STRETCH
        if whole:
            stretches = self.X[:, :cut].reshape(n, whole, STRETCH).transpose(1, 0, 2)  # a view
            np.matmul(stretches, coef[:cut].reshape(whole, STRETCH, -1), out=parts[:whole])
        if cut < d:
            np.matmul(self.X[:, cut:], coef[cut:], out=parts[whole])
        return parts

    def add_products(self, factors: Array, total: Floats) -> None:
        """Add X' factors to a C-ordered float64 total."""
        np.matmul(self.X.T, factors, out=self._buffers.product)
        add_up(self._buffers.product.ravel(), total.ravel())
