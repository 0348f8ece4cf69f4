"""Models that correct a score: `offset` in fits, predictions and reports."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.special import expit, softmax
from sklearn import config_context
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from groupdro import (
    GroupBy,
    GroupDROClassifier,
    GroupDROClassifierCV,
    GroupDRORegressor,
    GroupDRORegressorCV,
    GroupedStore,
    group_report,
    regularization_path,
    robustness_frontier,
    worst_group_scorer,
)
from groupdro.evaluation.outputs import row_losses
from tests.distributed.thread_comm import run_workers
from tests.pairs import every_pair
from tests.reference.blends import Blend

KINDS = ("logistic", "softmax", "squared")
every_kind = pytest.mark.parametrize("kind", KINDS)


def rows(kind, n=240, d=3, seed=0):
    """Return X, y, groups and offset."""
    rng = np.random.default_rng(seed)
    X, groups = rng.normal(size=(n, d)), rng.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1])
    score = X[:, 0] + np.where(groups == "c", 2.0 * X[:, 1], 0.0)
    if kind == "softmax":
        offset = 1.5 * rng.normal(size=(n, 3))
        return X, (offset + np.outer(score, [1, 0, -1]) + rng.gumbel(size=(n, 3))).argmax(axis=1), groups, offset
    offset = 1.5 * rng.normal(size=n)
    if kind == "squared":
        return X, offset + score + rng.normal(size=n), groups, offset
    return X, (rng.random(n) < expit(offset + score)).astype(int), groups, offset


def estimator(kind, **options):
    return (GroupDRORegressor if kind == "squared" else GroupDROClassifier)(**options)


# ---------------------------------------------------------------------- fits


@every_pair(kind=KINDS, robustness=[0.0, 0.4, 1.0], intercept={"intercept": True, "no intercept": False})
def test_a_blend_is_certified_against_a_convex_solver(kind, robustness, intercept):
    X, y, groups, offset = rows(kind)
    model = estimator(kind, alpha=0.05, robustness=robustness, fit_intercept=intercept, tol=1e-7)
    model.fit(X, y, groups=groups, offset=offset)
    blend = Blend(X, y, groups, alpha=0.05, intercept=intercept, offset=offset)
    least = blend.least_blend(robustness)
    assert model.lower_bound_ <= least + 1e-7 * max(1.0, abs(least))
    assert model.upper_bound_ == pytest.approx(least, rel=1e-6)
    mean, worst = blend.profile(model)
    assert (model.mean_risk_, model.worst_risk_) == pytest.approx((mean, worst), rel=1e-9)


@every_kind
def test_a_radius_without_a_penalty_is_certified_too(kind):
    X, y, groups, offset = rows(kind)
    model = estimator(kind, alpha=0.0, radius=0.5, tol=1e-7).fit(X, y, groups=groups, offset=offset)
    least = Blend(X, y, groups, alpha=0.0, radius=0.5, offset=offset).least_blend(1.0)
    assert model.lower_bound_ - 1e-7 <= least <= model.upper_bound_ + 1e-7
    assert model.upper_bound_ == pytest.approx(least, rel=1e-5)


@every_kind
def test_regrets_are_against_the_best_correction_of_each_group(kind):
    X, y, groups, offset = rows(kind)
    model = estimator(kind, objective="excess_risk", alpha=0.05, tol=1e-5).fit(X, y, groups=groups, offset=offset)
    assert model.status_ == "converged"
    references = []
    for name in "abc":
        own = groups == name
        references.append(Blend(X[own], y[own], groups[own], alpha=0.05, offset=offset[own]).least_blend(1.0))
    assert model.group_minima_ == pytest.approx(references, abs=1e-4)
    least = Blend(X, y, groups, alpha=0.05, offset=offset, references=np.array(references)).least_blend(1.0)
    assert model.lower_bound_ - 1e-4 <= least <= model.upper_bound_ + 1e-4


@pytest.mark.parametrize("loss", ["squared_hinge", "huber"])
def test_the_other_losses_take_offsets(loss):
    X, y, groups, offset = rows("squared" if loss == "huber" else "logistic")
    made = GroupDRORegressor if loss == "huber" else GroupDROClassifier
    model = made(loss=loss, alpha=0.05).fit(X, y, groups=groups, offset=offset)
    assert model.status_ == "converged"
    report = model.report(X, y, groups, offset=offset, n_bootstrap=0)
    assert report.by_group[model.worst_group_]["risk"] == pytest.approx(model.group_risks_.max(), rel=1e-9)


def test_plain_training_is_ridge_regression_of_what_the_offset_leaves():
    X, y, _, offset = rows("squared")
    model = GroupDRORegressor(alpha=0.1, tol=1e-10).fit(X, y, groups=np.zeros(240), offset=offset)
    np.testing.assert_allclose(model.coef_, Ridge(alpha=24.0).fit(X, y - offset).coef_, atol=1e-6)


def test_plain_training_is_logistic_regression_with_a_column_that_costs_nothing():
    X, y, _, offset = rows("logistic")
    wide = np.column_stack([X, 1e4 * offset])  # in units in which its coefficient is free of the penalty
    other = LogisticRegression(C=1.0 / 24.0, solver="newton-cholesky", tol=1e-12).fit(wide, y)
    slope = 1e4 * other.coef_[0, -1]
    model = GroupDROClassifier(alpha=0.1, tol=1e-10).fit(X, y, groups=np.zeros(240), offset=slope * offset)
    np.testing.assert_allclose(model.coef_[0], other.coef_[0, :3], atol=1e-5)


def test_offsets_of_zero_change_nothing():
    X, y, groups, _ = rows("logistic")
    with_zero = GroupDROClassifier(tol=1e-8).fit(X, y, groups=groups, offset=np.zeros(len(X)))
    without = GroupDROClassifier(tol=1e-8).fit(X, y, groups=groups)
    np.testing.assert_allclose(with_zero.coef_, without.coef_, atol=1e-6)
    assert with_zero.uses_offset_
    assert not without.uses_offset_


@pytest.mark.parametrize("wrap", [list, pd.Series, pl.Series, lambda o: o[:, None], np.float32], ids=range(5))
def test_offsets_come_in_the_usual_containers(wrap):
    X, y, groups, offset = rows("logistic")
    expected = GroupDROClassifier().fit(X, y, groups=groups, offset=offset)
    model = GroupDROClassifier().fit(X, y, groups=groups, offset=wrap(offset))
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-5)


def test_a_frame_of_offsets_has_one_column_per_class():
    X, y, groups, offset = rows("softmax")
    expected = GroupDROClassifier().fit(X, y, groups=groups, offset=offset)
    for frame in (pd.DataFrame(offset), pl.DataFrame(offset)):
        model = GroupDROClassifier().fit(X, y, groups=groups, offset=frame)
        np.testing.assert_allclose(model.coef_, expected.coef_)


@every_kind
def test_an_unpenalised_correction_is_certified(kind):
    X, y, groups, offset = rows(kind)
    model = estimator(kind, alpha=0.0, tol=1e-6).fit(X, y, groups=groups, offset=offset)
    assert model.status_ == "converged"
    least = Blend(X, y, groups, alpha=0.0, offset=offset).least_blend(1.0)
    assert model.upper_bound_ == pytest.approx(least, rel=1e-5)


def test_weights_and_overlapping_groups_keep_offsets_with_their_rows():
    X, y, groups, offset = rows("logistic")
    member = (groups[:, None] == np.array(["a", "b", "c"])) | (np.arange(len(X)) % 4 == 0)[:, None]
    weight = np.random.default_rng(1).random(len(X)) * (np.arange(len(X)) % 6 > 0)
    model = GroupDROClassifier(alpha=0.05, robustness=0.5, tol=1e-7)
    model.fit(X, y, weight, groups=member, offset=offset)
    least = Blend(X, y, member, alpha=0.05, weight=weight, offset=offset).least_blend(0.5)
    assert model.upper_bound_ == pytest.approx(least, rel=1e-6)


def test_a_checkpoint_of_other_offsets_is_not_resumed(tmp_path):
    X, y, groups, offset = rows("logistic")
    for k in range(2):
        GroupDROClassifier(checkpoint_dir=tmp_path, tol=1e-6).fit(X, y, groups=groups, offset=offset + k)
    assert len(list(tmp_path.iterdir())) == 2


# ---------------------------------------------------------------------- predictions


@every_kind
def test_predictions_add_the_offset(kind):
    X, y, groups, offset = rows(kind)
    model = estimator(kind).fit(X, y, groups=groups, offset=offset)
    outputs = X @ np.atleast_2d(model.coef_).T + model.intercept_
    outputs = outputs + offset.reshape(len(X), -1)
    if kind == "squared":
        np.testing.assert_allclose(model.predict(X, offset=offset), outputs[:, 0])
        residual = y - outputs[:, 0]
        assert model.score(X, y, offset=offset) == pytest.approx(1 - residual @ residual / ((y - y.mean()) ** 2).sum())
        return
    shaped = outputs[:, 0] if kind == "logistic" else outputs
    np.testing.assert_allclose(model.decision_function(X, offset=offset), shaped)
    full = softmax(outputs, axis=1) if kind == "softmax" else np.column_stack([expit(-shaped), expit(shaped)])
    np.testing.assert_allclose(model.predict_proba(X, offset=offset), full)
    np.testing.assert_allclose(model.predict_log_proba(X, offset=offset), np.log(full), atol=1e-9)
    np.testing.assert_array_equal(model.predict(X, offset=offset), full.argmax(axis=1))
    assert model.score(X, y, offset=offset) == (full.argmax(axis=1) == y).mean()


@every_kind
def test_a_model_of_offsets_does_not_predict_without_them(kind):
    X, y, groups, offset = rows(kind)
    model = estimator(kind).fit(X, y, groups=groups, offset=offset)
    for call in (model.predict, lambda X: model.report(X, y, groups), lambda X: model.score(X, y)):
        with pytest.raises(ValueError, match="offset is missing"):
            call(X)
    plain = estimator(kind).fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="fitted without one"):
        plain.predict(X, offset=offset)


@pytest.mark.parametrize("method", ["to_sklearn", "to_torch_linear"])
def test_a_correction_is_not_exported_as_a_whole_model(method):
    X, y, groups, offset = rows("logistic")
    model = GroupDROClassifier().fit(X, y, groups=groups, offset=offset)
    with pytest.raises(ValueError, match=f"{method} does not support a model fitted with an offset"):
        getattr(model, method)()


@every_kind
def test_a_file_remembers_that_there_was_an_offset(kind):
    X, y, groups, offset = rows(kind)
    model = estimator(kind).fit(X, y, groups=groups, offset=offset)
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.uses_offset_
    np.testing.assert_array_equal(loaded.predict(X, offset=offset), model.predict(X, offset=offset))
    with pytest.raises(ValueError, match="offset is missing"):
        loaded.predict(X)
    assert not pickle.loads(pickle.dumps(estimator(kind).fit(X, y, groups=groups))).uses_offset_


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("kind", "shape"), [("logistic", (240, 2)), ("softmax", (240,)), ("softmax", (240, 2)), ("squared", (240, 3))]
)
def test_offsets_of_another_shape_are_refused(kind, shape):
    X, y, groups, offset = rows(kind)
    with pytest.raises(ValueError, match="offset must be one number per row"):
        estimator(kind).fit(X, y, groups=groups, offset=np.zeros(shape))
    model = estimator(kind).fit(X, y, groups=groups, offset=offset)
    with pytest.raises(ValueError, match="offset must be one number per row"):
        model.predict(X, offset=np.zeros(shape))


def test_offsets_that_are_not_finite_or_too_few_are_refused():
    X, y, groups, offset = rows("logistic")
    with pytest.raises(ValueError, match="offset has NaN"):
        GroupDROClassifier().fit(X, y, groups=groups, offset=np.where(np.arange(240) == 3, np.nan, offset))
    with pytest.raises(ValueError, match="offset must have one value per row"):
        GroupDROClassifier().fit(X, y, groups=groups, offset=offset[:-1])


# ---------------------------------------------------------------------- stores


@every_pair(kind=KINDS, sparse={"dense": False, "sparse": True}, weighted={"unweighted": False, "weighted": True})
def test_a_store_with_offsets_gives_the_model_of_its_arrays(tmp_path, kind, sparse, weighted):
    X, y, groups, offset = rows(kind)
    weight = np.random.default_rng(1).random(len(y)) + 0.1 if weighted else None
    store = GroupedStore.write_arrays(
        tmp_path / "store", X, y, groups, sample_weight=weight, offset=offset, dtype="float64", sparse=sparse,
        memory=4000,
    )  # fmt: skip
    assert np.array_equal(store.offset, offset[store.source])
    options = {"alpha": 0.01, "tol": 1e-7, "robustness": 0.7}
    model = estimator(kind, **options).fit(store)
    expected = estimator(kind, **options).fit(X, y, weight, groups=groups, offset=offset)
    assert model.status_ == "converged"
    assert model.uses_offset_
    assert model.upper_bound_ == pytest.approx(expected.upper_bound_, rel=1e-6)
    assert model.mean_risk_ == pytest.approx(expected.mean_risk_, rel=1e-4)
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-3)
    np.testing.assert_allclose(
        model._outputs(X, offset), model._outputs(store.X, store.offset)[np.argsort(store.source)], atol=1e-9
    )
    with pytest.raises(ValueError, match="offset is missing"):
        model.predict(X)


@every_kind
def test_workers_on_a_store_with_offsets_end_with_the_same_model(tmp_path, kind):
    X, y, groups, offset = rows(kind)
    path = GroupedStore.write_arrays(tmp_path / "store", X, y, groups, offset=offset, dtype="float64").path
    options = {"alpha": 0.01, "tol": 1e-5, "random_state": 0}
    models = run_workers(3, lambda comm: estimator(kind, **options).fit(GroupedStore.open(path).shard(comm)))
    alone = estimator(kind, **options).fit(X, y, groups=groups, offset=offset)
    for model in models:
        np.testing.assert_array_equal(model.coef_, models[0].coef_)
        assert model.status_ == "converged"
        assert model.lower_bound_ <= alone.upper_bound_ + 1e-9
        assert alone.lower_bound_ <= model.upper_bound_ + 1e-9


@every_kind
def test_offsets_of_a_store_may_be_columns_of_a_table(tmp_path, kind):
    pa = pytest.importorskip("pyarrow")
    X, y, groups, offset = rows(kind)
    names = [f"score{j}" for j in range(3)] if kind == "softmax" else "score"
    scores = {name: offset[:, j] for j, name in enumerate(names)} if kind == "softmax" else {"score": offset}
    table = pa.table({"u": X[:, 0], "v": X[:, 1], "y": y, "site": groups} | scores)
    store = GroupedStore.write(tmp_path / "s", table, target="y", groups="site", offset=names, dtype="float64")
    assert store.feature_names == ("u", "v")
    assert np.array_equal(store.offset, offset[store.source])


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        ("logistic", lambda offset: np.column_stack([offset, offset]), "offset must be one number per row, got"),
        ("squared", lambda offset: np.column_stack([offset, offset]), "offset must be one number per row, got"),
        ("softmax", lambda offset: offset[:, 0], "offset must be 3 numbers per row, one per class"),
        ("softmax", lambda offset: offset[:, :2], "offset must be 3 numbers per row, one per class"),
        ("logistic", lambda offset: np.where(offset > 1, np.nan, offset), "offset has NaN"),
        ("logistic", lambda offset: offset[1:], "offset must have one value per row"),
    ],
)
def test_offsets_that_do_not_fit_are_not_stored(tmp_path, kind, wrong, message):
    X, y, groups, offset = rows(kind)
    with pytest.raises(ValueError, match=message):
        GroupedStore.write_arrays(tmp_path / "store", X, y, groups, offset=wrong(offset))
    assert list(tmp_path.iterdir()) == []


def test_a_column_of_offsets_with_a_missing_value_is_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"u": [1.0, 2.0], "y": [0, 1], "site": ["a", "a"], "score": [0.5, None], "far": [0.5, 1e200]})
    for column, message in {"score": "has a missing value", "far": r"has NaN or a value beyond 1e\+150"}.items():
        with pytest.raises(ValueError, match=f"offset column '{column}' {message}, first in row 1"):
            GroupedStore.write(tmp_path / "s", table, target="y", groups="site", features=["u"], offset=column)


def test_a_store_has_its_own_offsets(tmp_path):
    X, y, groups, offset = rows("logistic")
    store = GroupedStore.write_arrays(tmp_path / "store", X, y, groups)
    with pytest.raises(ValueError, match="offset must be None if X is a store"):
        GroupDROClassifier().fit(store, offset=offset)


# ---------------------------------------------------------------------- reports


@every_kind
def test_a_report_is_of_the_corrected_score(kind):
    X, y, groups, offset = rows(kind)
    model = estimator(kind, alpha=0.01).fit(X, y, groups=groups, offset=offset)
    report = group_report(model, X, y, groups, offset=offset, n_bootstrap=100)
    found = [report.by_group[name]["risk"] for name in model.groups_.tolist()]
    assert found == pytest.approx(model.group_risks_.tolist(), rel=1e-9)
    assert report.in_sample
    if kind == "logistic":
        accuracy = (model.predict(X, offset=offset) == y)[groups == "a"].mean()
        assert report.by_group["a"]["accuracy"] == pytest.approx(accuracy)


def test_a_report_through_pipelines_searches_and_wrappers_takes_offsets():
    X, y, groups, offset = rows("logistic")
    frame = pd.DataFrame(X, columns=["x0", "x1", "x2"])
    direct = GroupDROClassifier(alpha=0.01).fit(X, y, groups=groups, offset=offset)
    expected = row_losses(direct, X, y, offset=offset)
    pipeline = make_pipeline(StandardScaler(with_mean=False, with_std=False), GroupDROClassifier(alpha=0.01))
    pipeline.fit(X, y, groupdroclassifier__groups=groups, groupdroclassifier__offset=offset)
    with config_context(enable_metadata_routing=True):
        search = GridSearchCV(GroupDROClassifier(), {"alpha": [0.01]}, cv=3)
        search.fit(X, y, groups=groups, offset=offset)
    wrapped = GroupBy(GroupDROClassifier(alpha=0.01), group_by="site")
    wrapped.fit(frame.assign(site=groups), y, offset=offset)
    for model, table in ((pipeline, X), (search, X), (wrapped, frame.assign(site=groups))):
        for loss in ("auto", "log"):
            np.testing.assert_allclose(row_losses(model, table, y, loss, offset=offset), expected, rtol=1e-6)
        report = group_report(model, table, y, groups, offset=offset, n_bootstrap=0)
        assert report.overall["risk"] == pytest.approx(expected.mean(), rel=1e-6)
    assert wrapped.score(frame, y, offset=offset) == direct.score(X, y, offset=offset)


def test_a_model_that_takes_no_offset_is_refused_one():
    X, y, groups, offset = rows("logistic")
    other = LogisticRegression().fit(X, y)
    with pytest.raises(TypeError, match="LogisticRegression takes none"):
        group_report(other, X, y, groups, offset=offset)


def test_headroom_holds_the_corrected_score_against_linear_models():
    X, y, groups, offset = rows("logistic")
    model = GroupDROClassifier(alpha=0.01).fit(X, y, groups=groups, offset=offset)
    report = group_report(model, X, y, groups, offset=offset, n_bootstrap=0, min_rows=1, linear=True)
    assert report.headroom.worst == pytest.approx(model.group_risks_.max(), rel=1e-9)


def test_the_worst_group_scorer_takes_offsets():
    X, y, groups, offset = rows("logistic")
    model = GroupDROClassifier(alpha=0.01).fit(X, y, groups=groups, offset=offset)
    assert worst_group_scorer()(model, X, y, groups=groups, offset=offset) == pytest.approx(-model.group_risks_.max())
    assert worst_group_scorer("accuracy")(model, X, y, groups=groups, offset=offset) <= 1.0
    scores = model.decision_function(X, offset=offset)
    areas = [roc_auc_score(y[groups == name], scores[groups == name]) for name in np.unique(groups)]
    assert worst_group_scorer("roc_auc")(model, X, y, groups=groups, offset=offset) == pytest.approx(min(areas))


# ---------------------------------------------------------------------- around the fit


@pytest.mark.parametrize("kind", ["logistic", "softmax", "squared"])
def test_folds_carry_their_offsets(kind):
    X, y, groups, offset = rows(kind, n=400)
    made = GroupDRORegressorCV if kind == "squared" else GroupDROClassifierCV
    search = made(alphas=[0.01, 0.1], robustness=[0.5], cv=3, n_bootstrap=50).fit(X, y, groups=groups, offset=offset)
    # The score alone, of which corrections may only be better but for noise.
    alone = {"logistic": "log", "softmax": "log", "squared": "squared"}[kind]
    zero = estimator(kind, radius=1e-9, fit_intercept=False).fit(X, y, groups=groups, offset=offset)
    assert search.cv_results_["mean_test_risk"].min() < row_losses(zero, X, y, alone, offset=offset).mean()
    best = search.best_estimator_
    assert best.uses_offset_
    np.testing.assert_array_equal(search.predict(X, offset=offset), best.predict(X, offset=offset))
    assert search.score(X, y, offset=offset) == best.score(X, y, offset=offset)
    assert search.report(X, y, groups, offset=offset, n_bootstrap=0).overall["n"] == 400
    if kind != "squared":
        for method in ("predict_proba", "predict_log_proba", "decision_function"):
            found = getattr(search, method)(X, offset=offset)
            np.testing.assert_array_equal(found, getattr(best, method)(X, offset=offset))
    with pytest.raises(ValueError, match="offset is missing"):
        search.predict(X)


def test_offsets_are_routed_without_a_request():
    X, y, groups, offset = rows("logistic")
    with config_context(enable_metadata_routing=True):
        params = {"groups": groups, "offset": offset}
        found = cross_validate(GroupDROClassifier(), X, y, cv=3, params=params)["test_score"]
        worst = cross_validate(GroupDROClassifier(), X, y, cv=3, params=params, scoring=worst_group_scorer())
        pipeline = make_pipeline(StandardScaler(), GroupDROClassifier()).fit(X, y, groups=groups, offset=offset)
        assert pipeline.predict(X, offset=offset).shape == (240,)
        assert pipeline.score(X, y, offset=offset) > 0.5
    assert np.isfinite(found).all()
    assert np.isfinite(worst["test_score"]).all()


def test_a_path_and_a_frontier_take_offsets():
    X, y, groups, offset = rows("logistic")
    path = regularization_path(GroupDROClassifier(tol=1e-6), X, y, groups=groups, alphas=[0.1, 0.01], offset=offset)
    last = GroupDROClassifier(alpha=0.01, tol=1e-6).fit(X, y, groups=groups, offset=offset)
    assert path.upper_bounds[-1] == pytest.approx(last.upper_bound_, rel=1e-5)
    frontier = robustness_frontier(X, y, groups, estimator=GroupDROClassifier(alpha=0.05), offset=offset)
    blend = Blend(X, y, groups, alpha=0.05, offset=offset)
    for t, lower in zip(frontier.robustness, frontier.lower, strict=True):
        assert lower <= blend.least_blend(float(t)) + 1e-7
    assert frontier.least_worst(0.01).model.predict(X, offset=offset).shape == (240,)
