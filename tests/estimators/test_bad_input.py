import atexit
import datetime
import decimal
import enum
import fractions
import re
import shutil
import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning

import groupdro as gd
from groupdro.data.grouping import read_groups
from tests.timing import cpu_seconds

N = 60
rng = np.random.default_rng(0)
ROWS = rng.normal(size=(N, 3))
SITES = np.repeat(["a", "b", "c"], N // 3)
NOISE = rng.normal(size=N) * np.where(SITES == "c", 2.0, 1.0)
TARGETS = ROWS @ [1.0, -2.0, 0.5] + NOISE
LABELS = (TARGETS > 0).astype(int)
WORDS = np.array(["no", "yes"])[LABELS]
THREE = np.digitize(TARGETS, [-1.0, 1.0])
THIN = np.where(np.abs(ROWS) > 0.5, ROWS, 0.0)
WHOLE = np.round(3 * ROWS)
FRAME = pd.DataFrame(ROWS, columns=["u", "v", "w"])
FOLDER = Path(tempfile.mkdtemp(prefix="groupdro-bad-input-"))
# Not with the last test of the module: another one may be handed to this process after it.
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
MEMBER = np.column_stack([SITES == "a", SITES != "a", np.arange(N) % 2 == 0])
COLOUR = enum.Enum("Colour", ["red", "green", "blue"])


# ---------------------------------------------------------------------- what is done


def classify(X=ROWS, y=LABELS, groups=SITES, sample_weight=None, *, start=None, **parameters):
    return gd.GroupDROClassifier(**parameters).fit(X, y, sample_weight, groups=groups, **(start or {}))


def regress(X=ROWS, y=TARGETS, groups=SITES, sample_weight=None, *, start=None, **parameters):
    return gd.GroupDRORegressor(**parameters).fit(X, y, sample_weight, groups=groups, **(start or {}))


def answers(fit):
    return LABELS if fit is classify else TARGETS


def report(fit, X=ROWS, y=None, groups=SITES, **options):
    return fit().report(X, answers(fit) if y is None else y, groups, **{"n_bootstrap": 20, **options})


def warns(category, pattern, call):
    with pytest.warns(category, match=pattern):
        return call()


def estimator(fit):
    return gd.GroupDROClassifier() if fit is classify else gd.GroupDRORegressor()


def after_a_failure(fit):
    model = fit()
    with pytest.raises(ValueError, match="groups has 59 rows"):
        model.fit(ROWS, answers(fit), groups=SITES[1:])
    return model.fit(ROWS, answers(fit), groups=SITES)


# ---------------------------------------------------------------------- what is expected of it


def refused(pattern, errors=(ValueError, TypeError)):
    def check(outcome, fit, given):
        if isinstance(outcome, BaseException) and not isinstance(outcome, errors):
            raise outcome
        assert isinstance(outcome, errors), f"no error, but {outcome!r}"
        assert re.search(pattern, str(outcome)), f"/{pattern}/ is not in: {outcome}"

    return check


def told_to_be_uncertified(outcome, fit, given):
    assert isinstance(outcome, ConvergenceWarning)
    assert "certified relative gap" in str(outcome)


def told_of_few_rows(outcome, fit, given):
    assert isinstance(outcome, gd.SmallGroupWarning)
    assert "determined by about" in str(outcome)


def told_of_merging(outcome, fit, given):
    assert isinstance(outcome, gd.SmallGroupWarning)
    assert "merged into the group" in str(outcome)


def outputs(model, X):
    return np.asarray(X, dtype=np.float64) @ np.atleast_2d(model.coef_).T + model.intercept_


def same(**clean):
    def check(outcome, fit, given):
        if isinstance(outcome, BaseException):
            raise outcome
        rows = clean.get("X", ROWS)
        expected = fit(**clean)
        assert outcome.status_ == expected.status_ == "converged"
        np.testing.assert_allclose(outputs(outcome, rows), outputs(expected, rows), rtol=1e-8, atol=1e-8)

    return check


def same_worst(**clean):
    def check(outcome, fit, given):
        if isinstance(outcome, BaseException):
            raise outcome
        expected = fit(**clean)
        assert outcome.status_ == expected.status_ == "converged"
        assert outcome.lower_bound_ == pytest.approx(expected.lower_bound_, rel=1e-8)
        assert outcome.upper_bound_ == pytest.approx(expected.upper_bound_, rel=2 * expected.tol)

    return check


def near(**clean):
    def check(outcome, fit, given):
        if isinstance(outcome, BaseException):
            raise outcome
        expected = fit(**clean)
        assert outcome.status_ == expected.status_ == "converged"
        assert max(outcome.lower_bound_, expected.lower_bound_) <= min(outcome.upper_bound_, expected.upper_bound_)
        assert outcome.upper_bound_ == pytest.approx(expected.upper_bound_, rel=2e-4)

    return check


def solved(outcome, fit, given):
    if isinstance(outcome, BaseException):
        raise outcome
    assert outcome.status_ == "converged"
    rows = given.get("X", ROWS)
    assert np.isfinite(outcome._outputs(rows)).all()
    assert outcome.lower_bound_ <= outcome.upper_bound_
    assert len(set(outcome.groups_.tolist())) == len(outcome.groups_)


def ended(status):
    def check(outcome, fit, given):
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome.status_ == status
        assert np.isfinite(outcome._outputs(given.get("X", ROWS))).all()

    return check


def gives(expected):
    def check(outcome, fit, given):
        if isinstance(outcome, BaseException):
            raise outcome
        np.testing.assert_allclose(outcome, expected(fit), rtol=1e-8, atol=1e-8)

    return check


# ---------------------------------------------------------------------- odd values


def put(value, dtype=None, like=ROWS):
    out = np.array(like, dtype=dtype)
    out[(7, 1) if out.ndim == 2 else 7] = value
    return out


def objects(*values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


def cycled(*values):
    return objects(*(values[i * len(values) // N] for i in range(N)))


def frozen(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def mapped(array, mode="r"):
    path = FOLDER / f"{len(list(FOLDER.iterdir()))}.npy"
    np.save(path, array)
    return np.load(path, mmap_mode=mode)


def large_indices(matrix):
    out = sp.csr_array(matrix)
    out.indices, out.indptr = out.indices.astype(np.int64), out.indptr.astype(np.int64)
    return out


def unsorted(matrix):
    out = sp.csr_array(matrix)
    for start, stop in zip(out.indptr[:-1], out.indptr[1:], strict=True):
        out.indices[start:stop], out.data[start:stop] = out.indices[start:stop][::-1], out.data[start:stop][::-1]
    out.has_sorted_indices = False
    return out


def repeated(matrix):
    row, column = np.nonzero(matrix)
    data = np.repeat(matrix[row, column] / 2, 2)
    starts = np.concatenate([[0], np.cumsum(2 * np.bincount(row, minlength=len(matrix)))])
    return sp.csr_array((data, np.repeat(column, 2), starts), shape=matrix.shape)


def with_stored_zeros(matrix):
    return sp.csr_array((matrix.ravel(), np.tile(np.arange(3), N), np.arange(0, 3 * N + 1, 3)), shape=matrix.shape)


def frozen_csr(matrix):
    out = sp.csr_array(matrix)
    for part in (out.data, out.indices, out.indptr):
        part.flags.writeable = False
    return out


def foreign(matrix):
    out = sp.csr_array(matrix)
    return sp.csr_array((out.data.astype(">f8"), out.indices, out.indptr), shape=out.shape)


class Given(dict):
    """Arguments of a fit where the case takes more than one."""


NAN = np.nan
ROW_OF_TEXT = np.tile(np.array(["p", "q", "r"]), (N, 1))
RECORDS = np.array([tuple(row) for row in ROWS], dtype=[("u", float), ("v", float), ("w", float)])
EVERY_SECOND = np.repeat(np.repeat(ROWS, 2, axis=0), 2, axis=1)[::2, ::2]
MOVED = rng.permutation(N)

X_VALUES = [
    ("nan", put(NAN), refused("Input X contains NaN")),
    ("infinite", put(np.inf), refused("Input X contains inf")),
    ("minus infinite", put(-np.inf), refused("Input X contains inf")),
    ("float32 nan", put(NAN, np.float32), refused("Input X contains NaN")),
    ("none", None, refused(r"\bX\b")),
    ("a number", 5.0, refused(r"\bX\b")),
    ("a text", "rows", refused(r"\bX\b")),
    ("a dict", {"u": ROWS[:, 0]}, refused(r"\bX\b")),
    ("a set", {1.0, 2.0}, refused(r"\bX\b")),
    ("a generator", (row for row in ROWS), refused(r"\bX\b")),
    ("a function", len, refused(r"\bX\b")),
    ("ragged", [[1.0, 2.0], *ROWS[1:].tolist()], refused(r"\bX\b")),
    ("one dimension", ROWS[:, 0], refused(r"\bX\b")),
    ("a Series", FRAME["u"], refused(r"\bX\b")),
    ("three dimensions", ROWS[:, :, None], refused(r"\bX\b")),
    ("no rows", Given(X=ROWS[:0], y=LABELS[:0], groups=SITES[:0]), refused(r"\bX\b")),
    ("no columns", ROWS[:, :0], refused(r"\bX\b")),
    ("text", ROW_OF_TEXT, refused(r"\bX\b")),
    ("bytes", ROW_OF_TEXT.astype(bytes), refused(r"\bX\b")),
    ("text among objects", put("p", object), refused(r"\bX\b")),
    ("none among objects", put(None, object), refused(r"\bX\b.*NaN")),
    ("lists among objects", put([1.0], object), refused(r"\bX\b")),
    ("a whole number that no float holds", put(10**400, object), refused(r"\bX\b")),
    ("complex", ROWS + 1j, refused(r"\bX\b")),
    ("dates", np.full((N, 3), np.datetime64("2020-01-01")), refused(r"\bX\b")),
    ("durations", np.full((N, 3), np.timedelta64(3, "D")), refused(r"\bX\b")),
    ("records", RECORDS, refused(r"\bX\b")),
    ("np.matrix", np.asmatrix(ROWS), refused(r"\bX\b")),
    ("text column", FRAME.assign(v=SITES), refused(r"\bX\b|column")),
    ("polars text column", pl.DataFrame({"u": ROWS[:, 0], "v": SITES}), refused(r"\bX\b|column")),
    ("date column", FRAME.assign(v=pd.Timestamp("2020-01-01")), refused(r"\bX\b|column")),
    ("category column", FRAME.assign(v=pd.Categorical(SITES)), refused(r"\bX\b|column")),
    ("nullable column with NA", pd.DataFrame({"u": pd.array([None, *range(1, N)], dtype="Int64")}), refused(r"X.*NaN")),
    ("polars null", pl.DataFrame({"u": [None, *ROWS[1:, 0]]}), refused(r"X.*NaN")),
    ("names of text and numbers", FRAME.rename(columns={"v": 1}), refused(r"\bX\b|[Ff]eature names")),
    ("a lazy frame", pl.LazyFrame(ROWS, schema=["u", "v", "w"]), refused(r"\bX\b")),
    ("masked", np.ma.array(ROWS, mask=ROWS > 1.5), refused(r"\bX\b.*mask")),
    ("too large to square", put(1e200), refused(r"\bX\b.*large")),
    ("all too large to square", ROWS * 1e200, refused(r"\bX\b.*large")),
    ("largest float", put(np.finfo(float).max), refused(r"\bX\b.*large")),
    ("sparse too large to square", sp.csr_array(put(1e200)), refused(r"\bX\b.*large")),
    ("sparse nan", sp.csr_array(put(NAN)), refused(r"X contains NaN")),
    ("csc nan", sp.csc_array(put(NAN)), refused(r"X contains NaN")),
    ("sparse infinite", sp.csr_array(put(np.inf)), refused(r"X contains inf")),
    ("sparse complex", sp.csr_array(ROWS + 1j), refused(r"\bX\b")),
    ("sparse no columns", sp.csr_array((N, 0)), refused(r"\bX\b")),
    ("sparse one dimension", sp.coo_array(ROWS[:, 0]), refused(r"\bX\b|\by\b")),
    ("mapped nan", mapped(put(NAN)), refused("Input X contains NaN")),
    (
        "mapped without penalty or radius",
        Given(X=mapped(ROWS), alpha=0),
        refused("alpha or radius.*X is memory-mapped"),
    ),
    # What is odd but has one meaning.
    ("lists", ROWS.tolist(), same()),
    ("tuples", tuple(map(tuple, ROWS)), same()),
    ("list of arrays", list(ROWS), same()),
    ("DataFrame", FRAME, same()),
    ("DataFrame with a foreign index", FRAME.set_axis(MOVED), same()),
    ("DataFrame with numbers as names", pd.DataFrame(ROWS), same()),
    ("nullable columns", FRAME.astype("Float64"), same()),
    ("DataFrame of objects", FRAME.astype(object), same()),
    ("sparse columns", FRAME.astype(pd.SparseDtype(float, 0.0)), same()),
    ("polars", pl.DataFrame(ROWS, schema=["u", "v", "w"]), same()),
    ("boolean columns", FRAME > 0, same(X=(ROWS > 0).astype(float))),
    ("objects", ROWS.astype(object), same()),
    ("fractions", objects(*map(fractions.Fraction, WHOLE.ravel())).reshape(N, 3), same(X=WHOLE)),
    ("decimals", objects(*map(decimal.Decimal, WHOLE.ravel())).reshape(N, 3), same(X=WHOLE)),
    ("numbers as text", WHOLE.astype(str), same(X=WHOLE)),
    ("masked nowhere", np.ma.array(ROWS, mask=False), same()),
    ("read-only", frozen(ROWS), same()),
    ("read-only for aleg", Given(X=frozen(ROWS), solver="aleg", random_state=0), solved),
    ("read-only float32 for aleg", Given(X=frozen(ROWS.astype(np.float32)), solver="aleg", random_state=0), solved),
    ("mapped", mapped(ROWS), same()),
    ("mapped for aleg", Given(X=mapped(ROWS), solver="aleg", random_state=0), solved),
    ("mapped copy-on-write", mapped(ROWS, "c"), same()),
    ("mapped float32", mapped(WHOLE.astype(np.float32)), same(X=WHOLE)),
    ("mapped Fortran order", mapped(np.asfortranarray(ROWS)), same()),
    ("mapped every second row", Given(X=mapped(np.repeat(ROWS, 2, axis=0))[::2]), same()),
    ("mapped big-endian", mapped(ROWS.astype(">f8")), same()),
    ("mapped whole numbers", mapped(WHOLE.astype(np.int64)), same(X=WHOLE)),
    ("mapped and groups in disorder", Given(X=mapped(ROWS), groups=SITES[MOVED]), same(groups=SITES[MOVED])),
    ("Fortran order", np.asfortranarray(ROWS), same()),
    ("every second entry", EVERY_SECOND, same()),
    ("reversed in memory", ROWS[::-1, ::-1].copy()[::-1, ::-1], same()),
    ("broadcast", np.broadcast_to(ROWS[:, :1], (N, 3)), same(X=np.repeat(ROWS[:, :1], 3, axis=1))),
    ("big-endian", ROWS.astype(">f8"), same()),
    ("big-endian float32", WHOLE.astype(">f4"), same(X=WHOLE)),
    ("float16", WHOLE.astype(np.float16), same(X=WHOLE)),
    ("float32", WHOLE.astype(np.float32), same(X=WHOLE)),
    ("longdouble", ROWS.astype(np.longdouble), same()),
    ("int64", WHOLE.astype(np.int64), same(X=WHOLE)),
    ("int8", WHOLE.astype(np.int8), same(X=WHOLE)),
    ("uint64", np.abs(WHOLE).astype(np.uint64), same(X=np.abs(WHOLE))),
    ("booleans", ROWS > 0, same(X=(ROWS > 0).astype(float))),
    ("csr matrix", sp.csr_matrix(THIN), same(X=THIN)),
    ("csr array", sp.csr_array(THIN), same(X=THIN)),
    ("csc", sp.csc_array(THIN), same(X=THIN)),
    ("coo", sp.coo_array(THIN), same(X=THIN)),
    ("dia", sp.dia_array(THIN), same(X=THIN)),
    ("bsr", sp.bsr_array(THIN), same(X=THIN)),
    ("lil", sp.lil_array(THIN), same(X=THIN)),
    ("dok", sp.dok_array(THIN), same(X=THIN)),
    ("csr with 64-bit indices", large_indices(THIN), same(X=THIN)),
    ("csr with 64-bit indices for aleg", Given(X=large_indices(THIN), solver="aleg", random_state=0), solved),
    ("csr unsorted", unsorted(THIN), same(X=THIN)),
    ("csr with entries twice", repeated(THIN), same(X=THIN)),
    ("coo with entries twice", repeated(THIN).tocoo(), same(X=THIN)),
    ("csr with stored zeros", with_stored_zeros(THIN), same(X=THIN)),
    ("csr read-only", frozen_csr(THIN), same(X=THIN)),
    ("csr read-only for aleg", Given(X=frozen_csr(THIN), solver="aleg", random_state=0), solved),
    ("csr of whole numbers", sp.csr_array(WHOLE.astype(int)), same(X=WHOLE)),
    ("csr of booleans", sp.csr_array(ROWS > 0), same(X=(ROWS > 0).astype(float))),
    ("csr float32", sp.csr_array(WHOLE.astype(np.float32)), same(X=WHOLE)),
    ("csr big-endian", foreign(THIN), same(X=THIN)),
    ("csr longdouble", sp.csr_array(THIN.astype(np.longdouble)), same(X=THIN)),
    ("csr without an entry", sp.csr_array((N, 3)), same(X=np.zeros((N, 3)))),
    ("all zero", np.zeros((N, 3)), solved),
    ("a constant column", np.column_stack([ROWS, np.ones(N)]), solved),
    ("a column twice", np.column_stack([ROWS, ROWS[:, 0]]), solved),
    ("one column", ROWS[:, :1], solved),
    ("more columns than rows", rng.normal(size=(N, 2 * N)), solved),
    ("values of 1e100", ROWS * 1e100, told_to_be_uncertified),
    ("a column of 1e100", ROWS * [1.0, 1e100, 1.0], told_to_be_uncertified),
    ("a column of 1e30", ROWS * [1.0, 1e30, 1.0], told_to_be_uncertified),
    ("a column of 1e6", ROWS * [1.0, 1e6, 1.0], solved),
    ("a column of 1e-6", ROWS * [1.0, 1e-6, 1.0], solved),
    ("values of 1e-100", ROWS * 1e-100, solved),
    ("values whose squares vanish", ROWS * 1e-200, solved),
    ("subnormal values", ROWS * 1e-310, solved),
    ("values of 1e100 without penalty", Given(X=ROWS * 1e100, alpha=0), solved),
    ("values of 1e-100 without penalty", Given(X=ROWS * 1e-100, alpha=0), solved),
    ("one value of 1e6", put(1e6), solved),
]

Y_VALUES = [
    ("none", None, refused(r"\by\b")),
    ("too short", LABELS[:-1], refused(r"\by\b")),
    ("too long", np.append(LABELS, 1), refused(r"\by\b")),
    ("no rows", LABELS[:0], refused(r"\by\b")),
    ("a number", 1, refused(r"\by\b")),
    ("a text", "labels", refused(r"\by\b")),
    ("a dict", dict(enumerate(LABELS)), refused(r"\by\b")),
    ("a generator", (label for label in LABELS), refused(r"\by\b")),
    ("two columns", np.column_stack([LABELS, LABELS]), refused(r"\by\b")),
    ("a DataFrame of two columns", pd.DataFrame({"u": LABELS, "v": LABELS}), refused(r"\by\b")),
    ("three dimensions", LABELS[:, None, None], refused(r"\by\b")),
    ("ragged", [[1, 2], *LABELS[1:].tolist()], refused(r"\by\b")),
    ("sparse", sp.csr_array(LABELS[:, None]), refused(r"\by\b")),
    ("nan", put(NAN, float, LABELS), refused("Input y contains NaN")),
    ("infinite", put(np.inf, float, LABELS), refused("Input y contains inf")),
    ("nan among objects", put(NAN, object, LABELS), refused(r"\by\b.*contains NaN")),
    ("none among objects", put(None, object, LABELS), refused(r"\by\b.*(NaN|None|missing)")),
    ("NA among nullable", pd.Series([None, *LABELS[1:]], dtype="Int64"), refused(r"\by\b.*(NaN|NA|missing)")),
    ("polars null", pl.Series([None, *LABELS[1:]]), refused(r"\by\b.*(NaN|null|missing)")),
    ("masked", np.ma.array(LABELS, mask=np.arange(N) == 3), refused(r"\by\b.*mask")),
    ("complex", LABELS + 1j, refused(r"\by\b")),
    ("lists among objects", put([1], object, LABELS), refused(r"\by\b|label type")),
    ("a list", LABELS.tolist(), same(y=LABELS)),
    ("a tuple", tuple(LABELS), same(y=LABELS)),
    ("a Series with a foreign index", pd.Series(LABELS, index=MOVED), same(y=LABELS)),
    ("a nullable Series", pd.Series(LABELS, dtype="Int64"), same(y=LABELS)),
    ("a polars Series", pl.Series(LABELS), same(y=LABELS)),
    ("read-only", frozen(LABELS), same(y=LABELS)),
    ("big-endian", LABELS.astype(">i4"), same(y=LABELS)),
    ("int8", LABELS.astype(np.int8), same(y=LABELS)),
    ("uint64", LABELS.astype(np.uint64), same(y=LABELS)),
    ("float32", LABELS.astype(np.float32), same(y=LABELS)),
    ("float16", LABELS.astype(np.float16), same(y=LABELS)),
    ("longdouble", LABELS.astype(np.longdouble), same(y=LABELS)),
    ("booleans", LABELS.astype(bool), same(y=LABELS)),
    ("every second entry", np.repeat(LABELS, 2)[::2], same(y=LABELS)),
]
Y_OF_CLASSES = [
    ("one class", np.ones(N, int), refused("y has only one class")),
    ("one class of text", np.full(N, "yes"), refused("y has only one class")),
    ("continuous", TARGETS, refused(r"\by\b|label type")),
    ("fractions of one half", LABELS / 2, refused(r"\by\b|label type")),
    ("dates", np.array(["2020-01-01", "2021-01-01"], "M8[D]")[LABELS], same(y=LABELS)),
    (
        "three classes of the squared hinge",
        Given(y=THREE, loss="squared_hinge"),
        refused("loss='squared_hinge'.*y has 3"),
    ),
    ("whole numbers among objects", LABELS.astype(object), same(y=LABELS)),
    ("text and numbers", put("1", object, LABELS), refused(r"\by\b|label type")),
    ("nan among text", put(NAN, object, WORDS), refused(r"\by\b.*NaN")),
    ("none among text", put(None, object, WORDS), refused(r"\by\b")),
    ("bytes", WORDS.astype(bytes), refused(r"\by\b|labels", (ValueError, TypeError, FutureWarning))),
    ("text", WORDS, same(y=LABELS)),
    ("text among objects", WORDS.astype(object), same(y=LABELS)),
    ("text of pandas", pd.Series(WORDS, dtype="string"), same(y=LABELS)),
    ("text of polars", pl.Series(WORDS), same(y=LABELS)),
    ("text of several alphabets", np.array(["nein", "да"])[LABELS], same(y=LABELS)),
    ("categories with one unused", pd.Categorical.from_codes(LABELS, categories=["n", "y", "z"]), same(y=LABELS)),
    ("minus and plus one", 2 * LABELS - 1, same(y=LABELS)),
    ("floats that are whole", 2.0 * LABELS - 7.0, same(y=LABELS)),
    ("very large whole numbers", LABELS + 2**62, same(y=LABELS)),
    ("three classes", THREE, solved),
    ("three classes without a middle one", np.array([0, 7, 9])[THREE], same(y=THREE)),
    ("a class of one row", np.arange(N) == 5, solved),
    ("a class of one row among three", np.where(np.arange(N) == 5, 2, LABELS), solved),
]
Y_OF_NUMBERS = [
    ("text", WORDS, refused(r"\by\b")),
    ("text among objects", WORDS.astype(object), refused(r"\by\b")),
    ("categories of text", pd.Categorical(SITES), refused(r"\by\b")),
    ("dates", np.full(N, np.datetime64("2020-01-01")), refused(r"\by\b")),
    ("durations", np.full(N, np.timedelta64(1, "D")), refused(r"\by\b")),
    ("too large to square", TARGETS * 1e200, refused(r"\by\b.*large")),
    ("one value too large to square", put(1e200, like=TARGETS), refused(r"\by\b.*large")),
    ("a whole number that no float holds", put(10**400, object, TARGETS), refused(r"\by\b")),
    ("whole numbers among objects", LABELS.astype(object), same(y=LABELS)),
    ("text of a number among objects", put("1", object, LABELS), same(y=put(1, None, LABELS))),
    ("decimals", objects(*map(decimal.Decimal, np.round(TARGETS))), same(y=np.round(TARGETS))),
    ("numbers as text among objects", np.round(TARGETS).astype(str).astype(object), same(y=np.round(TARGETS))),
    ("values of 1e100", TARGETS * 1e100, solved),
    ("values of 1e-100", TARGETS * 1e-100, solved),
    ("values of 1e100 without penalty", Given(y=TARGETS * 1e100, alpha=0), solved),
    ("values of 1e-100 without penalty", Given(y=TARGETS * 1e-100, alpha=0), solved),
    ("values whose squares vanish", TARGETS * 1e-200, solved),
    ("one value of 1e6", put(1e6, like=TARGETS), solved),
    ("all zero", np.zeros(N), solved),
    ("fitted without an error", ROWS @ [1.0, 2.0, 3.0], solved),
    ("fitted without an error nor penalty", Given(y=ROWS @ [1.0, 2.0, 3.0], alpha=0), solved),
    ("a million away from zero", TARGETS + 1e6, solved),
]

DAY = datetime.date(2020, 1, 1)
GROUP_VALUES = [
    ("too short", SITES[:-1], refused("groups has 59 rows but X has 60")),
    ("too long", np.append(SITES, "a"), refused("groups has 61 rows but X has 60")),
    ("a row a column", np.array([SITES, SITES]), refused("groups has 2 rows but X has 60")),
    ("empty", [], refused("groups has 0 rows but X has 60")),
    ("a text", "site", refused("groups must be an array with one label per row")),
    ("a number", 3, refused("groups must have one or two dimensions")),
    ("a function", len, refused("groups must have one or two dimensions")),
    ("a dict", dict(enumerate(SITES)), refused(r"groups")),
    ("a generator", (site for site in SITES), refused(r"groups")),
    ("a set", set(SITES), refused("groups")),
    ("three dimensions", np.zeros((N, 1, 1)), refused("groups must have one or two dimensions")),
    ("nan", put(NAN, float, np.arange(N) // 20), refused("groups has missing values .*row 7")),
    ("nan in a list of text", [NAN, *SITES[1:]], refused("groups has missing values .*row 0")),
    ("none", [None, *SITES[1:]], refused("groups has missing values .*row 0")),
    ("not a time", put("NaT", "M8[D]", np.full(N, DAY)), refused("groups has missing values .*row 7")),
    ("NA", pd.Series([pd.NA, *SITES[1:]], dtype="string"), refused("groups has missing values .*row 0")),
    ("polars null", pl.Series([None, *SITES[1:]]), refused("groups has missing values .*row 0")),
    ("nan of a category", pd.Categorical([None, *SITES[1:]]), refused("groups has missing values .*row 0")),
    ("nan in one of two columns", pd.DataFrame({"u": SITES, "v": [None, *SITES[1:]]}), refused("groups.*column 'v'")),
    ("masked", np.ma.array(np.arange(N) // 20, mask=np.arange(N) == 3), refused("groups has missing values .*row 3")),
    ("all missing", np.full(N, NAN), refused("groups has missing values .*row 0")),
    ("dicts", objects(*({"site": site} for site in SITES)), refused("groups has labels that cannot be compared")),
    ("sets", objects(*({site} for site in SITES)), refused("groups has labels that cannot be compared")),
    ("arrays", objects(*(np.ones(2) for _ in SITES)), refused("groups has labels that cannot be compared")),
    ("ragged", [["a"], *(["a", "b"] for _ in SITES[1:])], refused("groups")),
    ("zeros and ones", MEMBER.astype(int), refused(r"groups is a matrix of zeros and ones.*astype\(bool\)")),
    ("zeros and ones of floats", MEMBER.astype(float), refused("groups is a matrix of zeros and ones")),
    ("no column", np.zeros((N, 0), bool), refused("groups has no column")),
    ("no column of a DataFrame", pd.DataFrame(index=range(N)), refused("groups has no column")),
    ("an empty group", np.column_stack([MEMBER, np.zeros(N, bool)]), refused("groups has a group without a row: 3")),
    ("rows in no group", MEMBER[:, :1], refused("groups leaves 40 rows in no group")),
    ("sparse rows in no group", sp.csr_array(MEMBER[:, :1]), refused("groups leaves 40 rows in no group")),
    ("sparse with a two", sp.csr_array(2 * MEMBER.astype(int)), refused("groups is a membership matrix.*0 and 1")),
    ("sparse with nan", sp.csr_array(np.where(MEMBER, NAN, 0.0)), refused("groups is a membership matrix.*0 and 1")),
    ("sparse without an entry", sp.csr_array((N, 3)), refused("groups has a group without a row")),
    ("sparse of other rows", sp.csr_array(MEMBER[1:]), refused("groups has 59 rows but X has 60")),
    (
        "sparse of one dimension",
        sp.coo_array(np.ones(N)),
        refused("groups must have one column per group|groups has 1 row"),
    ),
    (
        "booleans with a missing one",
        pd.DataFrame({"u": pd.array([None] + [True] * (N - 1), dtype="boolean")}),
        refused("groups has missing values.*'u'"),
    ),
    ("a Grouping of other rows", read_groups(SITES[1:], N - 1), refused("groups has 59 rows but X has 60")),
    ("a list", SITES.tolist(), same()),
    ("one column", SITES[:, None], same()),
    ("a Series with a foreign index", pd.Series(SITES, index=MOVED), same()),
    ("categories with one unused", pd.Categorical(SITES, categories=["z", "c", "b", "a"]), same()),
    ("polars", pl.Series(SITES), same()),
    ("a lazy frame", pl.LazyFrame({"site": SITES}), same()),
    ("bytes", SITES.astype(bytes), same()),
    ("bytes among objects", cycled(b"a", b"b", b"c"), same()),
    ("objects", SITES.astype(object), same()),
    ("read-only", frozen(SITES), same()),
    ("tuples", cycled(("a", 1), ("b", 1), ("b", 2)), same()),
    ("frozen sets", cycled(frozenset("a"), frozenset("b"), frozenset("c")), same()),
    ("dates", cycled(DAY, DAY.replace(year=2021), DAY.replace(year=2022)), same()),
    ("times", cycled(*(pd.Timestamp(year, 1, 1, tz="UTC") for year in (2020, 2021, 2022))), same()),
    ("months", pd.PeriodIndex(cycled("2020-01", "2020-02", "2020-03"), freq="M"), same()),
    ("durations", np.repeat(np.array([1, 2, 3], "m8[h]"), 20), same()),
    ("enumeration", cycled(*COLOUR), same()),
    ("numbers and text", cycled(1, "1", 1.5), same()),
    ("infinite numbers", np.repeat([-np.inf, 0.0, np.inf], 20), same()),
    ("complex numbers", np.repeat([1j, 2.0, 3 - 1j], 20), same()),
    ("float16", np.repeat([1, 2, 3], 20).astype(np.float16), same()),
    ("big-endian", np.repeat([1, 2, 3], 20).astype(">i2"), same()),
    ("very large whole numbers", cycled(10**30, 10**30 + 1, 10**31), same()),
    ("records", RECORDS[np.repeat([0, 1, 2], 20)], same()),
    ("empty text", np.where(SITES == "a", "", SITES), same()),
    ("names that differ by a null", cycled("a", "a\0", "b"), solved),
    ("names of a megabyte", objects(*(site * 10**6 for site in SITES)), same()),
    ("one and true", [True] * 20 + [1] * 20 + [1.0] * 20, same(groups=np.zeros(N))),
    ("minus zero", np.repeat([0.0, -0.0, 1.0], 20), same(groups=np.where(SITES == "c", 1, 0))),
    ("a Grouping", read_groups(SITES, N), same()),
    ("booleans of one dimension", SITES == "a", same(groups=np.where(SITES == "a", 1, 0))),
    ("a matrix that holds every row once", SITES[:, None] == ["a", "b", "c"], same()),
    ("lists of booleans", MEMBER.tolist(), same(groups=MEMBER)),
    ("booleans among objects", MEMBER.astype(object), same(groups=MEMBER)),
    ("booleans in Fortran order", np.asfortranarray(MEMBER), same(groups=MEMBER)),
    ("sparse membership", sp.csr_array(MEMBER), same(groups=MEMBER)),
    ("sparse columns of booleans", pd.DataFrame(MEMBER).astype(pd.SparseDtype(bool)), same(groups=MEMBER)),
    ("booleans of a column of all rows", np.ones((N, 1), bool), same(groups=np.zeros(N))),
    ("the same group twice", SITES[:, None] == ["a", "b", "c", "c"], near()),
    ("a group inside another", np.column_stack([np.ones(N, bool), SITES == "c"]), solved),
    ("one group", np.zeros(N), solved),
    ("a group of one row", put(9, int, np.repeat([0, 1, 2], 20)), solved),
    ("as many as rows", np.arange(N), told_of_few_rows),
    ("a group of one class", np.where(LABELS == 1, "positive", SITES), solved),
    ("a group a class", LABELS, solved),
    (
        "one that is called merged",
        Given(groups=[*["(merged)"] * 30, *["b"] * 25, *"ccddd"], min_group_size=5),
        refused("groups has a group named"),
    ),
    ("all merged", Given(min_group_size=100), told_of_merging),
]

WEIGHTS = np.arange(1, N + 1) % 4 + 1.0
WITHOUT = np.where(np.arange(N) % 5 == 0, 0.0, WEIGHTS)
KEPT = WITHOUT > 0
WEIGHT_VALUES = [
    ("negative", put(-1.0, like=WEIGHTS), refused("sample_weight has negative values")),
    ("all negative", -WEIGHTS, refused("sample_weight has negative values")),
    (
        "negative so that a class sums to zero",
        np.where(np.cumsum(LABELS) % 2, 1.0, -1.0) * LABELS + (1 - LABELS),
        refused("sample_weight has negative values"),
    ),
    ("nan", put(NAN, like=WEIGHTS), refused("sample_weight has NaN or infinite")),
    ("infinite", put(np.inf, like=WEIGHTS), refused("sample_weight has NaN or infinite")),
    ("all zero", np.zeros(N), refused("sample_weight is zero")),
    ("zero on a group", np.where(SITES == "b", 0.0, 1.0), refused("sample_weight is zero on all of group 'b'")),
    ("too short", WEIGHTS[:-1], refused("sample_weight must have one value per row")),
    ("too long", np.append(WEIGHTS, 1.0), refused("sample_weight must have one value per row")),
    ("two columns", np.column_stack([WEIGHTS, WEIGHTS]), refused("sample_weight must have one value per row")),
    ("a number", 2.0, refused("sample_weight must have one value per row")),
    ("a text", "balanced", refused("sample_weight must")),
    ("a dict", {0: 1.0, 1: 2.0}, refused("sample_weight must")),
    ("a function", len, refused("sample_weight must")),
    ("text", WEIGHTS.astype(str), refused("sample_weight must be numeric")),
    ("text among objects", put("1", object, WEIGHTS), refused("sample_weight")),
    ("none among objects", put(None, object, WEIGHTS), refused("sample_weight")),
    ("ragged", [[1.0, 2.0], *WEIGHTS[1:].tolist()], refused("sample_weight")),
    ("complex", WEIGHTS + 1j, refused("sample_weight must be numeric")),
    ("dates", np.full(N, np.datetime64("2020-01-01")), refused("sample_weight must be numeric")),
    ("sparse", sp.csr_array(WEIGHTS[:, None]), refused("sample_weight")),
    ("masked", np.ma.array(WEIGHTS, mask=np.arange(N) == 3), refused("sample_weight.*mask")),
    ("NA", pd.Series([pd.NA, *WEIGHTS[1:]], dtype="Float64"), refused("sample_weight")),
    ("polars null", pl.Series([None, *WEIGHTS[1:]]), refused("sample_weight has NaN")),
    ("a list", WEIGHTS.tolist(), same(sample_weight=WEIGHTS)),
    ("one column", WEIGHTS[:, None], same(sample_weight=WEIGHTS)),
    ("a Series with a foreign index", pd.Series(WEIGHTS, index=MOVED), same(sample_weight=WEIGHTS)),
    ("polars", pl.Series(WEIGHTS), same(sample_weight=WEIGHTS)),
    ("nullable", pd.Series(WEIGHTS, dtype="Float64"), same(sample_weight=WEIGHTS)),
    ("whole numbers", WEIGHTS.astype(np.uint8), same(sample_weight=WEIGHTS)),
    ("float16", WEIGHTS.astype(np.float16), same(sample_weight=WEIGHTS)),
    ("longdouble", WEIGHTS.astype(np.longdouble), same(sample_weight=WEIGHTS)),
    ("big-endian", WEIGHTS.astype(">f8"), same(sample_weight=WEIGHTS)),
    ("read-only", frozen(WEIGHTS), same(sample_weight=WEIGHTS)),
    ("every second entry", np.repeat(WEIGHTS, 2)[::2], same(sample_weight=WEIGHTS)),
    ("whole numbers among objects", WEIGHTS.astype(object), same(sample_weight=WEIGHTS)),
    ("all alike", np.full(N, 7.0), same()),
    ("booleans", KEPT, same(sample_weight=KEPT.astype(float))),
    ("tiny", WEIGHTS * 1e-300, same(sample_weight=WEIGHTS)),
    ("subnormal", np.full(N, 5e-324), same()),
    ("huge", WEIGHTS * 1e300, same(sample_weight=WEIGHTS)),
    ("largest float", np.full(N, np.finfo(float).max), same()),
    ("of other sizes in each group", WEIGHTS * np.repeat([1.0, 1e-9, 1e9], 20), same_worst(sample_weight=WEIGHTS)),
    ("from 1e-300 to 1e300", np.where(np.arange(N) % 2, 1e-300, 1e300), solved),
    ("zero on a class of a group", np.where((SITES == "b") & (LABELS == 1), 0.0, 1.0), solved),
    ("all on one row of a group", np.where((SITES == "b") & (np.arange(N) != 20), 0.0, 1.0), solved),
]
WEIGHTS_OF_CLASSES = [
    ("zero on a class", 1.0 - LABELS, refused("sample_weight is zero on all rows of class 1")),
    (
        "zero on a class of text",
        Given(y=WORDS, sample_weight=LABELS),
        refused("sample_weight is zero on all rows of class.*no"),
    ),
    (
        "zero on one of three classes",
        Given(y=THREE, sample_weight=(THREE != 1) * 1.0),
        refused("sample_weight.*class 1"),
    ),
]

START_VALUES = [
    ("q_init", "too short", [0.5, 0.5]),
    ("q_init", "too long", [0.25] * 4),
    ("q_init", "two dimensions", np.full((3, 1), 1 / 3)),
    ("q_init", "a number", 1.0),
    ("q_init", "negative", [0.5, 0.7, -0.2]),
    ("q_init", "all zero", [0.0, 0.0, 0.0]),
    ("q_init", "nan", [0.5, 0.5, NAN]),
    ("q_init", "infinite", [0.5, 0.5, np.inf]),
    ("q_init", "text", ["a", "b", "c"]),
    ("q_init", "complex", [0.5, 0.5, 1j]),
    ("q_init", "a mapping without a group", {"a": 0.5, "b": 0.5}),
    ("q_init", "a mapping to text", {"a": "x", "b": "y", "c": "z"}),
    ("q_init", "a set", {0.2, 0.3, 0.5}),
    ("coef_init", "too short", [1.0, 2.0]),
    ("coef_init", "too long", np.ones(4)),
    ("coef_init", "empty", []),
    ("coef_init", "nan", [1.0, NAN, 0.0]),
    ("coef_init", "infinite", [1.0, np.inf, 0.0]),
    ("coef_init", "text", ["x", "y", "z"]),
    ("coef_init", "complex", [1j, 0.0, 0.0]),
    ("coef_init", "a dict", {"u": 1.0, "v": 2.0, "w": 3.0}),
    ("coef_init", "ragged", [[1.0], [1.0, 2.0]]),
    ("coef_init", "too large to use", [1e300, 1e300, 1e300]),
]
INTERCEPT_VALUES = [
    ("too long", [1.0, 2.0]),
    ("empty", []),
    ("nan", NAN),
    ("infinite", [np.inf]),
    ("text", "x"),
    ("complex", 1j),
    ("too large to use", 1e300),
]
GOOD_STARTS = [
    ("q_init", "sums to seven", {"q_init": [1.0, 2.0, 4.0]}),
    ("q_init", "all on one group", {"q_init": [0.0, 0.0, 1.0]}),
    ("q_init", "a mapping", {"q_init": {"c": 1.0, "b": 0.5, "a": 0.2}}),
    ("q_init", "the largest floats", {"q_init": [1e308] * 3}),
    ("q_init", "the least floats", {"q_init": [5e-324] * 3}),
    ("coef_init", "a column", {"coef_init": np.ones((3, 1))}),
    ("coef_init", "far away", {"coef_init": [1e3, -1e3, 1e3]}),
    ("coef_init", "whole numbers", {"coef_init": [1, 2, 3], "intercept_init": 2}),
]

SHARED_PARAMETERS = {
    "objective": ["worst", None, 3, ["risk"], b"risk", ""],
    "loss": ["hinge", None, 0, ["logistic"], len],
    "alpha": [-1.0, NAN, np.inf, "1", None, True, 1j, [1.0], decimal.Decimal(1)],
    "radius": [0.0, -1.0, NAN, np.inf, "1", True, [1.0]],
    "fit_intercept": [1, "yes", None, [True]],
    "break_ties": [0, "no", None, [False]],
    "tol": [-1e-4, NAN, np.inf, "small", None, [1e-4], True],
    "max_passes": [0, -1, NAN, "many", None, [10], True],
    "max_time": [0, -1.0, NAN, "1", datetime.timedelta(seconds=1), True],
    "solver": ["newton", "", None, 3, gd.solvers.ALEG, "alem", ["sqp"]],
    "random_state": ["seed", -1, 1.5, 2**32, np.random.default_rng(0)],
    "verbose": [-1, "loud", 1.5, None],
    "callbacks": [3, [3], len, "ab", [len, None]],
    "checkpoint_dir": [3, ["a"], True, b"bytes"],
    "min_group_size": [0, -1, 1.5, "3", None, NAN],
    "small_group_bonus": [-1.0, NAN, np.inf, None, "1", True],
    "domain": ["ball", 1.0, gd.domains.L2Domain, {"radius": 1.0}],
}
PARAMETERS_OF_CLASSIFIERS = {
    "loss": ["squared", "softmax", gd.losses.Squared(), gd.losses.Softmax(3)],
}
PARAMETERS_OF_REGRESSORS = {"loss": ["logistic", "absolute", gd.losses.Softmax(3)]}
MINIMA = [
    ("too short", [0.1, 0.1]),
    ("two dimensions", [[0.1, 0.1, 0.1]]),
    ("nan", [0.1, NAN, 0.1]),
    ("infinite", [0.1, np.inf, 0.1]),
    ("text", ["x", "y", "z"]),
    ("a text", "best"),
    ("a mapping without a group", {"a": 0.1, "c": 0.1}),
    ("a mapping to none", {"a": 0.1, "b": None, "c": 0.1}),
    ("a number", 0.1),
]


def excess(minima):
    return {"objective": "excess_risk", "start": {"group_minima": minima}}


ODD_PARAMETERS = [
    ("alpha", "zero", {"alpha": 0}),
    ("alpha", "a fraction", {"alpha": fractions.Fraction(1, 100)}),
    ("alpha", "float32", {"alpha": np.float32(0.01)}),
    ("alpha", "huge", {"alpha": 1e100}),
    ("alpha", "tiny", {"alpha": 1e-20}),
    ("radius", "tiny", {"radius": 1e-90}),
    ("radius", "huge", {"radius": 1e300}),
    ("radius", "binding without penalty", {"alpha": 0, "radius": 0.1}),
    ("tol", "above one", {"tol": 5.0}),
    ("max_passes", "infinite", {"max_passes": np.inf}),
    ("max_time", "infinite", {"max_time": np.inf}),
    ("fit_intercept", "a NumPy boolean", {"fit_intercept": np.False_}),
    ("random_state", "a RandomState", {"random_state": np.random.RandomState(0)}),
    ("random_state", "a NumPy integer", {"random_state": np.int64(3)}),
    ("callbacks", "empty", {"callbacks": []}),
    ("callbacks", "a tuple", {"callbacks": (lambda progress: None,)}),
    ("solver", "an instance", {"solver": gd.solvers.GroupSQP()}),
    ("small_group_bonus", "huge", {"small_group_bonus": 1e100}),
    ("group_minima", "negative", excess([-1.0, -1.0, -1.0])),
    ("group_minima", "larger than the risks", excess([50.0, 50.0, 50.0])),
    ("group_minima", "a mapping with a group more", excess({"a": 0.1, "b": 0.1, "c": 0.1, "d": 0.1})),
]
# "auto" may meet the tolerance in its first epoch.
UNFINISHED = [
    ("tol", "zero", {"tol": 0}, "stalled"),
    ("max_passes", "less than one", {"solver": "sqp", "max_passes": 1e-9}, "pass_limit"),
    ("max_time", "no time", {"max_time": 1e-9}, "time_limit"),
    ("callbacks", "one that ends the fit", {"solver": "sqp", "callbacks": [lambda progress: True]}, "interrupted"),
]

AFTERWARDS = [
    ("X", "at predict has a column more", lambda fit: fit().predict(np.ones((5, 4))), refused("X has 4 features")),
    ("X", "at predict has a column less", lambda fit: fit().predict(np.ones((5, 2))), refused("X has 2 features")),
    ("X", "at predict is nan", lambda fit: fit().predict(put(NAN)), refused("X contains NaN")),
    ("X", "at predict is infinite", lambda fit: fit().predict(put(np.inf)), refused("X contains inf")),
    ("X", "at predict is sparse nan", lambda fit: fit().predict(sp.csr_array(put(NAN))), refused("X contains NaN")),
    ("X", "at predict is text", lambda fit: fit().predict(ROW_OF_TEXT), refused(r"\bX\b")),
    ("X", "at predict is complex", lambda fit: fit().predict(ROWS + 1j), refused(r"\bX\b")),
    ("X", "at predict is none", lambda fit: fit().predict(None), refused(r"\bX\b")),
    ("X", "at predict is one row", lambda fit: fit().predict(ROWS[0]), refused(r"\bX\b")),
    ("X", "at predict has three dimensions", lambda fit: fit().predict(ROWS[:, :, None]), refused(r"\bX\b")),
    ("X", "at predict has no rows", lambda fit: fit().predict(ROWS[:0]), refused(r"\bX\b")),
    ("X", "at predict is masked", lambda fit: fit().predict(np.ma.array(ROWS, mask=ROWS > 1)), refused("X.*mask")),
    (
        "X",
        "at predict has other names",
        lambda fit: fit(X=FRAME).predict(FRAME.rename(columns={"u": "z"})),
        refused("[Ff]eature names"),
    ),
    (
        "X",
        "at predict has another order of names",
        lambda fit: fit(X=FRAME).predict(FRAME[["v", "u", "w"]]),
        refused("[Ff]eature names"),
    ),
    (
        "X",
        "at predict has no names",
        lambda fit: warns(UserWarning, "X does not have valid feature names", lambda: fit(X=FRAME).predict(ROWS)),
        gives(lambda fit: fit().predict(ROWS)),
    ),
    (
        "X",
        "at predict is sparse",
        lambda fit: fit().predict(sp.csc_array(ROWS)),
        gives(lambda fit: fit().predict(ROWS)),
    ),
    ("X", "at predict is read-only", lambda fit: fit().predict(frozen(ROWS)), gives(lambda fit: fit().predict(ROWS))),
    ("X", "at predict is mapped", lambda fit: fit().predict(mapped(ROWS)), gives(lambda fit: fit().predict(ROWS))),
    ("X", "at predict is a list", lambda fit: fit().predict(ROWS.tolist()), gives(lambda fit: fit().predict(ROWS))),
    (
        "X",
        "at predict is float32",
        lambda fit: fit().predict(WHOLE.astype(np.float32)),
        gives(lambda fit: fit().predict(WHOLE)),
    ),
    (
        "X",
        "at predict of 1e300",
        lambda fit: np.isfinite(fit().predict(ROWS * 1e300)),
        gives(lambda fit: np.ones(N, bool)),
    ),
    ("predict", "before fit", lambda fit: estimator(fit).predict(ROWS), refused("not fitted")),
    ("report", "before fit", lambda fit: estimator(fit).report(ROWS, answers(fit), SITES), refused("not fitted")),
    ("to_sklearn", "before fit", lambda fit: estimator(fit).to_sklearn(), refused("not fitted")),
    ("report", "X has a column more", lambda fit: report(fit, X=np.ones((N, 4))), refused("X has 4 features")),
    ("report", "X has a row less", lambda fit: report(fit, X=ROWS[1:]), refused(r"\b[Xy]\b")),
    ("report", "X is nan", lambda fit: report(fit, X=put(NAN)), refused("X contains NaN")),
    ("report", "y is too short", lambda fit: report(fit, y=answers(fit)[1:]), refused(r"\b(y|groups)\b")),
    (
        "report",
        "y and groups are too short",
        lambda fit: report(fit, y=answers(fit)[1:], groups=SITES[1:]),
        refused(r"\by\b"),
    ),
    ("report", "y has two columns", lambda fit: report(fit, y=np.ones((N, 2))), refused(r"\by\b")),
    ("report", "y is none", lambda fit: fit().report(ROWS, None, SITES), refused(r"\by\b")),
    ("report", "y is nan", lambda fit: report(fit, y=put(NAN, float, answers(fit))), refused(r"\by\b")),
    ("report", "y is text", lambda fit: report(fit, y=SITES), refused(r"\by\b")),
    ("report", "groups are too short", lambda fit: report(fit, groups=SITES[1:]), refused("groups has 59 rows")),
    (
        "report",
        "groups are unhashable",
        lambda fit: report(fit, groups=objects(*([{}] * N))),
        refused("groups has labels"),
    ),
    ("report", "confidence of one", lambda fit: report(fit, confidence=1.0), refused("confidence must be")),
    ("report", "confidence of nan", lambda fit: report(fit, confidence=NAN), refused("confidence must be")),
    ("report", "confidence of text", lambda fit: report(fit, confidence="95%"), refused("confidence")),
    ("report", "n_bootstrap of text", lambda fit: report(fit, n_bootstrap="many"), refused("n_bootstrap")),
    ("report", "n_bootstrap of a fraction", lambda fit: report(fit, n_bootstrap=20.5), refused("n_bootstrap")),
    ("report", "min_rows of text", lambda fit: report(fit, min_rows="few"), refused("min_rows")),
    ("report", "random_state of text", lambda fit: report(fit, random_state="seed"), refused("random_state")),
    ("report", "loss unknown", lambda fit: report(fit, loss="hinge"), refused("loss must be")),
    ("report", "loss of another shape", lambda fit: report(fit, loss=lambda y, p: 1.0), refused("loss must return")),
    ("report", "option unknown", lambda fit: report(fit, bootstraps=3), refused("bootstraps")),
    ("report", "no bootstrap", lambda fit: report(fit, n_bootstrap=0).columns["n"], gives(lambda fit: [20, 20, 20])),
    (
        "report",
        "no groups",
        lambda fit: report(fit, groups=None).columns["risk"],
        gives(lambda fit: [fit()._row_losses(ROWS, answers(fit)).mean()]),
    ),
    (
        "report",
        "a missing and an unseen group",
        lambda fit: sorted(report(fit, groups=cycled("z", None, "a")).columns["n"]),
        gives(lambda fit: [0, 0, 20, 20, 20]),
    ),
    ("fit", "after a failed fit", after_a_failure, near()),
    ("set_params", "unknown", lambda fit: estimator(fit).set_params(eta=0.1), refused("eta")),
    (
        "alpha",
        "given as text to set_params",
        lambda fit: estimator(fit).set_params(alpha="x").fit(ROWS, answers(fit), groups=SITES),
        refused("alpha"),
    ),
]
SURE = np.vstack([ROWS * 1e300, ROWS * 1e6])
AFTERWARDS_OF_CLASSIFIERS = [
    (
        "predict_proba",
        "of the squared hinge",
        lambda fit: fit(loss="squared_hinge").predict_proba(ROWS),
        refused("predict_proba", AttributeError),
    ),
    ("predict_proba", "before fit", lambda fit: estimator(fit).predict_proba(ROWS), refused("not fitted")),
    ("predict_proba", "X is nan", lambda fit: fit().predict_proba(put(NAN)), refused("X contains NaN")),
    ("predict_proba", "X has a column more", lambda fit: fit().predict_proba(np.ones((5, 4))), refused("X has 4")),
    ("predict_proba", "X is one row", lambda fit: fit().predict_proba(ROWS[0]), refused(r"\bX\b")),
    (
        "decision_function",
        "X has a column more",
        lambda fit: fit().decision_function(np.ones((5, 4))),
        refused("X has 4"),
    ),
    ("predict_log_proba", "X is infinite", lambda fit: fit().predict_log_proba(put(np.inf)), refused("X contains inf")),
    (
        "predict_proba",
        "of rows without doubt",
        lambda fit: fit().predict_proba(SURE).sum(axis=1),
        gives(lambda fit: np.ones(2 * N)),
    ),
    (
        "predict_proba",
        "of rows without doubt and three classes",
        lambda fit: fit(y=THREE).predict_proba(SURE).sum(axis=1),
        gives(lambda fit: np.ones(2 * N)),
    ),
    (
        "predict_log_proba",
        "of rows without doubt",
        lambda fit: np.isfinite(fit().predict_log_proba(SURE)),
        gives(lambda fit: np.ones((2 * N, 2))),
    ),
    (
        "predict_log_proba",
        "of rows without doubt and three classes",
        lambda fit: np.isfinite(fit(y=THREE).predict_log_proba(SURE)),
        gives(lambda fit: np.ones((2 * N, 3))),
    ),
    (
        "report",
        "a class that was not there",
        lambda fit: report(fit, y=put(7, int, LABELS)),
        refused("y has the class 7"),
    ),
    (
        "report",
        "a class of another kind",
        lambda fit: report(fit, y=WORDS),
        refused("knows none of them"),
    ),
    (
        "report",
        "one class",
        lambda fit: report(fit, y=np.ones(N, int)).overall["accuracy"],
        gives(lambda fit: fit().predict(ROWS).mean()),
    ),
    (
        "coef_init",
        "too short for three classes",
        lambda fit: fit(y=THREE, start={"coef_init": np.ones(3)}),
        refused("coef_init must have 9 entries"),
    ),
    (
        "alpha",
        "zero on separable rows",
        lambda fit: warns(
            ConvergenceWarning, "alpha or radius", lambda: fit(y=(ROWS[:, 0] > 0).astype(int), alpha=0, max_passes=200)
        ),
        ended("no_finite_minimiser"),
    ),
    (
        "X",
        "two rows",
        lambda fit: fit(X=ROWS[:2], y=[0, 1], groups=["a", "a"]),
        near(X=ROWS[:2], y=[0, 1], groups=[1, 1]),
    ),
    (
        "X",
        "one row",
        lambda fit: fit(X=ROWS[:1], y=LABELS[:1], groups=SITES[:1]),
        refused("y has only one class"),
    ),
    ("y", "as a column", lambda fit: warns(DataConversionWarning, "y was", lambda: fit(y=LABELS[:, None])), same()),
]
AFTERWARDS_OF_REGRESSORS = [
    (
        "X",
        "one row",
        lambda fit: fit(X=ROWS[:1], y=TARGETS[:1], groups=SITES[:1]).predict(ROWS[:1]),
        gives(lambda fit: TARGETS[:1]),
    ),
    (
        "X",
        "two rows of two groups",
        lambda fit: fit(X=ROWS[:2], y=[1.0, 1.0], groups=["a", "b"]).predict(ROWS[:2]),
        gives(lambda fit: [1.0, 1.0]),
    ),
    ("y", "constant", lambda fit: fit(y=np.full(N, 3.0)).predict(ROWS), gives(lambda fit: np.full(N, 3.0))),
    ("y", "as a column", lambda fit: warns(DataConversionWarning, "y was", lambda: fit(y=TARGETS[:, None])), same()),
    ("y", "values of 1e6 of Huber's loss", lambda fit: fit(y=TARGETS * 1e6, loss="huber"), solved),
    ("delta", "small", lambda fit: fit(loss=gd.losses.Huber(0.03)), solved),
    ("delta", "tiny", lambda fit: fit(loss=gd.losses.Huber(1e-3)), solved),
    ("delta", "huge", lambda fit: fit(loss=gd.losses.Huber(1e9)), near()),
    (
        "predict_proba",
        "of a regressor",
        lambda fit: fit().predict_proba(ROWS),
        refused("predict_proba", AttributeError),
    ),
]


# ---------------------------------------------------------------------- the cases


def told(value):
    if isinstance(value, np.random.Generator) or callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return repr(value)


def listed():
    both = (classify, regress)

    def run(argument, what, call, expected, fits, given):
        for fit in fits:
            yield argument, what, fit, partial(call, fit), partial(expected, fit=fit, given=given)

    def fitted(argument, what, given, expected, fits=both):
        return run(argument, what, lambda fit: fit(**given), expected, fits, given)

    for argument, table, fits in [
        ("X", X_VALUES, both),
        ("y", Y_VALUES, both),
        ("y", Y_OF_CLASSES, (classify,)),
        ("y", Y_OF_NUMBERS, (regress,)),
        ("groups", GROUP_VALUES, both),
        ("sample_weight", WEIGHT_VALUES, both),
        ("sample_weight", WEIGHTS_OF_CLASSES, (classify,)),
    ]:
        for what, value, expected in table:
            yield from fitted(argument, what, value if isinstance(value, Given) else {argument: value}, expected, fits)
    for argument, what, value in START_VALUES:
        yield from fitted(argument, what, {"start": {argument: value}}, refused(rf"\b{argument}\b"))
    for what, value in INTERCEPT_VALUES:
        start = {"coef_init": [1.0, 2.0, 3.0], "intercept_init": value}
        yield from fitted("intercept_init", what, {"start": start}, refused(r"\bintercept_init\b"))
    yield from fitted(
        "intercept_init", "alone", {"start": {"intercept_init": 1.0}}, refused("intercept_init requires coef")
    )
    unused = {"fit_intercept": False, "start": {"coef_init": [1.0, 2.0, 3.0], "intercept_init": 1.0}}
    yield from fitted("intercept_init", "without an intercept", unused, refused(r"\bintercept_init\b"))
    for argument, what, start in GOOD_STARTS:
        yield from fitted(argument, what, {"start": start}, near())
    for parameters, fits in [
        (SHARED_PARAMETERS, both),
        (PARAMETERS_OF_CLASSIFIERS, (classify,)),
        (PARAMETERS_OF_REGRESSORS, (regress,)),
    ]:
        for name, values in parameters.items():
            for value in values:
                yield from fitted(name, told(value), {name: value}, refused(rf"\b{name}\b"), fits)
    for what, value in MINIMA:
        yield from fitted("group_minima", what, excess(value), refused(r"\bgroup_minima\b"))
    plain = {"start": {"group_minima": [0.1, 0.1, 0.1]}}
    yield from fitted("group_minima", "of plain risks", plain, refused("group_minima requires objective='excess_risk'"))
    for argument, what, given in ODD_PARAMETERS:
        yield from fitted(argument, what, given, solved)
    for argument, what, given, status in UNFINISHED:
        unfinished = partial(warns, ConvergenceWarning, "certified relative gap")
        yield from run(
            argument, what, lambda fit, g=given, u=unfinished: u(lambda: fit(**g)), ended(status), both, given
        )
    for table, fits in [
        (AFTERWARDS, both),
        (AFTERWARDS_OF_CLASSIFIERS, (classify,)),
        (AFTERWARDS_OF_REGRESSORS, (regress,)),
    ]:
        for argument, what, call, expected in table:
            yield from run(argument, what, call, expected, fits, {})


KINDS = list(listed())


def cases():
    """Yield every kind. Both estimators read their input in one place: of a kind for both, one in turn is long."""
    fits = {}
    for argument, what, fit, *_ in KINDS:
        fits.setdefault((argument, what), []).append(fit)
    turns = {kind: own[number % len(own)] for number, (kind, own) in enumerate(fits.items())}
    for argument, what, fit, call, expected in KINDS:
        marks = [] if fit is turns[argument, what] else [pytest.mark.long]
        name = f"{argument}-{what}-{fit.__name__}".replace(" ", "-")
        yield pytest.param(argument, call, expected, id=name, marks=marks)


CASES = list(cases())


def compile_kernels():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for fit in (classify, regress):
            for dtype in (np.float32, np.float64):
                for rows in (ROWS.astype(dtype), sp.csr_array(THIN.astype(dtype))):
                    for groups, weight in ((SITES, None), (SITES, WEIGHTS), (MEMBER, None)):
                        fit(X=rows, groups=groups, sample_weight=weight)
                    fit(X=rows, solver="aleg", max_passes=5)
        classify(y=THREE)
        classify(loss="squared_hinge")
        regress(loss="huber")


@pytest.fixture(scope="module", autouse=True)
def compiled_kernels():
    compile_kernels()


@pytest.mark.parametrize(("argument", "call", "expected"), CASES)
def test_it_is_refused_by_name_or_answered_within_a_second(argument, call, expected):
    def answer():
        try:
            return call()
        except Exception as error:
            return error

    outcome, seconds = cpu_seconds(answer)
    expected(outcome)
    assert seconds < 1.0


def test_each_case_has_a_name_and_each_kind_is_in_the_gate():
    assert len({case.id for case in CASES}) == len(CASES)
    gate = {case.id.rpartition("-")[0] for case in CASES if not case.marks}
    assert gate == {case.id.rpartition("-")[0] for case in CASES}
