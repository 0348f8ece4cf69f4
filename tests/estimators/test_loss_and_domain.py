"""A loss and a domain as objects, those of the package and a user's own, through the estimators."""

import inspect
import pickle
import runpy
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import groupdro as gd
from groupdro import GroupDROClassifier, GroupDROClassifierCV, GroupDRORegressor, GroupDRORegressorCV
from groupdro.losses import Loss
from tests.reference.convex import solve_convex

SNIPPETS = Path(__file__).parents[2] / "docs" / "snippets"
Expectile = runpy.run_path(str(SNIPPETS / "expectile.py"))["Expectile"]
L1Ball = runpy.run_path(str(SNIPPETS / "l1_ball.py"))["L1Ball"]

N = 150
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 4)) * [1.0, 10.0, 1.0, 0.3] + [0.0, 5.0, 0.0, 0.0]
GROUPS = rng.choice(["a", "b", "c"], N, p=[0.5, 0.3, 0.2])
TARGET = 3.0 + X @ [1.0, -0.1, 0.5, 0.0] + np.where(GROUPS == "c", 2.0, 1.0) * rng.normal(size=N)
LABELS = np.where(TARGET > 3.0, "yes", "no")
CLASSES = np.array(["low", "mid", "top"])[np.digitize(TARGET, [2.0, 4.0])]
WEIGHT = rng.uniform(0.5, 2.0, N)


class SquaredDistance(Loss):
    """Half the squared distance of the outputs from the indicator of the class, which is not invariant to shifts."""

    name = "squared distance"
    smoothness = 1.0

    def __init__(self, n_classes=3):
        self.n_classes = n_classes

    def encode(self, y):
        return y.astype(np.int64)

    def n_outputs(self, y):
        return self.n_classes

    def _residual(self, u, y):
        return u - np.eye(self.n_classes)[y]

    def value(self, u, y):
        return 0.5 * (self._residual(u, y) ** 2).sum(axis=1)

    def value_and_slope(self, u, y):
        return self.value(u, y), self._residual(u, y)

    def curvature_product(self, u, y):
        return lambda along: along

    def conjugate(self, duals, y):
        return 0.5 * (duals**2).sum(axis=1) + duals[np.arange(len(y)), y]

    def balance(self, duals, y, row_weights, total=lambda sums: sums):
        moment, mass = total(row_weights @ duals), total(np.array([row_weights.sum()]))
        return duals - moment / mass

    def lipschitz(self, y, reach):
        return reach + 1.0


def expectile_losses(tau, outputs):
    return 0.5 * (tau * cp.square(cp.pos(TARGET - outputs)) + (1 - tau) * cp.square(cp.pos(outputs - TARGET)))


def logistic_losses(outputs):
    return cp.logistic(-cp.multiply(np.where(LABELS == "yes", 1.0, -1.0), outputs))


def optimum(losses, *, penalty=None, constraint=None, intercept=True, robustness=1.0, weight=None, offset=0.0):
    """Return the best blend of average and worst over all models, by CVXPY."""
    coef, free = cp.Variable(X.shape[1]), cp.Variable()
    rows = np.ones(N) if weight is None else weight
    losses = losses(X @ coef + (free if intercept else 0.0) + offset)
    worst = cp.max(cp.hstack([rows[g == GROUPS] @ losses[g == GROUPS] / rows[g == GROUPS].sum() for g in "abc"]))
    mean = rows @ losses / rows.sum()
    value = (1 - robustness) * mean + robustness * worst + (0.0 if penalty is None else penalty(coef))
    program = cp.Problem(cp.Minimize(value), [] if constraint is None else constraint(coef))
    assert solve_convex(program)
    return program.value


def assert_certified(model, best):
    assert model.status_ == "converged"
    assert model.lower_bound_ <= best + 1e-6 * abs(best)
    assert best - 1e-6 * abs(best) <= model.upper_bound_ <= best * (1.0 + 2.0 * model.tol)


# ---------------------------------------------------------------------- a loss


@pytest.mark.parametrize("tau", [0.3, 0.9])
@pytest.mark.parametrize("robustness", [0.0, 0.5, 1.0])
def test_a_loss_of_ones_own_is_certified(tau, robustness):
    model = GroupDRORegressor(loss=Expectile(tau), alpha=0.01, robustness=robustness, tol=1e-5)
    model.fit(X, TARGET, WEIGHT, groups=GROUPS)
    best = optimum(
        lambda u: expectile_losses(tau, u),
        penalty=lambda coef: 0.005 * cp.sum_squares(coef),
        robustness=robustness,
        weight=WEIGHT,
    )
    assert_certified(model, best)
    np.testing.assert_allclose(model.predict(X), X @ model.coef_ + model.intercept_)


