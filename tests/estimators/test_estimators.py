import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks

import groupdro as gd
from groupdro import GroupDROClassifier, GroupDRORegressor
from tests.pairs import every_pair

ESTIMATORS = [GroupDROClassifier(), GroupDRORegressor()]


@pytest.mark.filterwarnings("ignore::groupdro.MissingGroupsWarning")
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore::groupdro.MissingGroupsWarning")
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learns_checks_with_routing(estimator, check):
    with sklearn.config_context(enable_metadata_routing=True):
        check(estimator)


def make_data(n_classes=2, n=240, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * [1.0, 3.0, 0.3, 1.0]
    groups = rng.choice(["north", "south", "west"], p=[0.6, 0.3, 0.1], size=n)
    slope = rng.normal(size=(d, n_classes)) + (groups == "west")[:, None, None] * rng.normal(size=(d, n_classes))
    scores = np.einsum("nd,ndc->nc", X, np.broadcast_to(slope, (n, d, n_classes))) + rng.gumbel(size=(n, n_classes))
    y = scores.argmax(axis=1) if n_classes > 1 else scores[:, 0]
    return X, y, groups


FINE = {"tol": 1e-9, "alpha": 1e-2, "random_state": 0}


def outputs(model, X):
    return model.decision_function(X) if hasattr(model, "decision_function") else model.predict(X)


def fitted(n_classes, X, y, groups, sample_weight=None, **params):
    model = (GroupDROClassifier if n_classes > 1 else GroupDRORegressor)(**{**FINE, **params})
    return model.fit(X, y, sample_weight, groups=groups)


# ---------------------------------------------------------------------- one group is plain empirical risk


@every_pair(fit_intercept=[True, False], weighted=[True, False], n_classes=[2, 3])
def test_one_group_equals_logistic_regression(n_classes, weighted, fit_intercept):
    X, y, _ = make_data(n_classes)
    weight = np.random.default_rng(1).uniform(0.1, 3.0, len(y)) if weighted else np.ones(len(y))
    ours = fitted(n_classes, X, y, np.zeros(len(y)), weight, fit_intercept=fit_intercept, tol=1e-11)
    total = weight.sum()
    theirs = LogisticRegression(C=1.0 / (FINE["alpha"] * total), fit_intercept=fit_intercept, tol=1e-12, max_iter=10000)
    theirs.fit(X, y, weight)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    assert (ours.predict(X) == theirs.predict(X)).all()


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_one_group_equals_ridge(fit_intercept):
    X, y, _ = make_data(1)
    ours = fitted(1, X, y, np.zeros(len(y)), fit_intercept=fit_intercept)
    theirs = Ridge(alpha=FINE["alpha"] * len(y), fit_intercept=fit_intercept).fit(X, y)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-6)


def test_missing_groups_are_one_group_with_a_warning():
    X, y, _ = make_data()
    with pytest.warns(gd.MissingGroupsWarning, match="enable_metadata_routing"):
        plain = GroupDROClassifier(**FINE).fit(X, y)
    assert plain.groups_.tolist() == ["all"]
    np.testing.assert_array_equal(plain.coef_, fitted(2, X, y, np.zeros(len(y))).coef_)


# ---------------------------------------------------------------------- invariances


@pytest.mark.parametrize("objective", ["risk", "excess_risk"])
@pytest.mark.parametrize("n_classes", [1, 2, 3])
class TestInvariance:
    def test_the_order_of_rows_does_not_matter(self, n_classes, objective):
        X, y, groups = make_data(n_classes)
        order = np.random.default_rng(2).permutation(len(y))
        a = fitted(n_classes, X, y, groups, objective=objective)
        b = fitted(n_classes, X[order], y[order], groups[order], objective=objective)
        np.testing.assert_allclose(outputs(a, X), outputs(b, X), atol=1e-5)
        np.testing.assert_allclose(a.group_risks_, b.group_risks_, atol=1e-7)

    def test_the_names_of_groups_do_not_matter(self, n_classes, objective):
        X, y, groups = make_data(n_classes)
        renamed = pd.Series(groups).map({"north": 7, "south": -1, "west": 3}).to_numpy()
        a = fitted(n_classes, X, y, groups, objective=objective)
        b = fitted(n_classes, X, y, renamed, objective=objective)
        np.testing.assert_allclose(outputs(a, X), outputs(b, X), atol=1e-5)
        assert {"north": 7, "south": -1, "west": 3}[a.worst_group_] in b.groups_

    def test_integer_weights_are_repetitions(self, n_classes, objective):
        X, y, groups = make_data(n_classes)
        times = np.random.default_rng(3).integers(1, 4, len(y))
        a = fitted(n_classes, X, y, groups, times, objective=objective)
        b = fitted(
            n_classes, np.repeat(X, times, 0), np.repeat(y, times), np.repeat(groups, times), objective=objective
        )
        np.testing.assert_allclose(outputs(a, X), outputs(b, X), atol=1e-5)
        np.testing.assert_allclose(a.upper_bound_, b.upper_bound_, rtol=1e-7)

    def test_a_duplicated_group_changes_nothing(self, n_classes, objective):
        X, y, groups = make_data(n_classes)
        west = groups == "west"
        a = fitted(n_classes, X, y, groups, objective=objective)
        b = fitted(
            n_classes, np.vstack([X, X[west]]), np.append(y, y[west]), np.append(groups, ["copy"] * west.sum()),
            objective=objective,
        )  # fmt: skip
        np.testing.assert_allclose(outputs(a, X), outputs(b, X), atol=1e-4)

    def test_scaled_columns_change_no_solution(self, n_classes, objective):
        X, y, groups = make_data(n_classes)
        some = {"objective": objective, "solver": "aleg", "tol": 1e-3, "max_passes": 5000}
        a = fitted(n_classes, X, y, groups, **some)
        b = fitted(n_classes, X, y, groups, **some | {"solver": gd.solvers.ALEG(scale_columns=False)})
        assert abs(a.upper_bound_ - b.upper_bound_) <= a.gap_ + b.gap_
        assert a.lower_bound_ <= b.upper_bound_
        assert b.lower_bound_ <= a.upper_bound_


