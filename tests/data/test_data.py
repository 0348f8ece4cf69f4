import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from groupdro.data import Draw, GroupedData
from groupdro.data.dense_rows import MappedRows
from tests.timing import cpu_seconds

MAX_ROWS = 12
FEATURES = np.random.default_rng(0).normal(size=(MAX_ROWS, 3))
STORAGES = ["dense", "sparse", "mapped"]
build = GroupedData.from_arrays


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Give rows of X in each storage; one file serves all examples of Hypothesis."""
    path = tmp_path_factory.mktemp("mapped") / "X.npy"
    np.save(path, FEATURES)
    mapped = np.load(path, mmap_mode="r")
    stored = {"dense": FEATURES, "sparse": sp.csr_array(FEATURES), "mapped": mapped}
    return lambda storage, n_rows: stored[storage][:n_rows]


@st.composite
def cases(draw):
    """Draw groups, weights or None, and the membership and averaging matrices (n_groups, n_rows) they stand for."""
    n_rows = draw(st.integers(1, MAX_ROWS))
    if draw(st.booleans()):
        groups = np.array(draw(st.lists(st.integers(0, 4), min_size=n_rows, max_size=n_rows)))
        member = np.unique(groups)[:, None] == groups
    else:
        n_groups = draw(st.integers(1, 5))
        bits = st.lists(st.booleans(), min_size=n_groups, max_size=n_groups)
        groups = np.array(draw(st.lists(bits, min_size=n_rows, max_size=n_rows)))
        groups[~groups.any(axis=1), 0] = True
        groups[0, ~groups.any(axis=0)] = True
        member = groups.T
        groups = draw(st.sampled_from([np.asarray, sp.csr_array, sp.coo_array]))(groups)
    weight = None
    if draw(st.booleans()):
        values = st.floats(0.01, 100) | st.just(0.0)
        weight = np.array(draw(st.lists(values, min_size=n_rows, max_size=n_rows)))
        for row in member:
            if not weight[row].any():
                weight[np.argmax(row)] = 1.0
    averages = member * (1.0 if weight is None else weight)
    return groups, weight, member, averages / averages.sum(axis=1, keepdims=True)


def in_user_order(data, values, n_rows):
    """Bring a quantity of the stored rows into the order of the user's, with zeros for rows that were dropped."""
    out = np.zeros((n_rows, *values.shape[1:]), values.dtype)
    out[data.source] = values
    return out


def stored_rows(storage, weight, n_rows):
    """Return the rows that data are expected to keep: those with weight, unless they are mapped."""
    if weight is None or storage == "mapped":
        return np.arange(n_rows)
    return np.flatnonzero(weight)


def of_user(data, values):
    """Bring a quantity of the user's rows into the order of the stored rows."""
    return values[data.source]


@given(case=cases(), storage=st.sampled_from(STORAGES), seed=st.integers(0, 2**32 - 1))
def test_group_means_and_row_weights_agree_with_a_dense_averaging_matrix(store, case, storage, seed):
    groups, weight, _, averages = case
    n_groups, n_rows = averages.shape
    rng = np.random.default_rng(seed)
    values, q = rng.normal(size=n_rows), rng.dirichlet(np.ones(n_groups))
    data = build(store(storage, n_rows), np.arange(n_rows), groups, weight)

    n_stored = len(stored_rows(storage, weight, n_rows))
    assert (data.n_groups, data.n_rows, data.n_features) == (n_groups, n_stored, 3)
    np.testing.assert_allclose(data.group_means(of_user(data, values)), averages @ values, rtol=1e-12, atol=1e-13)
    weights = in_user_order(data, data.row_weights(q), n_rows)
    np.testing.assert_allclose(weights, averages.T @ q, rtol=1e-12, atol=1e-15)


@given(case=cases(), storage=st.sampled_from(STORAGES))
def test_source_leads_back_to_the_rows_of_the_user(store, case, storage):
    groups, weight, _, averages = case
    n_rows = averages.shape[1]
    y = 10 * np.arange(n_rows)
    data = build(store(storage, n_rows), y, groups, weight)

    stored = stored_rows(storage, weight, n_rows)
    np.testing.assert_array_equal(np.sort(data.source), stored)
    np.testing.assert_array_equal(data.y, of_user(data, y))
    everything = data.rows.take(np.arange(data.n_rows)).dense()
    everything = everything.toarray() if sp.issparse(everything) else everything
    np.testing.assert_array_equal(in_user_order(data, everything, n_rows)[stored], FEATURES[stored])
    norms = in_user_order(data, data.row_norms, n_rows)
    np.testing.assert_allclose(norms[stored], np.linalg.norm(FEATURES[stored], axis=1))


