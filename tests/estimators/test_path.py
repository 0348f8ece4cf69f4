import functools
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import groupdro as gd
from groupdro import GroupDROClassifier, GroupDRORegressor, MissingGroupsWarning, regularization_path

N, D = 180, 4
ALPHAS = [1e-3, 1.0, 1e-1, 1e-2]
TOL = 1e-6
MODELS = {
    "binary": GroupDROClassifier(tol=TOL),
    "multi-class": GroupDROClassifier(tol=TOL),
    "squared_hinge": GroupDROClassifier(loss="squared_hinge", tol=TOL),
    "no intercept": GroupDROClassifier(fit_intercept=False, tol=TOL),
    "radius": GroupDROClassifier(radius=0.3, tol=TOL),
    "adjusted": GroupDROClassifier(small_group_bonus=0.5, tol=TOL),
    "squared": GroupDRORegressor(tol=TOL),
    "squared, no intercept": GroupDRORegressor(fit_intercept=False, tol=TOL),
    "huber": GroupDRORegressor(loss=gd.losses.Huber(0.6), tol=TOL),
}
REGRETS = {
    "regrets": GroupDROClassifier("excess_risk", tol=1e-4),
    "squared regrets": GroupDRORegressor("excess_risk", tol=1e-4),
}
every_model = pytest.mark.parametrize("kind", MODELS)
every_model_and_regrets = pytest.mark.parametrize("kind", [*MODELS, *REGRETS])


@functools.cache
def arrays(kind="binary"):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)) * [1.0, 2.0, 0.5, 1.0]
    groups = rng.choice(["a", "b", "c", "d"], N, p=[0.5, 0.3, 0.1, 0.1])
    score = X @ [1.0, -0.3, 0.0, 0.5] + X[:, 3] * np.where(groups == "c", -2.0, 0.0) + rng.logistic(size=N)
    if kind != "squared_hinge" and ("squared" in kind or "huber" in kind):
        return X, score, groups
    cuts = [-0.5, 0.8] if kind == "multi-class" else [0.0]
    return X, np.searchsorted(cuts, score), groups


@functools.cache
def path_of(kind, warm_start=True):
    X, y, groups = arrays(kind)
    return regularization_path({**MODELS, **REGRETS}[kind], X, y, groups=groups, alphas=ALPHAS, warm_start=warm_start)


@functools.cache
def fit_of(kind, alpha):
    X, y, groups = arrays(kind)
    estimator = {**MODELS, **REGRETS}[kind]
    return type(estimator)(**{**estimator.get_params(), "alpha": alpha}).fit(X, y, groups=groups)


def risks_by_hand(kind, coef, intercept):
    X, y, groups = arrays(kind)
    outputs = X @ np.atleast_2d(coef).T + intercept
    u = outputs[:, 0]
    if kind == "squared_hinge":
        losses = 0.5 * np.maximum(0.0, 1.0 - (2 * y - 1) * u) ** 2
    elif "squared" in kind:
        losses = 0.5 * (u - y) ** 2
    elif kind == "huber":
        r = abs(u - y)
        losses = np.where(r <= 0.6, 0.5 * r**2, 0.6 * (r - 0.3))
    else:
        outputs = np.column_stack([np.zeros(N), u]) if outputs.shape[1] == 1 else outputs
        losses = np.log(np.exp(outputs).sum(axis=1)) - outputs[np.arange(N), y]
    return np.array([losses[groups == name].mean() for name in "abcd"])


@every_model_and_regrets
def test_penalties_fall_in_whatever_order_they_are_given(kind):
    path = path_of(kind)
    np.testing.assert_array_equal(path.alphas, [1.0, 1e-1, 1e-2, 1e-3])
    norms = np.linalg.norm(path.coefs.reshape(4, -1), axis=1)
    assert (np.diff(norms) >= -1e-3 * norms.max()).all()


