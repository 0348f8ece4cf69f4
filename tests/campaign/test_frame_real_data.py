"""The judge of real data finds planted lies, passes honest claims, and shares no code with the package."""

import ast
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.campaign import part_real_data, real_fits
from tests.campaign.caught import FAULTS
from tests.campaign.custom_parts import PARTS
from tests.campaign.part_real_data import judge, run, tally
from tests.campaign.plain_losses import HuberLoss, LogisticLoss, SoftmaxLoss, SquaredHingeLoss, SquaredLoss
from tests.campaign.real_data import CUSTOM, KINDS, PERIOD, Case, describe, draw
from tests.campaign.real_verdicts import Claim, Verdict, hold
from tests.campaign.witness_by_cvxpy import model_by_cvxpy
from tests.campaign.witnesses import Posed, separates

STORED = Path(__file__).parents[2] / "docs" / "snippets" / "caught.txt"
CASE = Case(1, "mixed", "squared", 90, 2, 3, (), "float64")
LOSSES = [SquaredLoss(), HuberLoss(), LogisticLoss(), SoftmaxLoss(3), SquaredHingeLoss()]


def posed_with(loss, *, offset=0.0, separable=False, **options):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(90, 2)), np.arange(90) % 3
    y = X @ [1.0, -1.0] + (0.0 if separable else 1.0) * rng.normal(size=90)
    if not loss.regression:
        y = np.digitize(y, [-0.5, 0.5]) if hasattr(loss, "n_classes") else np.where(y > 0, 1, -1)
    return Posed(X, y + offset if loss.regression else y, groups, None, loss, **options)


def honest(posed, *, tol=1e-6, status="converged", regret=False):
    """Return a claim that is true up to a millionth, by the judge's own search."""
    found = posed.search().model
    intercept = found.constant - posed.means @ found.coef + posed.mean_y if posed.intercept else np.zeros(posed.K)
    coef, intercept = found.coef.astype(float), intercept.astype(float)
    value = float(posed.objective(posed.model(coef, intercept)))
    return Claim(coef, intercept, value - 1e-7 * abs(value), value, status, tol)


def wrong(posed, claim, **options):
    return " ".join(hold(Verdict(CASE, claim.status), posed, claim, **options).wrong)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("options", [{"alpha": 1e-2}, {"radius": 0.3}, {"alpha": 1e-3, "box": 0.1, "intercept": False}])
def test_an_honest_claim_passes_and_a_bound_raised_by_a_millionth_does_not(loss, options):
    posed = posed_with(loss, **options)
    claim = honest(posed)
    assert wrong(posed, claim) == ""
    assert "lower bound" in wrong(posed, replace(claim, lower=claim.upper * (1 + 1e-6)))


def test_a_false_converged_is_found():
    posed = posed_with(SquaredLoss(), alpha=1e-2)
    assert "converged, but" in wrong(posed, replace(honest(posed), lower=0.0))
    assert wrong(posed, replace(honest(posed), lower=0.0, status="stalled")) == ""


def test_an_upper_bound_that_is_not_the_models_objective_is_found():
    posed, claim = posed_with(LogisticLoss(), alpha=1e-2), honest(posed_with(LogisticLoss(), alpha=1e-2))
    assert "is below the model's" in wrong(posed, replace(claim, upper=claim.upper * (1 - 1e-6)))
    assert "is above the model's" in wrong(posed, replace(claim, upper=claim.upper * (1 + 1e-6)))


def test_a_model_outside_of_its_domain_is_found():
    inside = posed_with(LogisticLoss(), alpha=1e-2)
    posed = posed_with(LogisticLoss(), alpha=1e-2, box=0.1)
    assert "outside of its domain" in wrong(posed, honest(inside))


def test_numbers_that_are_not_finite_are_found():
    posed = posed_with(SquaredLoss(), alpha=1e-2)
    assert "not finite" in wrong(posed, replace(honest(posed), coef=np.array([[np.nan], [0.0]])))