@given(case=cases(), storage=st.sampled_from(STORAGES))
def test_a_group_alone_has_exactly_its_rows_and_weights(store, case, storage):
    groups, weight, member, averages = case
    n_rows = member.shape[1]
    data = build(store(storage, n_rows), 10 * np.arange(n_rows), groups, weight)

    for i in range(data.n_groups):
        alone = data.group(i)
        assert alone.names == (data.names[i],)
        stored = stored_rows(storage, weight, n_rows)
        np.testing.assert_array_equal(np.sort(alone.source), np.intersect1d(np.flatnonzero(member[i]), stored))
        assert alone.n_groups == 1
        assert alone.n_rows == alone.group_sizes[0] == data.group_sizes[i]
        np.testing.assert_array_equal(alone.y, 10 * alone.source)
        rows = alone.rows.take(np.arange(alone.n_rows)).dense()
        np.testing.assert_array_equal(rows.toarray() if sp.issparse(rows) else rows, FEATURES[alone.source])
        np.testing.assert_allclose(alone.row_weights(np.ones(1)), averages[i, alone.source], rtol=1e-12)


@pytest.mark.parametrize("storage", STORAGES)
def test_rows_of_gives_the_stored_row_of_each_member(store, storage):
    labels = np.array([2, 0, 1, 0, 2, 1])
    data = build(store(storage, 6), labels, labels)
    members = np.arange(6)
    np.testing.assert_array_equal(data.y[data.rows_of(members)], np.repeat([0, 1, 2], 2))


def test_overlapping_groups_keep_the_rows_in_place():
    member = np.array([[1, 1], [0, 1], [1, 0]], bool)
    X = FEATURES[:3]
    data = build(X, np.arange(3), member)
    assert np.shares_memory(data.rows.X, X)
    np.testing.assert_array_equal(data.group_sizes, [2, 2])
    np.testing.assert_array_equal(data.source, [0, 1, 2])
    np.testing.assert_array_equal(data.members, [0, 2, 0, 1])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("groups", [None, [0, 0, 1, 2]])
def test_rows_already_in_the_order_of_groups_are_not_copied(dtype, groups):
    X = FEATURES[:4].astype(dtype)
    data = build(X, np.arange(4), groups)
    assert np.shares_memory(data.rows.X, X)
    assert not data.members.size
    csr = sp.csr_array(FEATURES[:4])
    assert np.shares_memory(build(csr, np.arange(4), groups).rows.X.data, csr.data)


def test_rows_in_another_order_are_stored_by_group_and_the_input_is_unchanged():
    X = FEATURES[:4].copy()
    data = build(X, np.arange(4), ["b", "a", "b", "a"])
    np.testing.assert_array_equal(data.source, [1, 3, 0, 2])
    np.testing.assert_array_equal(data.rows.X, FEATURES[[1, 3, 0, 2]])
    np.testing.assert_array_equal(X, FEATURES[:4])
    assert not data.members.size


