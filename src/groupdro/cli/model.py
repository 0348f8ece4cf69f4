"""The model that `groupdro fit` writes: a scikit-learn pipeline, with the names of its table's columns."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from groupdro.cli.columns import as_numbers, as_text, kind_of, refuse_absent
from groupdro.utils.optional import import_extra
from groupdro.utils.types import Array
from groupdro.utils.vectors import class_codes

__all__ = [
    "SavedModel",
    "feature_columns",
    "frame_of",
    "known_columns",
    "pipeline_for",
    "table_digest",
    "unknown_labels",
]

_MOST_LABELS = 1000  # of a column, each of which is a feature
_FEW = 20  # up to this many labels never count as row identifiers
# All that a file may contain besides what skops itself trusts: arrays, text and scikit-learn's own classes.
_TRUSTED = [
    "numpy.dtype",  # of which scikit-learn's imputer keeps one
    "groupdro.estimators.classifier.GroupDROClassifier",
    "groupdro.estimators.regressor.GroupDRORegressor",
    "groupdro.problem.losses.Huber",
    "groupdro.run.result.TraceRow",
]
_KEYS = {"pipeline", "target", "groups", "facts"}


def feature_columns(table: Any, names: Iterable[str], categorical: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the columns of numbers and those of labels among the features, or raise if one can be neither.

    Parameters
    ----------
    table : pyarrow.Table
        The training rows.
    names : iterable of str
        Columns to use.
    categorical : iterable of str
        Columns to treat as labels even if they are numeric.

    Returns
    -------
    numbers, labels : list of str
        The columns.
    """
    numbers = list[str]()
    labels = list[str]()
    asked = set(categorical)
    for name in names:
        column = table.column(name)
        kind = kind_of(column)
        if name in asked or kind == "text":
            _refuse_many(column, name)
            labels.append(name)
        elif kind in ("number", "truth", "nothing"):
            if np.isnan(as_numbers(column, name)).all():
                raise ValueError(f"column {name!r} has no value in the training rows: pass --drop {name}.")
            numbers.append(name)
        else:
            labelled = f", or --categorical {name}" if kind == "dates or times" else ""
            raise ValueError(f"column {name!r} holds {kind}, not numbers or text: pass --drop {name}{labelled}.")
    if not (numbers or labels):
        raise ValueError("no column is left for the features.")
    return numbers, labels


def _refuse_many(column: Any, name: str) -> None:
    n_labels = len(as_text(column).drop_null().unique())
    if n_labels > _MOST_LABELS or (n_labels > _FEW and n_labels > len(column) / 2):
        raise ValueError(
            f"column {name!r} has {n_labels} distinct labels in {len(column)} rows, too many for one feature each: "
            f"pass --drop {name}, or merge labels."
        )


def frame_of(table: Any, numbers: Iterable[str], labels: Iterable[str]) -> Any:
    """Return the features of a pyarrow Table as a pandas DataFrame: floats, and text with None for missing labels."""
    pd = import_extra("pandas", extra="cli")
    refuse_absent([*numbers, *labels], table)
    columns = {name: as_numbers(table.column(name), name) for name in numbers}
    columns |= {name: np.array([*as_text(table.column(name)).to_pylist(), None], dtype=object)[:-1] for name in labels}
    return pd.DataFrame(columns)


def pipeline_for(numbers: list[str], labels: list[str], estimator: Any) -> Pipeline:
    """Return the pipeline: numbers standardised with the median for missing ones, labels one-hot encoded."""
    parts = [
        ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        ("labels", OneHotEncoder(handle_unknown="warn", sparse_output=False), labels),
    ]
    return Pipeline([("columns", ColumnTransformer([part for part in parts if part[2]])), ("model", estimator)])


def table_digest(frame: Any, y: Array) -> str:
    """Return a digest of features and target, by which a report recognises the table of the fit."""
    pd = import_extra("pandas", extra="cli")
    rows = pd.util.hash_pandas_object(frame, index=False).to_numpy()
    labels = pd.util.hash_array(np.asarray(y, dtype=object if y.dtype.kind in "US" else None))
    return f"{int((rows * np.uint64(31) + labels).sum()) & (2**64 - 1):016x}-{len(y)}"


def unknown_labels(pipeline: Any, frame: Any) -> dict[str, int]:
    """Return the number of rows with a label not seen in fit, for each column that has any."""
    counts = {}
    for name, known in _known_labels(pipeline).items():
        missing = int((~frame[name].isin(known)).sum())
        if missing:
            counts[name] = missing
    return counts


def _known_labels(pipeline: Any) -> dict[str, Array]:
    """Return the labels of each column of labels."""
    transformer = pipeline[0]
    if "labels" not in transformer.named_transformers_:
        return {}
    names = next(names for part, _, names in transformer.transformers_ if part == "labels")
    return dict(zip(names, transformer.named_transformers_["labels"].categories_, strict=True))