def test_lies_about_regrets_are_found():
    posed = posed_with(SquaredLoss(), alpha=1e-2)
    minima = np.array([posed.part(i).objective(posed.part(i).search().model) for i in range(3)])
    posed.shift = -minima
    claim = honest(posed)
    posed.shift = np.zeros(3)
    options = {"regret": True, "own_minima": True}
    assert wrong(posed, claim, **options) == ""
    assert "lower bound" in wrong(posed, replace(claim, lower=claim.upper * (1 + 1e-3)), **options)
    assert "converged, but" in wrong(posed, replace(claim, lower=0.0), **options)


def test_no_finite_minimiser_is_believed_of_separable_rows_only():
    for loss in (LogisticLoss(), SoftmaxLoss(3)):
        claim = Claim(
            np.zeros((2, posed_with(loss).K)), np.zeros(posed_with(loss).K), 0.0, 1.0, "no_finite_minimiser", 1e-4
        )
        separable = posed_with(loss, separable=True)
        claim = replace(claim, upper=float(separable.objective(separable.zero())))
        assert wrong(separable, claim) == ""
        assert "no_finite_minimiser" in wrong(posed_with(loss), replace(claim, exact_upper=False))
    with_penalty = posed_with(LogisticLoss(), alpha=1e-2)
    assert "alpha=0.01" in wrong(with_penalty, replace(honest(with_penalty), status="no_finite_minimiser"))


def test_a_rare_level_of_one_class_separates_and_rows_of_zero_weight_do_not_count():
    rng = np.random.default_rng(1)
    X, y, weight = rng.normal(size=(60, 2)), rng.choice([-1, 1], 60), np.ones(60)
    X[:, 1] = np.arange(60) < 3
    y[:3] = 1, 1, -1
    assert separates(Posed(X, y, np.zeros(60, int), weight, LogisticLoss())) is False
    weight[2] = 0.0
    assert separates(Posed(X, y, np.zeros(60, int), weight, LogisticLoss())) is True


def test_what_the_digits_cannot_resolve_is_allowed_for_and_counted():
    near, far = (posed_with(SquaredLoss(), offset=offset, alpha=1e-2) for offset in (0.0, 1e12))
    assert float(far.resolution(far.zero())) > 1e-5 > 1e-12 > float(near.resolution(near.zero()))
    claim = honest(far, tol=1e-9)
    verdict = hold(Verdict(CASE, "converged"), far, claim)
    assert verdict.wrong == []
    assert verdict.unresolved
    assert wrong(near, honest(near, tol=1e-9)) != ""
    assert "converged, but" in wrong(far, replace(claim, lower=0.0))


