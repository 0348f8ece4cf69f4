"""Products of sparse rows with themselves, and their sums over groups."""

from groupdro.kernels.compile import compiled

__all__ = ["add_csr_by_group", "add_csr_gram"]


@compiled
def add_csr_gram(data, indices, indptr, weights, half):
    """Add to `half` a matrix whose sum with its transpose is X' diag(weights) X.

    Each pair of entries of a row is multiplied once, and the square of an entry is halved.
    """
    for i in range(weights.size):
        for a in range(indptr[i], indptr[i + 1]):
            scaled = weights[i] * data[a]
            sums = half[indices[a]]
            sums[indices[a]] += 0.5 * scaled * data[a]
            for b in range(a + 1, indptr[i + 1]):
                sums[indices[b]] += scaled * data[b]


@compiled
def add_csr_by_group(data, indices, indptr, offsets, rows, weights, v, out):
    """Add to out[i], for every output, the sum over members e of group i of weights[e] v[row] x_row.

    If `rows` is empty, member e is row e. v is (n_rows, n_outputs), out is (n_groups, n_features, n_outputs).
    """
    n_outputs = v.shape[1]
    for i in range(offsets.size - 1):
        sums = out[i]
        for e in range(offsets[i], offsets[i + 1]):
            row = rows[e] if rows.size else e
            for k in range(indptr[row], indptr[row + 1]):
                scaled = weights[e] * data[k]
                for c in range(n_outputs):
                    sums[indices[k], c] += scaled * v[row, c]
