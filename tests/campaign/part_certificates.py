"""Certificates of thousands of drawn problems, held against plain formulas in extended precision.

A failure prints the description that was drawn, which makes the problem again:

    from tests.campaign.part_certificates import Description, judge
    judge(Description(...))
"""

import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import groupdro as gd
from groupdro.problem import GroupMinima
from tests.campaign.drawn_solvers import SOLVERS, solvers_for
from tests.campaign.exact import PlainProblem
from tests.campaign.frame import Check, Tally
from tests.campaign.judging import RELATIVE, Claim, Truth, hold_against, map_cases
from tests.campaign.plain_sets import KINDS, draw_set
from tests.reference.convex import Reference, worst_value
from tests.reference.convex import group_minima as minima_by_cvxpy

LOSSES = ("logistic", "softmax", "squared", "huber", "squared_hinge")
OBJECTIVES = ("risk", "regret", "given")  # the worst risk; the worst regret; the regret against given minima
SHAPES = ("plain", "grid", "twins", "zeros", "scaled", "one class", "exact fit")
STORAGE = ("float64", "float32", "csr float64", "csr float32", "memmap float64", "memmap float32")
BLOCK = 250  # problems that are drawn together


@dataclass(frozen=True)
class Description:
    """All that makes a problem and its run."""

    number: int
    loss: str = "logistic"
    domain: str = "ball"
    objective: str = "risk"
    weights: str = "simplex"
    solver: str = "auto"
    shape: str = "plain"
    storage: str = "float64"
    sizes: str = "few"
    m: int = 2
    d: int = 2
    intercept: bool = False
    overlapping: bool = False
    weighted: bool = False
    offsets: bool = False
    warm: bool = False
    size_of_y: float = 1.0
    radius: float = 1.0
    penalty: float = 0.1
    delta: float = 1.0
    tol: float = 1e-4
    atol: float = 0.0
    max_passes: float = 300.0


@st.composite
def descriptions(draw: Any, number: int = 0) -> Description:
    """Draw a description; the numbers of X and y follow from `number`, which the caller replaces."""
    loss = draw(st.sampled_from(LOSSES))
    domain = draw(st.sampled_from(("ball", "penalty", "both", "simplex")[: 3 if loss == "softmax" else 4]))
    objective, storage = draw(st.sampled_from(OBJECTIVES)), draw(st.sampled_from(STORAGE))
    intercept = domain != "simplex" and draw(st.booleans())
    weights = draw(st.sampled_from(KINDS))
    solvers = solvers_for(loss, domain, objective, storage, intercept=intercept)
    return Description(
        number=number,
        loss=loss,
        domain=domain,
        objective=objective,
        weights=weights,
        solver=draw(st.sampled_from(solvers)),
        shape=draw(st.sampled_from(SHAPES)),
        storage=storage,
        sizes=draw(st.sampled_from(("few", "one", "uneven"))),
        m=draw(st.integers(1, 30)),
        d=draw(st.integers(1, 8)),
        intercept=intercept,
        overlapping=draw(st.booleans()),
        weighted=draw(st.booleans()),
        offsets=draw(st.booleans()),
        warm=draw(st.booleans()),
        size_of_y=draw(st.sampled_from((1.0, 1e-3, 1e3))),
        radius=draw(st.sampled_from((1.0, 0.01, 0.3, 5.0, 100.0))),
        penalty=draw(st.sampled_from((0.1, 1e-5, 1e-3, 1.0, 30.0))),
        delta=draw(st.sampled_from((1.0, 0.05, 20.0))),
        tol=draw(st.sampled_from((1e-4, 1e-2, 1e-3, 1e-5, 1e-6, 1e-8))),
        atol=draw(st.sampled_from((0.0, 1e-3))),
        max_passes=draw(st.sampled_from((300.0, 300.0, 1.0, 4.0, 30.0))),
    )


# ---------------------------------------------------------------------- from a description to a problem


@dataclass(frozen=True, eq=False)
class Made:
    """A problem of the package with a start, and the same by plain formulas, without group minima."""

    problem: gd.Problem
    plain: PlainProblem
    offsets: np.ndarray
    minima: np.ndarray | None
    start: dict[str, np.ndarray | None]  # arguments of `solve`


