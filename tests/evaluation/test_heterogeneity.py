"""The spread of true values between groups, and what is expected of a new group."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.judging.spread import FOLDER, real_tables
from scipy.optimize import minimize_scalar
from scipy.stats import chi2, norm

from groupdro.evaluation import heterogeneity as module
from groupdro.evaluation.heterogeneity import heterogeneity, to_scale

METAFOR = json.loads((Path(FOLDER) / "metafor.json").read_text())["tables"]
TABLES = real_tables()
NUMBERS = ("tau", "tau_low", "tau_high", "Q", "I2", "mean", "mean_low", "mean_high", "new_low", "new_high")


def groups(k=12, spread=0.5, seed=0):
    """Return estimates and standard errors."""
    rng = np.random.default_rng(seed)
    errors = 0.3 * np.exp(0.7 * rng.standard_normal(k))
    return 1.0 + spread * rng.standard_normal(k) + errors * rng.standard_normal(k), errors


def numbers_of(found):
    return np.array([getattr(found, name) for name in NUMBERS])


# ---------------------------------------------------------------------- R's metafor


@pytest.mark.parametrize("name", TABLES)
def test_tau_its_interval_and_the_mean_are_those_of_metafor(name):
    estimates, errors = TABLES[name]
    ours, theirs = heterogeneity(estimates, errors), METAFOR[name]
    assert ours.method == "REML"
    names = ["Q", "tau_low", "tau_high", "mean"]
    # At the edge metafor's iteration ends at a tiny positive number.
    names += ["tau", "I2"] if theirs["tau"] > 1e-6 else []
    np.testing.assert_allclose([getattr(ours, k) for k in names], [theirs[k] for k in names], rtol=1e-6, atol=1e-12)
    if theirs["tau"] <= 1e-6:
        assert ours.tau == ours.I2 == 0
    alone = norm.ppf(0.975) / np.sqrt(np.sum(errors**-2))
    half = max(theirs["mean_high"] - theirs["mean"], alone)
    np.testing.assert_allclose([ours.mean_low, ours.mean_high], theirs["mean"] + half * np.array([-1, 1]), rtol=1e-6)


@pytest.mark.parametrize("name", TABLES)
def test_paule_mandel_stands_in_for_reml_and_is_that_of_metafor(name, monkeypatch):
    monkeypatch.setattr(module._Groups, "reml", lambda self, start: None)
    found = heterogeneity(*TABLES[name])
    assert found.method == "Paule-Mandel"
    np.testing.assert_allclose(found.tau, METAFOR[name]["tau_paule_mandel"], rtol=1e-6)


def test_the_tables_include_one_without_any_spread_and_one_in_which_the_mean_is_that_of_equal_values():
    assert METAFOR["compas, race"]["tau"] == 0
    half = 0.5 * (METAFOR["compas, race"]["mean_high"] - METAFOR["compas, race"]["mean_low"])
    assert half < norm.ppf(0.975) / np.sqrt(np.sum(TABLES["compas, race"][1] ** -2))


# ---------------------------------------------------------------------- definitions


def generalised_q(estimates, errors, spread):
    weights = 1.0 / (errors**2 + spread)
    return np.sum(weights * (estimates - weights @ estimates / weights.sum()) ** 2)


def test_the_ends_of_tau_solve_q():
    estimates, errors = groups()
    found = heterogeneity(estimates, errors, confidence=0.9)
    wanted = chi2.ppf([0.95, 0.05], len(errors) - 1)
    solved = [generalised_q(estimates, errors, end**2) for end in (found.tau_low, found.tau_high)]
    np.testing.assert_allclose(solved, wanted, rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_reml_maximises_the_restricted_likelihood(seed):
    estimates, errors = groups(seed=seed)

    def minus_likelihood(spread):
        weights = 1.0 / (errors**2 + spread)
        return np.sum(np.log(errors**2 + spread)) + np.log(weights.sum()) + generalised_q(estimates, errors, spread)

    best = minimize_scalar(minus_likelihood, bounds=(0, 5), method="bounded", options={"xatol": 1e-10})
    assert heterogeneity(estimates, errors).tau ** 2 == pytest.approx(best.x, rel=1e-5, abs=1e-8)


def test_the_prediction_interval_is_that_of_random_draws():
    estimates, errors = groups(k=6)
    found = heterogeneity(estimates, errors)
    rng = np.random.default_rng(0)
    of_groups = module._Groups(estimates, errors**2)
    spreads = of_groups.spread_at(rng.chisquare(5, 100_000))
    at = of_groups.at(spreads)
    means = at.mean + rng.standard_normal(len(spreads)) / np.sqrt(at.total)
    new = means + np.sqrt(spreads) * rng.standard_normal(len(spreads))
    width = found.new_high - found.new_low
    np.testing.assert_allclose([found.new_low, found.new_high], np.quantile(new, [0.025, 0.975]), atol=0.02 * width)


def test_many_groups_give_the_truth():
    found = heterogeneity(*groups(k=20_000, spread=0.5))
    assert found.tau == pytest.approx(0.5, rel=0.03)
    assert found.mean == pytest.approx(1.0, abs=0.02)
    assert (found.new_low, found.new_high) == pytest.approx((1 - 0.98, 1 + 0.98), abs=0.04)


@pytest.mark.parametrize(("shift", "unit"), [(0.0, 1e-9), (7.0, 1.0), (-3.0, 1e6)])
def test_numbers_move_with_the_unit_of_the_estimates(shift, unit):
    estimates, errors = groups()
    found, moved = heterogeneity(estimates, errors), heterogeneity(shift + unit * estimates, unit * errors)
    spreads = unit * numbers_of(found)[:3]
    places = shift + unit * numbers_of(found)[5:]
    np.testing.assert_allclose(numbers_of(moved), [*spreads, found.Q, found.I2, *places], rtol=1e-6)


# ---------------------------------------------------------------------- scales


def test_scales_are_those_of_the_delta_method():
    values, errors = np.array([0.1, 0.5]), np.array([0.01, 0.02])
    for scale, transform in {"logit": lambda p: np.log(p / (1 - p)), "log": np.log, "plain": lambda p: p}.items():
        estimates, on_scale = to_scale(values, errors, scale)
        np.testing.assert_allclose(estimates, transform(values))
        slope = (transform(values + 1e-6) - transform(values - 1e-6)) / 2e-6
        np.testing.assert_allclose(on_scale, errors * slope, rtol=1e-6)


def test_values_outside_of_a_scale_are_left_out():
    assert np.isnan(to_scale(np.array([0.0, 1.0, -1.0]), np.ones(3), "logit")[0]).all()
    assert np.isnan(to_scale(np.array([0.0, -1.0]), np.ones(2), "log")[0]).all()
    assert to_scale(np.array([2.0]), np.ones(1), "log")[0] == np.log(2.0)


@pytest.mark.parametrize(("scale", "back"), [("logit", lambda x: 1 / (1 + np.exp(-x))), ("log", np.exp)])
def test_the_mean_and_a_new_group_are_in_the_units_of_the_metric(scale, back):
    plain, found = heterogeneity(*groups()), heterogeneity(*groups(), scale=scale)
    np.testing.assert_allclose(numbers_of(found)[:5], numbers_of(plain)[:5])
    np.testing.assert_allclose(numbers_of(found)[5:], back(numbers_of(plain)[5:]))


# ---------------------------------------------------------------------- edges


def test_equal_estimates_have_no_spread():
    found = heterogeneity(np.full(5, 2.0), np.full(5, 0.1))
    assert found.tau == found.tau_low == found.tau_high == found.I2 == found.Q == 0
    assert found.mean == found.mean_low / 2 + found.mean_high / 2 == pytest.approx(2.0)
    # No narrower than what the rows can show.
    assert found.mean_high - found.mean == pytest.approx(norm.ppf(0.975) * 0.1 / np.sqrt(5))
    assert found.new_low <= found.mean_low < found.mean_high <= found.new_high


def test_equal_errors_have_a_closed_form():
    estimates = np.array([1.0, 2.0, 4.0, 8.0])
    found = heterogeneity(estimates, np.full(4, 0.5))
    assert found.tau == pytest.approx(np.sqrt(estimates.var(ddof=1) - 0.25))
    assert found.mean == pytest.approx(estimates.mean())


def test_an_enormous_standard_error_says_nothing_of_the_others():
    estimates, errors = groups()
    found = heterogeneity(np.append(estimates, 50.0), np.append(errors, 1e200))
    without = heterogeneity(estimates, errors)
    assert np.isfinite(numbers_of(found)).all()
    np.testing.assert_allclose([found.tau, found.mean], [without.tau, without.mean], rtol=1e-9)


@pytest.mark.parametrize("precise", [1e-3, 1e-6, 1e-9])
def test_one_group_that_is_known_precisely_leaves_the_spread_of_the_others(precise):
    estimates, errors = groups()
    found = heterogeneity(np.append(estimates, 1.2), np.append(errors, precise))
    limit = heterogeneity(np.append(estimates, 1.2), np.append(errors, 1e-4))
    np.testing.assert_allclose([found.tau, found.mean], [limit.tau, limit.mean], rtol=1e-4)
    np.testing.assert_allclose([found.new_low, found.new_high], [limit.new_low, limit.new_high], rtol=1e-3)
    assert found.method == "REML"


def test_groups_without_an_estimate_or_a_standard_error_are_left_out_and_counted():
    estimates, errors = groups()
    more = np.append(estimates, [np.nan, 1.0, np.inf, 1.0, 1.0]), np.append(errors, [1.0, np.nan, 1.0, 0.0, 1e-17])
    found = heterogeneity(*more)
    assert (found.n_groups, found.n_left_out) == (len(errors), 5)
    np.testing.assert_array_equal(numbers_of(found), numbers_of(heterogeneity(estimates, errors)))
    assert "5 groups left out" in str(found)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_too_few_groups_are_said_and_have_no_numbers(k):
    found = heterogeneity(*groups(k=k))
    assert found.too_few
    assert np.isnan(numbers_of(found)).all()
    assert str(found).startswith("Too few groups")
    assert not heterogeneity(*groups(k=3)).too_few


def test_the_sentence_says_whether_groups_may_be_equal():
    assert "may all be equal" not in str(heterogeneity(*groups(spread=3.0)))
    assert "may all be equal" in str(heterogeneity(*groups(spread=0.0, seed=2)))


def test_a_wide_interval_of_ratios_may_be_infinite():
    found = heterogeneity(np.array([-400.0, 0.0, 400.0]), np.ones(3), scale="log")
    assert found.new_low == 0
    assert found.new_high == np.inf