@pytest.mark.parametrize("mode", ["r", "c", "r+"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_memmap_in_another_order_is_kept_by_index(tmp_path, dtype, mode):
    X = FEATURES[:6].astype(dtype)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode=mode)
    data = build(mapped, np.arange(6), [1, 0, 1, 0, 2, 1])
    assert isinstance(data.rows, MappedRows)
    assert np.shares_memory(data.rows.X, mapped)
    np.testing.assert_array_equal(data.members, [1, 3, 0, 2, 5, 4])
    np.testing.assert_array_equal(data.source, np.arange(6))
    np.testing.assert_allclose(data.row_norms, np.linalg.norm(X.astype(np.float64), axis=1), rtol=1e-14)
    np.testing.assert_array_equal(data.group(1).rows.X, X[[0, 2, 5]])


def test_a_memmap_already_in_order_needs_no_index(tmp_path):
    np.save(tmp_path / "X.npy", FEATURES)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    data = build(mapped, np.arange(MAX_ROWS), np.arange(MAX_ROWS) // 5)
    assert not data.members.size
    assert np.shares_memory(data.rows.X, mapped)
    assert isinstance(data.group(1).rows, MappedRows)
    assert np.shares_memory(data.group(1).rows.X, mapped)


def test_names_of_groups_and_features_are_kept():
    X = pd.DataFrame({"age": [1.0, 2.0], "size": [3.0, 4.0]})
    data = build(X, [0, 1], pl.Series(["b", "a"]))
    assert data.names == ("a", "b")
    assert data.feature_names == data.group(0).feature_names == ("age", "size")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "container",
    [
        np.asarray,
        np.asfortranarray,
        np.float32,
        np.ndarray.tolist,
        pd.DataFrame,
        pl.DataFrame,
        sp.csr_array,
        sp.csc_matrix,
        sp.coo_array,
    ],
)
def test_entries_that_are_not_finite_are_refused_with_the_row_of_the_user(container, value):
    X = np.ones((5, 2))
    X[3, 1] = value
    with pytest.raises(ValueError, match=r"X has 1 rows .*NaN.* row 3\b"):
        build(container(X), np.zeros(5), ["c", "b", "c", "a", "b"])


def test_entries_that_are_not_finite_are_refused_in_a_memmap(tmp_path):
    X = np.ones((5, 2))
    X[3, 1] = np.nan
    np.save(tmp_path / "X.npy", X)
    with pytest.raises(ValueError, match=r"X has 1 rows .*NaN.* row 3\b"):
        build(np.load(tmp_path / "X.npy", mmap_mode="r"), np.zeros(5), ["c", "b", "c", "a", "b"])


def test_the_first_bad_row_is_first_in_the_order_of_the_user():
    X = np.ones((5, 2))
    X[[1, 3]] = np.nan
    with pytest.raises(ValueError, match=r"X has 2 rows .* first row 1\b"):
        build(X, np.zeros(5), ["c", "b", "c", "a", "b"])


@pytest.mark.parametrize(
    "X",
    [
        pd.DataFrame({"a": [1.0, None], "b": [1.0, 2.0]}),
        pd.DataFrame({"a": [1.0, None], "b": [1.0, 2.0]}, dtype="Float64"),
        pd.DataFrame({"a": [1, None], "b": [1, 2]}, dtype="Int64"),
        pd.DataFrame({"a": [True, None], "b": [True, True]}, dtype="boolean"),
        pl.DataFrame({"a": [1.0, None], "b": [1.0, 2.0]}),
        pl.DataFrame({"a": [1, None], "b": [1, 2]}),
        pl.DataFrame({"a": [True, None], "b": [True, True]}),
        [[1.0, 1.0], [None, 1.0]],
    ],
    ids=["NaN", "Float64", "Int64", "boolean", "polars float", "polars int", "polars bool", "list"],
)
def test_missing_entries_are_refused_with_their_row(X):
    with pytest.raises(ValueError, match=r"X has 1 rows .*NaN.* row 1\b"):
        build(X, [0, 1])


@pytest.mark.parametrize("container", [np.asarray, pd.DataFrame, sp.csr_array, sp.csc_array])
@pytest.mark.parametrize(("shape", "message"), [((0, 3), "X has no rows"), ((3, 0), "X has no columns")])
def test_an_empty_X_is_refused(container, shape, message):
    with pytest.raises(ValueError, match=message):
        build(container(np.zeros(shape)), np.zeros(shape[0]))


@pytest.mark.parametrize("name", ["y", "sample_weight"])
@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3],
        (1.0, 2.0, 3.0),
        np.array([1, 2, 3], np.float32),
        np.array([[1], [2], [3]]),
        pd.Series([1, 2, 3], index=[2, 1, 0]),
        pd.Series([1, 2, 3], dtype="Int64"),
        pd.DataFrame({"y": [1, 2, 3]}),
        pl.Series([1, 2, 3]),
        pl.DataFrame({"y": [1, 2, 3]}),
    ],
    ids=lambda values: f"{type(values).__module__.split('.')[0]}-{type(values).__name__}",
)
def test_vectors_come_in_any_container(name, values):
    data = build(FEATURES[:3], **{"y": [0, 0, 0], name: values})
    np.testing.assert_allclose(*((data.y, [1, 2, 3]) if name == "y" else (data.weights, [1 / 6, 1 / 3, 1 / 2])))


