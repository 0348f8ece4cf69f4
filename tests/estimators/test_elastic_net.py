import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import ElasticNet, LogisticRegression
from sklearn.preprocessing import scale
from sklearn.utils.fixes import parse_version

import groupdro as gd

#: Later versions of scikit-learn read it off `l1_ratio`.
ELASTIC = {} if parse_version(sklearn.__version__) >= parse_version("1.8") else {"penalty": "elasticnet"}


def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return scale(X), scale(y)


def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X), y


@pytest.mark.parametrize("l1_ratio", [1.0, 0.5])
@pytest.mark.parametrize("positive", [False, True])
def test_one_group_is_scikit_learns_elastic_net(l1_ratio, positive):
    X, y = diabetes()
    ours = gd.GroupDRORegressor(alpha=0.05, l1_ratio=l1_ratio, tol=1e-9)
    if positive:
        ours.set_params(
            alpha=1e-4,
            l1_ratio=0.0,
            domain=gd.domains.ElasticNetDomain(l1=0.05 * l1_ratio, l2=0.05 * (1 - l1_ratio), low=0.0),
        )
    ours.fit(X, y, groups=np.zeros(len(y)))
    theirs = ElasticNet(alpha=0.05, l1_ratio=l1_ratio, positive=positive, tol=1e-10, max_iter=100_000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_array_equal(ours.coef_ == 0, theirs.coef_ == 0)
    assert (ours.coef_ == 0).any()


@pytest.mark.parametrize("l1_ratio", [1.0, 0.3])
@pytest.mark.parametrize("sparse", [False, True])
def test_one_group_is_scikit_learns_logistic_regression(l1_ratio, sparse):
    X, y = cancer()
    alpha = 0.02
    ours = gd.GroupDROClassifier(alpha=alpha, l1_ratio=l1_ratio, tol=1e-9)
    ours.fit(sp.csr_array(X) if sparse else X, y, groups=np.zeros(len(y)))
    theirs = LogisticRegression(
        C=1.0 / (alpha * len(y)), l1_ratio=l1_ratio, solver="saga", tol=1e-6, max_iter=20_000, **ELASTIC
    )  # fmt: skip
    theirs.fit(X, y)

    def objective(model):
        margins = np.where(y == 1, 1.0, -1.0) * (X @ model.coef_.ravel() + model.intercept_)
        coef = model.coef_.ravel()
        penalty = alpha * (l1_ratio * np.abs(coef).sum() + (1 - l1_ratio) / 2 * coef @ coef)
        return np.logaddexp(0.0, -margins).mean() + penalty

    np.testing.assert_allclose(ours.upper_bound_, objective(ours), rtol=1e-9)
    assert abs(objective(ours) - objective(theirs)) <= 1e-6
    assert ours.lower_bound_ <= objective(theirs)


def test_bounds_hold_for_each_coefficient_and_cost_something():
    X, y = cancer()
    groups = X[:, 0] > 0
    low, high = np.full(30, -0.2), np.full(30, 0.4)
    low[3], high[4] = 0.0, 0.0
    free = gd.GroupDROClassifier(alpha=0.01, l1_ratio=0.5).fit(X, y, groups=groups)
    domain = gd.domains.ElasticNetDomain(l1=0.005, l2=0.005, low=low, high=list(high))
    bound = gd.GroupDROClassifier(domain=domain).fit(X, y, groups=groups)
    assert (bound.coef_ >= low).all()
    assert (bound.coef_ <= high).all()
    assert bound.status_ == "converged"
    assert bound.lower_bound_ > free.upper_bound_


def test_a_bound_that_binds_leaves_the_certificate_tight():
    X, y = cancer()
    upper = np.full(30, np.inf)
    upper[:3] = 0.01
    domain = gd.domains.ElasticNetDomain(l1=0.02, low=np.r_[[-0.1] * 29, -np.inf], high=upper)
    model = gd.GroupDROClassifier(domain=domain)
    model.fit(X, y, groups=X[:, 0] > 0)
    assert (model.coef_ == -0.1).any()
    assert model.status_ == "converged"


def test_an_elastic_net_is_saved_and_loaded():
    X, y = cancer()
    model = gd.GroupDROClassifier(alpha=0.05, l1_ratio=0.5).fit(X, y, groups=X[:, 0] > 0)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert again.get_params()["l1_ratio"] == 0.5


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"l1_ratio": 1.5}, "l1_ratio must be at most 1"),
        ({"l1_ratio": -0.1}, "l1_ratio"),
        ({"l1_ratio": 0.5, "radius": 1.0}, "radius must be None"),
        ({"l1_ratio": 0.5, "alpha": 0.0}, "alpha must be greater than 0"),
        ({"domain": gd.domains.ElasticNetDomain(l2=1.0, high=[1.0, 2.0])}, "has 2 bounds, but there are 30 features"),
    ],
)
def test_what_makes_no_sense_is_refused(parameters, message):
    X, y = cancer()
    with pytest.raises((ValueError, TypeError), match=message):
        gd.GroupDROClassifier(**parameters).fit(X, y, groups=X[:, 0] > 0)


