"""Regressions of counts, amounts and quantiles against scikit-learn's."""

import time
from fractions import Fraction

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import GammaRegressor, PoissonRegressor, QuantileRegressor, TweedieRegressor
from sklearn.metrics import d2_tweedie_score

import groupdro as gd
from groupdro.losses import Gamma, Poisson, Quantile, Tweedie
from tests.reference.random_problems import OF_MEANS, judge

N = 2000
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 6))
OUTPUT = X @ RNG.normal(size=6) * 0.3 - 0.5
MEAN = np.exp(OUTPUT)
GROUPS = RNG.choice(["a", "b", "c"], N, p=[0.7, 0.25, 0.05])
COUNTS = RNG.poisson(MEAN * np.where(GROUPS == "c", 2.0, 1.0)).astype(float)
AMOUNTS = RNG.gamma(2.0, MEAN / 2.0)
KINDS = {
    "poisson": ("poisson", COUNTS, PoissonRegressor),
    "gamma": ("gamma", AMOUNTS, GammaRegressor),
    "tweedie": (Tweedie(1.4), COUNTS * AMOUNTS, lambda **more: TweedieRegressor(power=1.4, link="log", **more)),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_plain_training_is_that_of_scikit_learn(kind):
    loss, y, reference = KINDS[kind]
    other = reference(alpha=1e-2, tol=1e-10, max_iter=1000, solver="newton-cholesky").fit(X, y)
    model = gd.GroupDRORegressor(loss=loss, alpha=1e-2, robustness=0, tol=1e-11).fit(X, y, groups=GROUPS)
    assert model.status_ == "converged"
    np.testing.assert_allclose(model.coef_, other.coef_, atol=1e-6 * np.abs(other.coef_).max())
    np.testing.assert_allclose(model.predict(X), other.predict(X), rtol=1e-5)
    assert model.score(X, y) == pytest.approx(other.score(X, y), abs=1e-6)
    plain = model.to_sklearn()
    assert type(plain) is type(other)
    np.testing.assert_allclose(plain.predict(X), model.predict(X), rtol=1e-12)
    np.testing.assert_allclose(np.log(model.predict(X)), model.linear_predictor(X))


def test_quantiles_reach_the_objective_of_linear_programming():
    y = OUTPUT + RNG.normal(size=N)
    other = QuantileRegressor(quantile=0.8, alpha=1e-2).fit(X, y)
    model = gd.GroupDRORegressor(loss=Quantile(0.8), alpha=1e-2, l1_ratio=1.0, robustness=0, tol=1e-7)
    model.fit(X, y, groups=GROUPS)
    residual = y - other.predict(X)
    best = np.maximum(0.8 * residual, -0.2 * residual).mean() + 1e-2 * np.abs(other.coef_).sum()
    assert model.status_ == "converged"
    assert model.lower_bound_ <= best * (1 + 1e-9)
    assert model.upper_bound_ == pytest.approx(best, rel=1e-6)
    np.testing.assert_allclose(model.to_sklearn().predict(X), model.predict(X))


@pytest.mark.parametrize("objective", ["risk", "excess_risk"])
def test_quantiles_of_the_worst_group_converge_within_the_default_passes(objective):
    y = np.exp(OUTPUT) * RNG.exponential(np.where(GROUPS == "c", 2.0, 1.0))
    model = gd.GroupDRORegressor(objective, loss=Quantile(0.9), alpha=1e-3).fit(X, y, groups=GROUPS)
    assert model.status_ == "converged"


def test_minima_of_quantiles_are_refined_where_excess_risks_are_small_beside_them():
    y = 1e3 * RNG.normal(size=N) + np.where(GROUPS == "c", 40.0, 0.0)
    model = gd.GroupDRORegressor("excess_risk", loss="absolute_error", alpha=1e-2, tol=1e-2, atol=0.0)
    model.fit(X, y, groups=GROUPS)
    assert model.status_ == "converged"
    assert model.upper_bound_ < 0.01 * model.group_minima_.min()
    assert model.gap_ <= 1e-2 * model.upper_bound_


@pytest.mark.parametrize("solver", ["auto", "sqp", "aleg"])
@pytest.mark.parametrize("objective", ["risk", "excess_risk"])
@every_kind
def test_the_worst_group_converges(kind, objective, solver):
    loss, y, _ = KINDS[kind]
    fits = [
        gd.GroupDRORegressor(objective, loss=loss, robustness=robustness, solver=solver, tol=1e-3).fit(
            X, y, groups=GROUPS
        )
        for robustness in (0.0, 0.5, 1.0)
    ]
    assert {model.status_ for model in fits} == {"converged"}
    worst = [model.worst_risk_ for model in fits]
    assert worst[2] <= worst[1] * (1 + 2e-3) <= worst[0] * (1 + 4e-3)


@pytest.mark.parametrize("seed", [*range(30), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(30, 200))])
def test_no_bound_is_refuted_by_an_independent_solver(seed):
    assert judge(seed, losses=OF_MEANS).violations == ()