@contextmanager
def known_columns() -> Iterator[None]:
    """Suppress scikit-learn's warnings about unknown labels, which `features` has counted, and about feature names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found unknown categories", category=UserWarning)
        warnings.filterwarnings("ignore", message="X does not have valid feature names", category=UserWarning)
        yield


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A fitted pipeline, or for a store the estimator itself, with the columns of its table.

    Attributes
    ----------
    pipeline : Pipeline, GroupDROClassifier or GroupDRORegressor
        The fitted model.
    target : str or None
        Column of the target, if known.
    groups : tuple of str
        Columns of the groups, whose combinations are the groups; empty if unknown.
    facts : dict of str to str, int or float
        Facts about the fit, for reports.
    """

    pipeline: Any
    target: str | None = None
    groups: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def reads_tables(self) -> bool:
        """Whether the model takes the columns of a table, and not the rows of a store."""
        return isinstance(self.pipeline, Pipeline)

    @property
    def model(self) -> Any:
        """The estimator at the end of the pipeline."""
        return self.pipeline[-1] if self.reads_tables else self.pipeline

    @property
    def classifies(self) -> bool:
        """Whether the model predicts classes."""
        return hasattr(self.model, "classes_")

    @property
    def columns(self) -> list[str]:
        """Names of the columns that the model reads."""
        return self.pipeline[0].feature_names_in_.tolist() if self.reads_tables else []

    def features(self, table: Any, *, allow_unknown: bool = False) -> Any:
        """Return the features of the rows of a pyarrow Table.

        Parameters
        ----------
        table : pyarrow.Table
            A table with the columns of the training table; others are ignored.
        allow_unknown : bool, default=False
            Whether to accept a column without any label seen in fit.

        Returns
        -------
        DataFrame
            The columns that the model reads. A warning counts labels not seen in fit.
        """
        if not self.reads_tables:
            names = getattr(self.model, "feature_names_in_", np.array([])).tolist()
            if not names:
                raise ValueError("the model was fitted on a store without column names, and cannot read a table.")
            return frame_of(table, names, [])[names]
        known = _known_labels(self.pipeline)
        frame = frame_of(table, [name for name in self.columns if name not in known], known)[self.columns]
        counts = unknown_labels(self.pipeline, frame)
        for name, count in counts.items():
            if count == len(frame) and not allow_unknown:
                raise ValueError(
                    f"column {name!r} has no label that the model knows: it has {_some(frame[name].unique())}, but had "
                    f"{_some(known[name])} in fit. Pass --allow-unknown to encode them as zeros."
                )
        if counts:
            listed = ", ".join(f"column {name!r} in {count} of {len(frame)} rows" for name, count in counts.items())
            warnings.warn(f"labels not seen in fit are encoded as zeros: {listed}.", UserWarning, stacklevel=2)
        return frame

    def labels(self, table: Any) -> Array:
        """Return the target of the rows of a pyarrow Table, as the model's classes or numbers."""
        assert self.target is not None
        column = table.column(self.target)
        if not self.classifies:
            return as_numbers(column, self.target)
        classes = self.model.classes_
        as_label = classes.dtype.kind in "UO"
        labels = np.array(as_text(column).to_pylist(), dtype=str) if as_label else as_numbers(column, self.target)
        _, known = class_codes(labels, classes)
        if not known.all():
            strange = labels[~known].tolist()[0]
            raise ValueError(f"column {self.target!r} has the class {strange!r}, which was not seen in fit.")
        return labels

    def save(self, path: Path) -> None:
        """Write the model with skops."""
        content = {"pipeline": self.pipeline, "target": self.target, "groups": list(self.groups), "facts": self.facts}
        import_extra("skops.io", extra="cli").dump(content, path)

    @classmethod
    def load(cls, path: Path) -> "SavedModel":
        """Read a file written by `groupdro fit`. Nothing but scikit-learn's classes and the estimators is loaded.

        Parameters
        ----------
        path : Path
            The file.

        Returns
        -------
        SavedModel
            The model.
        """
        io = import_extra("skops.io", extra="cli")
        if not path.is_file():
            raise ValueError(f"MODEL {str(path)!r} {'is not a file' if path.exists() else 'does not exist'}.")
        try:
            content = io.load(path, trusted=_TRUSTED)
        except Exception as error:  # a damaged file can raise anything; skops runs no code of it
            raise ValueError(
                f"MODEL {str(path)!r} cannot be read as a model of `groupdro fit`: {type(error).__name__}: {error}"
            ) from None
        if not (isinstance(content, dict) and set(content) == _KEYS):
            raise ValueError(f"MODEL {str(path)!r} was not written by `groupdro fit`.")
        return cls(content["pipeline"], content["target"], tuple(content["groups"]), content["facts"])


def _some(labels: Iterable[Any]) -> str:
    """Return the first labels, for an error message."""
    named = sorted("(missing)" if label is None else repr(label) for label in labels)
    return ", ".join(named[:5]) + (", ..." if len(named) > 5 else "")
