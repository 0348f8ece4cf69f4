"""Products with compressed sparse rows.

`data` has one value per entry, or a single one that all entries share, as in one-hot rows: entry n has the value
``data[n * own]``, where `own` is 1 or 0.

Sums over rows are compensated (Knuth's two-sum), so that they lose nothing to the number of rows. The cost is hidden:
both parts of a sum share a cache line, and waiting for it takes most of the time.
"""

from groupdro.kernels.compile import compiled
from groupdro.kernels.losses import curvature, slope, value
from groupdro.kernels.prefetch import AHEAD, prefetch

__all__ = [
    "CHANGES",
    "DERIVATIVE",
    "PARAMETER",
    "SHORT",
    "SQUARES",
    "VALUES",
    "add_csr_by_group",
    "add_csr_gram",
    "add_csr_products",
    "csr_moments",
    "csr_outputs",
    "csr_pass",
    "most_entries",
]

SHORT = 512  # rows whose sum is not compensated

# Columns of tables with one row per feature. They are not separate arrays because all that a pass needs of a feature
# should lie in one cache line, and not records because their number varies. A compensated sum takes two columns.
PARAMETER, DERIVATIVE, CHANGES = 0, 1, 3  # of `csr_pass`
SQUARES, VALUES = 0, 2  # of `csr_moments`


@compiled
def _add(sums, j, k, term):
    """Add a number to sums[j, k], and what rounding takes away to sums[j, k + 1]."""
    before = sums[j, k]
    after = before + term
    part = after - before
    sums[j, k + 1] += (before - (after - part)) + (term - part)
    sums[j, k] = after


@compiled
def csr_outputs(data, indices, indptr, w, out):
    """Set out[r, c] to the product of row r with w[:, c]."""
    own = 1 if data.size > 1 else 0
    end = indptr[-1] - AHEAD
    for r in range(indptr.size - 1):
        out[r] = 0.0
        for n in range(indptr[r], indptr[r + 1]):
            if n < end:
                prefetch(w, indices[n + AHEAD])  # type: ignore[call-arg]
            for c in range(w.shape[1]):
                out[r, c] += data[n * own] * w[indices[n], c]


@compiled
def most_entries(indptr, rows):
    """Return the largest number of entries that a step draws; `rows` has one row of draws per step."""
    longest = 0
    for k in range(rows.shape[0]):
        length = 0
        for e in range(rows.shape[1]):
            length += indptr[rows[k, e] + 1] - indptr[rows[k, e]]
        longest = max(longest, length)
    return longest


@compiled
def add_csr_products(data, indices, indptr, v, sums):
    """Add to sums[:, 2 * c] and the column after it the compensated sum over rows of v[r, c] x_r."""
    own = 1 if data.size > 1 else 0
    end = indptr[-1] - AHEAD
    for r in range(indptr.size - 1):
        for n in range(indptr[r], indptr[r + 1]):
            if n < end:
                prefetch(sums, indices[n + AHEAD])  # type: ignore[call-arg]
            for c in range(v.shape[1]):
                _add(sums, indices[n], 2 * c, data[n * own] * v[r, c])


@compiled
def csr_moments(data, indices, indptr, weights, norms, sums):
    """Set the squared norm of each row; add the weighted squares and values of each column to sums, compensated.

    sums has the shape (d, 4), with columns SQUARES and VALUES, each followed by what rounding took from it.
    """
    own = 1 if data.size > 1 else 0
    end = indptr[-1] - AHEAD
    for r in range(indptr.size - 1):
        square = 0.0
        for n in range(indptr[r], indptr[r + 1]):
            if n < end:
                prefetch(sums, indices[n + AHEAD])  # type: ignore[call-arg]
            x = 1.0 * data[n * own]
            square += x * x
            _add(sums, indices[n], SQUARES, weights[r] * x * x)
            _add(sums, indices[n], VALUES, weights[r] * x)
        norms[r] = square