# ---------------------------------------------------------------------- containers and labels


@pytest.mark.parametrize("n_classes", [1, 2, 3])
@pytest.mark.parametrize(
    "container",
    [
        np.asfortranarray,
        lambda X: X.astype(np.float32).astype(np.float64),
        sp.csr_array,
        sp.csr_matrix,
        sp.csc_array,
        sp.coo_array,
        lambda X: pd.DataFrame(X, columns=list("abcd")),
        lambda X: pl.DataFrame(X, schema=list("abcd")),
        lambda X: X.tolist(),
    ],
    ids=["fortran", "rounded", "csr_array", "csr_matrix", "csc", "coo", "pandas", "polars", "list"],
)
def test_the_container_does_not_matter(container, n_classes):
    X, y, groups = make_data(n_classes)
    X = X.astype(np.float32).astype(np.float64)
    plain, other = fitted(n_classes, X, y, groups), fitted(n_classes, container(X), y, groups)
    np.testing.assert_allclose(outputs(other, container(X)), outputs(plain, X), atol=1e-5)
    np.testing.assert_allclose(other.upper_bound_, plain.upper_bound_, rtol=1e-8)


def test_frames_leave_their_names():
    X, y, groups = make_data()
    assert fitted(2, pd.DataFrame(X, columns=list("abcd")), y, groups).feature_names_in_.tolist() == list("abcd")
    assert fitted(2, pl.DataFrame(X, schema=list("abcd")), y, groups).feature_names_in_.tolist() == list("abcd")


def test_a_memory_map_is_not_changed_nor_needed_in_order(tmp_path):
    X, y, groups = make_data()
    np.save(tmp_path / "X.npy", X.astype(np.float32))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    model = fitted(2, mapped, y, groups)
    assert model.status_ == "converged"
    np.testing.assert_allclose(model.upper_bound_, fitted(2, X.astype(np.float32), y, groups).upper_bound_, rtol=1e-8)


@pytest.mark.parametrize(
    "labels",
    [["no", "yes"], [False, True], [-1, 1], [7, 3], [0.0, 1.0], np.array(["b", "a"], dtype=object)],
    ids=["text", "bool", "signs", "falling", "float", "objects"],
)
def test_labels_of_any_kind_come_back(labels):
    X, y, groups = make_data()
    named = np.asarray(labels)[y]
    model = fitted(2, X, named, groups)
    assert model.classes_.tolist() == sorted(labels)
    assert set(model.predict(X).tolist()) <= set(labels)
    assert model.score(X, named) > 0.7
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(model.predict_proba(X)))


def test_the_squared_hinge_has_no_probabilities():
    X, y, groups = make_data()
    model = fitted(2, X, y, groups, loss="squared_hinge")
    assert model.score(X, y) > 0.7
    assert not hasattr(model, "predict_proba")
    with pytest.raises(ValueError, match="two classes"):
        fitted(3, *make_data(3), loss="squared_hinge")


# ---------------------------------------------------------------------- what a fit says