@every_model_and_regrets
def test_every_gap_is_within_the_tolerance(kind):
    path = path_of(kind)
    assert path.statuses == ["converged"] * 4
    assert (path.gaps >= path.upper_bounds - path.lower_bounds).all()
    np.testing.assert_allclose(path.gaps, path.upper_bounds - path.lower_bounds, atol=1e-10)
    size = np.maximum(path.upper_bounds, 1e-4) if kind in REGRETS else path.upper_bounds
    assert (path.gaps <= (1e-4 if kind in REGRETS else TOL) * size).all()
    assert (path.lower_bounds <= path.upper_bounds).all()
    assert (path.n_passes > 0).all()


@every_model_and_regrets
@pytest.mark.parametrize("warm_start", [True, False], ids=["warm", "cold"])
def test_the_path_agrees_with_a_fit_at_each_penalty(kind, warm_start):
    path = path_of(kind, warm_start)
    for k, alpha in enumerate(path.alphas):
        model = fit_of(kind, float(alpha))
        assert path.upper_bounds[k] - model.upper_bound_ <= path.gaps[k]
        assert model.upper_bound_ - path.upper_bounds[k] <= model.gap_
        assert path.lower_bounds[k] <= model.upper_bound_
        assert model.lower_bound_ <= path.upper_bounds[k]
        assert path.coefs[k].shape == model.coef_.shape
        assert np.shape(path.intercepts[k]) == np.shape(model.intercept_)
    np.testing.assert_array_equal(path.groups, ["a", "b", "c", "d"])


@every_model
def test_the_bounds_and_risks_are_those_of_the_coefficients(kind):
    path, estimator = path_of(kind), MODELS[kind]
    sizes = np.array([(arrays(kind)[2] == name).sum() for name in "abcd"])
    for k, alpha in enumerate(path.alphas):
        coef, intercept = path.coefs[k], path.intercepts[k]
        risks = risks_by_hand(kind, coef, intercept)
        np.testing.assert_allclose(path.group_risks[k], risks, rtol=1e-9)
        allowance = estimator.small_group_bonus / np.sqrt(sizes)
        value = (risks + allowance).max() + 0.5 * alpha * np.sum(coef**2)
        # Centring the classes may only lower the penalty.
        assert value <= path.upper_bounds[k] * (1.0 + 1e-9)
        assert value >= path.lower_bounds[k] * (1.0 - 1e-9)
        if kind == "radius":
            assert np.linalg.norm(coef) <= 0.3 * (1.0 + 1e-9)
        if not estimator.fit_intercept:
            assert np.all(intercept == 0.0)


@every_model_and_regrets
def test_a_cold_path_is_the_same_as_separate_fits(kind):
    path = path_of(kind, warm_start=False)
    for k, alpha in enumerate(path.alphas):
        np.testing.assert_array_equal(path.coefs[k], fit_of(kind, float(alpha)).coef_)
        np.testing.assert_array_equal(path.intercepts[k], fit_of(kind, float(alpha)).intercept_)
        assert path.n_passes[k] == fit_of(kind, float(alpha)).n_passes_


def test_warm_starts_take_fewer_passes_than_cold_ones():
    X, y, groups = arrays("binary")
    alphas = np.logspace(0, -4, 20)
    warm, cold = (
        regularization_path(GroupDROClassifier(), X, y, groups=groups, alphas=alphas, warm_start=start)
        for start in (True, False)
    )
    assert warm.n_passes.sum() < 0.9 * cold.n_passes.sum()
    assert warm.n_passes[0] == cold.n_passes[0]


def test_weights_of_rows_count():
    X, y, groups = arrays("binary")
    weight = np.random.default_rng(1).choice([0.0, 1.0, 2.0], N)
    path = regularization_path(MODELS["binary"], X, y, groups=groups, sample_weight=weight, alphas=ALPHAS)
    for k, alpha in enumerate(path.alphas):
        model = GroupDROClassifier(alpha=alpha, tol=TOL).fit(X, y, weight, groups=groups)
        assert abs(model.upper_bound_ - path.upper_bounds[k]) <= max(model.gap_, path.gaps[k])
    assert (abs(path.upper_bounds - path_of("binary").upper_bounds) > 1e-3).all()


