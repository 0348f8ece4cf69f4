"""Sums per value of many coded columns at once, from which a search scores all conditions in one pass over the rows."""

from groupdro.kernels.compile import compiled

__all__ = ["column_histograms"]


@compiled
def column_histograms(codes, rows, values, sums):
    """Set sums[j, c] to the sum of values[row] over the given rows whose code in column j is c."""
    sums[:] = 0.0
    for k in range(rows.size):
        row = rows[k]
        weight, first, second = values[row, 0], values[row, 1], values[row, 2]
        for j in range(codes.shape[1]):
            c = codes[row, j]
            sums[j, c, 0] += weight
            sums[j, c, 1] += first
            sums[j, c, 2] += second
