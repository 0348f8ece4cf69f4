"""A random map of parameters to few numbers that preserves inner products approximately."""

from dataclasses import dataclass

import numpy as np

from groupdro.kernels.sketch import add_sketch
from groupdro.utils.types import Array, Floats

__all__ = ["Sketch"]


@dataclass(frozen=True, eq=False)
class Sketch:
    """Scaled parameters, each added with a random sign to one of a few buckets.

    The map S is the same on every worker. For a curvature B, it maps gradients g to S B^-1/2 g and steps s to
    S B^1/2 s, so that products of a sketched gradient with gradients and steps are unbiased for those with g in B^-1
    and with s.

    Attributes
    ----------
    factors : ndarray of float32 of shape (n_parameters,)
        Signs, divided by the square root of each parameter's curvature.
    n_buckets : int
        Number of buckets, a power of two.
    """

    factors: Array
    n_buckets: int

    @classmethod
    def of(cls, curvature: Floats, n_buckets: int) -> "Sketch":
        """Draw the signs, for a curvature along each parameter."""
        signs = np.random.default_rng(0).integers(0, 2, len(curvature), dtype=np.int8) * 2 - 1
        return cls((signs / np.sqrt(curvature)).astype(np.float32), n_buckets)

    @property
    def shift(self) -> np.uint64:
        """Number of bits of a 32-bit hash that are dropped."""
        return np.uint64(33 - self.n_buckets.bit_length())

    def gradient(self, gradient: Floats) -> Floats:
        """Return the sketch of a gradient."""
        out = np.zeros(self.n_buckets)
        self.add(gradient, 0, out)
        return out

    def step(self, step: Floats) -> Floats:
        """Return the sketch of a step."""
        return self.gradient(step / np.square(self.factors, dtype=np.float64))

    def add(self, gradient: Floats, first: int, out: Floats) -> None:
        """Add the sketch of a gradient along the parameters from `first` on."""
        add_sketch(np.ascontiguousarray(gradient), self.factors, first, self.shift, out)
