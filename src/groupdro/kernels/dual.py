"""A sweep of ascent on the dual over groups of sparse rows; see `groupdro.solvers.dual_ascent` for the method.

With slope s_e of the loss for member e, whose weight in its group is a_e, group i contributes the vector
v_i = -sum_e a_e s_e x_e. The model is w = sum_i q_i v_i / penalty. Its intercept is b = centre + proximal * t, where
t = -sum_i q_i sum_e a_e s_e.

One of several workers has the groups of its own rows only. A rest of the model, which stays as it is during a sweep, is
then added to w.
"""

import numpy as np

from groupdro.kernels.compile import compiled
from groupdro.kernels.losses import curvature, slope, value
from groupdro.kernels.prefetch import AHEAD, prefetch

__all__ = ["add_dual_sums", "dual_sweep"]

_ITERATIONS = 100
_EXACT = 1e-12  # relative change of an output at which its equation counts as solved
_MOST = 0.5  # share of all weight that one step may move to a group
_SCALES = 1e-6, 1e6  # of the common factor, beyond which it is multiplied out


@compiled
def _meeting_output(code, parameter, y, u, stiffness, s):
    """Return the output z at which the row's own slope keeps it: z + stiffness * slope(z) = u + stiffness * s."""
    target = u + stiffness * s
    z = u
    excess = z + stiffness * slope(code, parameter, z, y) - target
    low, high = z - abs(excess), z + abs(excess)  # the left side rises at least as fast as z
    for _ in range(_ITERATIONS):
        if excess > 0.0:
            high = z
        else:
            low = z
        step = excess / (1.0 + stiffness * curvature(code, parameter, z, y))
        there = z - step
        if not low < there < high:
            there = 0.5 * (low + high)
        moved = abs(there - z)
        z = there
        if moved <= _EXACT * (1.0 + abs(z)):
            break
        excess = z + stiffness * slope(code, parameter, z, y) - target
    return z


@compiled
def _multiply_out(features, q, scale):
    """Multiply the model and the weights by their common factor."""
    for j in range(features.size):
        features[j].w *= scale
    for i in range(q.size):
        q[i] *= scale


@compiled
def add_dual_sums(offsets, weights, point, sums):
    """Add to the `DUAL_SUMS` those of a point without a rest."""
    for j in range(point.features.size):
        sums.square += point.features[j].w * point.features[j].w
    for i in range(point.q.size):
        sums.height += point.q[i] * point.heights[i]
        for e in range(offsets[i], offsets[i + 1]):
            sums.t -= point.q[i] * weights[e] * point.slopes[e]


@compiled
def dual_sweep(flat, members, order, levels, point, sums, penalty, proximal, relaxation):
    """Visit groups in order: fit the slopes of each one's rows in turn, then move weight to or from it.

    Parameters
    ----------
    flat : CsrData
        Rows, labels and loss.
    members : tuple of ndarray
        Where each group's members begin and end; their rows (empty if member e is row e); their weights.
    order : ndarray of int
        Groups to visit.
    levels : ndarray of shape (m,)
        Constants added to the groups' risks.
    point : DualPoint
        The point (changed).
    sums : record of `DUAL_SUMS`
        Sums at the point (changed).
    penalty, proximal : float
        Of the L2 penalty and of the intercept; proximal is 0 without one.
    relaxation : float
        Factor on the length of the best step of a weight; with 0, weights stay.
    """
    data, indices, indptr, y, offset, code, parameter, _ = flat
    own = 1 if data.size > 1 else 0  # one value may stand for all entries
    offsets, rows, weights = members
    slopes, heights, q, features, rest, centre = point
    is_part = rest.size > 0
    scale, height, square, total, across = 1.0, sums.height, sums.square, sums.t, sums.on_rest
    for i in order:
        first, last = offsets[i], offsets[i + 1]
        if first == last:
            continue
        share, free = scale * q[i], 0.0  # of all weight; the group's part in t
        on_w, on_rest, on_v = 0.0, 0.0, 0.0  # v_i times w, the rest, and v_i
        own_height = levels[i]  # the mean of minus the conjugates
        for e in range(first, last):
            r = rows[e] if rows.size else e
            begin, end = indptr[r], indptr[r + 1]
            wx, rest_x, vx, xx = 0.0, 0.0, 0.0, 0.0
            for n in range(begin, end):
                ahead = n + AHEAD
                if ahead < indices.size:
                    if is_part:
                        prefetch(rest, indices[ahead])  # type: ignore[call-arg]
                    prefetch(features, indices[ahead])  # type: ignore[call-arg]
                x = 1.0 * data[n * own]
                feature = features[indices[n]]
                wx += x * feature.w
                vx += x * feature.v
                xx += x * x
                if is_part:
                    rest_x += x * rest[indices[n]]
            wx *= scale
            weight = share * weights[e]
            stiffness = weight * (xx / penalty + proximal)
            shift = offset[r] if offset.size else 0.0
            u = wx + rest_x + centre + proximal * total + shift
            z = _meeting_output(code, parameter, y[r], u, stiffness, slopes[e])
            s = slope(code, parameter, z, y[r])
            own_height += weights[e] * (value(code, parameter, z, y[r]) - s * (z - shift))
            by_w, by_v = weight * (slopes[e] - s) / penalty, -weights[e] * s
            for n in range(begin, end):
                x = 1.0 * data[n * own]
                feature = features[indices[n]]
                feature.w += by_w / scale * x
                feature.v += by_v * x
            square += by_w * (2.0 * wx + by_w * xx)
            across += by_w * rest_x
            on_w += by_w * vx + by_v * (wx + by_w * xx)
            on_rest += by_v * rest_x
            on_v += by_v * (2.0 * vx + by_v * xx)
            total += by_w * penalty
            free += by_v
            slopes[e] = s
        height += share * (own_height - heights[i])
        heights[i] = own_height
        step = 0.0
        if relaxation > 0.0 and share < 1.0:
            # Along the line on which the group gains weight and all others lose it in proportion.
            b = centre + proximal * total
            gain = own_height - on_w - on_rest - free * b - (height - penalty * (square + across) - total * b)
            bend = on_v / penalty - 2.0 * on_w + penalty * square + proximal * (free - total) ** 2
            best = relaxation * gain / bend if bend > 0.0 else np.sign(gain) * _MOST
            step = min(max(best, -share / (1.0 - share)), _MOST)
        scale *= 1.0 - step
        for e in range(first, last):
            r = rows[e] if rows.size else e
            for n in range(indptr[r], indptr[r + 1]):
                feature = features[indices[n]]
                feature.w += step / (penalty * scale) * feature.v
                feature.v = 0.0
        q[i] = max(share * (1.0 - step) + step, 0.0) / scale
        square = (1.0 - step) ** 2 * square + step / penalty * (2.0 * (1.0 - step) * on_w + step / penalty * on_v)
        across += step * (on_rest / penalty - across)
        height += step * (own_height - height)
        total += step * (free - total)
        if not _SCALES[0] < scale < _SCALES[1]:
            _multiply_out(features, q, scale)
            scale = 1.0
    _multiply_out(features, q, scale)
    sums.height, sums.square, sums.t, sums.on_rest = height, square, total, across
