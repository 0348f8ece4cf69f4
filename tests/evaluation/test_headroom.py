"""What the worst group of any model can gain from a linear one, against CVXPY."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import groupdro as gd
from groupdro import GroupDROClassifier, GroupDRORegressor, group_report, headroom
from groupdro.losses import Poisson
from tests.estimators.test_robustness import make_data, overlapping
from tests.reference.blends import Blend


def plain(n_classes, X, y):
    return (LinearRegression() if n_classes == 1 else LogisticRegression(C=0.1)).fit(X, y)


def worst_by_hand(model, X, y, groups):
    """Return the largest mean loss of a group, and the group."""
    if y.dtype.kind == "f":
        losses = (model.predict(X) - y) ** 2 / 2
    else:
        losses = -np.log(model.predict_proba(X)[np.arange(len(y)), y])
    risks = [losses[groups == g].mean() for g in np.unique(groups)]
    return max(risks), np.unique(groups)[int(np.argmax(risks))]


def least_of(X, y, groups, radius):
    """Return the least worst risk without a penalty over all coefficients within a radius, by CVXPY."""
    return Blend(X, y, groups, alpha=0.0, radius=radius).least_blend(1.0)


def hold_against_cvxpy(found, X, y, groups, tol=1e-4):
    least = least_of(X, y, groups, found.radius)
    assert found.least <= least + 2e-7 * max(1.0, least)
    assert least <= found.attained + 2e-7 * max(1.0, least)
    assert found.converged
    assert found.attained - found.least <= 1.01 * tol * (found.attained + 1.0)
    assert found.headroom == pytest.approx((found.worst - found.least) / found.worst, rel=1e-12)


@pytest.mark.parametrize("radius", [None, 0.2, 1.0])
@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_the_bound_holds_for_all_coefficients_within_the_radius(n_classes, radius):
    X, y, groups = make_data(n_classes)
    model = plain(n_classes, X, y)
    found = headroom(model, X, y, groups, radius=radius)
    assert (found.worst, found.worst_group) == pytest.approx(worst_by_hand(model, X, y, groups), rel=1e-9)
    assert found.n_columns == 3
    if radius is not None:
        assert found.radius == radius
    hold_against_cvxpy(found, X, y, groups)


def test_the_default_radius_is_that_of_the_best_model_with_the_penalty():
    X, y, groups = make_data()
    for alpha in (1e-2, 0.3):
        found = headroom(plain(2, X, y), X, y, groups, alpha=alpha)
        best = GroupDROClassifier(alpha=alpha, tol=1e-10).fit(X, y, groups=groups)
        assert found.radius == pytest.approx(np.linalg.norm(best.coef_), rel=1e-2)
        hold_against_cvxpy(found, X, y, groups)
    assert found.radius < 0.5  # the larger penalty's


def test_a_finer_tolerance_narrows_the_bound():
    X, y, groups = make_data()
    found = headroom(plain(2, X, y), X, y, groups, radius=1.0, tol=1e-8)
    assert found.attained - found.least <= 1e-8
    assert found.least == pytest.approx(least_of(X, y, groups, 1.0), abs=2e-7)


def test_no_linear_model_reaches_trees_on_their_own_rows():
    X, y, groups = make_data()
    for trees in (RandomForestClassifier(random_state=0), DecisionTreeClassifier(max_depth=6, random_state=0)):
        found = headroom(trees.fit(X, y), X, y, groups)
        if found.worst < found.least:
            break
    assert found.headroom < 0
    assert found.message.startswith("No linear model of 3 columns with coefficients of norm at most ")
    assert f"theirs are at least {found.least:.4g}" in found.message
    assert repr(found) == f"Headroom({found.message})"


def test_a_poor_model_has_headroom_and_the_sentence_says_how_much():
    X, y, groups = make_data()
    poor = LogisticRegression(C=1.0).fit(X, 1 - y)
    found = headroom(poor, X, y, groups, radius=2.0)
    assert found.headroom > 0.1
    worst, group = worst_by_hand(poor, X, y, groups)
    assert found.message == (
        f"On these rows the worst risk of this model is {worst:.4g} (group {group}); no linear model of 3 columns with "
        f"coefficients of norm at most 2 has one below {found.least:.4g}: at most {found.headroom:.2%} can be gained."
    )


def test_columns_are_those_of_a_pipeline_that_was_fitted():
    X, y, groups = make_data()
    pipeline = make_pipeline(PolynomialFeatures(2, include_bias=False), StandardScaler(), LogisticRegression())
    pipeline.fit(X[:60], y[:60])  # on other rows: the scale is theirs
    columns = pipeline[:-1].transform(X)
    found = headroom(pipeline, X, y, groups, linear=pipeline)
    assert found.n_columns == columns.shape[1] == 9
    hold_against_cvxpy(found, columns, y, groups)
    assert headroom(pipeline, X, y, groups, linear=pipeline[:-1]).least == found.least


def test_columns_of_a_pipeline_that_was_not_fitted_are_fitted_on_a_copy():
    X, y, groups = make_data()
    forest = RandomForestClassifier(10, random_state=0).fit(X, y)
    for linear in (StandardScaler(), make_pipeline(StandardScaler(), LogisticRegression())):
        found = headroom(forest, X, y, groups, linear=linear, radius=0.5)
        hold_against_cvxpy(found, (X - X.mean(axis=0)) / X.std(axis=0), y, groups)
        scaler = linear if isinstance(linear, StandardScaler) else linear[0]
        assert not hasattr(scaler, "mean_")


def test_a_pipeline_of_an_estimator_alone_has_the_columns_of_x():
    X, y, groups = make_data()
    model = plain(2, X, y)
    found = headroom(model, X, y, groups, linear=make_pipeline(LogisticRegression()), radius=0.5)
    assert found.least == headroom(model, X, y, groups, radius=0.5).least


def test_a_function_of_the_columns_is_taken():
    X, y, groups = make_data(1)
    forest = RandomForestRegressor(10, random_state=0).fit(X, y)
    found = headroom(forest, X, y, groups, linear=FunctionTransformer(np.square), radius=0.5)
    hold_against_cvxpy(found, X**2, y, groups)


def test_sparse_columns_labels_that_are_words_and_groups_that_overlap_are_taken():
    X, y, labels = make_data()
    words = np.array(["no", "yes"])[y]
    member = overlapping(labels)
    model = LogisticRegression().fit(X, words)
    found = headroom(model, sp.csr_array(X), words, member, radius=1.0)
    hold_against_cvxpy(found, X, y, member)
    losses = -np.log(model.predict_proba(X)[np.arange(len(y)), y])
    assert found.worst == pytest.approx(max(losses[own].mean() for own in member.T), rel=1e-9)


def test_the_bound_holds_for_models_that_were_fitted_on_these_very_rows():
    X, y, groups = make_data()
    found = headroom(plain(2, X, y), X, y, groups, radius=1.0)
    for alpha in (1e-4, 1e-2, 0.1):
        model = GroupDROClassifier(alpha=alpha, radius=1.0).fit(X, y, groups=groups)
        assert model.group_risks_.max() >= found.least - 1e-12
        assert headroom(model, X, y, groups, radius=1.0).headroom >= -1e-4


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"radius": 0.0}, ValueError, r"^radius "),
        ({"radius": -1.0}, ValueError, r"^radius "),
        ({"radius": "a"}, (TypeError, ValueError), r"^radius "),
        ({"alpha": 0.0}, ValueError, r"^alpha "),
        ({"tol": 0.0}, ValueError, r"^tol "),
        ({"tol": np.nan}, ValueError, r"^tol "),
        ({"linear": "scaler"}, TypeError, r"^linear must be a transformer or a pipeline, got str"),
        ({"linear": LogisticRegression()}, TypeError, r"^linear .* got LogisticRegression"),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused_by_name(change, error, said):
    X, y, groups = make_data()
    with pytest.raises(error, match=said):
        headroom(plain(2, X, y), X, y, groups, **change)


def test_models_without_probabilities_and_labels_of_one_class_are_refused_by_name():
    X, y, groups = make_data()
    with pytest.raises(TypeError, match=r"^model must have predict_proba"):
        headroom(RidgeClassifier().fit(X, y), X, y, groups)
    with pytest.raises(ValueError, match=r"^y has only one class, 0"):
        headroom(plain(2, X, y), X, np.zeros(len(y), dtype=int), groups)
    with pytest.raises(ValueError, match="groups"):
        headroom(plain(2, X, y), X, y, groups[:-1])
    assert gd.headroom is headroom


@pytest.mark.parametrize("name", ["poisson", "gamma", "absolute_error", "huber"])
def test_a_regressor_is_judged_by_its_own_loss_and_others_by_the_one_that_is_given(name):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(300, 2)), np.arange(300) % 3
    mean = np.exp(0.5 * X[:, 0] * (groups - 1) + 0.3 * X[:, 1])
    y = rng.poisson(mean).astype(float) if name == "poisson" else rng.gamma(2.0, mean / 2.0)
    model = GroupDRORegressor(loss=name, robustness=0.0, alpha=1e-3).fit(X, y, groups=groups)
    robust = GroupDRORegressor(loss=name, alpha=1e-3).fit(X, y, groups=groups)
    found = headroom(model, X, y, groups, alpha=1e-3)
    assert found.worst == pytest.approx(group_report(model, X, y, groups).worst_row["risk"])
    assert found.least <= robust.group_risks_.max()  # its coefficients are within the radius, up to the tolerance
    assert found.attained == pytest.approx(robust.group_risks_.max(), rel=1e-2)
    same = headroom(model.to_sklearn() if name != "huber" else model, X, y, groups, alpha=1e-3, loss=model._own_loss())
    assert same.worst == pytest.approx(found.worst, rel=1e-9)
    assert same.least == pytest.approx(found.least, rel=1e-9)


def test_a_loss_is_for_regressors():
    X, y, groups = make_data()
    with pytest.raises(TypeError, match="loss must be a Loss, for regressors only"):
        headroom(plain(2, X, y), X, y, groups, loss=Poisson())
    with pytest.raises(TypeError, match="loss must be a Loss"):
        headroom(plain(1, X, y.astype(float)), X, y.astype(float), groups, loss="poisson")
