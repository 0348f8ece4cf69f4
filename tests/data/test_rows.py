import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp

import groupdro.data.dense_rows
from groupdro.data.csr_rows import CsrRows
from groupdro.data.dense_rows import DenseRows, MappedRows
from groupdro.data.read_rows import read_rows
from groupdro.data.shares import Shares

DENSE = np.array([[0, 3, 0], [-4, 0, 1], [0, 0, 0], [2, 2, 5], [0, -7, 1]])
SPARSE = [sp.csr_array, sp.csr_matrix, sp.csc_array, sp.csc_matrix, sp.coo_array, sp.coo_matrix]


def with_long_indices():
    matrix = sp.csr_array(DENSE.astype(float))
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)
    return matrix


def with_unsorted_duplicates(dtype=np.float64, container=sp.csr_array):
    """Store every entry as two halves, from the last column to the first."""
    row, column = np.nonzero(DENSE)
    order = np.lexsort((-column, row))
    data = np.repeat(DENSE[row, column][order], 2).astype(dtype)
    data[::2] -= 1
    data[1::2] = 1
    starts = 2 * np.searchsorted(row, np.arange(len(DENSE) + 1))
    return container((data, np.repeat(column[order], 2), starts), DENSE.shape)


def mapped(tmp_path, X, mode="r"):
    np.save(tmp_path / "X.npy", X)
    return np.load(tmp_path / "X.npy", mmap_mode=mode)


CONTAINERS = {
    "C float64": lambda: DENSE.astype(np.float64),
    "C float32": lambda: DENSE.astype(np.float32),
    "C float16": lambda: DENSE.astype(np.float16),
    "C longdouble": lambda: DENSE.astype(np.longdouble),
    "big-endian": lambda: DENSE.astype(">f8"),
    "Fortran float64": lambda: np.asfortranarray(DENSE, np.float64),
    "Fortran float32": lambda: np.asfortranarray(DENSE, np.float32),
    "strided": lambda: np.repeat(DENSE, 2, axis=0)[::2].astype(np.float64),
    "int64": lambda: DENSE,
    "int8": lambda: DENSE.astype(np.int8),
    "lists": DENSE.tolist,
    "pandas": lambda: pd.DataFrame(DENSE.astype(float)),
    "pandas mixed": lambda: pd.DataFrame(DENSE).astype({0: "float32", 1: "int8"}),
    "pandas nullable": lambda: pd.DataFrame(DENSE).astype({0: "Float64", 1: "Int64"}),
    "polars": lambda: pl.DataFrame(DENSE.astype(float)),
    "polars mixed": lambda: pl.DataFrame(DENSE, schema={"a": pl.Int8, "b": pl.Float32, "c": pl.Int64}),
    "polars lazy": lambda: pl.LazyFrame(DENSE),
    **{f"{make.__name__} float64": lambda make=make: make(DENSE.astype(np.float64)) for make in SPARSE},
    **{f"{make.__name__} float32": lambda make=make: make(DENSE.astype(np.float32)) for make in SPARSE},
    **{f"{make.__name__} int": lambda make=make: make(DENSE) for make in SPARSE},
    "csr int64 indices": with_long_indices,
    "csr duplicates": with_unsorted_duplicates,
    "csr int duplicates": lambda: with_unsorted_duplicates(np.int64),
}