def test_exposure_as_an_offset_is_exposure_as_a_weight():
    exposure = 10.0 ** RNG.uniform(-4, 4, N)
    y = RNG.poisson(np.minimum(MEAN * exposure, 1e6)).astype(float)
    exact = {"loss": "poisson", "robustness": 0, "tol": 1e-11}
    by_offset = gd.GroupDRORegressor(alpha=1e-3, **exact).fit(X, y, groups=GROUPS, offset=np.log(exposure))
    alpha = 1e-3 / exposure.mean()  # of the weighted mean of the losses
    rates = gd.GroupDRORegressor(alpha=alpha, **exact).fit(X, y / exposure, groups=GROUPS, sample_weight=exposure)
    np.testing.assert_allclose(by_offset.coef_, rates.coef_, atol=1e-8)


def test_equal_labels_of_different_exposures_have_no_minimum_of_zero():
    own = np.flatnonzero(GROUPS == "c")[:4]
    rows = np.concatenate([np.flatnonzero(GROUPS == "a")[:50], own])
    y, offset = AMOUNTS.copy(), RNG.normal(size=N)
    y[own] = 1.0
    given = {"loss": "gamma", "alpha": 1e-2}
    model = gd.GroupDRORegressor("excess_risk", **given)
    model.fit(X[rows], y[rows], groups=GROUPS[rows], offset=offset[rows])
    alone = gd.GroupDRORegressor(**given).fit(X[own], y[own], groups=GROUPS[own], offset=offset[own])
    assert model.group_minima_[1] >= alone.lower_bound_ > 0


def test_labels_are_refused_by_their_row():
    y = AMOUNTS.copy()
    y[[7, 1500]] = 0.0
    with pytest.raises(ValueError, match="positive for the gamma loss; got 0 in row 7"):
        gd.GroupDRORegressor(loss="gamma").fit(X, y, groups=GROUPS)
    with pytest.raises(ValueError, match="offset is 1e\\+03 in row"):
        gd.GroupDRORegressor(loss="poisson").fit(X, COUNTS, groups=GROUPS, offset=np.full(N, 1e3))


def test_counts_of_a_million_without_an_intercept_converge():
    columns = np.column_stack([np.ones(N), X])
    model = gd.GroupDRORegressor(loss="poisson", fit_intercept=False, alpha=1e-6)
    model.fit(columns, RNG.poisson(1e6 * MEAN), groups=GROUPS)
    assert model.status_ == "converged"
    assert model.coef_[0] == pytest.approx(np.log(1e6) - 0.5, abs=0.5)


@pytest.mark.parametrize("solver", ["aleg-theory", "dual-ascent"])
def test_solvers_that_require_a_bound_of_the_curvature_refuse_by_name(solver):
    data = gd.GroupedData.from_arrays(X, COUNTS, GROUPS)
    problem = gd.Problem(data, Poisson(), gd.domains.L2Domain(penalty=1e-2))
    with pytest.raises(ValueError, match=f"{solver}.*bounded curvature"):
        gd.solve(problem, solver)