def make(description: Description) -> Made:
    """Make the problem of a description."""
    rng = np.random.default_rng([description.number, 71])
    groups = _draw_groups(description, rng)
    X, y = _draw_rows(description, groups, rng)
    weight = None
    if description.weighted:  # some rows weigh nothing, but no whole group does
        weight = rng.random(len(y)) * (rng.random(len(y)) < 0.8)
        weight[np.unique(groups, return_index=True)[1]] += 0.1
    membership = groups
    if description.overlapping:
        membership = (groups[:, None] == np.arange(description.m)) | (rng.random((len(y), description.m)) < 0.1)
    stored = _store(X, description.storage)
    offsets = rng.random(description.m) * 0.5 * float(description.offsets)
    simplex = description.domain == "simplex"
    radius = description.radius if description.domain in ("ball", "both") else np.inf
    penalty = description.penalty if description.domain in ("penalty", "both") else 0.0
    loss = {
        "logistic": gd.losses.Logistic(),
        "softmax": gd.losses.Softmax(3),
        "squared": gd.losses.Squared(),
        "huber": gd.losses.Huber(description.delta * description.size_of_y),
        "squared_hinge": gd.losses.SquaredHinge(),
    }[description.loss]
    weight_set, plain_set = draw_set(description.weights, description.m, np.random.default_rng(description.number))
    plain = PlainProblem.from_arrays(
        stored if not isinstance(stored, np.memmap) else np.array(stored),
        y,
        membership,
        weight,
        loss=description.loss,
        delta=description.delta * description.size_of_y,
        radius=radius,
        penalty=penalty,
        simplex=simplex,
        intercept=description.intercept,
        n_outputs=3 if description.loss == "softmax" else 1,
        weight_set=plain_set,
    )
    minima = None
    if description.objective == "given":
        start = np.zeros(plain.shape) + (1.0 / description.d if simplex else 0.0)
        minima = (plain.risks(start) * rng.random(description.m)).astype(np.float64)
    start_w, start_q = None, None
    if description.warm:
        start_w, start_q = rng.normal(size=plain.shape), rng.dirichlet(np.full(description.m, 0.3))
        if plain_set is not None:
            start_q = weight_set.geometry(description.m).point(np.log(np.maximum(start_q, 1e-300)))
    problem = gd.Problem(
        gd.GroupedData.from_arrays(stored, y, membership, weight),
        loss,
        gd.domains.SimplexDomain() if simplex else gd.domains.L2Domain(radius=radius, penalty=penalty),
        weight_set,
        fit_intercept=description.intercept,
        group_minima=None if minima is None else GroupMinima.exact(minima),
        offsets=offsets,
    )
    return Made(problem, plain, offsets, minima, {"w": start_w, "q": start_q})


def _draw_groups(description: Description, rng: np.random.Generator) -> np.ndarray:
    m = description.m
    if description.sizes == "one":
        sizes = np.ones(m, int)
    elif description.sizes == "few":
        sizes = rng.integers(1, 9, m)
    else:
        sizes = np.minimum(1 + np.floor(2 * rng.pareto(0.7, m)), 60).astype(int)
    return rng.permutation(np.repeat(np.arange(m), sizes))


