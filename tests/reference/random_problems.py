"""Random problems whose certificates are held against CVXPY with Clarabel.

    python -m tests.reference.random_problems 1000
    python -m tests.reference.random_problems 1000 --offsets
    python -m tests.reference.random_problems 500 --elastic
    python -m tests.reference.random_problems 500 --means

prints how many were tried, by loss, domain and objective, and every bound that was wrong.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

import groupdro as gd
from groupdro.certificate import Certificate, CutAggregate, balance, linearise
from groupdro.oracle import Oracle
from groupdro.problem import GroupMinima, Problem
from tests.reference.convex import group_minima, worst_value

LOSSES = ("logistic", "softmax", "squared", "huber", "squared_hinge")
OF_MEANS = ("poisson", "gamma", "tweedie", "quantile")
DOMAINS = ("ball", "penalty", "both", "simplex")
TOLERANCE = 1e-7


@dataclass(frozen=True)
class Verdict:
    """What came of one problem: nothing wrong, left out, or the bounds that were wrong."""

    kind: str
    accurate: bool
    violations: tuple[str, ...]
    reference_gap: float  # certified gap at the reference solution, relative to max(1, optimum)


def elastic_net(rng: np.random.Generator, d: int) -> gd.domains.ElasticNetDomain:
    """Draw penalties, either of which may be zero, and bounds."""
    l1, l2 = 10.0 ** rng.uniform(-3, -0.3), 10.0 ** rng.uniform(-3, 0)
    ratio = rng.choice(["both", "l1", "l2"], p=[0.4, 0.4, 0.2])
    ends = rng.choice(["none", "positive", "each"], p=[0.5, 0.2, 0.3])
    if ends == "each":
        low, high = -rng.exponential(0.3, d), rng.exponential(0.3, d)
        low[rng.random(d) < 0.3], high[rng.random(d) < 0.3] = 0.0, np.inf
    else:
        low, high = 0.0 if ends == "positive" else -np.inf, np.inf
    return gd.domains.ElasticNetDomain(l1=l1 * (ratio != "l2"), l2=l2 * (ratio != "l1"), low=low, high=high)


def make_problem(
    seed: int, *, offsets: bool = False, elastic: bool = False, losses: tuple[str, ...] = LOSSES
) -> tuple[Problem, str]:
    """Draw a problem; with `offsets`, the same one with scores to correct; with `elastic`, under an elastic net."""
    rng = np.random.default_rng([seed, 2403])
    loss_name, domain_name = rng.choice(losses), rng.choice(DOMAINS)
    if loss_name == "softmax" and domain_name == "simplex":
        domain_name = "both"  # the simplex is for one output
    storage = rng.choice(["dense", "csr", "float32"])
    m = int(rng.choice([1, 2, 3, 5, 10, 25, 50]))
    d = int(rng.integers(1, 7))
    overlapping, weighted = rng.random() < 0.25, rng.random() < 0.3
    intercept = domain_name != "simplex" and rng.random() < 0.4
    # Unbalanced: many groups of one row, a few large ones.
    sizes = np.maximum(1, np.floor(rng.pareto(1.0, m) * 2 + (rng.random(m) < 0.5) * 3)).astype(int).clip(max=40)
    groups = np.repeat(np.arange(m), sizes)
    n = len(groups)
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-1, 1, d)
    if storage == "csr":
        X *= rng.random((n, d)) < 0.5
    signal = X @ rng.normal(size=d)
    if loss_name in ("logistic", "squared_hinge"):
        y = np.where(signal + rng.normal(size=n) * np.abs(signal).mean() > 0, 1.0, -1.0)
        if intercept and (y == y[0]).all():
            intercept = False
    elif loss_name == "softmax":
        classes = int(rng.integers(2, 4))
        y = rng.integers(0, classes, n)
        intercept = intercept and len(np.unique(y)) == y.max() + 1 and y.max() > 0
    elif loss_name in ("poisson", "gamma", "tweedie"):
        mean = 10.0 ** rng.uniform(-0.5, 2) * np.exp(signal / (np.abs(signal).max() or 1.0))
        y = {"poisson": rng.poisson(mean), "gamma": rng.gamma(2.0, mean) + 1e-3, "tweedie": 1.0 * rng.poisson(mean)}[
            str(loss_name)
        ] * (rng.exponential(size=n) if loss_name == "tweedie" else 1.0)
        intercept = intercept and (y > 0).any()
    else:
        y = signal + rng.standard_t(3, n) * 10.0 ** rng.uniform(-1, 0.5)
    loss = {
        "logistic": gd.losses.Logistic(),
        "softmax": gd.losses.Softmax(),
        "squared": gd.losses.Squared(),
        "huber": gd.losses.Huber(float(rng.uniform(0.3, 2))),
        "squared_hinge": gd.losses.SquaredHinge(),
        "poisson": gd.losses.Poisson(),
        "gamma": gd.losses.Gamma(),
        "tweedie": gd.losses.Tweedie(float(rng.uniform(1.1, 1.9))) if loss_name == "tweedie" else None,
        "quantile": gd.losses.Quantile(float(rng.uniform(0.05, 0.95))) if loss_name == "quantile" else None,
    }[str(loss_name)]
    radius, penalty = float(10.0 ** rng.uniform(-1, 0.7)), float(10.0 ** rng.uniform(-2.5, 0))
    domain = {
        "ball": gd.domains.L2Domain(radius=radius),
        "penalty": gd.domains.L2Domain(penalty=penalty),
        "both": gd.domains.L2Domain(radius=radius, penalty=penalty),
        "simplex": gd.domains.SimplexDomain(),
    }[str(domain_name)]
    membership = groups
    if overlapping:
        own = groups[:, None] == np.arange(m)
        membership = own | (rng.random((n, m)) < 0.1)
    weight = rng.random(n) * (rng.random(n) < 0.8) if weighted else None
    if weight is not None:  # some rows weigh nothing, but no whole group does
        weight[np.unique(groups, return_index=True)[1]] += 0.1
    stored = sp.csr_array(X) if storage == "csr" else X.astype(np.float32) if storage == "float32" else X
    order = rng.permutation(n)
    objective = "MERO" if rng.random() < 0.35 else "GDRO"
    offset = None
    if offsets:
        outputs = (n, max(2, int(y.max()) + 1)) if loss_name == "softmax" else n
        offset = rng.normal(size=outputs) * 10.0 ** rng.uniform(-1, 1)
    data = gd.GroupedData.from_arrays(
        stored[order],
        y[order],
        membership[order],
        None if weight is None else weight[order],
        offset=None if offset is None else offset[order],
    )
    if elastic:
        domain, domain_name = elastic_net(rng, d), "elastic"
    problem = Problem(data, loss, domain, fit_intercept=bool(intercept))
    return problem, f"{loss_name} {domain_name} {objective}"


def judge(seed: int, *, offsets: bool = False, elastic: bool = False, losses: tuple[str, ...] = LOSSES) -> Verdict:
    """Hold every kind of bound of one problem against the reference."""
    problem, kind = make_problem(seed, offsets=offsets, elastic=elastic, losses=losses)
    rng = np.random.default_rng([seed, 1])
    regret = kind.endswith("MERO")
    minima, accurate = group_minima(problem) if regret else (None, True)
    reference = worst_value(problem, minima)
    if not (accurate and reference.accurate):
        return Verdict(kind, False, (), np.nan)

    # Excess risks have the errors of both programs of the reference, each relative to the risks.
    risks = 0.0 if minima is None else float(np.abs(minima).max())
    optimum, size = reference.value, max(1.0, abs(reference.value), risks) * (2.0 if regret else 1.0)
    w = _feasible(problem, reference.w)
    there = float((Oracle(problem).risks(w) - (0.0 if minima is None else minima)).max()) + problem.domain.penalty_at(
        problem.coef(w)
    )
    if abs(there - optimum) > 0.5 * TOLERANCE * size:
        return Verdict(kind, False, (), np.nan)  # a value that the reference's own w does not have, once made feasible
    violations = []

    def check(name: str, lower: float, upper: float = np.inf) -> None:
        if lower > optimum + TOLERANCE * size or upper < optimum - TOLERANCE * size or np.isnan([lower, upper]).any():
            violations.append(f"seed {seed} {kind}: {name} gives [{lower!r}, {upper!r}], optimum {optimum!r}")

    # 1. A solver's certificate, of a run too short to have converged.
    if np.isfinite(problem.loss.smoothness):
        solver = gd.solvers.ALEGTheory(guarantee=not problem.fit_intercept)
        if regret:
            solver = gd.solvers.ALEM(solver, solver, stage_one_passes=7)
        passes = 50 if regret else 12
        result = gd.solve(problem, solver, max_passes=passes, tol=0.0, seed=seed)
        check("solver", result.lower_bound, result.upper_bound)
        if result.average is not None:
            check("average", result.average.lower, result.average.upper)
    default = gd.solve(problem, "alem" if regret else "auto", tol=1e-5, max_passes=300, seed=seed)
    check(f"default ({default.solver})", default.lower_bound, default.upper_bound)
    measured = gd.solve(problem, "aleg", tol=1e-3, max_passes=40, seed=seed)
    if not regret:
        check("aleg", measured.lower_bound, measured.upper_bound)
    for name, found, tol in (("default", default, 1e-5), ("aleg", measured, 1e-3)):
        allowed = tol * (max(found.upper_bound, tol) if found is default and regret else abs(found.upper_bound))
        if found.converged and found.upper_bound - found.lower_bound > max(allowed, found.atol) * (1 + 1e-9):
            violations.append(f"seed {seed} {kind}: {name} says converged at {found!r}")

    if elastic and not default.converged:
        violations.append(f"seed {seed} {kind}: the default ends {default!r}")

    # 2. Every kind of bound at points that no solver would visit, with minima as rough as these.
    if minima is not None:
        slack = rng.random(problem.n_groups) * 0.01
        upper, lower = minima + slack, minima - slack[::-1]
        problem = problem.with_minima(GroupMinima(upper, lower, centre=upper))
    oracle = Oracle(problem)
    aggregate = CutAggregate(oracle)
    for _ in range(4):
        w = _random_point(problem, rng)
        q = rng.dirichlet(np.full(problem.n_groups, 0.5))
        at = oracle.evaluate(w, q)
        check("upper", -np.inf, problem.objective(w, at.group_risks))
        domain = problem.domain.within(problem.objective(w, at.group_risks) + problem.baseline.upper.min())
        check("cuts", aggregate.add(at, domain))
        if problem.fit_intercept:
            check("intercept", balance(oracle, at).bound(problem, domain))
            continue
        check("linearisation", linearise(oracle, at).bound(problem, domain))

    # 3. The bounds are not vacuous: at the reference's own solution they nearly meet.
    if minima is not None:
        problem = problem.with_minima(GroupMinima.exact(minima))
    oracle = Oracle(problem)
    certificate = Certificate(oracle)
    certificate.observe(oracle.evaluate(_feasible(problem, reference.w), reference.q))
    check("reference point", certificate.lower, certificate.upper)
    return Verdict(kind, True, tuple(violations), certificate.gap / size)


def _random_point(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    w = rng.normal(size=problem.shape)
    return _feasible(problem, w if problem.domain.start((1,)).sum() == 0 else np.abs(w))


def _feasible(problem: Problem, w: np.ndarray) -> np.ndarray:
    w = np.array(w, dtype=np.float64)
    coef = problem.coef(w)
    if isinstance(problem.domain, gd.domains.SimplexDomain):
        coef[...] = np.maximum(coef, 0.0)
        coef /= coef.sum()
    elif isinstance(problem.domain, gd.domains.ElasticNetDomain):
        coef[...] = problem.domain.feasible(coef)
    else:
        coef *= min(1.0, problem.domain.radius / max(np.linalg.norm(coef), 1e-300))
    return w


def judge_all(seeds: range, workers: int = 2, **kind: Any) -> Iterator[Verdict]:
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(partial(judge, **kind), seeds, chunksize=5)


def main(count: int, **kind: Any) -> int:
    kinds, wrong, left_out, gaps = Counter(), [], 0, []
    for verdict in judge_all(range(count), **kind):
        kinds[verdict.kind] += 1
        wrong += verdict.violations
        left_out += not verdict.accurate
        gaps.append(verdict.reference_gap)
    for kind, tried in sorted(kinds.items()):
        print(f"{kind:36} {tried:5}")
    print(*wrong, sep="\n")
    gaps = np.array([gap for gap in gaps if np.isfinite(gap)])
    print(f"certified gap at the reference solution: median {np.median(gaps):.1e}, largest {gaps.max():.1e}")
    print(f"{count} problems, {left_out} left out as inaccurate references, {len(wrong)} bounds wrong")
    return bool(wrong)


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    flags = {name: f"--{name}" in sys.argv for name in ("offsets", "elastic")}
    losses = OF_MEANS if "--means" in sys.argv else LOSSES
    sys.exit(main(int(given[0]) if given else 150, losses=losses, **flags))
