import functools
import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression

from groupdro import GroupDROClassifier, GroupDRORegressor
from groupdro.data import GroupedData
from groupdro.distributed.sharding import shard
from groupdro.losses import Huber, Logistic, Softmax, Squared, SquaredHinge
from groupdro.problem import L2Domain, Problem
from groupdro.problem.attainment import is_separated
from groupdro.problem.separation import has_separating_direction
from tests.distributed.thread_comm import run_workers
from tests.pairs import every_pair

with_or_without_intercept = pytest.mark.parametrize("fit_intercept", [False, True], ids=["no intercept", "intercept"])
every_storage = pytest.mark.parametrize("store", [np.float64, np.float32, sp.csr_array], ids=lambda s: s.__name__)


def separating(X, y, *, fit_intercept, loss=None, weight=None, groups=None):
    X, y = X if sp.issparse(X) else np.asarray(X), np.asarray(y)
    if X.dtype.kind != "f":
        X = X.astype(float)
    groups = np.arange(len(y)) % 2 if groups is None else groups
    data = GroupedData.from_arrays(X, y, groups, weight)
    domain = L2Domain(radius=1e8, proxy_for_unbounded=True)
    return has_separating_direction(Problem(data, loss or Logistic(), domain, fit_intercept=fit_intercept))


def cloud(n=60, d=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


# ---------------------------------------------------------------------- two classes


@every_pair(
    store=[np.float64, np.float32, sp.csr_array],
    fit_intercept={"no intercept": False, "intercept": True},
    margin=[0.0, 0.5],
)
def test_rows_on_their_own_side_are_separable(store, fit_intercept, margin):
    X = cloud()
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    X[:, 0] += margin * y
    assert separating(store(X), y, fit_intercept=fit_intercept)


@every_storage
@with_or_without_intercept
def test_rows_on_the_boundary_are_quasi_separable(store, fit_intercept):
    X = np.vstack([cloud(), cloud(20, seed=1)])
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    X[-20:, 0], y[-20:] = 0.0, np.tile([-1.0, 1.0], 10)
    assert separating(store(X), y, fit_intercept=fit_intercept)


@every_storage
@with_or_without_intercept
def test_a_column_that_marks_a_few_rows_of_one_class_is_quasi_separable(store, fit_intercept):
    X = np.column_stack([cloud(2000), np.arange(2000) < 3])
    y = np.where(cloud(2000, seed=1)[:, 0] > 0, 1.0, -1.0)
    y[:3] = 1.0
    assert separating(store(X), y, fit_intercept=fit_intercept)
    y[0] = -1.0
    assert not separating(store(X), y, fit_intercept=fit_intercept)


@every_pair(
    store=[np.float64, np.float32, sp.csr_array],
    fit_intercept={"no intercept": False, "intercept": True},
    seed=range(5),
)
def test_rows_of_random_labels_are_not_separable(store, fit_intercept, seed):
    y = np.where(np.random.default_rng(seed + 100).random(60) > 0.5, 1.0, -1.0)
    assert not separating(store(cloud(seed=seed)), y, fit_intercept=fit_intercept)


@with_or_without_intercept
def test_one_row_on_the_wrong_side_undoes_separability(fit_intercept):
    X = np.linspace(-1.0, 1.0, 40)[:, None]
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    assert separating(X, y, fit_intercept=fit_intercept)
    y[0] = 1.0
    assert not separating(X, y, fit_intercept=fit_intercept)


def test_a_threshold_away_from_zero_needs_an_intercept():
    X, y = [[3.0], [4.0], [6.0], [7.0]], [-1.0, -1.0, 1.0, 1.0]
    assert separating(X, y, fit_intercept=True)
    assert not separating(X, y, fit_intercept=False)


def test_a_single_class_is_separable_by_an_intercept_alone():
    X = cloud()
    assert separating(X, np.ones(60), fit_intercept=True)
    assert not separating(np.vstack([X, -X]), np.ones(120), fit_intercept=False)


def test_rows_of_zeros_are_not_separable_without_an_intercept():
    y = np.tile([-1.0, 1.0], 10)
    assert not separating(np.zeros((20, 2)), y, fit_intercept=False)
    assert not separating(np.zeros((20, 2)), y, fit_intercept=True)
    assert not separating(np.zeros((20, 2)), np.ones(20), fit_intercept=False)


@with_or_without_intercept
def test_rows_without_weight_are_ignored(fit_intercept):
    X = cloud()
    y, weight = np.where(X[:, 0] > 0, 1.0, -1.0), np.ones(60)
    y[:5] *= -1.0
    assert not separating(X, y, fit_intercept=fit_intercept, weight=weight)
    weight[:5] = 0.0
    assert separating(X, y, fit_intercept=fit_intercept, weight=weight)


@with_or_without_intercept
def test_groups_that_are_separable_alone_need_not_be_so_together(fit_intercept):
    X = cloud(400)
    groups = np.arange(400) // 200
    y = np.where((X[:, 0] > 0) == (groups == 0), 1.0, -1.0)
    for group in (0, 1):
        own = groups == group
        assert separating(X[own], y[own], fit_intercept=fit_intercept)
    assert not separating(X, y, fit_intercept=fit_intercept, groups=groups)


def test_rows_of_overlapping_groups_count():
    X = cloud()
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    groups = np.column_stack([np.full(60, True), X[:, 1] > 0])
    assert separating(X, y, fit_intercept=True, groups=groups)
    y[3] *= -1.0
    y[int(np.argmax(np.abs(X[:, 0])))] *= -1.0
    assert not separating(X, y, fit_intercept=True, groups=groups)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_the_unit_of_all_rows_does_not_matter(scale):
    X = cloud()
    separable = np.where(X[:, 0] > 0, 1.0, -1.0)
    mixed = np.where(cloud(seed=1)[:, 0] > 0, 1.0, -1.0)
    assert separating(scale * X, separable, fit_intercept=False)
    assert not separating(scale * X, mixed, fit_intercept=False)


def exists_by_integers(Z):
    # The cone Z v >= 0 in the plane is spanned by normals of rows of Z, and by rows of Z where it is a half-plane.
    for a, b in Z:
        for v in ((-b, a), (b, -a), (a, b), (-a, -b)):
            products = [z[0] * v[0] + z[1] * v[1] for z in Z]
            if min(products) >= 0 and max(products) > 0:
                return True
    return False


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.sampled_from([-1, 1])), min_size=2, max_size=9))
def test_the_answer_in_the_plane_is_that_of_whole_numbers(points):
    X, y = [[a, b] for a, b, _ in points], [float(c) for *_, c in points]
    assert separating(X, y, fit_intercept=False) == exists_by_integers([(c * a, c * b) for a, b, c in points])


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(-4, 4), st.sampled_from([-1, 1])), min_size=2, max_size=9))
def test_the_answer_on_the_line_with_an_intercept_is_that_of_whole_numbers(points):
    X, y = [[a] for a, _ in points], [float(c) for _, c in points]
    assert separating(X, y, fit_intercept=True) == exists_by_integers([(c * a, c) for a, c in points])


