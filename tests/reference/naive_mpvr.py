"""MPVR written out with loops, for one logistic output on a ball and importance sampling: slow, and plain to check."""

import numpy as np

from tests.reference.naive_aleg import normalise, phi, phi_slope, project


def naive_mpvr(groups, radius, draws):
    """Run Algorithm 3 with the corrections of the errata and the step of its theorem.

    groups : list of arrays (n_i, d), labels absorbed in the rows.
    draws : draws[s][k] is the group and the row of it that step k of epoch s draws, each group equally often.
    Returns the last snapshot and the average of z_{k+1/2}, each as (w, q).
    """
    m, d, K = len(groups), groups[0].shape[1], len(draws[0])
    G = max(np.linalg.norm(x) for group in groups for x in group)
    L, D, log_m = G**2 / 4, radius / np.sqrt(2), np.log(m)
    constant = 2 * D * max(np.sqrt(2 * D**2 * L**2 * m + G**2 * m**2 * log_m), G * np.sqrt(2 * m * log_m))
    step = 0.99 / (np.sqrt(K) * constant)
    w, theta = np.zeros(d), np.zeros(m)
    ws, qs, tb = w, np.full(m, 1 / m), theta
    half_w, half_q, n = np.zeros(d), np.zeros(m), 0
    for epoch in draws:
        risks = np.array([np.mean([phi(x @ ws) for x in group]) for group in groups])
        gradient = sum(
            q / len(group) * phi_slope(x @ ws) * x for q, group in zip(qs, groups, strict=True) for x in group
        )
        points, logits, weights = [], [], []
        for i, j in epoch:
            b_w, b_theta = ws / K + (1 - 1 / K) * w, tb / K + (1 - 1 / K) * theta
            wh = project(b_w - 2 * D**2 * step * gradient, radius)
            qh = normalise(b_theta + 2 * log_m * step * risks)
            x, change = groups[i][j], np.zeros(m)
            change[i] = m * (phi(x @ wh) - phi(x @ ws))
            correction = m * (qh[i] * phi_slope(x @ wh) - qs[i] * phi_slope(x @ ws)) * x
            w = project(b_w - 2 * D**2 * step * (gradient + correction), radius)
            theta = b_theta + 2 * log_m * step * (risks + change)
            half_w, half_q, n = half_w + wh, half_q + qh, n + 1
            points, logits, weights = [*points, w], [*logits, theta], [*weights, normalise(theta)]
        ws, tb, qs = np.mean(points, axis=0), np.mean(logits, axis=0), np.mean(weights, axis=0)
    return (ws, qs), (half_w / n, half_q / n)