def test_all_counts_zero_have_no_minimiser():
    X = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.warns(ConvergenceWarning) as caught:
        model = gd.GroupDRORegressor(loss="poisson", alpha=1.0).fit(X, np.zeros(30), groups=np.arange(30) % 3)
    assert model.status_ == "no_finite_minimiser"
    message = str(caught[0].message)
    assert "Set alpha" not in message  # which bounds no intercept
    assert message == message.strip()
    assert 30 * model.predict(X).max() <= 1.0


@pytest.mark.parametrize("power", [1.00001, 1.9995, 1.999999])
@pytest.mark.parametrize("zeros", [False, True])
def test_powers_next_to_those_of_poisson_and_gamma_have_true_bounds(power, zeros):
    rng = np.random.default_rng(2)
    X, groups = rng.normal(size=(600, 3)), rng.integers(0, 3, 600)
    y = rng.poisson(np.exp(-1 + 0.5 * X[:, 0])) + 0.1
    y[rng.random(600) < 0.3 * zeros] = 0.0
    model = gd.GroupDRORegressor(loss=Tweedie(power)).fit(X, y, groups=groups)
    assert model.status_ == "converged"
    assert (1 - 1e-4) * model.upper_bound_ <= model.lower_bound_ <= model.upper_bound_


@pytest.mark.parametrize("options", [{"max_passes": 10}, {"objective": "excess_risk", "max_passes": 30}])
def test_a_quantile_fit_that_ends_early_states_its_own_bounds_and_beats_a_constant(options):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(2000, 60)), rng.integers(0, 20, 2000)
    y = 100 + X[:, 0] * (1 + groups / 10) + rng.exponential(size=2000)
    with pytest.warns(ConvergenceWarning):
        model = gd.GroupDRORegressor(loss=Quantile(0.9), **options).fit(X, y, groups=groups)
    assert f"Gap {model.gap_:.3g} at an upper bound of {model.upper_bound_:.6g}." in model.message_
    shift = y - y.mean()
    constant = [np.maximum(0.9 * shift, -0.1 * shift)[groups == g].mean() for g in range(20)]
    assert model.group_risks_.max() <= max(constant)


def test_models_of_others_are_compared_by_the_same_deviance():
    models = {"poisson": PoissonRegressor(alpha=1e-4)}
    found = gd.compare(X, COUNTS, GROUPS, estimator=gd.GroupDRORegressor(loss="poisson"), models=models, cv=None)
    risks = dict(zip(found.columns["model"], found.columns["mean_risk"], strict=True))
    assert risks["poisson"] == pytest.approx(risks["ERM"], rel=1e-2)
    # The headroom is in the same units: that of the model in the table.
    worst = dict(zip(found.columns["model"], found.columns["worst_risk"], strict=True))
    assert found.headroom.worst == pytest.approx(worst[found.recommended], rel=1e-9)
    assert found.headroom.least <= min(worst.values())


def test_stores_and_cross_validation_take_these_losses(tmp_path):
    exposure = RNG.uniform(0.5, 2.0, N)
    store = gd.GroupedStore.write_arrays(
        tmp_path / "store", X, COUNTS, GROUPS, offset=np.log(exposure), task="regression"
    )
    model = gd.GroupDRORegressor(loss="poisson").fit(store)
    other = gd.GroupDRORegressor(loss="poisson").fit(X, COUNTS, groups=GROUPS, offset=np.log(exposure))
    np.testing.assert_allclose(model.upper_bound_, other.upper_bound_, rtol=1e-4)
    search = gd.GroupDRORegressorCV(gd.GroupDRORegressor(loss=Gamma()), alphas=[1e-3, 1e-1], robustness=[0.0, 1.0])
    search.fit(X, AMOUNTS, groups=GROUPS)
    assert search.alpha_ == 1e-3
    assert d2_tweedie_score(AMOUNTS, search.predict(X), power=2) > 0.1