def test_a_path_ends_where_single_fits_do_and_finds_more_features_as_the_penalty_falls():
    X, y = cancer()
    groups = X[:, 0] > 0
    model = gd.GroupDROClassifier(l1_ratio=1.0, tol=1e-6)
    path = gd.regularization_path(model, X, y, groups=groups, alphas=np.logspace(-0.5, -2.5, 12))
    assert set(path.statuses) == {"converged"}
    counts = [np.count_nonzero(coef) for coef in path.coefs]
    assert counts[0] < counts[-1]
    single = clone(model).set_params(alpha=path.alphas[-1]).fit(X, y, groups=groups)
    np.testing.assert_allclose(path.upper_bounds[-1], single.upper_bound_, rtol=2e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.02, "l1_ratio": 1.0},
        {"domain": gd.domains.ElasticNetDomain(l1=0.01, l2=0.01, low=0.0)},
        {"domain": gd.domains.ElasticNetDomain(l2=0.02, high=0.3)},
    ],
    ids=str,
)
def test_several_classes_have_the_coefficients_that_the_certificate_is_about(options):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(300, 5)), np.arange(300) % 3
    y = np.argmax(X[:, :3] + rng.normal(size=(300, 3)), axis=1)
    model = gd.GroupDROClassifier(tol=1e-6, **options).fit(X, y, groups=groups)
    outputs = X @ model.coef_.T + model.intercept_
    losses = logsumexp(outputs, axis=1) - outputs[np.arange(300), y]
    domain = options.get("domain", gd.domains.ElasticNetDomain(l1=0.02))
    penalty = domain.l1 * np.abs(model.coef_).sum() + domain.l2 / 2 * np.square(model.coef_).sum()
    worst = max(losses[groups == g].mean() for g in range(3)) + penalty
    np.testing.assert_allclose(worst, model.upper_bound_, rtol=1e-9)
    np.testing.assert_allclose(model.intercept_.sum(), 0.0, atol=1e-12)
    assert (model.coef_ >= domain.low).all()
    assert (model.coef_ <= domain.high).all()
    assert (model.coef_ == 0).any() or not domain.l1


def test_aleg_moves_under_an_l1_penalty_alone():
    X, y = cancer()
    groups = X[:, 0] > 0
    model = gd.GroupDROClassifier(alpha=0.05, l1_ratio=1.0, solver="aleg", tol=1e-2, max_passes=300, random_state=0)
    assert model.fit(X, y, groups=groups).status_ == "converged"


@pytest.mark.parametrize("robustness", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("objective", ["risk", "excess_risk"])
def test_every_robustness_and_objective_is_certified(robustness, objective):
    X, y = cancer()
    model = gd.GroupDROClassifier(objective, robustness=robustness, alpha=0.01, l1_ratio=0.7, tol=1e-5)
    model.fit(X, y, groups=X[:, 0] > 0)
    assert model.status_ == "converged"
    assert (model.coef_ == 0).any()
