"""The campaign finds bounds that are false on purpose, and what it judges by is right and independent."""

import ast
import os
import pickle
import random
import re
from dataclasses import replace
from pathlib import Path

import benchmarks.real_data
import numpy as np
import pytest

import groupdro as gd
from groupdro.certificate import Certificate
from groupdro.problem import GroupMinima, L2Domain, Problem
from groupdro.run import ending, smoothing
from groupdro.run import run as run_module
from groupdro.solvers.minima_stages import MinimaAsNeeded
from tests.campaign import part_certificates, part_files, part_interrupts, part_means, part_scales, part_supply
from tests.campaign.caught import FAULTS
from tests.campaign.exact import lower_estimate, solve
from tests.campaign.part_certificates import Description
from tests.campaign.plain_losses import HuberLoss, LogisticLoss, SoftmaxLoss, SquaredHingeLoss, SquaredLoss
from tests.campaign.real_data import Case
from tests.campaign.real_verdicts import Claim, Verdict, hold
from tests.campaign.witness_by_cvxpy import model_by_cvxpy
from tests.campaign.witnesses import Posed
from tests.reference.convex import worst_value

SNIPPETS = Path(__file__).parents[2] / "docs" / "snippets"


def raise_every_lower_bound(monkeypatch, factor):
    honest = Certificate.offer_bound
    monkeypatch.setattr(Certificate, "offer_bound", lambda self, lower, q: honest(self, lower + factor * abs(lower), q))


# ---------------------------------------------------------------------- certificates

SHARP = Description(1, solver="sqp", m=4, d=3, tol=1e-8)
REGRET = Description(6, objective="regret", solver="alem", m=3, d=2, sizes="uneven")


def certificate_faults(description=SHARP, **options):
    return " ".join(part_certificates.judge(description, **options).wrong)


@pytest.mark.parametrize("description", [SHARP, REGRET], ids=["risk", "regret"])
def test_an_honest_run_passes(description):
    assert certificate_faults(description, by_cvxpy=True) == ""


def test_a_lower_bound_raised_by_a_millionth_is_found(monkeypatch):
    raise_every_lower_bound(monkeypatch, 1e-6)
    assert "lower bound" in certificate_faults()


def test_a_false_converged_is_found(monkeypatch):
    for module in (run_module, ending):
        monkeypatch.setattr(module, "met_tolerance", lambda gap, upper, tol, atol: "tol")
    assert "from the optimum" in certificate_faults()


def test_an_upper_bound_below_the_objective_is_found(monkeypatch):
    honest = Problem.objective
    monkeypatch.setattr(Problem, "objective", lambda self, w, risks: honest(self, w, risks) * (1 - 1e-7))
    assert "upper bound" in certificate_faults()


def test_a_lower_bound_above_a_groups_minimum_is_found(monkeypatch):
    honest = MinimaAsNeeded.run

    def too_high(self, *arguments):
        found = honest(self, *arguments)
        upper = found.group_minima.upper
        return replace(found, group_minima=GroupMinima(upper, upper + 1e-4, centre=upper), refinement=None)

    monkeypatch.setattr(MinimaAsNeeded, "run", too_high)
    assert "lower minimum" in certificate_faults(REGRET)


@pytest.mark.parametrize("kind", part_means.KINDS)
def test_a_lower_bound_that_is_too_high_is_found_for_every_loss_of_means(kind, monkeypatch):
    bounds_of = smoothing._bounds_of

    def too_high(*arguments):
        risks, lower = bounds_of(*arguments)
        return risks, lower * 1.01

    if kind == "quantile":
        monkeypatch.setattr(smoothing, "_bounds_of", too_high)
    else:
        raise_every_lower_bound(monkeypatch, 0.01)

    def shows(drawn):
        given = drawn.parameters
        plain = given["objective"] == "risk" and given["solver"] == "auto"
        return drawn.kind.startswith(kind) and plain and given["alpha"] > 0 and given["tol"] < 1e-3

    seed = next(seed for seed in range(500) if shows(part_means.draw(seed)))
    assert any("lower bound" in sentence for sentence in part_means.judge(seed).wrong)


def test_a_bound_that_a_model_far_away_refutes_is_found(monkeypatch):
    x, z = np.random.default_rng(1).normal(size=(2, 60))
    parameters = {
        "objective": "risk", "alpha": 0.0, "radius": None, "fit_intercept": True, "solver": "sqp", "tol": 1e-4,
        "max_passes": 300.0, "max_time": 3.0,
    }  # fmt: skip
    nearly_the_same_columns = np.column_stack([x, x + 1e-6 * z])
    drawn = part_scales.Drawn(nearly_the_same_columns, z, np.arange(60) % 3, "squared", parameters)
    assert part_scales.judge_fit(("test", 0), drawn).wrong == []
    ball = L2Domain(radius=1e2)
    monkeypatch.setattr(gd.Problem, "solution_set", lambda self, upper: ball)
    assert "lower bound" in " ".join(part_scales.judge_fit(("test", 0), drawn).wrong)


@pytest.mark.long
def test_a_checkpoint_whose_bound_changes_unnoticed_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    honest = Certificate.take_over
    monkeypatch.setattr(Certificate, "take_over", lambda self, lower, q, cut: honest(self, 1.5 * lower, q, cut))

    def resume_damaged_ones():
        for seed in range(30):
            part_files.damaged_checkpoint(random.Random(seed), tmp_path)

    with pytest.raises(AssertionError, match="too high"):
        resume_damaged_ones()


