"""Random combinations of columns: each column is added, with a random sign, to one of a few buckets (a count sketch).

`factors` has the signed scale of each column. The bucket of a column is a hash of its number, which is cheaper than a
table: reading one would cost as much as the entry itself.
"""

import numpy as np

from groupdro.kernels.compile import compiled
from groupdro.kernels.prefetch import AHEAD, prefetch

__all__ = ["add_csr_sketches", "add_sketch"]

_GOLDEN = np.uint64(2654435769)  # 2^32 divided by the golden ratio, whose multiples spread evenly
_WORD = np.uint64(0xFFFFFFFF)


@compiled
def _bucket(column, shift):
    return ((np.uint64(column) * _GOLDEN) & _WORD) >> shift


@compiled
def add_sketch(values, factors, first, shift, out):
    """Add the sketch of values, which belong to the columns from `first` on."""
    for j in range(values.size):
        out[_bucket(first + j, shift)] += values[j] * factors[first + j]


@compiled
def add_csr_sketches(rows, offsets, members, weights, v, factors, shift, out):
    """Add to out[i] the sketch of the sum over members e of group i of weights[e] v[row] x_row.

    Parameters
    ----------
    rows : tuple of ndarray
        data, indices and indptr, as in `kernels.csr`.
    offsets, members, weights : ndarray
        Where each group's members begin and end; their rows, empty if member e is row e; their weights.
    v : ndarray of shape (n_rows,)
        Factor of each row.
    factors : ndarray of float32
        Signed scale of each column.
    shift : uint64
        32 minus the binary logarithm of the number of buckets.
    out : ndarray of shape (n_groups, n_buckets)
        Results, accumulated.
    """
    data, indices, indptr = rows
    own = 1 if data.size > 1 else 0
    end = indptr[-1] - AHEAD
    for i in range(offsets.size - 1):
        total = out[i]
        for e in range(offsets[i], offsets[i + 1]):
            row = members[e] if members.size else e
            scale = weights[e] * v[row]
            for n in range(indptr[row], indptr[row + 1]):
                j = indices[n]
                if n < end:
                    prefetch(factors, indices[n + AHEAD])  # type: ignore[call-arg]
                total[_bucket(j, shift)] += scale * data[n * own] * factors[j]
