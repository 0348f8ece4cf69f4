"""A model bundled with the columns it reads, as saved by `groupdro fit`."""

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np

from groupdro.estimators import GroupBy
from groupdro.estimators.model_file import as_model_error, build_model, model_document, write_model
from groupdro.tables.columns import as_numbers, as_text, refuse_absent
from groupdro.tables.encoder import Category, TableEncoder
from groupdro.utils.arguments import check_path
from groupdro.utils.bundle import check, check_version, read_bundle
from groupdro.utils.types import Array, Floats
from groupdro.utils.vectors import class_codes

__all__ = ["TableModel", "UnknownLabelsWarning", "load", "without_name_warnings"]

_FORMAT, _VERSION = "groupdro-table-model", 1
_KEYS = {"format", "version", "model", "columns", "target", "groups", "facts"}


class UnknownLabelsWarning(UserWarning):
    """A table has labels that were not seen in fit."""


@contextmanager
def without_name_warnings() -> Iterator[None]:
    """Suppress the warning about missing feature names: `TableModel.features` has ordered the columns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names", category=UserWarning)
        yield


@dataclass(frozen=True, eq=False)
class TableModel:
    """A fitted model with the encoding and the names of the columns it reads.

    Attributes
    ----------
    model : GroupDROClassifier or GroupDRORegressor
        The fitted model.
    encoder : TableEncoder or None
        Converts columns to features; None if the model takes numeric columns as they are.
    target : str or None
        Column of the target, if known.
    groups : tuple of str
        Columns of the groups, whose combinations are the groups; empty if unknown.
    facts : dict of str to str, int or float
        Facts about the fit, for reports.
    """

    model: Any
    encoder: TableEncoder | None = None
    target: str | None = None
    groups: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    # ------------------------------------------------------------------ tables

    @property
    def classifies(self) -> bool:
        """Whether the model predicts classes."""
        return hasattr(self.model, "classes_")

    def predict(self, table: Any, *, allow_unknown: bool = False) -> Array:
        """Predict for the rows of a DataFrame or pyarrow Table.

        Parameters
        ----------
        table : DataFrame or pyarrow.Table
            A table with the columns of the training table, unencoded; others are ignored.
        allow_unknown : bool, default=False
            Whether to accept a column without any label seen in fit.

        Returns
        -------
        ndarray of shape (n_rows,)
            Classes or numbers.
        """
        features = self.features(table, allow_unknown=allow_unknown)
        with without_name_warnings():
            return np.asarray(self.model.predict(features))

    def features(self, table: Any, *, allow_unknown: bool = False) -> Floats:
        """Return the features of the rows of a DataFrame or pyarrow Table.

        Labels not seen in fit are encoded as zeros in all features of their column, with an `UnknownLabelsWarning`.

        Parameters
        ----------
        table : DataFrame or pyarrow.Table
            A table with the columns of the training table.
        allow_unknown : bool, default=False
            Whether to accept a column without any label seen in fit.

        Returns
        -------
        ndarray of shape (n_rows, n_features)
            The features.
        """
        table = nw.from_native(table, eager_only=True).to_arrow()
        if self.encoder is not None:
            self._check_labels(table, allow_unknown=allow_unknown)
            return self.encoder.encode(table)
        names = getattr(self.model, "feature_names_in_", None)
        if names is None:
            raise ValueError("the model has no column names: fit it on a DataFrame, or with `groupdro fit`.")
        refuse_absent(names, table)
        columns = [as_numbers(table.column(name), name) for name in names]
        for name, column in zip(names, columns, strict=True):
            if np.isnan(column).any():
                row = int(np.isnan(column).argmax()) + 1
                raise ValueError(f"column {name!r} has a missing value in data row {row}, which is not supported.")
        return np.column_stack(columns)

    def _check_labels(self, table: Any, *, allow_unknown: bool) -> None:
        """Refuse columns without any label seen in fit, and warn about others with unknown labels."""
        assert self.encoder is not None
        counts = self.encoder.unknown(table)
        known = {column.name: column.labels for column in self.encoder.columns if isinstance(column, Category)}
        for name, count in counts.items():
            if count == table.num_rows and not allow_unknown:
                has, had = _some(as_text(table.column(name)).unique().to_pylist()), _some(known[name])
                raise ValueError(
                    f"column {name!r} has no label that the model knows: it has {has}, but had {had} in fit. Pass "
                    "--allow-unknown (in Python: allow_unknown=True) to encode them as zeros."
                )
        if counts:
            listed = ", ".join(f"column {name!r} in {count} of {table.num_rows} rows" for name, count in counts.items())
            warnings.warn(f"labels not seen in fit are encoded as zeros: {listed}.", UnknownLabelsWarning, stacklevel=4)

    def labels(self, table: Any, target: str) -> Array:
        """Return the target of the rows of a pyarrow Table, as the model's classes or numbers."""
        column = table.column(target)
        if not self.classifies:
            return as_numbers(column, target)
        classes = self.model.classes_
        as_label = classes.dtype.kind in "UO"
        labels = np.array(as_text(column).to_pylist(), dtype=str) if as_label else as_numbers(column, target)
        _, known = class_codes(labels, classes)
        if not known.all():
            strange = labels[~known].tolist()[0]
            raise ValueError(f"column {target!r} has the class {strange!r}, which was not seen in fit.")
        return labels

    # ------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to a file of JSON and arrays, completely or not at all. Load it with `groupdro.load`.

        Parameters
        ----------
        path : str or path-like
            The file, replaced if it exists.
        """
        inner, arrays = model_document(self.model)
        document = {
            "format": _FORMAT,
            "version": _VERSION,
            "model": inner,
            "columns": None if self.encoder is None else self.encoder.to_json(),
            "target": self.target,
            "groups": list(self.groups),
            "facts": self.facts,
        }
        write_model(check_path(path, "path"), document, arrays, _build)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "TableModel":
        """Load a file written by `save` or by an estimator's own `save`. No code in it is run.

        Parameters
        ----------
        path : str or path-like
            The file.

        Returns
        -------
        TableModel
            The model. For an estimator's file the target is unknown, and the groups are known only for a `GroupBy`.
        """
        found = load(path)
        if isinstance(found, GroupBy):
            columns = (found.group_by,) if isinstance(found.group_by, str) else tuple(found.group_by)
            return cls(found.estimator_, groups=columns)
        return found if isinstance(found, cls) else cls(found)


def load(path: str | os.PathLike[str]) -> Any:
    """Load a model saved by `save` or `groupdro fit`. No code in the file is run, and unknown content is refused.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    GroupDROClassifier, GroupDRORegressor, GroupBy or TableModel
        The fitted model. For a file of `groupdro fit`, this is a `TableModel`, which takes tables with the columns of
        the training table.

    Raises
    ------
    ModelFileError
        If the file is damaged, was not written by this package, or contradicts itself.
    """
    place = check_path(path, "path")
    with as_model_error(f"{os.fspath(place)!r} cannot be read as a model"):
        return _build(*read_bundle(place))


def _build(manifest: dict[str, Any], arrays: dict[str, Array]) -> Any:
    """Return the content of a file: a table model, or an estimator."""
    if manifest.get("format") != _FORMAT:
        return build_model(manifest, arrays)
    check_version(manifest.get("version"), _VERSION)
    check(set(manifest) == _KEYS, f"its manifest has keys {sorted(map(str, manifest))}")
    check(isinstance(manifest["model"], dict), "its model is not an object")
    check("group_by" not in manifest["model"], "its model has its own group columns")
    columns, target, groups, facts = (manifest[key] for key in ("columns", "target", "groups", "facts"))
    encoder = None if columns is None else TableEncoder.from_json(columns)
    check(target is None or isinstance(target, str), "its target is not text")
    check(isinstance(groups, list) and all(isinstance(name, str) for name in groups), "its groups are not text")
    fine = isinstance(facts, dict) and all(isinstance(v, str | int | float) for v in facts.values())
    check(fine, "its facts are not text and numbers")
    model = build_model(manifest["model"], arrays)
    fits = encoder is None or len(encoder.feature_names) == model.n_features_in_
    check(fits, "its columns do not fit its model")
    return TableModel(model, encoder, target, tuple(groups), facts)


def _some(labels: Iterable[str | None]) -> str:
    """Return the first labels, for an error message."""
    named = sorted("(missing)" if label is None else repr(label) for label in labels)
    return ", ".join(named[:5]) + (", ..." if len(named) > 5 else "")