# ---------------------------------------------------------------------- more classes

CORNERS = np.array([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])


def corners(spread, n=90, seed=0):
    y = np.arange(n) % 3
    return CORNERS[y] * 3.0 + spread * np.random.default_rng(seed).uniform(-1.0, 1.0, (n, 2)), y


@every_storage
@with_or_without_intercept
def test_classes_at_the_corners_of_a_triangle_are_separable(store, fit_intercept):
    X, y = corners(0.5)
    assert separating(store(X), y, fit_intercept=fit_intercept, loss=Softmax(3))


@every_storage
@with_or_without_intercept
def test_classes_that_overlap_are_not_separable(store, fit_intercept):
    X, y = corners(6.0)
    assert not separating(store(X), y, fit_intercept=fit_intercept, loss=Softmax(3))


@with_or_without_intercept
def test_one_class_apart_from_two_that_overlap_is_quasi_separable(fit_intercept):
    X, y = corners(0.5, n=300)
    X[y > 0] = [-2.0, 0.0] + cloud(int((y > 0).sum()), 2) * [0.1, 1.0]
    assert separating(X, y, fit_intercept=fit_intercept, loss=Softmax(3))
    two = y > 0
    assert not separating(X[two], 2.0 * y[two] - 3.0, fit_intercept=fit_intercept)