def test_an_offset_is_added_to_the_outputs_of_any_loss():
    offset = 0.5 * X[:, 0] - 1.0
    model = GroupDRORegressor(loss=Expectile(0.8), alpha=0.01, tol=1e-5).fit(X, TARGET, groups=GROUPS, offset=offset)
    best = optimum(lambda u: expectile_losses(0.8, u), penalty=lambda coef: 0.005 * cp.sum_squares(coef), offset=offset)
    assert_certified(model, best)
    risks = model.report(X, TARGET, GROUPS, offset=offset, n_bootstrap=0).by_group
    np.testing.assert_allclose([risks[g]["risk"] for g in "abc"], model.group_risks_, rtol=1e-9)


@pytest.mark.parametrize("solver", ["aleg", "sqp", "auto"])
def test_the_outputs_of_a_loss_with_several_are_those_of_the_certificate(solver):
    model = GroupDROClassifier(loss=SquaredDistance(), alpha=0.1, solver=solver, tol=1e-3, random_state=0)
    model.fit(X, CLASSES, groups=GROUPS)
    outputs = model.decision_function(X)
    losses = 0.5 * ((outputs - (CLASSES[:, None] == model.classes_)) ** 2).sum(axis=1)
    worst = max(losses[g == GROUPS].mean() for g in "abc") + 0.05 * (model.coef_**2).sum()
    assert model.upper_bound_ == pytest.approx(worst, rel=1e-9)
    assert model.status_ == "converged"
    coef, free = cp.Variable((4, 3)), cp.Variable((1, 3))
    apart = cp.square(X @ coef + np.ones((N, 1)) @ free - (CLASSES[:, None] == model.classes_))
    risks = [0.5 * cp.sum(apart[g == GROUPS]) / (g == GROUPS).sum() for g in "abc"]
    program = cp.Problem(cp.Minimize(cp.max(cp.hstack(risks)) + 0.05 * cp.sum_squares(coef)))
    assert solve_convex(program)
    assert_certified(model, program.value)
    assert solver == "aleg" or model.n_passes_ < 20


@pytest.mark.parametrize(
    ("named", "given", "y"),
    [
        (GroupDROClassifier(), GroupDROClassifier(loss=gd.losses.Logistic()), LABELS),
        (GroupDROClassifier(), GroupDROClassifier(loss=gd.losses.Softmax()), CLASSES),
        (GroupDROClassifier(loss="squared_hinge"), GroupDROClassifier(loss=gd.losses.SquaredHinge()), LABELS),
        (GroupDRORegressor(), GroupDRORegressor(loss=gd.losses.Squared()), TARGET),
        (GroupDRORegressor(loss="huber"), GroupDRORegressor(loss=gd.losses.Huber()), TARGET),
    ],
    ids=lambda value: None if isinstance(value, np.ndarray) else repr(value),
)
def test_a_name_is_short_for_an_object(named, given, y):
    for model in (named, given):
        model.fit(X, y, groups=GROUPS)
    np.testing.assert_array_equal(given.coef_, named.coef_)
    assert given.upper_bound_ == named.upper_bound_
    assert hasattr(given, "predict_proba") == hasattr(named, "predict_proba")
    assert type(given.to_sklearn()) is type(named.to_sklearn())


@pytest.mark.parametrize(
    ("estimator", "y", "message"),
    [
        (GroupDROClassifier(loss=gd.losses.Squared()), LABELS, r"loss=Squared\(\) is a loss of residuals"),
        (
            GroupDROClassifier(loss=gd.losses.Logistic()),
            CLASSES,
            r"loss=Logistic\(\) requires two classes, but y has 3",
        ),
        (GroupDROClassifier(loss=gd.losses.Softmax(3)), LABELS, "has 3 outputs, but y has 2 classes"),
        (GroupDROClassifier(loss=SquaredDistance(4)), CLASSES, "has 4 outputs, but y has 3 classes"),
        (GroupDRORegressor(loss=gd.losses.Softmax(3)), TARGET, "has 3 outputs, but regressors have one"),
        (GroupDRORegressor(loss=gd.losses.Logistic()), TARGET, "y must be -1 and"),
        (GroupDRORegressor(loss=Expectile), TARGET, "loss must be"),
    ],
)
def test_a_loss_that_does_not_fit_the_target_is_refused(estimator, y, message):
    with pytest.raises(ValueError, match=message):
        estimator.fit(X, y, groups=GROUPS)