@pytest.mark.parametrize("n_classes", [1, 2, 3])
@pytest.mark.parametrize("objective", ["risk", "excess_risk"])
def test_the_certificate_is_that_of_the_model(objective, n_classes):
    X, y, groups = make_data(n_classes)
    model = fitted(n_classes, X, y, groups, objective=objective, alpha=0.1, tol=1e-6)
    losses = model._row_losses(X, y)
    risks = np.array([losses[groups == name].mean() for name in model.groups_])
    np.testing.assert_allclose(model.group_risks_, risks, rtol=1e-10)
    values = risks - (model.group_minima_ if objective == "excess_risk" else 0.0)
    worst = values.max() + 0.05 * (model.coef_**2).sum()
    assert abs(model.upper_bound_ - worst) <= 1e-6
    assert model.worst_group_ == model.groups_[values.argmax()] or np.ptp(np.sort(values)[-2:]) < 1e-5
    assert 0 <= model.gap_ <= 1e-6 * max(model.upper_bound_, 1e-6)
    assert model.lower_bound_ <= model.upper_bound_
    np.testing.assert_allclose(model.group_weights_.sum(), 1.0)
    assert model.n_passes_ > 0
    assert model.status_ == "converged"
    assert model.trace_[-1].passes <= model.n_passes_


def test_a_gap_above_the_tolerance_is_a_warning_that_says_what_to_do():
    X, y, groups = make_data()
    with pytest.warns(ConvergenceWarning, match=r"relative gap is .*tolerance 1e-09.*Increase max_passes=1 or tol"):
        model = fitted(2, X, y, groups, max_passes=1)
    assert model.status_ == "pass_limit"
    assert model.gap_ > 1e-9 * model.upper_bound_
    with pytest.warns(ConvergenceWarning, match="Increase max_time=1e-09"):
        assert fitted(2, X, y, groups, max_time=1e-9).status_ == "time_limit"


def test_a_target_that_fits_without_loss_converges_to_within_rounding():
    X, _, groups = make_data(1)
    y = np.full(len(X), 3.0)
    model = fitted(1, X, y, groups, tol=1e-6)
    assert model.status_ == "converged"
    assert model.gap_ <= 8 * np.finfo(float).eps * np.mean(y**2)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("noise", [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-2])
@pytest.mark.parametrize("alpha", [0.0, 1e-12])
def test_converged_is_said_only_within_the_tolerance_or_rounding(alpha, noise):
    X, _, groups = make_data(1)
    y = X @ [1.0, -2.0, 0.5, 3.0] + noise * np.random.default_rng(0).normal(size=len(X))
    model = fitted(1, X, y, groups, alpha=alpha, tol=1e-6)
    # Residuals of a thousand units of rounding: what a model that fits without loss may be left with.
    rounding = 0.5 * np.mean((1e3 * np.finfo(float).eps * y) ** 2)
    assert (model.status_ == "converged") == (model.gap_ <= max(1e-6 * model.upper_bound_, 2 * rounding))
    assert model.criterion_ == ("tol" if model.gap_ <= 1e-6 * model.upper_bound_ else None)


def test_without_penalty_the_bounds_are_those_of_the_model_in_the_users_units():
    X, y, groups = make_data()
    X = X * [1e-6, 1.0, 1e6, 1.0]
    model = fitted(2, X, y, groups, alpha=0.0, tol=1e-7)
    losses = model._row_losses(X, y)
    assert max(losses[groups == name].mean() for name in model.groups_) == pytest.approx(model.upper_bound_, rel=1e-9)
    assert model.status_ == "converged"


@pytest.mark.parametrize(
    "solver", ["auto", "aleg", "sqp", gd.solvers.ALEG(rows_per_step=8), gd.solvers.GroupSQP("lbfgs")]
)
def test_every_solver_agrees(solver):
    X, y, groups = make_data()
    found = fitted(2, X, y, groups, solver=solver, tol=1e-6)
    best = fitted(2, X, y, groups)
    assert best.lower_bound_ <= found.upper_bound_ <= best.upper_bound_ * (1 + 2e-6)
    again = clone(found).fit(X, y, groups=groups)
    np.testing.assert_array_equal(again.coef_, found.coef_)


def test_alem_is_for_regrets_only():
    X, y, groups = make_data()
    with pytest.raises(ValueError, match="solver 'alem'"):
        fitted(2, X, y, groups, solver="alem")
    assert fitted(2, X, y, groups, solver="alem", objective="excess_risk").solver_.startswith("alem")


def test_the_ball_binds():
    X, y, groups = make_data()
    model = fitted(2, X, y, groups, alpha=0.0, radius=0.5)
    assert np.linalg.norm(model.coef_) <= 0.5 * (1 + 1e-12)
    assert np.linalg.norm(model.coef_) > 0.49
    assert model.status_ == "converged"


# ---------------------------------------------------------------------- starts


