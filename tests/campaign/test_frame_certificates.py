"""The check of certificates fails where the package is broken on purpose, and what it is held against is right."""

from dataclasses import replace

import numpy as np
import pytest

import groupdro as gd
from groupdro.certificate import Certificate
from groupdro.problem import GroupMinima, Problem
from groupdro.solvers.minima_stages import MinimaAsNeeded
from groupdro.solvers.sqp import GroupSQP
from tests.campaign import part_certificates
from tests.campaign.broken import believe_every_gap
from tests.campaign.exact import lower_estimate, solve
from tests.campaign.part_certificates import Description, draw_block, judge, judge_one, make, run
from tests.reference.convex import worst_value

SHARP = Description(1, solver="sqp", m=4, d=3, tol=1e-8)
KINDS = [
    SHARP,
    Description(2, loss="softmax", domain="both", intercept=True, overlapping=True, m=3, d=2, tol=1e-6),
    Description(3, loss="squared", domain="penalty", weighted=True, offsets=True, m=5, d=2, storage="memmap float32"),
    Description(4, loss="huber", domain="simplex", solver="aleg", m=3, d=4, tol=1e-2, storage="csr float64"),
    Description(5, loss="squared_hinge", objective="given", domain="both", m=4, d=3, sizes="uneven"),
    Description(6, objective="regret", solver="alem", m=3, d=2, sizes="uneven"),
    Description(7, weights="floor", solver="sqp", domain="both", m=4, d=3, tol=1e-8),
    Description(8, weights="cap", solver="aleg", loss="squared", m=6, d=3, storage="csr float64", tol=1e-3),
    Description(9, weights="box", objective="regret", solver="alem", domain="penalty", m=4, d=2, warm=True),
    # Whose q prove less over all of the domain than where the penalty lets the solution be.
    Description(
        4250357,
        loss="softmax",
        domain="both",
        objective="regret",
        solver="alem",
        shape="scaled",
        sizes="one",
        storage="memmap float32",
        m=4,
        d=4,
        weighted=True,
        radius=5.0,
        penalty=30.0,
        tol=1e-6,
        atol=1e-3,
        warm=False,
    ),
]


@pytest.mark.parametrize("description", KINDS, ids=lambda d: f"{d.loss}-{d.domain}-{d.objective}-{d.weights}")
def test_an_honest_run_passes(description):
    assert judge(description, by_cvxpy=True).wrong == []


def test_a_lower_bound_raised_by_a_millionth_is_found(monkeypatch):
    raise_to = Certificate._raise
    monkeypatch.setattr(Certificate, "_raise", lambda self, lower, q: raise_to(self, lower + 1e-6 * abs(lower), q))
    wrong = " ".join(judge(SHARP).wrong)
    assert "lower bound" in wrong
    assert "all that its q prove" in wrong


def test_a_false_converged_is_found(monkeypatch):
    believe_every_gap(monkeypatch)
    wrong = " ".join(judge(SHARP).wrong)
    assert "from the optimum" in wrong
    assert "bounds" in wrong


def test_an_upper_bound_below_the_objective_is_found(monkeypatch):
    honest = Problem.objective
    monkeypatch.setattr(Problem, "objective", lambda self, w, risks: honest(self, w, risks) * (1 - 1e-7))
    assert "upper bound" in " ".join(judge(SHARP).wrong)


def test_group_weights_that_prove_less_are_found(monkeypatch):
    monkeypatch.setattr(Certificate, "_raise", _raise_with_other_weights)
    assert "all that its q prove" in " ".join(judge(SHARP).wrong)


def _raise_with_other_weights(self, lower, q):
    if lower > self.lower:
        self.lower, self.q = lower, np.roll(q, 1)


@pytest.mark.parametrize("broken", ["support", "contains"])
def test_a_set_of_weights_that_is_not_itself_is_found(monkeypatch, broken):
    drawn = {"m": 5, "d": 3, "domain": "penalty", "max_passes": 30.0}
    description = Description(16, weights="box", solver="sqp", **drawn)
    assert judge(description).wrong == []
    if broken == "support":
        monkeypatch.setattr(gd.weight_sets.Box, "maximiser", lambda self, values: self.start(len(values)))
    else:
        monkeypatch.setattr(gd.weight_sets.Box, "contains", lambda self, q: True)
        monkeypatch.setattr(GroupSQP, "_solve_model", _forget_caps(GroupSQP._solve_model))
    found = {"support": "upper bound", "contains": "outside of its set"}
    assert found[broken] in " ".join(judge(description).wrong)


def _forget_caps(solve_model):
    def changed(self, oracle, state, values):
        step, q, promised = solve_model(self, oracle, state, values)
        return step, 0.9 * q + 0.1 * np.eye(len(q))[np.argmin(q)], promised

    return changed


def test_a_lower_bound_above_a_groups_minimum_is_found(monkeypatch):
    honest = MinimaAsNeeded.run

    def too_high(self, *arguments):
        found = honest(self, *arguments)
        upper = found.group_minima.upper
        return replace(found, group_minima=GroupMinima(upper, upper + 1e-4, centre=upper), refinement=None)

    monkeypatch.setattr(MinimaAsNeeded, "run", too_high)
    wrong = " ".join(judge(KINDS[-1]).wrong)
    assert "lower minimum" in wrong


def test_whatever_is_raised_is_a_failure_with_its_description(monkeypatch):
    monkeypatch.setattr(Certificate, "observe", lambda self, at: 1 / 0)
    verdict = judge_one((SHARP, False))
    assert "ZeroDivisionError" in verdict.wrong[0]
    tally = part_certificates.tally([verdict])
    assert tally.failures[0].startswith("judge(Description(number=1,")


def test_plain_formulas_that_differ_from_cvxpy_are_found(monkeypatch):
    monkeypatch.setattr(part_certificates, "worst_value", lambda *a: _shifted(worst_value(*a)))
    assert "CVXPY finds" in " ".join(judge(SHARP, by_cvxpy=True).wrong)


def _shifted(reference):
    return type(reference)(reference.value + 1e-3, reference.w, reference.q, reference.accurate)


def test_descriptions_are_the_same_for_the_same_seed_and_cover_all_kinds():
    drawn = draw_block(0, 0, 150)
    assert drawn == draw_block(0, 0, 150)
    assert drawn != draw_block(1, 0, 150)
    assert len({d.number for d in drawn}) == 150
    values = {"loss": 5, "domain": 4, "objective": 3, "weights": 4, "storage": 6, "sizes": 3, "shape": 7}
    for name, number in values.items():
        assert len({getattr(d, name) for d in drawn}) == number, name


def test_the_refuting_point_is_certified_by_other_formulas():
    sharp = [_distance(replace(description, weights="simplex")) for description in draw_block(5, 0, 12)]
    assert np.min(sharp) >= -1e-12  # a lower estimate above a value would be wrong itself
    assert np.median(sharp) <= 1e-9


def _distance(description):
    plain = make(description).plain
    found = solve(plain)
    value = plain.objective(found.w)
    return float((value - lower_estimate(plain, found)[0]) / max(abs(value), 1e-6))


@pytest.mark.long
def test_the_check_counts_what_it_tried():
    tally = run(2, 0, 1)
    assert tally.tried == 2
    assert tally.failures == []