def test_offsets_and_units_cost_the_judge_no_digits():
    rng = np.random.default_rng(2)
    X, groups = np.round(1024 * rng.normal(size=(80, 3))) / 1024, np.arange(80) % 2  # exact in the units below
    y, unit = np.round(1024 * (X @ [1.0, 2.0, 3.0] + rng.normal(size=80))) / 1024, 2.0 ** np.array([0, 40, -40])
    plain = Posed(X, y, groups, None, SquaredLoss())
    far = Posed((X + 2.0**30) * unit, y + 2.0**30, groups, None, SquaredLoss())
    a, b = (float(posed.objective(posed.search().model)) for posed in (plain, far))
    assert b == pytest.approx(a, rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("options", [{"alpha": 1e-2}, {"radius": 0.3}, {"alpha": 1e-3, "box": 0.1, "intercept": False}])
def test_the_search_and_cvxpy_find_the_same(loss, options):
    posed = posed_with(loss, offset=3.0, **options)
    posed.shift = np.array([0.0, -0.1, 0.1])
    by_cvxpy, found = model_by_cvxpy(posed), posed.search().model
    assert posed.outside(by_cvxpy) <= 1e-12
    assert float(posed.objective(found)) <= float(posed.objective(by_cvxpy)) * (1 + 1e-12)
    assert float(posed.objective(found)) == pytest.approx(float(posed.objective(by_cvxpy)), rel=1e-5)


@pytest.mark.parametrize("seed", [k for k in range(PERIOD) if describe(k).kind == "through solve"])
def test_a_run_by_the_package_is_judged(seed):
    assert judge(seed).status != "raised"


def test_every_stretch_of_seeds_has_its_share_of_each_kind():
    for first in (0, 777, 1_000_000):
        kinds = Counter(describe(seed).kind for seed in range(first, first + PERIOD))
        assert kinds == KINDS
    share = {kind: count / PERIOD for kind, count in KINDS.items()}
    assert min(share["custom"], share["resumed"], share["many rows"]) >= 0.05
    assert set(CUSTOM) == set(PARTS)
    assert all(describe(seed).n >= 100_000 for seed in range(400) if describe(seed).kind == "many rows")


def test_a_description_makes_the_same_rows_again():
    for seed in range(PERIOD):
        case = describe(seed)
        if case.n > 10_000:
            continue
        one, two = draw(case), draw(describe(seed))
        np.testing.assert_array_equal(one.dense, two.dense)
        np.testing.assert_array_equal(one.y, two.y)
        assert np.isfinite(one.dense).all()
        counted = np.ones(case.n, bool) if one.weight is None else one.weight > 0
        assert len(np.unique(one.groups[counted])) == case.m


def test_whatever_is_raised_is_a_failure_with_the_call_that_reruns_it(monkeypatch):
    monkeypatch.setattr(real_fits, "judge_fit", lambda *arguments: 1 / 0)
    monkeypatch.setattr(part_real_data, "describe", lambda seed: replace(CASE, seed=seed))
    verdict = judge(12)
    assert "ZeroDivisionError" in verdict.wrong[0]
    assert tally([verdict]).failures[0].startswith("judge(12): ")


def test_a_refusal_has_to_name_what_it_refuses():
    verdict = Verdict(CASE, "")
    real_fits._refused(verdict, ValueError("no"), named=False)
    assert verdict.status == "refused"
    assert "does not name" in verdict.wrong[0]


def test_counts_tell_kinds_statuses_and_the_share_that_converged():
    verdicts = [Verdict(CASE, "converged", True), Verdict(CASE, "stalled", True, True), Verdict(CASE, "stalled", False)]
    figures = " ".join(tally(verdicts).figures)
    assert "1 of 2 that have a minimiser converged (50.0%)" in figures
    assert "1 held only up to" in figures
    assert "mixed: 2 stalled, 1 converged" in figures


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_has_problems_that_may_show_it_and_is_in_the_stored_table(fault):
    cases = list(islice(fault.cases(), 3))
    assert {case.kind for case in cases} == {fault.kind}
    row = next(row for row in STORED.read_text(encoding="utf-8").splitlines() if f"| {fault.name} |" in row)
    tried, caught = map(int, row.split("|")[3:5])
    assert 0 < caught <= tried


def test_the_check_counts_what_it_tried():
    assert run(3, 0, 1).tried == 3


@pytest.mark.parametrize("name", ["witnesses", "witness_by_cvxpy", "plain_losses", "real_data", "real_verdicts"])
def test_the_judge_imports_nothing_of_the_package(name):
    tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [module for module in imported if module.startswith("groupdro")]


def test_the_documented_run_mostly_converged():
    text = (STORED.parent / "real_data.txt").read_text()
    name, _, tried, failed, measured, _ = (cell.strip() for cell in text.splitlines()[2].strip("|").split("|"))
    assert (name, tried, failed) == ("real data", "10,000", "2")
    share = re.search(r"that have a minimiser converged \((\d+\.\d)%\)", measured)
    assert float(share[1]) >= 85.0
