"""A table of nonsense: for every public entry point and argument, values that it must refuse by name.

The estimators have a table of their own in ``tests/estimators/test_bad_input.py``.
"""

import atexit
import datetime
import decimal
import re
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import scipy.sparse as sp
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.preprocessing import StandardScaler

import groupdro as gd
from groupdro.certificate import Certificate, linearise
from groupdro.oracle import Oracle
from groupdro.problem import GroupMinima

__all__ = ["CASES", "FOLDER", "Case", "warm_up"]

matplotlib.use("agg")
FOLDER = Path(tempfile.mkdtemp(prefix="groupdro-bad-values-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)

N, NAN, INF = 60, float("nan"), float("inf")
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 3))
GROUPS = np.repeat(["a", "b", "c"], N // 3)
TARGETS = X @ [1.0, -2.0, 0.5] + rng.normal(size=N)
LABELS = (TARGETS > 0).astype(int)
WEIGHTS = rng.uniform(0.5, 2.0, size=N)
FRAME = pd.DataFrame(X, columns=["u", "v", "w"]).assign(site=GROUPS)
TABLE = pa.table({"u": X[:, 0], "v": X[:, 1], "y": LABELS, "site": GROUPS, "weight": WEIGHTS, "text": GROUPS})


def put(value, array=X, dtype=None):
    """Return a copy of an array with one entry replaced."""
    out = np.array(array, dtype=dtype)
    out.flat[7] = value
    return out


def objects(*values):
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def text(length=N):
    return np.array(["x", "y"] * (length // 2))


def function(*_):
    return 1.0


class Stranger:
    """Of no use to anyone."""


# ---------------------------------------------------------------------- bad values by kind of argument

NEVER_A_NUMBER = {
    "text": "much",
    "bytes": b"1",
    "a list": [1.0],
    "a dict": {"a": 1.0},
    "complex": 1j,
    "an object": Stranger(),
    "a function": function,
    "two numbers": np.array([1.0, 2.0]),
    "a time": datetime.datetime(2024, 1, 1),
    "NaN": NAN,
    "NaN of NumPy": np.float32("nan"),
    "minus infinity": -INF,
}
POSITIVE = {**NEVER_A_NUMBER, "none": None, "zero": 0.0, "negative": -1.0}
FINITE_POSITIVE = {**POSITIVE, "infinity": INF}
NOT_NEGATIVE = {**NEVER_A_NUMBER, "none": None, "infinity": INF, "negative": -1e-9}
WHOLE = {
    **NEVER_A_NUMBER,
    "none": None,
    "infinity": INF,
    "a fraction": 2.5,
    "negative": -3,
    "a decimal": decimal.Decimal("2.5"),
}
COUNT = {**WHOLE, "zero": 0}
FLAG = {"none": None, "text": "yes", "a number": 2, "a list": [], "NaN": NAN, "an object": Stranger()}
CHOICE = {
    "none": None,
    "a number": 1,
    "empty text": "",
    "another word": "nonsense",
    "bytes": b"risk",
    "a list": ["risk"],
    "an object": Stranger(),
    "NaN": NAN,
}
STRANGERS = {
    "none": None,
    "a number": 3.0,
    "text": "it",
    "a list": [1, 2],
    "an array": np.ones(3),
    "an object": Stranger(),
    "a class": Stranger,
    "a function": function,
}

ROWS = {
    "none": None,
    "a number": 5.0,
    "text": "rows",
    "bytes": b"rows",
    "a dict": {"u": [1.0] * N},
    "a set": {1.0, 2.0},
    "a generator": (row for row in X),
    "an object": Stranger(),
    "a function": function,
    "an empty list": [],
    "no rows": X[:0],
    "no columns": X[:, :0],
    "one dimension": X[:, 0],
    "three dimensions": X[:, :, None],
    "zero dimensions": np.array(1.0),
    "ragged": [[1.0, 2.0]] * (N - 1) + [[1.0]],
    "text inside": X.astype(str).astype(object) + "x",
    "an array of text": X.astype(str),
    "complex": X.astype(complex),
    "times": X.astype("datetime64[s]"),
    "durations": X.astype("timedelta64[s]"),
    "NaN": put(NAN),
    "infinite": put(INF),
    "too large": put(1e200),
    "masked": np.ma.array(X, mask=X > 1),
    "None inside": put(None, dtype=object),
    "lists inside": objects(*([[1.0]] * N)),
    "records": np.zeros(N, dtype=[("u", float), ("v", float)]),
    "a text column": FRAME,
    "a polars text column": pl.DataFrame({"u": X[:, 0], "site": GROUPS}),
    "NaN in sparse": sp.csr_array(put(NAN)),
    "complex sparse": sp.csr_array(X.astype(complex)),
    "a sparse vector": sp.coo_array(X[:, 0]),
    "missing in a frame": pd.DataFrame(put(NAN)),
    "null in polars": pl.DataFrame({"u": [None] * N, "v": X[:, 0]}),
}
ROWS_OF_MODELS = {  # text that tells a number is one for scikit-learn
    key: value for key, value in ROWS.items() if key not in ("too large", "an array of text")
}
VECTOR = {
    "none": None,
    "a number": 1.0,
    "text": "labels",
    "a dict": {"a": 1},
    "a set": {1.0, 2.0},
    "a generator": (value for value in TARGETS),
    "an object": Stranger(),
    "a function": function,
    "empty": [],
    "too short": TARGETS[1:],
    "too long": np.append(TARGETS, 1.0),
    "two columns": np.column_stack([TARGETS, TARGETS]),
    "three dimensions": TARGETS[:, None, None],
    "ragged": [[1.0]] * (N - 1) + [[1.0, 2.0]],
    "complex": TARGETS.astype(complex),
    "times": np.arange(N).astype("datetime64[D]"),
    "NaN": put(NAN, TARGETS),
    "infinite": put(INF, TARGETS),
    "masked": np.ma.array(TARGETS, mask=TARGETS > 1),
    "None inside": put(None, TARGETS, object),
    "dicts inside": objects(*([{}] * N)),
    "records": np.zeros(N, dtype=[("u", float)]),
    "sparse": sp.csr_array(LABELS[None]),
}
NUMBERS = {**VECTOR, "an array of text": text(), "text inside": put("x", TARGETS, object)}
CLASSES = {key: value for key, value in VECTOR.items() if key != "times"}
LABELLED = {key: value for key, value in VECTOR.items() if key not in ("times", "complex")}
GROUPINGS = {
    "a number": 3,
    "text": "a" * 5,
    "a dict": {"a": 1},
    "a set": {"a", "b"},
    "a generator": (value for value in GROUPS),
    "an object": Stranger(),
    "a function": function,
    "empty": [],
    "too short": GROUPS[1:],
    "too long": np.append(GROUPS, "a"),
    "three dimensions": GROUPS[:, None, None],
    "ragged": [["a"]] * (N - 1) + [["a", "b"]],
    "unhashable": objects(*([{}] * N)),
    "lists": objects(*([["a"]] * N)),
    "zeros and ones": np.column_stack([GROUPS == "a", GROUPS != "a"]).astype(float),
    "a group without rows": np.column_stack([np.ones(N, bool), np.zeros(N, bool)]),
    "a row without groups": np.column_stack([GROUPS == "a", GROUPS == "b"]),
    "a matrix of twos": sp.csr_array(np.full((N, 2), 2.0)),
    "a sparse vector": sp.coo_array(np.ones(N)),
    "no column": np.empty((N, 0)),
    "a frame without columns": FRAME[[]],
}
MISSING_GROUPS = {
    "NaN": put(NAN, np.arange(N), float),
    "None inside": put(None, GROUPS, object),
    "not a time": put(np.datetime64("NaT"), np.arange(N).astype("datetime64[D]")),
    "masked": np.ma.array(GROUPS, mask=GROUPS == "a"),
    "null in polars": pl.Series([None, *GROUPS[1:]]),
}
WEIGHTINGS = {
    **{key: value for key, value in NUMBERS.items() if key != "none"},
    "negative": put(-1.0, WEIGHTS),
    "zero in a group": np.where(GROUPS == "a", 0.0, 1.0),
    "all zero": np.zeros(N),
}
PLACES = {
    "none": None,
    "a number": 3.5,
    "a list": ["a"],
    "an object": Stranger(),
    "a null character": f"{FOLDER}/a\0b",
    "an array": np.array(["a"]),
}
MODELS = {
    **STRANGERS,
    "not fitted": gd.GroupDROClassifier(),
    "a class of models": gd.GroupDROClassifier,
    "a transformer": StandardScaler().fit(X),
}


# ---------------------------------------------------------------------- entry points


@cache
def data():
    return gd.GroupedData.from_arrays(X, LABELS, GROUPS)


@cache
def problem():
    return gd.Problem(data(), gd.losses.Logistic(), gd.domains.L2Domain(radius=1.0))


@cache
def oracle():
    return Oracle(problem())


@cache
def evaluation():
    return oracle().evaluate(np.zeros(3), np.full(3, 1 / 3))


@cache
def classifier():
    return gd.GroupDROClassifier(random_state=0).fit(X, LABELS, groups=GROUPS)


@cache
def regressor():
    return gd.GroupDRORegressor(random_state=0).fit(X, TARGETS, groups=GROUPS)


@cache
def wrapper():
    return gd.GroupBy(gd.GroupDROClassifier(), "site").fit(FRAME, LABELS)


@cache
def store():
    return gd.GroupedStore.write_arrays(FOLDER / "a store", X, LABELS, GROUPS)


@cache
def result():
    return gd.solve(problem())


@cache
def report():
    return gd.group_report(classifier(), X, LABELS, GROUPS, n_bootstrap=20)


def ran(make):
    """Return a call that makes a solver and runs it."""

    def call(**given):
        return gd.solve(problem(), make(**given), tol=1e-2, max_passes=20)

    return call


def arrays_stored(**given):
    values = {"path": FOLDER / "new store", "X": X, "y": LABELS, "groups": GROUPS, **given}
    return gd.GroupedStore.write_arrays(**values)


def table_stored(**given):
    values = {"path": FOLDER / "new store", "source": TABLE, "target": "y", "groups": "site", "features": ["u", "v"]}
    return gd.GroupedStore.write(**{**values, **given})


def split(X=X, y=LABELS, groups=GROUPS, **given):
    return list(gd.GroupStratifiedKFold(**given).split(X, y, groups))


def scored(estimator=None, X=X, y=LABELS, groups=GROUPS, sample_weight=None, **given):
    model = classifier() if estimator is None else estimator
    return gd.worst_group_scorer(**given)(model, X, y, sample_weight, groups=groups)


def reported(model=None, X=X, y=LABELS, groups=GROUPS, **given):
    model = classifier() if model is None else model
    return gd.group_report(model, X, y, groups, **{"n_bootstrap": 20, **given})


def compared(X=X, y=LABELS, groups=GROUPS, **given):
    return gd.compare(X, y, groups, **{"n_bootstrap": 20, "cv": None, **given})


def pathed(estimator=None, X=X, y=LABELS, groups=GROUPS, **given):
    model = gd.GroupDROClassifier() if estimator is None else estimator
    return gd.regularization_path(model, X, y, groups=groups, **given)


def wrapped(estimator=None, group_by="site", drop=True, X=FRAME, y=LABELS, sample_weight=None):
    model = gd.GroupDROClassifier() if estimator is None else estimator
    return gd.GroupBy(model, group_by, drop=drop).fit(X, y, sample_weight)


def risk_problem(**given):
    values = {"data": data(), "loss": gd.losses.Logistic(), "domain": gd.domains.L2Domain(radius=1.0), **given}
    return gd.Problem(**values)


def solved(**given):
    return gd.solve(**{"problem": problem(), "tol": 1e-2, "max_passes": 20, **given})


def drawn(**given):
    values = {"models": {"a": classifier(), "b": classifier()}, "X": X, "y": LABELS, "groups": GROUPS, **given}
    return gd.plots.GroupMetricDisplay.from_estimators(**values)


def combined(**given):
    return gd.distributed.SerialCommunicator().broadcast(**{"array": np.ones(2), **given})


BAD_W = {
    "a number": 3.0,
    "text": "start",
    "a list": [0.0] * 3,
    "too long": np.ones(4),
    "of text": np.array(["x"] * 3),
    "NaN": np.full(3, NAN),
    "an object": Stranger(),
}
BAD_Q = {
    "a number": 1.0,
    "text": "equal",
    "a list": [1.0, 0.0, 0.0],
    "too short": np.ones(2),
    "negative": np.array([2.0, -0.5, -0.5]),
    "off the simplex": np.array([1.0, 1.0, 1.0]),
    "NaN": np.full(3, NAN),
    "an object": Stranger(),
}
BAD_MINIMA = {
    "a number": 0.3,
    "text": "best",
    "an array": np.zeros(3),
    "too short": GroupMinima.exact(np.zeros(2)),
    "NaN above": GroupMinima(np.full(3, NAN), np.zeros(3), np.zeros(3)),
    "NaN below": GroupMinima(np.zeros(3), np.full(3, NAN), np.zeros(3)),
    "NaN in the centre": GroupMinima(np.zeros(3), np.zeros(3), np.full(3, NAN)),
    "of text": GroupMinima(np.array(["a", "b", "c"]), np.zeros(3), np.zeros(3)),
    "an object": Stranger(),
}
BAD_OFFSETS = {
    "text": "none",
    "a number": 1.0,
    "too short": np.zeros(2),
    "NaN": np.array([0.0, NAN, 0.0]),
    "infinite": np.array([0.0, INF, 0.0]),
    "complex": np.zeros(3, complex),
    "an array of text": np.array(["a", "b", "c"]),
    "two columns": np.zeros((3, 2)),
    "an object": Stranger(),
}
BAD_CALLBACKS = {
    "none": None,
    "a number": 3,
    "a function alone": function,
    "text": "print",
    "numbers": [1, 2],
    "one of them none": [function, None],
}
SCHEDULES = {
    "text": "long",
    "NaN": NAN,
    "infinite": INF,
    "negative": -1.0,
    "zero": 0.0,
    "empty": [],
    "text inside": ["a"],
    "complex": 1j,
    "an object": Stranger(),
    "a function of text": lambda s: "x",
    "a function of none": lambda s: None,
}
AXES = {"text": "here", "a number": 3, "a list": [1], "an object": Stranger()}


@dataclass(frozen=True)
class Case:
    """A call with one bad argument, and the word that the error must have."""

    entry: str
    argument: str
    what: str
    call: object
    value: object
    word: str

    def __str__(self):
        return f"{self.entry}({self.argument}: {self.what})"

    def run(self):
        return self.call(**{self.argument: self.value})

    def is_named_by(self, message):
        """Tell whether an error names the argument; the path itself will do, and that a model is not fitted."""
        place = isinstance(self.value, str | Path) and str(self.value) in message
        return place or self.what == "not fitted" or bool(re.search(rf"\b({self.word})\b", message))


def table():
    """Yield entry point, call, and the bad values of each argument; a tuple has the word of the error before them."""
    yield (
        "GroupedData.from_arrays",
        lambda **given: gd.GroupedData.from_arrays(**{"X": X, "y": LABELS, "groups": GROUPS, **given}),
        {"X": ROWS, "y": NUMBERS, "groups": {**GROUPINGS, **MISSING_GROUPS}, "sample_weight": WEIGHTINGS},
    )
    yield (
        "Problem",
        risk_problem,
        {
            "data": {**STRANGERS, "a table": FRAME},
            "loss": {**STRANGERS, "a name": "logistic", "a kind of loss": gd.losses.Logistic},
            "domain": {**STRANGERS, "a kind of domain": gd.domains.L2Domain, "a radius": 1.0},
            "fit_intercept": FLAG,
            "group_minima": BAD_MINIMA,
            "offsets": BAD_OFFSETS,
        },
    )
    labels = {"three classes": np.arange(N) % 3, "one and two": 1 + LABELS, "halves": 0.5 * LABELS}
    for loss in (gd.losses.Logistic, gd.losses.SquaredHinge):
        yield (
            f"{loss.__name__} of labels",
            lambda y, loss=loss: risk_problem(data=gd.GroupedData.from_arrays(X, y, GROUPS), loss=loss()),
            {"y": labels},
        )
    yield (
        "Softmax of labels",
        lambda y: risk_problem(data=gd.GroupedData.from_arrays(X, y, GROUPS), loss=gd.losses.Softmax(3)),
        {"y": {"halves": 0.5 * LABELS, "negative": LABELS - 1, "too many": np.arange(N) % 4, "huge": LABELS * 1e18}},
    )
    yield (
        "solve",
        solved,
        {
            "problem": {**STRANGERS, "data": gd.GroupedData.from_arrays(X, LABELS, GROUPS)},
            "solver": {**CHOICE, "a kind of solver": gd.solvers.ALEG, "a function": function},
            "w": BAD_W,
            "q": BAD_Q,
            "tol": NOT_NEGATIVE,
            "atol": {name: value for name, value in NOT_NEGATIVE.items() if value is not None},
            "max_passes": POSITIVE,
            "max_time": POSITIVE,
            "seed": {key: value for key, value in WHOLE.items() if key != "a decimal"},
            "callbacks": BAD_CALLBACKS,
            "checkpoint_dir": {key: value for key, value in PLACES.items() if key != "none"},
        },
    )
    yield (
        "ALEG",
        ran(gd.solvers.ALEG),
        {
            "rows_per_step": {key: value for key, value in COUNT.items() if key != "none"},
            "scale_columns": FLAG,
            "replacement": FLAG,
        },
    )
    yield (
        "ALEGTheory",
        ran(gd.solvers.ALEGTheory),
        {
            "epoch_length": {**SCHEDULES, "a fraction": 2.5},
            "alpha": {**SCHEDULES, "more than one": 2.0},
            "step": SCHEDULES,
            "multiplier": FINITE_POSITIVE,
            "constant": CHOICE,
            "guarantee": FLAG,
        },
    )
    no_solver = {key: value for key, value in STRANGERS.items() if key != "none"}
    yield (
        "ALEM",
        ran(gd.solvers.ALEM),
        {
            "stage_one": {**no_solver, "a name": "aleg"},
            "stage_two": {**no_solver, "a name": "aleg"},
            "stage_one_passes": POSITIVE,
        },
    )
    yield "GroupSQP", ran(gd.solvers.GroupSQP), {"hessian": CHOICE, "memory": COUNT}
    yield (
        "L2Domain",
        lambda **given: gd.domains.L2Domain(**{"penalty": 1.0, **given}),
        {"radius": POSITIVE, "penalty": NOT_NEGATIVE, "proxy_for_unbounded": FLAG},
    )
    yield "L2Domain", gd.domains.L2Domain, {"radius": {"infinite, without a penalty": INF}}
    yield "Huber", gd.losses.Huber, {"delta": FINITE_POSITIVE}
    yield "Softmax", gd.losses.Softmax, {"n_classes": {**{k: v for k, v in COUNT.items() if k != "none"}, "one": 1}}
    yield (
        "group_report",
        reported,
        {
            "model": {key: value for key, value in MODELS.items() if key != "none"},
            "X": ROWS_OF_MODELS,
            "y": LABELLED,
            "groups": GROUPINGS,
            "loss": {
                **CHOICE,
                "of another shape": lambda y, p: np.ones((2, 2)),
                "of NaN": lambda y, p: np.full(N, NAN),
            },
            "n_bootstrap": WHOLE,
            "confidence": {**FINITE_POSITIVE, "one": 1.0, "more than one": 95.0},
            "min_rows": WHOLE,
            "random_state": WHOLE,
        },
    )
    yield (
        "group_report of a regressor",
        lambda **given: reported(**{"model": regressor(), "y": TARGETS, **given}),
        {"y": {"an array of text": text(), "NaN": put(NAN, TARGETS), "times": VECTOR["times"]}},
    )
    yield (
        "worst_group_scorer",
        scored,
        {
            "metric": CHOICE,
            "loss": CHOICE,
            "group_by": {},
            "min_group_size": {**WHOLE, "more than there are": 1000},
            "estimator": {key: value for key, value in MODELS.items() if key != "none"},
            "X": ROWS_OF_MODELS,
            "y": LABELLED,
            "groups": GROUPINGS,
            "sample_weight": WEIGHTINGS,
        },
    )
    yield (
        "worst_group_scorer of regrets",
        partial(scored, metric="regret"),
        {
            "group_minima": {
                "none": None,
                "a number": 0.3,
                "text": "abc",
                "a list": [0.1, 0.2, 0.3],
                "a group less": {"a": 0.1, "b": 0.2},
                "text inside": {"a": "x", "b": 0.2, "c": 0.1},
                "NaN": {"a": NAN, "b": 0.2, "c": 0.1},
                "infinite": {"a": INF, "b": 0.2, "c": 0.1},
                "None inside": {"a": None, "b": 0.2, "c": 0.1},
            }
        },
    )
    columns = {
        "another column": "region",
        "a number": 3,
        "a list with another": ["site", "region"],
        "an object": Stranger(),
    }
    no_frame = {key: ROWS[key] for key in ("none", "a number", "text", "one dimension", "a dict", "an object")}
    yield "worst_group_scorer by column", partial(scored, X=FRAME, groups=None), {"group_by": columns}
    yield (
        "GroupStratifiedKFold",
        split,
        {
            "n_splits": {**COUNT, "one": 1, "more than rows": 100},
            "shuffle": FLAG,
            "random_state": NEVER_A_NUMBER,
            "X": {
                key: ROWS[key] for key in ("none", "a number", "an object", "no rows", "zero dimensions", "a generator")
            },
            "y": {
                key: LABELLED[key] for key in ("too short", "too long", "a number", "an object", "a generator", "a set")
            },
            "groups": {**GROUPINGS, "none": None},
        },
    )
    yield "GroupStratifiedKFold by column", partial(split, X=FRAME, groups=None), {"group_by": columns}
    yield (
        "compare",
        compared,
        {
            "X": ROWS_OF_MODELS,
            "y": CLASSES,
            "groups": {**GROUPINGS, "none": None},
            "estimator": {
                **{key: value for key, value in STRANGERS.items() if key != "none"},
                "another classifier": LogisticRegression(),
                "a class of models": gd.GroupDROClassifier,
            },
            "held_out": {
                "a number": 3,
                "text": "abc",
                "two parts": (X, LABELS),
                "other columns": (X[:, :2], LABELS, GROUPS),
                "y too short": (X, LABELS[1:], GROUPS),
                "groups too short": (X, LABELS, GROUPS[1:]),
                "an object": Stranger(),
            },
            "n_splits": {**COUNT, "one": 1},
            "min_rows": WHOLE,
            "n_bootstrap": COUNT,
            "confidence": {**FINITE_POSITIVE, "one": 1.0},
            "random_state": WHOLE,
        },
    )
    yield (
        "regularization_path",
        pathed,
        {
            "estimator": {
                **{key: value for key, value in STRANGERS.items() if key != "none"},
                "another classifier": LogisticRegression(),
                "a class of models": gd.GroupDROClassifier,
            },
            "X": {**ROWS_OF_MODELS, "too large": ROWS["too large"]},
            "y": CLASSES,
            "groups": {**GROUPINGS, **MISSING_GROUPS},
            "alphas": {
                "zero": 0.0,
                "negative": [1.0, -1.0],
                "NaN": [1.0, NAN],
                "infinite": [INF],
                "empty": [],
                "text": "many",
                "text inside": ["a"],
                "complex": [1j],
                "None inside": [None],
                "ragged": [[1.0], [1.0, 2.0]],
                "an object": Stranger(),
                "a function": function,
                "a set": {1.0, 2.0},
                "a generator": (value for value in (1.0, 2.0)),
                "times": np.arange(3).astype("datetime64[D]"),
            },
            "sample_weight": WEIGHTINGS,
            "warm_start": FLAG,
        },
    )
    yield (
        "GroupBy.fit",
        wrapped,
        {
            "estimator": {**{k: v for k, v in STRANGERS.items() if k != "none"}, "without groups": LinearRegression()},
            "group_by": {**columns, "none": None, "no column": [], "empty text": ""},
            "drop": FLAG,
            "y": CLASSES,
            "sample_weight": WEIGHTINGS,
        },
    )
    yield "GroupBy.fit", wrapped, {"X": ("X|group_by", {**no_frame, "without the column": FRAME[["u", "v"]]})}
    yield "GroupBy.predict", lambda X: wrapper().predict(X), {"X": {"another column": FRAME.assign(z=1.0), **no_frame}}
    yield (
        "GroupBy.report",
        lambda **given: wrapper().report(**{"X": FRAME, "y": LABELS, **given}),
        {"X": ("X|group_by", no_frame), "y": {key: LABELLED[key] for key in ("none", "too short", "two columns")}},
    )
    for name, method in (("score", "score"),):
        yield (
            f"GroupDROClassifier.{name}",
            lambda method=method, **given: getattr(classifier(), method)(**{"X": X, "y": LABELS, **given}),
            {
                "X": ROWS_OF_MODELS,
                "y": {key: LABELLED[key] for key in ("none", "too short", "too long", "two columns", "a number")},
            },
        )
    for model in (classifier, regressor):
        yield f"{model.__name__}.predict", lambda X, model=model: model().predict(X), {"X": ROWS_OF_MODELS}
    yield (
        "ConvergenceDisplay.from_estimator",
        lambda **given: gd.plots.ConvergenceDisplay.from_estimator(**{"estimator": classifier(), **given}),
        {"estimator": {**MODELS, "another": LogisticRegression().fit(X, LABELS)}, "x": CHOICE, "ax": AXES},
    )
    yield (
        "ConvergenceDisplay.from_result",
        lambda **given: gd.plots.ConvergenceDisplay.from_result(**{"result": result(), **given}),
        {"result": STRANGERS, "x": CHOICE, "ax": AXES},
    )
    yield (
        "GroupMetricDisplay.from_estimators",
        drawn,
        {
            "models": ("models|model", MODELS),
            "metric": ("metrics", {key: CHOICE[key] for key in ("a number", "another word", "an object", "NaN")}),
            "X": {key: ROWS[key] for key in ("none", "NaN", "one dimension", "an object", "no rows")},
            "y": {key: LABELLED[key] for key in ("none", "too short", "two columns")},
            "groups": GROUPINGS,
            "max_groups": {**COUNT},
            "ax": AXES,
        },
    )
    yield (
        "GroupMetricDisplay.from_reports",
        lambda **given: gd.plots.GroupMetricDisplay.from_reports(**{"reports": {"a": report()}, **given}),
        {"reports": STRANGERS, "metric": {key: CHOICE[key] for key in CHOICE if key != "none"}},
    )
    yield (
        "GroupWeightsDisplay.from_estimator",
        lambda **given: gd.plots.GroupWeightsDisplay.from_estimator(**{"estimator": classifier(), **given}),
        {"estimator": MODELS, "max_groups": COUNT, "ax": AXES},
    )
    stored = {
        "dtype": {**CHOICE, "of whole numbers": "int32", "too long": "float128", "a type": dict},
        "task": CHOICE,
        "seed": {**WHOLE, "too large": 2**64},
        "memory": COUNT,
        "overwrite": FLAG,
        "path": {**PLACES, "taken": FOLDER / "a store"},
    }
    yield (
        "GroupedStore.write_arrays",
        arrays_stored,
        {
            **stored,
            "X": ROWS_OF_MODELS,
            "y": LABELLED,
            "groups": {**GROUPINGS, **MISSING_GROUPS, "overlapping": np.ones((N, 2), bool)},
            "sample_weight": WEIGHTINGS,
            "sparse": {key: value for key, value in FLAG.items() if key != "none"},
        },
    )
    yield (
        "GroupedStore.write",
        table_stored,
        {
            **stored,
            "source": {
                **{key: STRANGERS[key] for key in ("none", "a number", "an array", "an object", "a class")},
                "missing": str(FOLDER / "nowhere.parquet"),
                "no files": [],
                "of another kind": str(FOLDER / "a store" / "X.npy"),
                "a function of none": lambda: None,
                "a list": [1, 2],
            },
            "target": {"none": None, "another": "z", "a number": 3, "a list": ["y"], "an object": Stranger()},
            "groups": {"none": None, "another": "z", "a number": 3, "empty": [], "an object": Stranger()},
            "features": {
                "another": ["u", "z"],
                "text": ["text"],
                "a number": 3,
                "empty": [],
                "twice": ["u", "u"],
                "an object": Stranger(),
            },
            "weight": {"another": "z", "text": "text", "a number": 3, "a list": ["weight"], "an object": Stranger()},
            "offset": {"another": "z", "text": "text", "a number": 3, "empty": [], "an object": Stranger()},
            "sparse": FLAG,
            "n_features": {key: value for key, value in COUNT.items() if key != "none"},
        },
    )
    yield (
        "GroupedStore.open",
        lambda **given: gd.GroupedStore.open(**{"path": store().path, **given}),
        {
            "path": {
                **PLACES,
                "missing": FOLDER / "nowhere",
                "a file": FOLDER / "a store" / "X.npy",
                "no store": FOLDER,
            },
            "verify": CHOICE,
        },
    )
    yield (
        "GroupedStore.data",
        lambda labels: store().data(labels),
        {"labels": {"a number": 3, "text": "ab", "too many": [0, 1, 2], "NaN": [0.0, NAN], "text inside": ["a", "b"]}},
    )
    yield "GroupedStore.shard", lambda comm: store().shard(comm).data(), {"comm": STRANGERS}
    sizes = COUNT
    tiny = {"n_groups": 2, "n_per_group": 3, "n_features": 2}
    for make in (gd.datasets.make_gdro, gd.datasets.make_mero):
        more = {"correct": {**NOT_NEGATIVE, "more than one": 1.5}} if make is gd.datasets.make_gdro else {}
        yield (
            make.__name__,
            lambda make=make, **given: make(**{**tiny, **given}),
            {"n_groups": sizes, "n_per_group": sizes, "n_features": sizes, "seed": WHOLE, **more},
        )
    yield (
        "distributed.communicator",
        gd.distributed.communicator,
        {"kind": CHOICE, "timeout": POSITIVE},
    )
    yield (
        "distributed.shard",
        lambda **given: gd.distributed.shard(**{"data": data(), "comm": gd.distributed.SerialCommunicator(), **given}),
        {"data": STRANGERS, "comm": STRANGERS},
    )
    read_only = np.ones(2)
    read_only.flags.writeable = False
    yield (
        "Communicator.broadcast",
        combined,
        {
            "array": (
                "broadcast",
                {
                    **{k: v for k, v in STRANGERS.items() if k != "an array"},
                    "read-only": read_only,
                    "scattered": np.ones(6)[::2],
                    "float32": np.ones(2, np.float32),
                },
            ),
            "root": {"negative": -1, "too large": 1, "text": "a", "none": None, "a fraction": 0.5, "NaN": NAN},
        },
    )
    yield "Oracle", Oracle, {"problem": STRANGERS}
    yield "Certificate", Certificate, {"oracle": {**STRANGERS, "a problem": problem()}}
    yield (
        "certificate.linearise",
        lambda **given: linearise(**{"oracle": oracle(), "at": evaluation(), **given}),
        {"oracle": {**STRANGERS, "a problem": problem()}, "at": STRANGERS},
    )


def listed():
    for entry, call, arguments in table():
        for argument, values in arguments.items():
            word, values = values if isinstance(values, tuple) else (argument, values)
            for what, value in values.items():
                yield Case(entry, argument, what, call, value, word)


CASES = list(listed())


@cache
def warm_up():
    """Compile and import what the calls need, so that the clock measures the answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for make in (
            gd.solvers.ALEG,
            gd.solvers.ALEGTheory,
            gd.solvers.Auto,
            gd.solvers.ALEM,
            gd.solvers.GroupSQP,
        ):
            ran(make)()
        for made in (result, classifier, regressor, wrapper, store, report, evaluation):
            made()
        for call in (reported, scored, split, compared, pathed, drawn, arrays_stored, table_stored):
            call()
            shutil.rmtree(FOLDER / "new store", ignore_errors=True)
        gd.plots.ConvergenceDisplay.from_estimator(classifier())
        gd.plots.GroupWeightsDisplay.from_estimator(classifier())