def test_rows_on_the_boundary_of_classes_are_quasi_separable():
    X, y = corners(0.5)
    X, y = np.vstack([X, np.zeros((3, 2))]), np.r_[y, [0, 1, 2]]
    assert separating(X, y, fit_intercept=False, loss=Softmax(3))
    assert separating(X, y, fit_intercept=True, loss=Softmax(3))


def test_classes_along_a_line_need_an_intercept():
    X, y = np.array([[1.0], [2.0], [4.0], [5.0], [7.0], [8.0]]), [0, 0, 1, 1, 2, 2]
    assert separating(X, y, fit_intercept=True, loss=Softmax(3))
    # Of classes on a ray the outermost one alone wins, and the others cannot.
    assert not separating(X, y, fit_intercept=False, loss=Softmax(3))


@with_or_without_intercept
def test_rows_of_more_classes_without_weight_are_ignored(fit_intercept):
    X, y = corners(0.5, n=120)
    weight = np.where(np.arange(120) < 12, 0.0, 1.0)
    y = np.where(np.arange(120) < 12, (y + 1) % 3, y)
    assert separating(X, y, fit_intercept=fit_intercept, loss=Softmax(3), weight=weight)
    assert not separating(X, y, fit_intercept=fit_intercept, loss=Softmax(3))


@with_or_without_intercept
@pytest.mark.parametrize("seed", range(20))
def test_two_classes_by_softmax_are_separable_as_by_the_logistic_loss(fit_intercept, seed):
    rng = np.random.default_rng(seed)
    X, y = rng.integers(-2, 3, (6, 2)).astype(float), np.arange(6) % 2
    expected = separating(X, 2.0 * y - 1.0, fit_intercept=fit_intercept)
    assert separating(X, y, fit_intercept=fit_intercept, loss=Softmax(2)) == expected


def margins_of_classes(X, y, n_classes):
    rows = []
    for x, own in zip(X, y, strict=True):
        for other in range(n_classes):
            if other != own:
                row = np.zeros((n_classes, len(x)))
                row[own], row[other] = x, -np.asarray(x)
                rows.append(row.ravel())
    return np.array(rows)


@pytest.mark.parametrize("seed", range(30))
def test_more_classes_agree_with_the_rays_of_the_cone(seed):
    rng = np.random.default_rng(seed)
    X, y = rng.integers(-2, 3, (5, 1)), rng.permutation([0, 1, 2, *rng.integers(0, 3, 2)])
    margins = margins_of_classes(X, y, 3)
    # On the line a direction is three slopes; small whole ones reach every order of the three.
    directions = np.array(list(itertools.product(range(-2, 3), repeat=3)))
    found = margins @ directions.T
    expected = bool(((found >= 0).all(axis=0) & (found > 0).any(axis=0)).any())
    assert separating(X, y, fit_intercept=False, loss=Softmax(3)) == expected


# ---------------------------------------------------------------------- losses and limits


@with_or_without_intercept
@pytest.mark.parametrize("loss", [Squared(), Huber(1.0), SquaredHinge()], ids=repr)
def test_losses_that_have_a_minimiser_are_never_separable(loss, fit_intercept):
    X = cloud()
    assert not separating(X, np.where(X[:, 0] > 0, 1.0, -1.0), fit_intercept=fit_intercept, loss=loss)


def test_a_program_that_is_too_large_is_not_tried(monkeypatch):
    X = cloud()
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    monkeypatch.setattr("groupdro.problem.separation._MOST_ENTRIES", 60 * 4 - 1)
    assert not separating(X, y, fit_intercept=True)
    assert separating(X, y, fit_intercept=False)


# ---------------------------------------------------------------------- estimators


SEPARABLE = ["binary", "far from zero", "quasi-separable", "rare column", "multi-class", "one class apart"]


