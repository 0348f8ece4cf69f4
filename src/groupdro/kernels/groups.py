"""Sums over the members of groups, in time linear in the number of members for any number of groups.

Group i has the members offsets[i] .. offsets[i+1]. Member e is the stored row members[e], or row e itself if `members`
is empty. Its weight in the group is weights[e], or 1 / n_i if `weights` is empty.
"""

from groupdro.kernels.compile import compiled

__all__ = ["group_means", "spread_to_rows"]


@compiled
def group_means(values, offsets, members, weights, means):
    """Set means[i] to the weighted mean of values[row] over group i."""
    for i in range(offsets.size - 1):
        # Compensated summation (Neumaier): equal terms round the same way, and a plain sum of 10^6 of them loses five
        # digits.
        total = 0.0
        lost = 0.0
        for e in range(offsets[i], offsets[i + 1]):
            row = members[e] if members.size else e
            term = (weights[e] if weights.size else 1.0) * values[row]
            new = total + term
            lost += (total - new) + term if abs(total) >= abs(term) else (term - new) + total
            total = new
        total += lost
        means[i] = total if weights.size else total / (offsets[i + 1] - offsets[i])


@compiled
def spread_to_rows(q, offsets, members, weights, row_weights):
    """Set row_weights[row] to the sum of q_i times the row's weight over the groups that contain it."""
    row_weights[:] = 0.0
    for i in range(offsets.size - 1):
        uniform = q[i] / (offsets[i + 1] - offsets[i])
        for e in range(offsets[i], offsets[i + 1]):
            row = members[e] if members.size else e
            row_weights[row] += q[i] * weights[e] if weights.size else uniform