def test_a_classifier_with_a_loss_of_its_own_is_exported_without_probabilities():
    model = GroupDROClassifier(loss=SquaredDistance(), solver="aleg", tol=1e-2, alpha=0.1, random_state=0)
    model.fit(X, CLASSES, groups=GROUPS)
    plain = model.to_sklearn()
    assert isinstance(plain, LinearSVC)
    np.testing.assert_array_equal(plain.predict(X), model.predict(X))
    with pytest.raises(AttributeError, match="predict_proba"):
        model.predict_proba(X)


def test_comparisons_and_searches_use_the_loss():
    model = GroupDRORegressor(loss=Expectile(0.8), alpha=0.1)
    found = gd.compare(X, TARGET, GROUPS, estimator=model, n_bootstrap=20)
    held = found.models["GDRO"]
    assert held.loss.tau == 0.8
    search = GroupDRORegressorCV(model, alphas=[0.1, 1.0], robustness=[0.0, 1.0], cv=3, n_bootstrap=20)
    assert search.fit(X, TARGET, groups=GROUPS).best_estimator_.loss.tau == 0.8


# ---------------------------------------------------------------------- a domain


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("robustness", [0.5, 1.0])
def test_a_domain_of_ones_own_is_certified(robustness, intercept):
    model = GroupDROClassifier(
        domain=L1Ball(0.6), fit_intercept=intercept, robustness=robustness, tol=1e-3, max_passes=5000, random_state=0
    )
    model.fit(X, LABELS, groups=GROUPS)
    best = optimum(
        logistic_losses,
        constraint=lambda coef: [cp.norm1(coef) <= 0.6],
        intercept=intercept,
        robustness=robustness,
    )
    assert_certified(model, best)
    assert np.abs(model.coef_).sum() <= 0.6 * (1 + 1e-9)
    assert np.abs(model.coef_).sum() >= 0.5  # in the units of X, where the ball binds


def test_bounds_of_a_domain_are_in_the_units_of_the_columns():
    low, high = [-1.0, -0.02, 0.0, 0.0], [0.5, 0.0, np.inf, 0.0]
    domain = gd.domains.ElasticNetDomain(l1=0.01, l2=0.02, low=low, high=high)
    model = GroupDRORegressor(domain=domain, tol=1e-6).fit(X, TARGET, groups=GROUPS)
    assert (model.coef_ >= low).all()
    assert (model.coef_ <= high).all()
    assert model.coef_[1] == -0.02

    def penalty(coef):
        return 0.01 * cp.norm1(coef) + 0.01 * cp.sum_squares(coef)

    def constraint(coef):
        return [coef >= np.array(low), coef[[0, 1, 3]] <= np.array(high)[[0, 1, 3]]]

    best = optimum(lambda u: 0.5 * cp.square(u - TARGET), penalty=penalty, constraint=constraint)
    assert_certified(model, best)
    assert GroupDRORegressor(domain=domain, fit_intercept=False).fit(X, TARGET, groups=GROUPS).intercept_ == 0.0


def test_a_domain_equals_its_shorthand():
    short = GroupDROClassifier(alpha=0.01, l1_ratio=0.3).fit(X, CLASSES, groups=GROUPS)
    long = GroupDROClassifier(domain=gd.domains.ElasticNetDomain(l1=0.003, l2=0.007)).fit(X, CLASSES, groups=GROUPS)
    np.testing.assert_allclose(long.coef_, short.coef_, atol=1e-9)
    ball = GroupDROClassifier(alpha=0.01, radius=0.5).fit(X, CLASSES, groups=GROUPS)
    other = GroupDROClassifier(domain=gd.domains.L2Domain(radius=0.5, penalty=0.01)).fit(X, CLASSES, groups=GROUPS)
    np.testing.assert_array_equal(other.coef_, ball.coef_)
    assert other.mean_lower_bound_ == ball.mean_lower_bound_