@functools.cache
def separable(kind):
    X = cloud(300)
    groups = np.array(["a", "b", "c"])[np.arange(300) % 3]
    y = (X[:, 0] > 0).astype(int)
    if kind == "far from zero":
        X = X + 100.0
    elif kind == "quasi-separable":
        X[:60, 0], y[:60] = 0.0, np.arange(60) % 2
    elif kind == "rare column":
        y = (cloud(300, seed=1)[:, 0] + X[:, 0] > 0).astype(int)
        X[:, 2] = np.arange(300) < 3
        y[:3] = 1
    elif kind == "multi-class":
        X, y = corners(0.5, n=300)
    elif kind == "one class apart":
        X, y = corners(0.5, n=300)
        X[y > 0] = [-2.0, 0.0] + cloud(200, 2) * [0.1, 1.0]
    return X, y, groups


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array, np.float32], ids=["dense", "csr", "float32"])
@pytest.mark.parametrize("kind", SEPARABLE)
def test_a_fit_without_bounds_on_separable_rows_says_that_there_is_no_minimiser(kind, store):
    X, y, groups = separable(kind)
    model = GroupDROClassifier(alpha=0.0, radius=None)
    with pytest.warns(ConvergenceWarning, match=r"No finite minimiser exists.*(alpha|radius)"):
        model.fit(store(X), y, groups=groups)
    assert model.status_ == "no_finite_minimiser"
    assert "separable" in model.message_
    assert np.isfinite(model.coef_).all()
    assert model.lower_bound_ <= model.upper_bound_


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("kind", ["binary", "quasi-separable", "rare column", "multi-class"])
def test_the_units_of_columns_hide_no_separability(kind, scale):
    X, y, groups = separable(kind)
    X = X * scale ** np.linspace(-1.0, 1.0, X.shape[1])
    model = GroupDROClassifier(alpha=0.0)
    with pytest.warns(ConvergenceWarning, match="No finite minimiser exists"):
        model.fit(X, y, groups=groups)
    assert model.status_ == "no_finite_minimiser"


def test_separability_is_said_without_an_intercept_too():
    X, y, groups = separable("binary")
    with pytest.warns(ConvergenceWarning, match="alpha or radius"):
        model = GroupDROClassifier(alpha=0.0, fit_intercept=False).fit(X, y, groups=groups)
    assert model.status_ == "no_finite_minimiser"


@pytest.mark.parametrize("bound", [{"alpha": 1e-4}, {"alpha": 0.0, "radius": 10.0}], ids=["alpha", "radius"])
@pytest.mark.parametrize("kind", SEPARABLE)
def test_a_penalty_or_a_radius_gives_separable_rows_a_minimiser(kind, bound):
    X, y, groups = separable(kind)
    assert GroupDROClassifier(**bound).fit(X, y, groups=groups).status_ == "converged"


def test_groups_that_are_separable_alone_but_not_together_converge():
    X, groups = cloud(300), np.arange(300) % 2
    y = ((X[:, 0] > 0) == (groups == 0)).astype(int)
    model = GroupDROClassifier(alpha=0.0).fit(X, y, groups=groups)
    assert model.status_ == "converged"


def test_rows_without_weight_do_not_hide_separability():
    X, y, groups = separable("binary")
    weight = np.where(np.arange(300) < 30, 0.0, 1.0)
    y = np.where(np.arange(300) < 30, 1 - y, y)
    with pytest.warns(ConvergenceWarning, match="alpha or radius"):
        model = GroupDROClassifier(alpha=0.0).fit(X, y, weight, groups=groups)
    assert model.status_ == "no_finite_minimiser"
    assert GroupDROClassifier(alpha=0.0).fit(X, y, groups=groups).status_ == "converged"


def test_a_worst_group_with_a_minimiser_is_not_called_separable_for_the_sake_of_another_group():
    rng = np.random.default_rng(0)
    x, other = rng.normal(size=200), rng.normal(size=200)
    y = np.r_[x + rng.logistic(size=200) > 0, 2.0 * other + 0.3 * rng.logistic(size=200) > 0].astype(int)
    mark = np.where((np.arange(400) >= 200) & (np.arange(400) < 203), 1.0, 0.0)
    x[0], y[0], y[200:203] = 30.0, 1, 1
    X, groups = np.column_stack([np.r_[x, other], mark]), np.repeat(["worst", "other"], 200)
    model = GroupDROClassifier(alpha=0.0, tol=1e-4).fit(X, y, groups=groups)
    assert model.gap_ <= 1e-4 * model.upper_bound_
    assert model.group_weights_.tolist() == [0.0, 1.0]
    assert model.status_ == "converged"