@pytest.mark.parametrize("container", [sp.csr_array, sp.csr_matrix, np.float32, pd.DataFrame, list])
def test_rows_come_in_any_container(container):
    X, y, groups = arrays("binary")
    X = X.tolist() if container is list else container(X)
    path = regularization_path(MODELS["binary"], X, y, groups=groups, alphas=ALPHAS)
    np.testing.assert_allclose(path.upper_bounds, path_of("binary").upper_bounds, rtol=1e-5)


def test_groups_of_several_columns_are_tuples():
    X, y, groups = arrays("binary")
    pairs = pd.DataFrame({"place": groups, "old": np.arange(N) % 2})
    path = regularization_path(MODELS["binary"], X, y, groups=pairs, alphas=[1.0])
    assert path.groups.tolist() == [(place, old) for place in "abcd" for old in (0, 1)]
    assert path.group_risks.shape == (1, 8)


@pytest.mark.parametrize(
    ("kind", "coefs", "intercepts"),
    [("binary", (4, 1, D), (4, 1)), ("multi-class", (4, 3, D), (4, 3)), ("squared", (4, D), (4,))],
)
def test_shapes_are_those_of_a_fit_with_the_penalties_in_front(kind, coefs, intercepts):
    path = path_of(kind)
    assert path.coefs.shape == coefs
    assert path.intercepts.shape == intercepts
    assert path.group_risks.shape == (4, 4)
    for values in (path.alphas, path.upper_bounds, path.lower_bounds, path.gaps, path.n_passes):
        assert values.shape == (4,)


def test_by_default_there_are_ten_penalties_from_one_to_a_hundred_thousandth():
    X, y, groups = arrays("binary")
    path = regularization_path(GroupDROClassifier(), X, y, groups=groups)
    np.testing.assert_allclose(path.alphas, np.logspace(0, -5, 10))


@pytest.mark.parametrize("alphas", [0.1, [0.1], (0.1,), np.array([[0.1]]), pd.Series([0.1])])
def test_penalties_come_in_any_container(alphas):
    X, y, groups = arrays("binary")
    np.testing.assert_array_equal(
        regularization_path(GroupDROClassifier(), X, y, groups=groups, alphas=alphas).alphas, [0.1]
    )


def test_what_is_given_is_not_changed():
    X, y, groups = arrays("binary")
    estimator, alphas = GroupDROClassifier(alpha=7.0), np.array([0.1, 1.0])
    before = estimator.get_params()
    path = regularization_path(estimator, X, y, groups=groups, alphas=alphas)
    assert estimator.get_params() == before
    assert not hasattr(estimator, "coef_")
    np.testing.assert_array_equal(alphas, [0.1, 1.0])
    assert not np.shares_memory(path.alphas, alphas)


def test_a_fitted_estimator_gives_the_same_path_as_a_new_one():
    X, y, groups = arrays("binary")
    fitted = GroupDROClassifier(tol=TOL).fit(X, y, groups=groups)
    path = regularization_path(fitted, X, y, groups=groups, alphas=ALPHAS)
    np.testing.assert_array_equal(path.coefs, path_of("binary").coefs)


def test_a_path_that_runs_out_of_passes_says_so_and_stays_certified():
    X, y, groups = arrays("binary")
    estimator = GroupDROClassifier(tol=1e-12, max_passes=1)
    path = regularization_path(estimator, X, y, groups=groups, alphas=ALPHAS)
    assert "pass_limit" in path.statuses
    assert (path.lower_bounds <= path_of("binary").upper_bounds).all()
    assert (path.upper_bounds >= path_of("binary").lower_bounds).all()


@pytest.mark.parametrize("how", ["ctrl-c", "callback"])
def test_an_interrupt_ends_the_path_with_the_fit_that_it_interrupts(how):
    begun = []

    def callback(progress):
        begun.append(progress.latest.epoch == 0)
        if sum(begun) == 2 and how == "ctrl-c":
            raise KeyboardInterrupt
        return sum(begun) == 2

    X, y, groups = arrays("binary")
    alphas = np.sort(ALPHAS)[::-1]
    kept = 2 if how == "ctrl-c" else len(alphas)  # a callback ends its own fit alone
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = regularization_path(GroupDROClassifier(callbacks=[callback]), X, y, groups=groups, alphas=alphas)
    told = [str(w.message) for w in caught if w.category is ConvergenceWarning]
    assert told == ([f"Interrupted after 2 of {len(alphas)} penalties."] if how == "ctrl-c" else [])
    assert path.alphas.tolist() == alphas[:kept].tolist()
    assert path.statuses[:2] == ["converged", "interrupted"]
    assert len(path.coefs) == len(path.gaps) == len(path.group_risks) == kept