def _draw_rows(description: Description, groups: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    n, d, shape = len(groups), description.d, description.shape
    X = rng.normal(size=(n, d))
    if "csr" in description.storage:
        X *= rng.random((n, d)) < 0.5
    if shape == "grid":
        X = np.round(X)  # ties, and many rows that are the same
    elif shape == "twins":
        X[:, -1] = X[:, 0]
        X[n // 2 :] = X[: n - n // 2]
    elif shape == "zeros":
        X[:, 0] = 0.0
        X[rng.random(n) < 0.3] = 0.0
    elif shape == "scaled":
        X *= 10.0 ** rng.uniform(-2, 2, d)
    X = X.astype(np.float32).astype(np.float64) if "float32" in description.storage else X
    slopes = rng.normal(size=d) / np.sqrt(d)
    signal = X @ slopes
    noise = 0.0 if shape == "exact fit" else 1.0
    if description.loss in ("logistic", "squared_hinge"):
        y = np.where(signal + noise * rng.normal(size=n) * (np.abs(signal).mean() + 0.1) > 0, 1.0, -1.0)
        if shape == "one class":
            y = np.where(groups % 2 == 0, 1.0, y)
        return X, y
    if description.loss == "softmax":
        y = np.where(signal > 0.3, 2, np.where(signal < -0.3, 0, 1))
        y = np.where(rng.random(n) < 0.3 * noise, rng.integers(0, 3, n), y)
        if shape == "one class":
            y = np.where(groups % 2 == 0, 1, y)
        return X, y
    y = signal + noise * rng.standard_t(3, n)
    if shape == "one class":
        y = np.where(groups % 2 == 0, 1.0, y)
    return X, y * description.size_of_y


def _store(X: np.ndarray, storage: str) -> Any:
    kind = np.float32 if "float32" in storage else np.float64
    if "csr" in storage:
        return sp.csr_array(X.astype(kind))
    if "memmap" not in storage:
        return X.astype(kind)
    with tempfile.TemporaryFile() as file:  # the mapping outlives the name
        mapped = np.memmap(file, kind, "w+", shape=X.shape)
        mapped[:] = X
        return mapped


# ---------------------------------------------------------------------- judging a run


@dataclass
class Verdict:
    """What a run was found to be."""

    description: Description
    status: str
    sharpness: float  # certified distance of the refuting w from the optimum, relative to it
    excess: float  # of the lower bound over the objective of the best w, relative to it
    checked_by_cvxpy: bool = False
    wrong: list[str] = field(default_factory=list)


def judge(description: Description, *, by_cvxpy: bool = False) -> Verdict:
    """Run the package on a problem and look for anything that it says wrongly."""
    made = make(description)
    regret = description.objective == "regret"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = gd.solve(
            made.problem,
            SOLVERS[description.solver](),
            **made.start,
            tol=description.tol,
            atol=description.atol,
            max_passes=description.max_passes,
            max_time=20.0,
            seed=description.number,
        )
    base = made.offsets - (made.minima if made.minima is not None else 0.0)
    by_others = _find_with_cvxpy(made, regret=regret) if by_cvxpy or made.plain.weight_set is not None else None
    known = None
    if made.plain.weight_set is not None:  # which the plain solver does not know
        known = (result.w, result.q)
        if by_others is not None:
            known = (by_others.w, made.plain.weight_set.mixed(by_others.q))
    truth = Truth(made.plain, regret=regret, base=base, candidates=[result.w], known=known)
    if truth.sharpness > RELATIVE and description.domain != "simplex":
        # Any w refutes, whoever found it: where the plain solver was not sharp, a long run of the package's may be.
        shift = np.zeros(description.m) - truth.low.shift.astype(np.float64)
        alone = gd.Problem(
            made.problem.data,
            made.problem.loss,
            made.problem.domain,
            made.problem.weight_set,
            fit_intercept=description.intercept,
            group_minima=GroupMinima.exact(shift),
        )
        long_run = gd.solve(alone, gd.solvers.GroupSQP(), tol=1e-12, max_passes=200, max_time=5.0)
        truth.consider(long_run.w, long_run.q)
    if by_others is not None:
        truth.consider(by_others.w)
    claim = Claim.of(result, tol=description.tol, atol=description.atol)
    verdict = Verdict(description, result.status.name.lower(), truth.sharpness, truth.excess(result.lower_bound))
    verdict.wrong += hold_against(claim, truth, regret=description.objective != "risk")
    if by_others is not None and truth.sharpness <= 1e-6:
        # The plain formulas themselves, held against another solver on the package's own problem. It may leave the
        # domain by a little, which steep losses make 1e-5 of the value.
        verdict.checked_by_cvxpy, best = True, float(truth.best)
        if abs(by_others.value - best) > 1e-4 * max(abs(best), truth.scale) + 1e-7:
            verdict.wrong.append(f"CVXPY finds {by_others.value!r}, the plain formulas {best!r}")
    return verdict


def _find_with_cvxpy(made: Made, *, regret: bool) -> Reference | None:
    """Return what CVXPY finds, or None where it calls that inaccurate."""
    minima, accurate = minima_by_cvxpy(made.problem) if regret else (np.zeros(made.problem.n_groups), True)
    reference = worst_value(made.problem, minima + made.problem.baseline.upper)
    return reference if accurate and reference.accurate else None


# ---------------------------------------------------------------------- many problems


def draw_block(campaign_seed: int, block: int, count: int) -> list[Description]:
    """Draw descriptions, the same for the same arguments."""
    drawn: list[Description] = []

    @seed(1_000_003 * campaign_seed + block)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(descriptions())
    def keep(description: Description) -> None:
        number = (campaign_seed * 1_000 + block) * BLOCK + len(drawn)
        drawn.append(Description(**{**vars(description), "number": number}))

    keep()
    return drawn[:count]


def judge_one(task: tuple[Description, bool]) -> Verdict:
    """Judge, and call whatever is raised wrong."""
    description, by_cvxpy = task
    try:
        return judge(description, by_cvxpy=by_cvxpy)
    except Exception as error:
        return Verdict(description, "raised", np.nan, np.nan, wrong=[f"{type(error).__name__}: {error}"])


def run(count: int, campaign_seed: int, jobs: int) -> Tally:
    drawn = [
        description
        for block in range(-(-count // BLOCK))
        for description in draw_block(campaign_seed, block, min(BLOCK, count - block * BLOCK))
    ]
    tasks = [(description, k % 5 == 4) for k, description in enumerate(drawn)]
    return tally(map_cases(judge_one, tasks, jobs))


def tally(verdicts: Any) -> Tally:
    out, statuses, sharp, by_cvxpy, excess, other_sets = Tally(), Counter(), 0, 0, -np.inf, 0
    for verdict in verdicts:
        out.tried += 1
        statuses[verdict.status] += 1
        sharp += verdict.sharpness <= RELATIVE
        other_sets += verdict.description.weights != "simplex"
        by_cvxpy += verdict.checked_by_cvxpy
        excess = np.fmax(excess, verdict.excess)
        out.failures += [f"judge({verdict.description!r}): {sentence}" for sentence in verdict.wrong]
    out.figures = [
        f"{statuses['converged']:,} converged",
        f"largest excess of a lower bound {excess:.1e}",
        f"optimum known to 1e-9 for {sharp:,}",
        f"{by_cvxpy:,} agree with CVXPY",
        f"{other_sets:,} under other sets of weights than the simplex",
    ]
    return out


CHECKS = [
    Check(
        name="certificates",
        promise="no lower bound above the optimum by 1e-9, no false converged",
        run=run,
        full=10_000,
        ci=8,
    )
]