def test_a_simplex_is_refused_with_an_intercept_and_solved_without():
    with pytest.raises(ValueError, match="fit_intercept must be False with SimplexDomain"):
        GroupDRORegressor(domain=gd.domains.SimplexDomain()).fit(X, TARGET, groups=GROUPS)
    model = GroupDRORegressor(domain=gd.domains.SimplexDomain(), fit_intercept=False, tol=1e-3, random_state=0)
    model.fit(X, TARGET, groups=GROUPS)
    best = optimum(
        lambda u: 0.5 * cp.square(u - TARGET),
        constraint=lambda coef: [coef >= 0, cp.sum(coef) == 1],
        intercept=False,
    )
    assert_certified(model, best)
    assert model.coef_.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["alpha", "l1_ratio", "radius"])
def test_a_domain_excludes_its_shorthands_by_name(name):
    value = {"alpha": 0.5, "l1_ratio": 0.5, "radius": 1.0}[name]
    with pytest.raises(ValueError, match=f"domain replaces {name}: "):
        GroupDROClassifier(domain=gd.domains.L2Domain(penalty=0.1), **{name: value}).fit(X, LABELS, groups=GROUPS)
    with pytest.raises(ValueError, match="domain replaces alpha, radius: "):
        GroupDRORegressor(domain=L1Ball(), alpha=0.0, radius=1.0).fit(X, TARGET, groups=GROUPS)


def test_whatever_varies_alpha_refuses_a_domain_by_name():
    model = GroupDROClassifier(domain=L1Ball(1.0))
    with pytest.raises(ValueError, match=r"^regularization_path varies alpha, but .* domain=L1Ball\(radius=1.0\)"):
        gd.regularization_path(model, X, LABELS, groups=GROUPS)
    with pytest.raises(ValueError, match=r"^GroupDROClassifierCV varies alpha, but .* domain="):
        GroupDROClassifierCV(model).fit(X, LABELS, groups=GROUPS)
    with pytest.raises(ValueError, match=r"^GroupDRORegressorCV varies alpha, but .* domain="):
        GroupDRORegressorCV(GroupDRORegressor(domain=L1Ball(1.0))).fit(X, TARGET, groups=GROUPS)


def test_a_frontier_keeps_the_domain():
    domain = gd.domains.ElasticNetDomain(l1=0.05, low=[-np.inf, -0.01, 0.0, 0.0])
    frontier = gd.robustness_frontier(X, TARGET, GROUPS, estimator=GroupDRORegressor(domain=domain), tol=1e-2)
    assert frontier.converged
    model = frontier.models[-1].model
    assert domain.contains(model.coef_)
    assert frontier.penalty_of(model) == pytest.approx(0.05 * np.abs(model.coef_).sum())


# ---------------------------------------------------------------------- scikit-learn

# Checks of regressors set alpha, which a domain excludes, and those of classifiers have two classes and more.
CHECKED = [
    GroupDROClassifier(domain=gd.domains.L2Domain(radius=10.0, penalty=1e-3)),
    GroupDRORegressor(loss=gd.losses.Huber(1.0)),
]


@pytest.mark.filterwarnings("ignore::groupdro.MissingGroupsWarning")
@parametrize_with_checks(CHECKED)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (
            GroupDROClassifier(
                loss=gd.losses.SquaredHinge(), domain=gd.domains.ElasticNetDomain(l2=0.1, high=[1.0, 2.0, 3.0, 4.0])
            ),
            LABELS,
        ),
        (GroupDRORegressor(loss=gd.losses.Huber(0.7), domain=gd.domains.L2Domain(penalty=0.1)), TARGET),
    ],
    ids=["classifier", "regressor"],
)
def test_objects_are_cloned_printed_and_pickled(model, y):
    copy = clone(model)
    again = pickle.loads(pickle.dumps(copy.fit(X, y, groups=GROUPS)))
    for other in (copy, again):
        assert other.domain == model.domain
        assert repr(other.loss) == repr(model.loss)
        assert type(model.domain).__name__ in repr(other)
        assert type(model.loss).__name__ in repr(other)
    assert model.get_params()["domain"] is model.domain
    np.testing.assert_array_equal(again.predict(X), copy.predict(X))
    # The copy of a loss is the same loss to a checkpoint and to a comparison.
    assert clone(again).fit(X, y, groups=GROUPS).upper_bound_ == copy.upper_bound_


@pytest.mark.parametrize("kind", [GroupDROClassifier, GroupDRORegressor, GroupDROClassifierCV, GroupDRORegressorCV])
def test_defaults_are_stored_as_given(kind):
    names = set(inspect.signature(kind).parameters)
    assert names == set(kind().get_params(deep=False))