@every_pair(objective=["risk", "excess_risk"], solver=["sqp", "aleg"], n_classes=[1, 2, 3])
def test_a_warm_start_saves_passes(n_classes, solver, objective):
    X, y, groups = make_data(n_classes)
    some = {"solver": solver, "tol": 1e-3, "objective": objective}
    model = fitted(n_classes, X, y, groups, **some)
    cold = model.n_passes_
    start = {"coef_init": model.coef_, "intercept_init": model.intercept_, "q_init": model.group_weights_}
    again = clone(model).fit(X, y, groups=groups, **start)
    assert again.n_passes_ < cold
    assert again.status_ == "converged"
    by_name = dict(zip(model.groups_.tolist(), model.group_weights_, strict=True))
    again.fit(X, y, groups=groups, **{**start, "q_init": by_name})
    assert again.n_passes_ < cold


def test_an_estimator_may_be_fitted_again_with_other_groups_and_features():
    X, y, groups = make_data()
    model = fitted(2, X, y, groups)
    model.fit(X[:, :2], y, groups=groups)
    assert model.coef_.shape == (1, 2)
    model.fit(X[:, :2], y, groups=np.arange(len(y)) % 5)
    assert len(model.group_weights_) == 5
    assert model.status_ == "converged"


def test_a_second_fit_forgets_what_the_first_had_beyond_it():
    X, y, groups = make_data()
    model = fitted(2, X, y, groups, objective="excess_risk")
    assert len(model.group_minima_) == 3
    model.set_params(objective="risk", fit_intercept=False).fit(X, y, groups=groups)
    assert not hasattr(model, "group_minima_")
    assert model.intercept_.tolist() == [0.0]
    assert model.status_ == "converged"


def test_a_start_outside_the_ball_is_brought_inside():
    X, y, groups = make_data()
    model = GroupDROClassifier(alpha=0.0, radius=0.5, tol=1e-6, random_state=0)
    model.fit(X, y, groups=groups, coef_init=np.full((1, 4), 100.0))
    assert model.status_ == "converged"
    assert np.linalg.norm(model.coef_) <= 0.5 * (1 + 1e-12)
    assert abs(model.upper_bound_ - fitted(2, X, y, groups, alpha=0.0, radius=0.5).upper_bound_) < 1e-6


def test_weights_that_begin_at_zero_come_back():
    X, y, groups = make_data()
    best = fitted(2, X, y, groups)
    dead = np.where(best.groups_ == best.worst_group_, 0.0, 1.0)
    for solver in ("aleg", "sqp"):
        model = GroupDROClassifier(**{**FINE, "tol": 1e-5}, solver=solver).fit(X, y, groups=groups, q_init=dead)
        assert model.status_ == "converged"
        np.testing.assert_allclose(model.upper_bound_, best.upper_bound_, rtol=2e-5)


@pytest.mark.parametrize("solver", ["alem", gd.solvers.ALEM(stage_two=gd.solvers.GroupSQP())])
def test_a_solver_of_regrets_does_not_answer_for_risks(solver):
    X, y, groups = gd.datasets.make_mero(n_groups=3, n_per_group=60, n_features=4)
    with pytest.raises(ValueError, match="minimises excess risks and requires objective='excess_risk'"):
        gd.GroupDROClassifier(solver=solver).fit(X, y, groups=groups)


@pytest.mark.parametrize("solver", ["alem", "auto"])
def test_minima_of_the_users_own_are_what_regrets_are_taken_against(solver):
    X, y, groups = gd.datasets.make_mero(n_groups=3, n_per_group=60, n_features=4)
    given = np.array([0.1, 0.2, 0.3])
    model = gd.GroupDROClassifier("excess_risk", solver=solver, tol=1e-2, alpha=0.1, random_state=0)
    model.fit(X, y, groups=groups, group_minima=given)
    assert model.status_ == "converged"
    np.testing.assert_array_equal(model.group_minima_, given)
    penalty = 0.05 * (model.coef_**2).sum()
    assert model.upper_bound_ == pytest.approx((model.group_risks_ - given).max() + penalty, rel=1e-9)


def test_a_stage_that_cannot_is_named():
    X, y, groups = gd.datasets.make_mero(n_groups=3, n_per_group=60, n_features=4)
    with pytest.raises(ValueError, match="solver 'aleg-theory' requires"):
        gd.GroupDROClassifier("excess_risk", solver="aleg-theory").fit(X, y, groups=groups)


@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_without_penalty_bounds_hold_for_outputs_up_to_a_limit(n_classes):
    X, y, groups = make_data(n_classes)
    model = fitted(n_classes, X, y, groups, alpha=0.0, tol=1e-4)
    assert model.status_ == "converged"
    assert model.bound_radius_ == pytest.approx(1e3 * (np.std(y) if n_classes == 1 else 1.0), rel=0.5)
    assert fitted(n_classes, X, y, groups).bound_radius_ == np.inf
