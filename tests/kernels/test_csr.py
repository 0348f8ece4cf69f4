"""Products with sparse rows: exact sums over many rows, and one value that stands for all entries."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.data import csr_rows
from groupdro.data.csr_rows import CsrRows, csr_of
from groupdro.data.shares import Shares


def make_rows(n=700, d=50, *, ones=False, seed=0):
    rng = np.random.default_rng(seed)
    X = sp.csr_array(np.where(rng.random((n, d)) < 0.1, rng.normal(size=(n, d)), 0.0))
    if not ones:
        return CsrRows(X), X.toarray()
    data = np.broadcast_to(np.full(1, 1.0, np.float32), X.nnz)
    rows = CsrRows(csr_of(data, X.indices, X.indptr, d))
    return rows, (X.toarray() != 0).astype(float)


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("n_outputs", [None, 3])
def test_products_are_those_of_the_dense_matrix(ones, n_outputs):
    rows, X = make_rows(ones=ones)
    rng = np.random.default_rng(1)
    more = () if n_outputs is None else (n_outputs,)
    w, v, weights = rng.normal(size=(50, *more)), rng.normal(size=(700, *more)), rng.random(700)
    np.testing.assert_allclose(rows.matvec(w), X @ w, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(rows.rmatvec(v), X.T @ v, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(rows.gram(weights), X.T @ (weights[:, None] * X), rtol=1e-12, atol=1e-12)
    norms, squares, sums = rows.moments(weights)
    np.testing.assert_allclose(norms, np.linalg.norm(X, axis=1), rtol=1e-12)
    np.testing.assert_allclose(squares, weights @ X**2, rtol=1e-12)
    np.testing.assert_allclose(sums, weights @ X, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(rows.largest(), np.abs(X).max(axis=1))


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("sizes", [(600, 100), (10, 690), (350, 350)])
def test_sums_by_group_are_those_of_the_dense_matrix(ones, sizes):
    """Groups of more than 512 rows are summed in another way."""
    rows, X = make_rows(ones=ones)
    rng, offsets = np.random.default_rng(2), np.append(0, np.cumsum(sizes))
    v, weights, out = rng.normal(size=700), rng.random(700), np.ones((2, 50))
    rows.rmatvec_by_group(Shares(offsets, np.empty(0, np.int64), weights, 700), v, out)
    expected = [1 + (weights * v)[a:b] @ X[a:b] for a, b in itertools.pairwise(offsets)]
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ones", [False, True])
def test_parts_keep_values_and_take_no_memory_for_ones(ones):
    rows, X = make_rows(ones=ones)
    some = np.array([5, 3, 3, 699])
    for which in (slice(10, 20), slice(0, 0), some, slice(1, 9, 2)):
        part = rows.take(which)
        np.testing.assert_array_equal(part.dense(), X[which])
        assert part.X.data.nbytes == 0 or not ones or part.X.data.strides == (0,)
    np.testing.assert_allclose(rows.scaled(np.arange(50.0)).dense(), X * np.arange(50.0))
    np.testing.assert_array_equal(rows.columns(np.array([7, 2])).dense(), X[:, [7, 2]])
    ranges = list(rows.ranges(4000))
    assert len(ranges) > 1
    np.testing.assert_array_equal(np.concatenate([rows.take(place).dense() for place in ranges]), X)


@pytest.mark.parametrize("ones", [False, True])
def test_blocks_cover_the_rows(monkeypatch, ones):
    monkeypatch.setattr(csr_rows, "_CALL_ENTRIES", 500)
    rows, X = make_rows(ones=ones)
    blocks = list(rows.blocks())
    assert len(blocks) > 3
    np.testing.assert_array_equal(np.concatenate([block.dense() for _, block in blocks]), X)
    assert [place.start for place, _ in blocks[1:]] == [place.stop for place, _ in blocks[:-1]]
    (_, whole), *more = list(CsrRows(sp.csr_array((5, 3))).blocks())
    assert whole.n_rows == 5
    assert not more


def test_a_sum_over_rows_loses_nothing_to_their_number():
    """Equal terms round the same way: a plain sum of 10^6 of them loses five digits."""
    n = 10**6
    rows = CsrRows(csr_of(np.broadcast_to(np.ones(1), n), np.zeros(n, np.int32), np.arange(n + 1, dtype=np.int32), 1))
    assert rows.rmatvec(np.full(n, 0.1))[0] == pytest.approx(1e5, rel=1e-15)
    assert abs(np.cumsum(np.full(n, 0.1))[-1] / 1e5 - 1) > 1e-12
    assert rows.longest_sum() < 1000


NET = gd.domains.ElasticNetDomain(l1=0.002, l2=0.01)


@pytest.mark.parametrize(
    ("solver", "domain"),
    [
        ("aleg", gd.domains.L2Domain(penalty=0.05)),
        ("auto", NET),
        pytest.param("aleg", NET, marks=pytest.mark.long),  # which compiles the steps of another domain
    ],
)
def test_ones_are_fitted_as_if_they_were_stored(solver, domain):
    rows, X = make_rows(ones=True)
    rng = np.random.default_rng(3)
    y = np.sign(X @ rng.normal(size=50) + rng.normal(size=700))
    stored = gd.GroupedData.from_arrays(sp.csr_array(X), y, np.repeat([0, 1], 350))
    found = []
    for data in (stored, gd.GroupedData.from_arrays(rows.X, y, np.repeat([0, 1], 350))):
        found.append(gd.solve(gd.Problem(data, gd.losses.Logistic(), domain), solver, tol=1e-4, max_passes=300))
    assert found[0].converged
    assert (found[0].lower_bound, found[0].upper_bound) == (found[1].lower_bound, found[1].upper_bound)


def test_many_sparse_rows_are_certified_to_twelve_digits():
    rng, n = np.random.default_rng(0), 200_000
    columns = np.sort((200 * rng.random((n, 5)) ** 2).astype(np.int32), axis=1)
    X = sp.csr_array((rng.normal(size=5 * n), columns.ravel(), np.arange(0, 5 * n + 1, 5)), shape=(n, 200))
    y = np.sign(X @ rng.normal(size=200) + 2 * rng.logistic(size=n))
    data = gd.GroupedData.from_arrays(X, y, rng.integers(0, 4, n))
    result = gd.solve(gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-2)), tol=1e-12)
    assert result.converged
    assert result.upper_bound - result.lower_bound <= 1e-12 * result.upper_bound