@pytest.mark.parametrize("name", ["y", "sample_weight"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2], "one value per row of X"),
        ([1, 2, 3, 4], "one value per row of X"),
        (pl.Series([1, 2]), "one value per row of X"),
        (3, "one value per row of X"),
        ([[1, 2], [1, 2], [1, 2]], "one value per row of X"),
        ([1, 2, np.nan], "has NaN or infinite values"),
        ([1, np.inf, 2], "has NaN or infinite values"),
        (pd.Series([1, 2, None]), "has NaN or infinite values"),
        (pd.Series([1, 2, None], dtype="Int64"), "has NaN or infinite values"),
        (pl.Series([1, 2, None]), "has NaN or infinite values"),
        (["a", "b", "c"], "must be numeric"),
        (["1", "2", "3"], "must be numeric"),
        (pd.Series(["a", "b", "c"]), "must be numeric"),
        (pl.Series(["a", "b", "c"], dtype=pl.Categorical), "must be numeric"),
        (np.array([1j, 2, 3]), "must be numeric"),
        (np.array([1, "a", 3], dtype=object), "must be numeric"),
    ],
)
def test_bad_vectors_are_refused_by_name(name, values, message):
    with pytest.raises(ValueError, match=f"^{name} .*{message}"):
        build(FEATURES[:3], **{"y": [0, 1, 0], name: values})


def test_groups_of_a_wrong_length_are_refused():
    with pytest.raises(ValueError, match="groups has 2 rows but X has 3"):
        build(FEATURES[:3], [0, 1, 0], ["a", "b"])


def test_labels_keep_their_type():
    for y in (np.array([0, 1, 0], np.int8), np.array([True, False, True]), np.array([0.5, 1, 2], np.float32)):
        assert build(FEATURES[:3], y, [1, 0, 1]).y.dtype == y.dtype


def test_negative_weights_are_refused():
    with pytest.raises(ValueError, match="sample_weight has negative values"):
        build(FEATURES[:3], [0, 1, 0], sample_weight=[1, -1e-300, 1])


@pytest.mark.parametrize(
    ("groups", "weight", "name"),
    [
        (None, [0, 0, 0], "'all'"),
        (["a", "b", "a"], [1, 0, 1], "'b'"),
        (np.array([[1, 0, 1], [1, 1, 0], [0, 0, 1]], bool), [1, 0, 1], "1"),
    ],
)
def test_a_group_without_weight_is_refused_by_name(groups, weight, name):
    with pytest.raises(ValueError, match=f"sample_weight is zero on all of group {name}"):
        build(FEATURES[:3], [0, 1, 0], groups, weight)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float16, np.float32, np.float64])
def test_weights_of_any_numeric_type_are_normalised_in_float64(dtype):
    weight = np.array([1, 7, 3, 200, 200], dtype)
    groups = np.array(["a", "a", "a", "b", "b"])
    expected = weight.astype(np.float64)
    for name in "ab":
        expected[groups == name] /= expected[groups == name].sum()
    data = build(FEATURES[:5], np.zeros(5), groups, weight)
    assert data.weights.dtype == np.float64
    np.testing.assert_allclose(data.weights, expected, rtol=1e-14)


@pytest.mark.parametrize("scale", [1e-320, 1e-300, 1e-3, 1e300, 8e307])
def test_only_the_ratio_of_weights_in_a_group_matters(scale):
    data = build(FEATURES[:4], np.zeros(4), [0, 0, 1, 1], [scale, scale, 1, 3])
    np.testing.assert_allclose(data.weights, [0.5, 0.5, 0.25, 0.75], rtol=1e-14)


def test_weights_of_groups_on_far_scales_are_all_kept():
    data = build(FEATURES[:4], np.zeros(4), [0, 0, 1, 1], [1e-200, 3e-200, 1e200, 3e200])
    np.testing.assert_allclose(data.weights, [0.25, 0.75, 0.25, 0.75], rtol=1e-14)


def test_weights_follow_rows_that_move():
    data = build(FEATURES[:4], np.zeros(4), ["b", "a", "b", "a"], [1, 2, 3, 6])
    np.testing.assert_allclose(data.weights, [0.25, 0.75, 0.25, 0.75])
    data = build(FEATURES[:2], np.zeros(2), np.array([[1, 1], [1, 0]], bool), [1, 3])
    np.testing.assert_allclose(data.weights, [0.25, 0.75, 1.0])