@every_kind
def test_reports_explain_deviances_and_compare_actual_with_expected(kind):
    loss, y, _ = KINDS[kind]
    model = gd.GroupDRORegressor(loss=loss).fit(X, y, groups=GROUPS)
    report = gd.group_report(model, X, y, GROUPS, metrics=["d2", "actual_over_expected"], n_bootstrap=200)
    predicted = model.predict(X)
    power = {"poisson": 1, "gamma": 2, "tweedie": 1.4}[kind]
    for group, row in report.by_group.items():
        own = group == GROUPS
        assert row["d2"] == pytest.approx(d2_tweedie_score(y[own], predicted[own], power=power))
        assert row["actual_over_expected"] == pytest.approx(y[own].mean() / predicted[own].mean())
        if group == "c":
            continue  # has too few rows
        assert row["actual_over_expected_low"] < row["actual_over_expected"] < row["actual_over_expected_high"]
        assert row["d2_low"] < row["d2"] < row["d2_high"] <= 1


def test_the_share_below_a_quantile_has_an_interval():
    y = OUTPUT + RNG.normal(size=N)
    model = gd.GroupDRORegressor(loss=Quantile(0.9), robustness=0).fit(X, y, groups=GROUPS)
    report = gd.group_report(model, X, y, GROUPS, metrics=["risk", "share_below"])
    assert report.overall["share_below"] == pytest.approx(0.9, abs=0.01)
    for row in report.by_group.values():
        assert row["share_below_low"] < row["share_below"] < row["share_below_high"]


def test_metrics_that_do_not_rank_models_cannot_decide():
    model = gd.GroupDRORegressor(robustness=0).fit(X, OUTPUT, groups=GROUPS)
    for name in ("share_below", "actual_over_expected"):
        with pytest.raises(ValueError, match=f"{name}.* put it after another one"):
            gd.group_report(model, X, OUTPUT, GROUPS, metrics=name)
        with pytest.raises(ValueError, match=name):
            gd.worst_group_scorer(name)


def exact_worst(model, rows, y, groups, level):
    """Return the worst pinball loss of a model in exact arithmetic."""
    w, b = [Fraction(float(c)) for c in model.coef_], Fraction(float(model.intercept_))
    above, below = Fraction(1 - level).limit_denominator(), Fraction(level).limit_denominator()
    losses = []
    for row, target in zip(rows, y, strict=True):
        residual = sum((Fraction(float(x)) * c for x, c in zip(row, w, strict=True)), b) - Fraction(float(target))
        losses.append(max(above * residual, -below * residual))
    return float(max(sum(np.array(losses)[groups == k]) / int((groups == k).sum()) for k in np.unique(groups)))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-6])
@pytest.mark.parametrize("centre", [0.0, 1e6, 1e12])
def test_bounds_of_quantiles_hold_for_targets_that_are_nearly_all_rounding(centre, noise):
    rng = np.random.default_rng(0)
    rows, groups = rng.normal(size=(300, 3)), rng.integers(0, 3, 300)
    y = centre + rows @ [1.0, 2.0, 3.0] + noise * rng.standard_t(3, 300)
    model = gd.GroupDRORegressor(loss=Quantile(0.7), alpha=1e-12, max_passes=200).fit(rows, y, groups=groups)
    worst = exact_worst(model, rows, y, groups, 0.7)
    assert model.lower_bound_ <= worst + 1e-11
    assert model.upper_bound_ >= worst * (1 - 1e-9)
    if model.criterion_ == "tol":
        assert worst <= model.lower_bound_ * (1 + 2e-4)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::groupdro.SmallGroupWarning")
def test_the_time_limit_holds_for_all_groups_minima_together():
    rng = np.random.default_rng(0)
    rows, groups = rng.normal(size=(5000, 20)), rng.integers(0, 60, 5000)
    y = rows[:, 0] + rng.standard_t(3, 5000) * (1 + groups % 3)
    model = gd.GroupDRORegressor("excess_risk", loss=Quantile(0.9), max_time=0.5, tol=1e-8)
    model.fit(rows[:100], y[:100], groups=groups[:100])  # compiles
    begun = time.process_time()
    model.fit(rows, y, groups=groups)
    assert model.status_ == "time_limit"
    assert time.process_time() - begun < 3.0