@compiled
def csr_pass(flat, first, last, row_weights, norms, along, margins, losses, table):
    """Set margins and losses of rows first .. last, add their weighted gradient, and return the mass of its terms.

    The same pass may add up how the gradient changes along some directions.

    Parameters
    ----------
    flat : CsrData
        Rows, labels and loss.
    first, last : int
        The rows.
    row_weights, norms : ndarray of shape (n,)
        Weight and norm of each row.
    along : ndarray of shape (n, k)
        Change of the outputs along each direction.
    margins, losses : ndarray of shape (n,)
        Outputs and losses (set).
    table : ndarray of shape (p, 3 + 2 k) or wider
        For each parameter, the intercept last if there is one: its value, its derivative and what rounding took from
        it, and the same for its change along each direction (accumulated).
    """
    data, indices, indptr, y, offset, code, parameter, intercept = flat
    own = 1 if data.size > 1 else 0
    mass = 0.0
    free, end = table.shape[0] - 1, indptr[last] - AHEAD
    for r in range(first, last):
        u = (table[free, PARAMETER] if intercept else 0.0) + (offset[r] if offset.size else 0.0)
        for n in range(indptr[r], indptr[r + 1]):
            u += data[n * own] * table[indices[n], PARAMETER]
            if n < end:
                prefetch(table, indices[n + AHEAD])  # type: ignore[call-arg]
        margins[r] = u
        losses[r] = value(code, parameter, u, y[r])
        c = row_weights[r] * slope(code, parameter, u, y[r])
        bent = row_weights[r] * curvature(code, parameter, u, y[r]) if along.shape[1] else 0.0
        mass += abs(c) * norms[r]
        if intercept:
            _add(table, free, DERIVATIVE, c)
            for k in range(along.shape[1]):
                _add(table, free, CHANGES + 2 * k, bent * along[r, k])
        for n in range(indptr[r], indptr[r + 1]):
            _add(table, indices[n], DERIVATIVE, c * data[n * own])
            for k in range(along.shape[1]):
                _add(table, indices[n], CHANGES + 2 * k, bent * along[r, k] * data[n * own])
    return mass


@compiled
def add_csr_gram(data, indices, indptr, weights, half):
    """Add to `half` a matrix whose sum with its transpose is X' diag(weights) X.

    Each pair of entries of a row is multiplied once, and the square of an entry is halved.
    """
    own = 1 if data.size > 1 else 0
    for i in range(weights.size):
        for a in range(indptr[i], indptr[i + 1]):
            scaled = weights[i] * data[a * own]
            sums = half[indices[a]]
            sums[indices[a]] += 0.5 * scaled * data[a * own]
            for b in range(a + 1, indptr[i + 1]):
                sums[indices[b]] += scaled * data[b * own]


@compiled
def add_csr_by_group(rows, offsets, members, weights, v, sums, out):
    """Add to out[i], for every output, the sum over members e of group i of weights[e] v[row] x_row.

    Parameters
    ----------
    rows : tuple of ndarray
        data, indices and indptr.
    offsets, members, weights : ndarray
        Where each group's members begin and end; their rows, empty if member e is row e; their weights.
    v : ndarray of shape (n_rows, n_outputs)
        Factors.
    sums : ndarray of shape (n_features, 2 * n_outputs)
        Work space: a group of many rows is summed here, compensated.
    out : ndarray of shape (n_groups, n_features, n_outputs)
        Results, accumulated.
    """
    data, indices, indptr = rows
    own, n_outputs = 1 if data.size > 1 else 0, v.shape[1]
    for i in range(offsets.size - 1):
        total = out[i]
        many = offsets[i + 1] - offsets[i] > SHORT
        if many:
            sums[:] = 0.0
        for e in range(offsets[i], offsets[i + 1]):
            row = members[e] if members.size else e
            for k in range(indptr[row], indptr[row + 1]):
                scaled = weights[e] * data[k * own]
                for c in range(n_outputs):
                    if many:
                        _add(sums, indices[k], 2 * c, scaled * v[row, c])
                    else:
                        total[indices[k], c] += scaled * v[row, c]
        if many:
            for j in range(sums.shape[0]):
                for c in range(n_outputs):
                    total[j, c] += sums[j, 2 * c] + sums[j, 2 * c + 1]
