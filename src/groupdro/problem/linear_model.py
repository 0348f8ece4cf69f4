"""The shape of w: features, outputs, and a free intercept."""

from dataclasses import dataclass

import numpy as np

from groupdro.data.rows import Rows
from groupdro.data.shares import Shares
from groupdro.utils.types import Floats

__all__ = ["LinearModel", "scale_rows", "term_sizes"]


@dataclass(frozen=True)
class LinearModel:
    """Outputs ``X @ coef + intercept``.

    w is (n_features + fit_intercept,), or (n_features + fit_intercept, n_outputs) for several outputs; the intercept is
    its last entry or row.

    Attributes
    ----------
    n_features, n_outputs : int
        Columns of X, and outputs of the model.
    fit_intercept : bool
        Whether there is an intercept.
    """

    n_features: int
    n_outputs: int
    fit_intercept: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of w."""
        length = self.n_features + self.fit_intercept
        return (length,) if self.n_outputs == 1 else (length, self.n_outputs)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return int(np.prod(self.shape))

    def coef(self, w: Floats) -> Floats:
        """Return the part of w (or of a gradient) that the domain constrains."""
        return w[: self.n_features]

    def intercept(self, w: Floats) -> Floats:
        """Return the free part of w (or of a gradient), empty without an intercept."""
        return w[self.n_features :]

    def outputs(self, rows: Rows, w: Floats) -> Floats:
        """Return the outputs of rows."""
        products = rows.matvec(self.coef(w))
        return products + w[-1] if self.fit_intercept else products

    def gradient(self, rows: Rows, slopes: Floats) -> Floats:
        """Return the sum over rows of slopes times the derivative of the outputs, shaped as w."""
        gradient = np.empty(self.shape)
        self.coef(gradient)[...] = rows.rmatvec(slopes)
        if self.fit_intercept:
            gradient[-1] = slopes.sum(axis=0)
        return gradient

    def add_gradients(self, gradients: Floats, rows: Rows, shares: Shares, slopes: Floats) -> None:
        """Add to gradients[i] the same sum weighted by the rows' shares in group i."""
        rows.rmatvec_by_group(shares, slopes, gradients[:, : self.n_features])
        if self.fit_intercept:
            shares.add_sums(slopes, gradients[:, -1])

    def gram(self, rows: Rows, weights: Floats) -> Floats:
        """Return X' diag(weights) X, with the intercept's column of ones last."""
        features = rows.gram(weights)
        if not self.fit_intercept:
            return features
        d = self.n_features
        full = np.empty((self.n_features + 1, self.n_features + 1))
        full[:d, :d], full[d, d] = features, weights.sum()
        full[:d, d] = full[d, :d] = rows.rmatvec(weights)
        return full

    def row_norms(self, norms: Floats) -> Floats:
        """Return the norms of rows including the 1 of an intercept, given those without."""
        return np.hypot(norms, 1.0) if self.fit_intercept else norms


def scale_rows(values: Floats, scale: Floats) -> Floats:
    """Return row values (one per row, or one per row and output) times a factor per row."""
    return values * scale if values.ndim == 1 else values * scale[:, None]


def term_sizes(slopes: Floats, norms: Floats | float) -> Floats:
    """Return the size of each row's term in a sum of slopes times rows, given the norms of the rows."""
    sizes = np.abs(slopes)
    return np.asarray((sizes if sizes.ndim == 1 else sizes @ np.ones(sizes.shape[1])) * norms)