@functools.cache
def not_separable(n_classes):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 5))
    score = X @ [1.0, -0.5, 0.3, 0.0, 0.2] + 0.4 + rng.logistic(size=400)
    return X, np.searchsorted(np.quantile(score, np.arange(1, n_classes) / n_classes), score)


SCALES = {"like": np.ones(5), "unlike": 10.0 ** np.array([-6.0, 6.0, -3.0, 3.0, 0.0])}


@every_pair(
    store={"dense": np.asarray, "csr": sp.csr_array},
    scale=SCALES,
    n_classes=[2, 3],
    fit_intercept={"no intercept": False, "intercept": True},
)
def test_one_group_without_bounds_is_unpenalised_logistic_regression(fit_intercept, n_classes, scale, store):
    X, y = not_separable(n_classes)
    model = GroupDROClassifier(alpha=0.0, tol=1e-8, fit_intercept=fit_intercept)
    model.fit(store(X * scale), y, groups=np.zeros(400))
    assert model.status_ == "converged"
    assert model.gap_ <= 1e-8 * model.upper_bound_
    plain = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000, fit_intercept=fit_intercept).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(store(X * scale)), plain.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_units_of_columns_do_not_matter_without_bounds(n_classes):
    X, y = not_separable(n_classes)
    groups = np.arange(400) % 3
    like, unlike = (
        GroupDROClassifier(alpha=0.0, tol=1e-8).fit(X * scale, y, groups=groups).predict_proba(X * scale)
        for scale in SCALES.values()
    )
    np.testing.assert_allclose(like, unlike, atol=1e-5)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES.keys())
@with_or_without_intercept
def test_one_group_without_bounds_is_least_squares(fit_intercept, scale):
    X, _ = not_separable(2)
    y = 1000.0 * (X @ [1.0, -0.5, 0.3, 0.0, 0.2] + 0.4 + np.random.default_rng(4).normal(size=400))
    model = GroupDRORegressor(alpha=0.0, tol=1e-8, fit_intercept=fit_intercept)
    model.fit(X * scale, y, groups=np.zeros(400))
    assert model.status_ == "converged"
    plain = LinearRegression(fit_intercept=fit_intercept).fit(X, y)
    np.testing.assert_allclose(model.predict(X * scale), plain.predict(X), atol=1e-5 * np.abs(y).max())


@pytest.mark.parametrize("model", [GroupDROClassifier(alpha=0.0), GroupDRORegressor(alpha=0.0)], ids=lambda m: str(m))
def test_rows_on_disk_without_bounds_are_refused_by_name(model, tmp_path):
    X, y = not_separable(2)
    X.tofile(tmp_path / "X.bin")
    mapped = np.memmap(tmp_path / "X.bin", dtype=np.float64, mode="r", shape=X.shape)
    with pytest.raises(ValueError, match=r"^alpha or radius must be positive if X is memory-mapped"):
        model.fit(mapped, y, groups=np.arange(400) % 2)
    assert model.set_params(radius=5.0).fit(mapped, y, groups=np.arange(400) % 2).status_ == "converged"


def test_a_part_of_the_rows_says_nothing_of_all():
    X = np.array([[1.0], [2.0], [-1.0], [3.0]])
    y = np.array([1.0, 1.0, 1.0, -1.0])  # separable in each half, with slopes of opposite signs, and not as a whole
    whole = GroupedData.from_arrays(X, y, np.zeros(4, int))
    domain = L2Domain(radius=1e8, proxy_for_unbounded=True)

    def ask(comm):
        return has_separating_direction(Problem(shard(whole, comm), Logistic(), domain))

    assert run_workers(2, ask) == [False, False]


def test_separation_is_not_claimed_of_outputs_that_rounding_may_have_turned():
    X, y = cloud(40, 60), np.arange(40) % 2
    problem = Problem(GroupedData.from_arrays(X, y, y), Softmax(2), L2Domain(radius=2.0))
    own, w = np.eye(2)[problem.data.y], np.ones(problem.shape)
    doubt = float(np.linalg.norm(w) * problem.row_norms.max())
    for factor, separated in ((1e-16, False), (1e-12, True)):
        assert is_separated(problem, w, factor * doubt * own) == separated
