"""Random wishes for an average and a worst risk: every answer of a frontier checked against CVXPY."""

import itertools
import warnings
from collections import Counter
from typing import Any

import cvxpy as cp
import numpy as np

import groupdro as gd
from benchmarks import real_data
from benchmarks.between.convex import BetweenProgram
from benchmarks.between.problems import ALPHA, Problem, estimator, group_risk, profile, some_rows, without_ones
from benchmarks.between.tables import markdown, write

_ROUNDING = 1e-7  # relative: as far as Clarabel is trusted
_PER_PROBLEM = 200
_DIRECT = 5  # refusals per problem that CVXPY confirms one by one, those nearest to the frontier
_HEADER = f"""\
# Wishes

{_PER_PROBLEM} random pairs of an average and a worst value per problem, each within 3% of a random point of the
frontier (alpha={ALPHA:g}, enclosed to 0.1%), put to `attainable`. A "yes" is wrong if the values of its model, computed
again from its predictions, exceed the wishes. A "no" names a half-plane that no model enters, and is wrong if CVXPY
finds one that does, or if Clarabel does not vouch for its answer. The {_DIRECT} closest refusals per problem are put to
CVXPY directly too: "directly" counts those for which Clarabel vouches that the least of
max(average - wish, worst - wish) is positive, and one that it finds negative is wrong.

"""


def cases() -> list[Problem]:
    found = [without_ones(make()) for make in (real_data.heart, real_data.german, real_data.compas)]
    found.append(without_ones(real_data.bank()))
    found.append(without_ones(real_data.communities()))
    return [some_rows(problem, 3000) for problem in found]


def draw_wishes(frontier: Any, rng: np.random.Generator) -> list[tuple[float, float]]:
    """Draw wishes around random points of the chords, chosen by their length."""
    edge = frontier.edge
    corners = np.column_stack([frontier.mean[edge], frontier.worst[edge]])
    chords = list(itertools.pairwise(corners))
    lengths = np.array([np.linalg.norm(b - a) for a, b in chords])
    drawn = []
    for _ in range(_PER_PROBLEM):
        a, b = chords[rng.choice(len(chords), p=lengths / lengths.sum())]
        point = a + rng.random() * (b - a)
        drawn.append(tuple((point * (1.0 + rng.uniform(-0.03, 0.03, 2))).tolist()))
    return drawn


def wishes() -> None:
    warnings.simplefilter("ignore")
    rows, totals = [], Counter()
    for problem in cases():
        frontier = gd.robustness_frontier(problem.X, problem.y, problem.groups, estimator=estimator(problem))
        program = BetweenProgram(group_risk(problem))
        drawn = draw_wishes(frontier, np.random.default_rng(0))
        answers = [frontier.attainable(mean=mean, worst=worst) for mean, worst in drawn]
        counts = Counter(answer.verdict for answer in answers)
        wrong = sum(
            not _is_met(answer.model.model, problem, frontier, wish)
            for answer, wish in zip(answers, drawn, strict=True)
            if answer.verdict == "yes"
        )
        refused = [(answer, wish) for answer, wish in zip(answers, drawn, strict=True) if answer.verdict == "no"]
        planes = {answer.robustness: answer.least for answer, _ in refused}
        weights = {one.robustness: one.model.group_weights_ for one in frontier.models}
        false_planes = {t for t, least in planes.items() if not _holds(program, t, least, weights[t])}
        wrong += sum(answer.robustness in false_planes for answer, _ in refused)
        nearest = sorted(refused, key=lambda pair: _short_by(*pair))[:_DIRECT]
        excess = [program.least(cp.maximum(program.mean - a, program.worst - b)) for _, (a, b) in nearest]
        wrong += sum(value <= 0 for value in excess)
        direct = f"{sum(value > 0 for value in excess)} of {len(excess)}"
        rows.append([
            problem.name, len(problem.y), len(set(problem.groups)), frontier.n_fits, f"{frontier.enclosure:.1e}",
            counts["yes"], counts["no"], len(planes), direct, counts["open"], wrong,
        ])  # fmt: skip
        totals += counts
        totals["wrong"] += wrong
        print(rows[-1], flush=True)
    share = totals["open"] / (totals["yes"] + totals["no"] + totals["open"])
    rows.append(["**all**", "", "", "", "", totals["yes"], totals["no"], "", "", totals["open"], totals["wrong"]])
    columns = [
        "problem",
        "rows",
        "groups",
        "fits",
        "enclosure",
        "yes",
        "no",
        "half-planes",
        "directly",
        "open",
        "wrong",
    ]
    write("wishes", f"{_HEADER}{markdown(columns, rows)}\nLeft open: {share:.1%}.\n")


def _is_met(model: Any, problem: Problem, frontier: Any, wish: tuple[float, float]) -> bool:
    """Compute a model's values from its predictions, and compare them with the wishes."""
    penalty = frontier.penalty_of(model)
    return all(
        value + penalty <= wished * (1.0 + 1e-12) for value, wished in zip(profile(model, problem), wish, strict=True)
    )


def _holds(program: BetweenProgram, t: float, least: float, weights: np.ndarray) -> bool:
    """Return whether CVXPY confirms a half-plane.

    Where Clarabel does not vouch for the least blend, the weights that prove the half-plane do as well: a blend is at
    least what they make of the groups' risks, whose minimum is smooth and so easier to find.
    """
    value = program.least((1.0 - t) * program.mean + t * program.worst)
    if np.isnan(value):
        value = program.least(weights @ program.risks + program.penalty)
    return value >= least - _ROUNDING * abs(least)


def _short_by(answer: Any, wish: tuple[float, float]) -> float:
    return answer.least - (1.0 - answer.robustness) * wish[0] - answer.robustness * wish[1]