@given(case=cases(), storage=st.sampled_from(STORAGES), seed=st.integers(0, 2**32 - 1))
def test_draws_lie_in_their_group_and_have_weight(store, case, storage, seed):
    groups, weight, _, averages = case
    n_groups, n_rows = averages.shape
    data = build(store(storage, n_rows), np.arange(n_rows), groups, weight)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        draw = Draw.one_per_group(data, rng)
        np.testing.assert_array_equal(draw.groups, np.arange(n_groups))
        np.testing.assert_array_equal(draw.weights, 1.0)
        assert (data.offsets[:-1] <= draw.members).all()
        assert (draw.members < data.offsets[1:]).all()
        assert (averages[draw.groups, data.source[data.rows_of(draw.members)]] > 0).all()


LABELS = np.array([0, 1, 0, 2, 1, 0, 0, 1])
OVERLAPPING = np.array([[1, 0], [1, 1], [1, 1], [0, 1], [1, 0], [0, 1], [1, 1], [0, 1]], bool)


@pytest.mark.parametrize("weight", [None, [0, 2, 1, 5, 0, 4, 3, 1]], ids=["uniform", "weighted"])
@pytest.mark.parametrize("groups", [LABELS, OVERLAPPING], ids=["disjoint", "overlapping"])
def test_draws_have_the_frequencies_of_the_weights(groups, weight):
    data = build(FEATURES[:8], np.zeros(8), groups, weight)
    rng, n_draws = np.random.default_rng(3), 10_000
    counts = np.zeros(data.offsets[-1])
    for _ in range(n_draws):
        counts[Draw.one_per_group(data, rng).members] += 1
    weights = data.weights if data.weights.size else 1 / np.repeat(data.group_sizes, data.group_sizes)
    expected = n_draws * weights
    np.testing.assert_array_equal(counts[expected == 0], 0)
    free = expected > 0
    statistic = np.sum((counts[free] - expected[free]) ** 2 / expected[free])
    assert statistic < chi2.ppf(0.999, free.sum() - data.n_groups)


@pytest.mark.parametrize("weight", [None, np.arange(1.0, 9.0)], ids=["uniform", "weighted"])
def test_the_same_seed_draws_the_same_members(weight):
    data = build(FEATURES[:8], np.zeros(8), LABELS, weight)

    def sequence(seed):
        rng = np.random.default_rng(seed)
        return np.array([Draw.one_per_group(data, rng).members for _ in range(20)])

    np.testing.assert_array_equal(sequence(0), sequence(0))
    assert (sequence(0) != sequence(1)).any()


class Extreme(np.random.Generator):
    """Gives the ends of the unit interval, where the rounding of running totals shows."""

    def __init__(self, value):
        super().__init__(np.random.PCG64(0))
        self.value = value

    def random(self, size):
        return np.full(size, self.value)


@pytest.mark.parametrize("value", [0.0, 1e-16, np.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("n_groups", [3, 50, 5000])
def test_rounding_never_draws_a_member_without_weight(n_groups, value, tmp_path):
    one = np.array([0, 1, 2, 3, 4, 5, 7, 0])
    X = np.memmap(tmp_path / "X", np.float64, "w+", shape=(8 * n_groups, 1))  # of which no row is dropped
    data = build(X, np.zeros(8 * n_groups), np.repeat(range(n_groups), 8), np.tile(one, n_groups))
    members = Draw.one_per_group(data, Extreme(value)).members
    np.testing.assert_array_equal(members // 8, np.arange(n_groups))
    assert (data.weights[members] > 0).all()


def test_many_small_groups_cost_about_as_much_as_few_large_ones():
    n_groups, size = 100_000, 10
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n_groups * size, 2)), np.zeros(n_groups * size)
    order = rng.permutation(n_groups * size)

    _, few = cpu_seconds(lambda: build(X, y, order % 10))
    groups = order % n_groups
    data, many = cpu_seconds(lambda: build(X, y, groups))
    assert many < 20 * few
    assert data.n_groups == n_groups
    np.testing.assert_array_equal(data.group_sizes, size)
    expected = np.bincount(groups, X[:, 0]) / size
    np.testing.assert_allclose(data.group_means(of_user(data, X[:, 0])), expected, rtol=1e-9, atol=1e-12)
    member = sp.csr_array((np.ones(len(groups), bool), (np.arange(len(groups)), groups)))
    np.testing.assert_allclose(build(X, y, member).group_means(X[:, 0]), expected, rtol=1e-9, atol=1e-12)
