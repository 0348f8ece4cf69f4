"""ALEG written out with loops over groups, for one logistic output on a ball: slow, and plain to check by eye."""

import numpy as np


def phi(u):
    return np.log1p(np.exp(-u)) if u > 0 else -u + np.log1p(np.exp(u))


def phi_slope(u):
    return -1.0 / (1.0 + np.exp(u))


def project(v, radius):
    return v * min(1.0, radius / max(np.linalg.norm(v), 1e-300))


def normalise(logits):
    p = np.exp(logits - logits.max())
    return p / p.sum()


def naive_aleg(groups, radius, draws, etas, alphas, shift=None):
    """Run ALEG.

    groups : list of arrays (n_i, d), labels absorbed in the rows.
    draws : draws[s][k][i] is the row of group i in step k of epoch s. etas, alphas : [s][k].
    Returns every z_{k+1} as (w, q), the last snapshot, and the step-weighted average of z_{k+1/2}.
    """
    m, d = len(groups), groups[0].shape[1]
    shift = np.zeros(m) if shift is None else shift
    SW, SQ = radius**2, 2 * np.log(m)
    w, theta = np.zeros(d), np.zeros(m)
    ws, qs, tb = w.copy(), np.full(m, 1 / m), theta.copy()
    W, Q, H, path = np.zeros(d), np.zeros(m), 0.0, []
    for s in range(len(draws)):
        U = [[x @ ws for x in group] for group in groups]
        Rv = np.array([np.mean([phi(u) for u in U[i]]) for i in range(m)]) - shift
        g = sum(qs[i] / len(groups[i]) * phi_slope(U[i][j]) * x for i in range(m) for j, x in enumerate(groups[i]))
        sum_w, sum_theta, sum_q, sum_a = np.zeros(d), np.zeros(m), np.zeros(m), 0.0
        for k in range(len(draws[s])):
            a, eta = alphas[s][k], etas[s][k]
            b_w, b_theta = a * ws + (1 - a) * w, a * tb + (1 - a) * theta
            wh, qh = project(b_w - SW * eta * g, radius), normalise(b_theta + SQ * eta * Rv)
            dr, dg = np.zeros(m), np.zeros(d)
            for i in range(m):
                j = draws[s][k][i]
                x, old = groups[i][j], U[i][j]
                new = x @ wh
                dr[i] = phi(new) - phi(old)
                dg += (qh[i] * phi_slope(new) - qs[i] * phi_slope(old)) * x
            w = project(b_w - SW * eta * (g + dg), radius)
            theta = b_theta + SQ * eta * (Rv + dr)
            sum_w, sum_theta, sum_q, sum_a = (
                sum_w + a * w,
                sum_theta + a * theta,
                sum_q + a * normalise(theta),
                sum_a + a,
            )
            W, Q, H = W + eta * wh, Q + eta * qh, H + eta
            path.append((w, normalise(theta)))
        ws, tb, qs = sum_w / sum_a, sum_theta / sum_a, sum_q / sum_a
    return path, (ws, qs), (W / H, Q / H)


def published_step(groups, radius, K):
    """The largest base step that the theorem allows, 1 / (L_z sqrt(5 K)), with L_z of Lemma 4.3; labels in the rows."""
    G = max(np.linalg.norm(x) for group in groups for x in group)
    L, D, log_m = G**2 / 4, radius / np.sqrt(2), np.log(len(groups))
    L_z = 2 * D * max(np.sqrt(2 * D**2 * L**2 + G**2 * log_m), G * np.sqrt(2 * log_m))
    return 1 / (L_z * np.sqrt(5 * K))


def published_aleg(groups, radius, draws, shift=None):
    """Run Algorithm 1 with the parameters of its theorem: constant epochs, alpha = 1 / K, the largest step."""
    S, K = len(draws), len(draws[0])
    eta = published_step(groups, radius, K)
    return naive_aleg(groups, radius, draws, [[eta] * K] * S, [[1 / K] * K] * S, shift)[2]


def first_stage_steps(groups, K, reading):
    """How far w moves along a gradient of a group alone, without any scaled norm, by the reading of the first stage.

    "theorem": 1 / (L sqrt(5 K)), the end of the range in Theorem 5.2, with the smoothness L of all rows. "group":
    1 / (sqrt(2) L_i sqrt(5 K)), where L_i is that of the group's own rows and sqrt(2) what Lemma 4.3 leaves of
    sqrt(2 D^2 L^2 + G^2 ln m) for a single group.
    """
    smoothness = np.array([max(x @ x for x in group) / 4 for group in groups])
    if reading == "theorem":
        return np.full(len(groups), 1 / (smoothness.max() * np.sqrt(5 * K)))
    return 1 / (smoothness * np.sqrt(10 * K))


def published_alem(groups, radius, draws, draws_alone, reading="group"):
    """Run Algorithm 2: ALEG on every group alone, then on the risks minus those of the averages.

    draws_alone : draws_alone[i] is that of group i alone, in the form of draws with a single group.
    Returns the groups' models, their risks, and the average (w, q) of the second stage.
    """
    S, K = len(draws_alone[0]), len(draws_alone[0][0])
    models = []
    for group, step, alone in zip(groups, first_stage_steps(groups, K, reading), draws_alone, strict=True):
        eta = step / radius**2  # by which naive_aleg multiplies steps of w
        models.append(naive_aleg([group], radius, alone, [[eta] * K] * S, [[1 / K] * K] * S)[2][0])
    models = np.array(models)
    risks = np.array([np.mean([phi(x @ w) for x in group]) for group, w in zip(groups, models, strict=True)])
    return models, risks, published_aleg(groups, radius, draws, risks)