@pytest.mark.long
def test_a_bound_of_a_killed_run_that_is_not_proved_is_found():
    lie = """
import tests.campaign.killed_runs as runs
runs.RUNS = {"aleg, logistic": runs.RUNS["aleg, logistic"]}  # in which most kills come after a checkpoint
from groupdro.certificate import Certificate
whole = Certificate.take_over
def raised(self, lower, q, cut):
    whole(self, 1.5 * lower, q, cut)
Certificate.take_over = raised
"""
    tally = part_interrupts.killed("runs", 4, 0, 1, lie)
    assert any("another answer" in failure for failure in tally.failures)


# ---------------------------------------------------------------------- claims about real data

CASE = Case(1, "mixed", "squared", 90, 2, 3, (), "float64")
LOSSES = [SquaredLoss(), HuberLoss(), LogisticLoss(), SoftmaxLoss(3), SquaredHingeLoss()]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
every_domain = pytest.mark.parametrize(
    "options", [{"alpha": 1e-2}, {"radius": 0.3}, {"alpha": 1e-3, "box": 0.1, "intercept": False}]
)


def posed_with(loss, *, offset=0.0, **options):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(90, 2)), np.arange(90) % 3
    y = X @ [1.0, -1.0] + rng.normal(size=90)
    if not loss.regression:
        y = np.digitize(y, [-0.5, 0.5]) if hasattr(loss, "n_classes") else np.where(y > 0, 1, -1)
    return Posed(X, y + offset if loss.regression else y, groups, None, loss, **options)


def honest_claim(posed):
    """Return a claim that is true up to a millionth, by the judge's own search."""
    found = posed.search().model
    intercept = found.constant - posed.means @ found.coef + posed.mean_y if posed.intercept else np.zeros(posed.K)
    coef, intercept = found.coef.astype(float), intercept.astype(float)
    value = float(posed.objective(posed.model(coef, intercept)))
    return Claim(coef, intercept, value - 1e-7 * abs(value), value, "converged", 1e-6)


def claim_faults(posed, claim):
    return " ".join(hold(Verdict(CASE, claim.status), posed, claim).wrong)


@every_loss
@every_domain
def test_an_honest_claim_passes_and_false_ones_do_not(loss, options):
    posed = posed_with(loss, **options)
    claim = honest_claim(posed)
    assert claim_faults(posed, claim) == ""
    assert "lower bound" in claim_faults(posed, replace(claim, lower=claim.upper * (1 + 1e-6)))
    assert "converged, but" in claim_faults(posed, replace(claim, lower=0.0))
    assert "is below the model's" in claim_faults(posed, replace(claim, upper=claim.upper * (1 - 1e-6)))


# ---------------------------------------------------------------------- what is judged by


def test_formulas_that_differ_from_cvxpy_are_found(monkeypatch):
    def shifted(*arguments):
        reference = worst_value(*arguments)
        return type(reference)(reference.value + 1e-3, reference.w, reference.q, reference.accurate)

    monkeypatch.setattr(part_certificates, "worst_value", shifted)
    assert "CVXPY finds" in certificate_faults(by_cvxpy=True)


def test_the_refuting_point_is_certified_by_other_formulas():
    distances = []
    for description in part_certificates.draw_block(5, 0, 12):
        plain = part_certificates.make(replace(description, weights="simplex")).plain
        found = solve(plain)
        value = plain.objective(found.w)
        distances.append(float((value - lower_estimate(plain, found)[0]) / max(abs(value), 1e-6)))
    assert np.min(distances) >= -1e-12  # a lower estimate above a value would be wrong itself
    assert np.median(distances) <= 1e-9


@every_loss
@every_domain
def test_the_search_and_cvxpy_find_the_same(loss, options):
    posed = posed_with(loss, offset=3.0, **options)
    posed.shift = np.array([0.0, -0.1, 0.1])
    by_cvxpy, found = model_by_cvxpy(posed), posed.search().model
    assert posed.outside(by_cvxpy) <= 1e-12
    assert float(posed.objective(found)) <= float(posed.objective(by_cvxpy)) * (1 + 1e-12)
    assert float(posed.objective(found)) == pytest.approx(float(posed.objective(by_cvxpy)), rel=1e-5)


@pytest.mark.parametrize("name", ["witnesses", "witness_by_cvxpy", "plain_losses", "real_data", "real_verdicts"])
def test_the_judge_imports_nothing_of_the_package(name):
    tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [module for module in imported if module.startswith("groupdro")]


# ---------------------------------------------------------------------- code in files


@pytest.mark.filterwarnings("ignore")  # files that a hostile pickle opened are not closed
def test_a_reader_that_lets_all_pickles_in_is_found(monkeypatch):
    monkeypatch.setattr(benchmarks.real_data, "_ArraysOnly", pickle.Unpickler)
    failures = part_supply.image_pickles(1, 0, 1).failures
    assert any("it was run" in failure for failure in failures)


def test_nothing_is_run_while_pickles_are_made(tmp_path):
    assert len(list(part_supply._hostile_pickles(os.fspath(tmp_path / "canary")))) > 50
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- stored runs that pages show


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_known_fault_was_caught_in_the_stored_run(fault):
    rows = (SNIPPETS / "caught.txt").read_text(encoding="utf-8").splitlines()
    row = next(row for row in rows if f"| {fault.name} |" in row)
    tried, caught = map(int, row.split("|")[3:5])
    assert 0 < caught <= tried


def test_the_stored_run_mostly_converged():
    text = (SNIPPETS / "real_data.txt").read_text(encoding="utf-8")
    name, _, tried, failed, measured, _ = (cell.strip() for cell in text.splitlines()[2].strip("|").split("|"))
    assert (name, tried, failed) == ("real data", "10,000", "2")
    share = re.search(r"that have a minimiser converged \((\d+\.\d)%\)", measured)
    assert float(share[1]) >= 85.0