def test_without_groups_a_path_warns():
    X, y, _ = arrays("binary")
    with pytest.warns(MissingGroupsWarning, match="groups is missing"):
        path = regularization_path(GroupDROClassifier(), X, y, groups=None, alphas=[0.1])
    assert path.groups.tolist() == ["all"]


@pytest.mark.parametrize(
    "alphas", [[], [0.0], [1.0, -1.0], [np.nan], [np.inf], [0.1, 0.0], ["x"], "x", [None], [[1.0], [1.0, 2.0]]], ids=str
)
def test_penalties_that_are_not_positive_numbers_are_refused_by_name(alphas):
    X, y, groups = arrays("binary")
    with pytest.raises((TypeError, ValueError), match="alphas"):
        regularization_path(GroupDROClassifier(), X, y, groups=groups, alphas=alphas)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"groups": ["a"] * (N - 1)}, "groups"),
        ({"groups": np.array(["a", None] * (N // 2), object)}, "groups"),
        ({"sample_weight": -np.ones(N)}, "sample_weight"),
        ({"estimator": GroupDROClassifier(tol=-1.0)}, "tol"),
        ({"estimator": GroupDROClassifier(loss="squared")}, "loss"),
        ({"estimator": LogisticRegression()}, "estimator"),
        ({"estimator": make_pipeline(GroupDROClassifier())}, "estimator"),
    ],
    ids=["length", "missing", "negative", "tol", "loss", "foreign", "pipeline"],
)
def test_errors_name_the_argument(arguments, named):
    X, y, groups = arrays("binary")
    given = {"estimator": GroupDROClassifier(), "groups": groups, **arguments}
    with pytest.raises((TypeError, ValueError), match=named):
        regularization_path(given.pop("estimator"), X, y, alphas=[0.1], **given)


def test_models_of_a_path_are_fitted_estimators():
    X, y, groups = arrays("multi-class")
    path = path_of("multi-class")
    for alpha, model, coef in zip(path.alphas, path.models, path.coefs, strict=True):
        assert model.alpha == alpha
        np.testing.assert_array_equal(model.coef_, coef)
        np.testing.assert_allclose(model.predict_proba(X), model.to_sklearn().predict_proba(X), atol=1e-12)
    assert gd.group_report(path.models[0], X, y, groups).columns["n"]


def test_a_path_is_judged_on_held_out_rows_by_its_average_and_its_worst_group():
    X, y, groups = arrays("multi-class")
    table = path_of("multi-class").judge(X[:90], y[:90], groups=groups[:90])
    assert table["alpha"] == sorted(ALPHAS, reverse=True)
    for k, model in enumerate(path_of("multi-class").models):
        right = pd.Series(model.predict(X[:90]) == y[:90])
        by_group = right.groupby(groups[:90]).mean()
        assert table["all rows"][k] == pytest.approx(right.mean())
        assert table["worst group"][k] == pytest.approx(by_group.min())
        assert by_group[table["group"][k]] == by_group.min()


def test_regressors_are_judged_by_their_risk_and_small_groups_can_be_left_out():
    X, y, groups = arrays("squared")
    path = path_of("squared")
    table = path.judge(X, y, groups=groups, min_group_size=30)
    sizes = pd.Series(groups).value_counts()
    assert set(table["group"]) <= set(sizes.index[sizes >= 30])
    losses = pd.Series(0.5 * (path.models[0].predict(X) - y) ** 2).groupby(groups).mean()
    assert table["worst group"][0] == pytest.approx(losses[sizes.index[sizes >= 30]].max())
    with pytest.raises(ValueError, match="min_group_size=1000 leaves no group"):
        path.judge(X, y, groups=groups, min_group_size=1000)