def assert_holds(rows, expected):
    """Compare every way to read and to multiply the rows with a dense float64 matrix."""
    expected = np.asarray(expected, dtype=np.float64)
    n, d = expected.shape
    assert (rows.n_rows, rows.n_features) == expected.shape
    w, a = np.linspace(-1, 2, d), np.linspace(1, 3, n)
    product, gradient, visits = np.empty(n), np.zeros(d), np.zeros(n, int)
    for place, block in rows.blocks():
        assert block.sparse or block.X.dtype == np.float64  # kernels convert each entry of sparse rows
        np.testing.assert_array_equal(block.dense(), expected[place])
        values, columns = block.entries()
        np.testing.assert_allclose(np.bincount(columns, values, d), expected[place].sum(axis=0), atol=1e-10)
        product[place] = block.matvec(w)
        gradient += block.rmatvec(a[place])
        visits[place] += 1
    np.testing.assert_array_equal(visits, 1)
    np.testing.assert_allclose(product, expected @ w, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(gradient, expected.T @ a, rtol=1e-13, atol=1e-13)
    some = np.array([n - 1, 0, 0])
    taken = rows.take(some)
    assert taken.dense().dtype in (np.float32, np.float64)
    np.testing.assert_array_equal(taken.dense(), expected[some])
    assert_multiplies(taken, expected[some])
    for order in (2, np.inf):
        ours = rows.moments(np.ones(n))[0] if order == 2 else rows.largest()
        np.testing.assert_allclose(ours, np.linalg.norm(expected, order, axis=1), rtol=1e-14)
    weights = np.arange(n, dtype=float)
    np.testing.assert_allclose(rows.moments(weights)[1], weights @ expected**2, rtol=1e-12)
    np.testing.assert_allclose(rows.moments(weights)[2], weights @ expected, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(rows.scaled(1.0 + w).dense(), expected * (1.0 + w), rtol=1e-15)


def assert_multiplies(rows, expected):
    """Compare the products of a sample, whose values float32 holds exactly, with those of NumPy."""
    n, d = expected.shape
    rng = np.random.default_rng(0)
    for shape in ((), (2,)):
        w, v = rng.normal(size=(d, *shape)), rng.normal(size=(n, *shape))
        several = 1e-5 * np.abs(expected).sum() if shape else 1e-12  # of several outputs in the rows' own precision
        np.testing.assert_allclose(rows.matvec(w), expected @ w, atol=several)
        np.testing.assert_allclose(rows.rmatvec(v), expected.T @ v, atol=several)
        some = sp.csr_array(rng.random((4, n)) * (rng.random((4, n)) < 0.7))
        overlapping = Shares(some.indptr, some.indices, some.data, n)
        consecutive = Shares(np.array([0, 0, n // 2, n]), np.empty(0, np.int64), rng.random(n), n)
        touched = Shares(np.array([0, n // 2, n]), np.empty(0, np.int64), rng.random(n), n, first=2)
        for given in (consecutive, touched, overlapping):
            shares = np.zeros((5, n))
            shares[given.listed] = given.matrix.toarray()
            sums, totals = np.ones((5, d, *shape)), np.ones((5, *shape))
            rows.rmatvec_by_group(given, v, sums[: given.listed.stop])
            given.add_sums(v, totals)
            np.testing.assert_allclose(totals, 1.0 + np.tensordot(shares, v, axes=1), atol=1e-12)
            wanted = 1.0 + np.einsum("in,n...,nd->id...", shares, v, expected)
            np.testing.assert_allclose(sums, wanted, atol=1e-10 * np.abs(expected).max(initial=1.0))
    for weights in (rng.random(n), rng.normal(size=n)):
        np.testing.assert_allclose(rows.gram(weights), expected.T * weights @ expected, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_gram_matrix_of_sparse_rows_is_that_of_numpy(dtype, index, read_only):
    rng = np.random.default_rng(0)
    X = sp.csr_array((rng.normal(size=(300, 40)) * (rng.random((300, 40)) < 0.2)).astype(dtype))
    X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(index)
    for array in (X.data, X.indices, X.indptr):
        array.flags.writeable = not read_only
    dense = X.toarray().astype(np.float64)
    for weights in (rng.random(300), rng.normal(size=300), -rng.random(600)[::2], np.zeros(300)):
        gram, sizes = CsrRows(X).gram(weights), np.abs(dense).T * np.abs(weights) @ np.abs(dense)
        assert (np.abs(gram - dense.T * weights @ dense) <= 1e-13 * sizes).all()
        np.testing.assert_array_equal(gram, gram.T)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (4, 3)])
def test_the_gram_matrix_without_entries_is_zero(shape):
    gram = CsrRows(sp.csr_array(shape, dtype=np.float64)).gram(np.ones(shape[0]))
    np.testing.assert_array_equal(gram, np.zeros((shape[1], shape[1])))


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_every_container_gives_the_rows_as_float64(make):
    assert_holds(read_rows(make())[0], DENSE)


@pytest.mark.parametrize("block_values", [1, 3, 6, 7, 1000])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_blocks_of_any_size_cover_the_rows(monkeypatch, tmp_path, dtype, block_values):
    monkeypatch.setattr(groupdro.data.dense_rows, "_BLOCK_VALUES", block_values)
    X = DENSE.astype(dtype)
    for source in (X, mapped(tmp_path, X)):
        rows = read_rows(source)[0]
        assert len(list(rows.blocks())) == -(-len(X) // max(1, min(len(X), block_values // 3)))
        assert_holds(rows, DENSE)


def test_more_rows_than_a_block_come_in_several_blocks():
    X = np.arange(3_000_000, dtype=np.float32).reshape(-1, 2)
    rows = read_rows(X)[0]
    assert len(list(rows.blocks())) > 1
    assert_holds(rows, X)


@pytest.mark.parametrize("consecutive", [True, False])
def test_sums_over_many_rows_lose_no_more_digits_than_the_certificate_allows_for(consecutive):
    # Each of the small terms is lost when it is added to a sum of one.
    n, small = 4096, 2.0**-53
    rows = DenseRows(np.append(1.0, np.full(n - 1, small))[:, None])
    exact = 1.0 + (n - 1) * small
    members = np.empty(0, np.int64) if consecutive else np.arange(n)
    shares = Shares(np.array([0, n]), members, np.ones(n), n)
    out = np.zeros((1, 1))
    rows.rmatvec_by_group(shares, np.ones(n), out)
    allowed = np.finfo(float).eps * rows.longest_sum()
    assert abs(out[0, 0] - exact) <= allowed
    assert abs(rows.rmatvec(np.ones(n))[0] - exact) <= allowed


@pytest.mark.parametrize("values", [[[True, False], [False, True]], np.eye(2, dtype=bool), sp.csr_array(np.eye(2) > 0)])
def test_booleans_are_zeros_and_ones(values):
    assert_holds(read_rows(values)[0], np.eye(2))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_boolean_columns_of_a_frame_are_zeros_and_ones(frame):
    X = frame({"flag": [True, False], "size": [0.5, 2.0]})
    assert_holds(read_rows(X)[0], [[1.0, 0.5], [0.0, 2.0]])


def test_nullable_boolean_columns_without_nulls_are_zeros_and_ones():
    assert_holds(read_rows(pd.DataFrame({"flag": [True, False]}, dtype="boolean"))[0], [[1.0], [0.0]])


@pytest.mark.parametrize(
    ("X", "names"),
    [
        (pd.DataFrame({"age": [1.0], "size": [2]}), ("age", "size")),
        (pd.DataFrame([[1.0, 2.0]]), ("0", "1")),
        (pl.DataFrame({"age": [1.0], "size": [2]}), ("age", "size")),
        (np.ones((1, 2)), None),
        (sp.csr_array(np.ones((1, 2))), None),
    ],
)
def test_feature_names_come_with_frames_only(X, names):
    assert read_rows(X)[1] == names


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_floating_point_in_C_order_is_not_copied(dtype):
    X = DENSE.astype(dtype)
    rows = read_rows(X)[0]
    assert isinstance(rows, DenseRows)
    assert rows.X.dtype == dtype
    assert np.shares_memory(rows.X, X)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("container", [sp.csr_array, sp.csr_matrix])
def test_canonical_csr_is_not_copied(container, dtype):
    X = container(DENSE.astype(dtype))
    rows = read_rows(X)[0]
    assert isinstance(rows, CsrRows)
    assert rows.X.dtype == dtype
    assert np.shares_memory(rows.X.data, X.data)
    assert np.shares_memory(rows.X.indices, X.indices)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("container", [sp.csr_array, sp.csr_matrix])
def test_reading_leaves_an_unsorted_csr_with_duplicates_unchanged(container, dtype):
    X, before = with_unsorted_duplicates(dtype, container), with_unsorted_duplicates(dtype, container)
    assert_holds(read_rows(X)[0], DENSE)
    np.testing.assert_array_equal(X.data, before.data)
    np.testing.assert_array_equal(X.indices, before.indices)
    np.testing.assert_array_equal(X.indptr, before.indptr)


def test_reading_leaves_a_coo_with_duplicates_unchanged():
    X = sp.coo_array(([1.0, 2.0, 4.0], ([1, 1, 0], [2, 2, 0])), (2, 3))
    assert_holds(read_rows(X)[0], [[4, 0, 0], [0, 0, 3]])
    np.testing.assert_array_equal(X.data, [1.0, 2.0, 4.0])


@pytest.mark.parametrize("make", [lambda: DENSE.astype(np.float64), lambda: sp.csr_array(DENSE.astype(np.float64))])
def test_a_slice_is_a_view_and_indices_select_rows(make):
    rows = read_rows(make())[0]
    assert_holds(rows.take(slice(1, 4)), DENSE[1:4])
    assert_holds(rows.take(np.array([4, 0, 4])), DENSE[[4, 0, 4]])
    if isinstance(rows, DenseRows):
        assert np.shares_memory(rows.take(slice(1, 4)).X, rows.X)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_memmap_is_read_in_place(tmp_path, dtype, order):
    X = mapped(tmp_path, np.asarray(DENSE, dtype, order=order))
    rows = read_rows(X)[0]
    assert isinstance(rows, MappedRows)
    assert np.shares_memory(rows.X, X)
    assert_holds(rows, DENSE)


@pytest.mark.parametrize("part", [np.s_[1:], np.s_[::2], np.s_[::-1], np.s_[:, 1:]])
def test_part_of_a_memmap_is_read_in_place(tmp_path, part):
    X = mapped(tmp_path, DENSE.astype(float))[part]
    rows = read_rows(np.asarray(X))[0]
    assert isinstance(rows, MappedRows)
    assert np.shares_memory(rows.X, X)
    assert_holds(rows, DENSE[part])


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.bool_, np.longdouble])
def test_a_memmap_of_another_numeric_type_is_read(tmp_path, dtype):
    X = mapped(tmp_path, DENSE.astype(dtype))
    assert_holds(read_rows(X)[0], DENSE.astype(dtype))


@pytest.mark.parametrize("change", [np.memmap.copy, lambda X: X.astype(np.float32)], ids=["copy", "astype"])
def test_a_copy_in_memory_of_a_memmap_is_not_mapped(tmp_path, change):
    X = change(mapped(tmp_path, DENSE.astype(float)))
    rows = read_rows(X)[0]
    assert not isinstance(rows, MappedRows)
    assert_holds(rows, DENSE)


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_changes_to_a_writable_memmap_survive_a_pass(monkeypatch, tmp_path, mode):
    monkeypatch.setattr(groupdro.data.dense_rows, "_BLOCK_VALUES", 2000)
    X = mapped(tmp_path, np.zeros((3000, 4)), mode)
    expected = np.arange(12000.0).reshape(3000, 4)
    X[...] = expected
    rows = read_rows(X)[0]
    for _ in range(2):
        assert_holds(rows, expected)


@pytest.mark.parametrize("X", [[1.0, 2.0], np.ones(3), np.ones((2, 2, 2)), pd.Series([1.0]), pl.Series([1.0]), 3.0])
def test_other_than_two_dimensions_are_refused(X):
    with pytest.raises(ValueError, match="X must have two dimensions"):
        read_rows(X)


@pytest.mark.skipif(sp.coo_array(np.ones(3)).ndim == 2, reason="this SciPy has no sparse arrays of one dimension")
def test_a_one_dimensional_sparse_array_is_refused():
    with pytest.raises(ValueError, match="X must have two dimensions"):
        read_rows(sp.coo_array(np.ones(3)))


@pytest.mark.parametrize(
    "X",
    [
        [["a", "b"]],
        [["1", "2"]],
        np.array([[b"1"]]),
        np.array([["a", 1.0]], dtype=object),
        np.array([[{}, 1.0]], dtype=object),
        np.array([[1j]]),
        np.array([["2020-01-01"]], "M8[D]"),
        np.array([[1]], "m8[D]"),
        sp.csr_array(np.array([[1j]])),
    ],
    ids=["text", "digits", "bytes", "objects with text", "objects", "complex", "date", "duration", "sparse complex"],
)
def test_an_array_that_is_not_numeric_is_refused(X):
    with pytest.raises(ValueError, match="X must be numeric"):
        read_rows(X)


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["a", "b"]),
        pd.Series(["1", "2"], dtype=object),
        pd.Series(pd.Categorical([1, 2])),
        pd.Series(pd.to_datetime(["2020-01-01", "2020-01-02"])),
        pl.Series(["a", "b"]),
        pl.Series(["a", "b"], dtype=pl.Categorical),
    ],
    ids=["pandas text", "pandas objects", "pandas categorical", "pandas date", "polars text", "polars categorical"],
)
def test_columns_that_are_not_numeric_are_refused_by_name(column):
    frame = pd.DataFrame if isinstance(column, pd.Series) else pl.DataFrame
    with pytest.raises(ValueError, match=r"X has columns that are not numeric: \['city'\]"):
        read_rows(frame({"size": [1.0, 2.0], "city": column}))


def test_masked_entries_are_refused():
    with pytest.raises(ValueError, match="X has masked entries"):
        read_rows(np.ma.array(np.ones((2, 2)), mask=np.eye(2, dtype=bool)))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("n_bytes", [1, 100, 200, 10**6])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_ranges_cover_the_rows_as_they_are_stored(make, n_bytes, dense):
    rows, _ = read_rows(make(DENSE.astype(np.float32)))
    assert rows.sparse == (make is sp.csr_array)
    stop = 0
    for place in rows.ranges(n_bytes, dense=dense):
        piece = rows.take(place).stored(dense=dense)
        assert place.start == stop
        assert sp.issparse(piece) == (rows.sparse and not dense)
        assert piece.dtype == np.float32
        assert np.array_equal(piece.toarray() if sp.issparse(piece) else piece, DENSE[place])
        if n_bytes == 1:
            assert len(DENSE[place]) == 1
        stop = place.stop
    assert stop == len(DENSE)
