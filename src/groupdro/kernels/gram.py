"""Products of sparse rows with themselves."""

from groupdro.kernels.compile import compiled

__all__ = ["add_csr_gram"]


@compiled
def add_csr_gram(data, indices, indptr, weights, half):
    """Add to `half` a matrix that, with its transpose, makes X' diag(weights) X.

    Each pair of entries of a row is multiplied once, and an entry's own square is halved.
    """
    for i in range(weights.size):
        for a in range(indptr[i], indptr[i + 1]):
            scaled = weights[i] * data[a]
            sums = half[indices[a]]
            sums[indices[a]] += 0.5 * scaled * data[a]
            for b in range(a + 1, indptr[i + 1]):
                sums[indices[b]] += scaled * data[b]
