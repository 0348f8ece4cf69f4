"""A model together with the columns it reads: the file that `groupdro fit` writes."""

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

__all__ = ["TableModel", "UnknownLabelsWarning", "columns_in_order", "load"]

_FORMAT, _VERSION = "groupdro-table-model", 1
_KEYS = {"format", "version", "model", "columns", "target", "groups", "facts"}


class UnknownLabelsWarning(UserWarning):
    """A table has labels in a column that were not there at fit."""


@contextmanager
def columns_in_order() -> Iterator[None]:
    """Say nothing of arrays without names: `TableModel.features` has put the columns in the model's order."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names", category=UserWarning)
        yield


@dataclass(frozen=True, eq=False)
class TableModel:
    """A fitted model, what is done to the columns of a table first, and what the columns are.

    Attributes
    ----------
    model : GroupDROClassifier or GroupDRORegressor
        The fitted model of the features.
    encoder : TableEncoder or None
        From columns to features; None where the model takes numeric columns as they are.
    target : str or None
        Column of the target, where that is known.
    groups : tuple of str
        Columns of the groups, of which several mean their combinations; empty where they are not known.
    facts : dict of str to str, int or float
        About the fit, for reports.
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
        """Predict the rows of a DataFrame or pyarrow Table.

        Parameters
        ----------
        table : DataFrame or pyarrow.Table
            The columns of the fit, as they were in its table; others are ignored.
        allow_unknown : bool, default=False
            Whether to accept a column of labels none of which was seen at fit.

        Returns
        -------
        ndarray of shape (n_rows,)
            Classes or numbers.
        """
        features = self.features(table, allow_unknown=allow_unknown)
        with columns_in_order():
            return np.asarray(self.model.predict(features))

    def features(self, table: Any, *, allow_unknown: bool = False) -> Floats:
        """Return the features of the rows of a DataFrame or pyarrow Table.

        Labels that were not there at fit are zeros in all features of their column, with an `UnknownLabelsWarning`.

        Parameters
        ----------
        table : DataFrame or pyarrow.Table
            The columns of the fit.
        allow_unknown : bool, default=False
            Whether to accept a column of labels none of which was seen at fit.

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
            raise ValueError("the model has no names of columns: fit it on a DataFrame, or by `groupdro fit`.")
        refuse_absent(names, table)
        columns = [as_numbers(table.column(name), name) for name in names]
        for name, column in zip(names, columns, strict=True):
            if np.isnan(column).any():
                row = int(np.isnan(column).argmax()) + 1
                raise ValueError(f"column {name!r} has a missing value in data row {row}, which the model cannot take.")
        return np.column_stack(columns)

    def _check_labels(self, table: Any, *, allow_unknown: bool) -> None:
        """Refuse columns of which no label was there at fit, and warn of others with such labels."""
        assert self.encoder is not None
        counts = self.encoder.unknown(table)
        known = {column.name: column.labels for column in self.encoder.columns if isinstance(column, Category)}
        for name, count in counts.items():
            if count == table.num_rows and not allow_unknown:
                has, had = _some(as_text(table.column(name)).unique().to_pylist()), _some(known[name])
                raise ValueError(
                    f"column {name!r} has no label that the model knows: it has {has}, and had {had} at fit. Pass "
                    "--allow-unknown (in Python: allow_unknown=True) to encode them as zeros."
                )
        if counts:
            listed = ", ".join(f"column {name!r} in {count} of {table.num_rows} rows" for name, count in counts.items())
            warnings.warn(
                f"labels that were not there at fit are encoded as zeros: {listed}.", UnknownLabelsWarning, stacklevel=4
            )

    def labels(self, table: Any, target: str) -> Array:
        """Return the target of the rows of a pyarrow Table, as the model has its classes or numbers."""
        column = table.column(target)
        if not self.classifies:
            return as_numbers(column, target)
        classes = self.model.classes_
        as_label = classes.dtype.kind in "UO"
        labels = np.array(as_text(column).to_pylist(), dtype=str) if as_label else as_numbers(column, target)
        _, known = class_codes(labels, classes)
        if not known.all():
            strange = labels[~known].tolist()[0]
            raise ValueError(f"column {target!r} has the class {strange!r}, which was not there at fit.")
        return labels

    # ------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file of JSON and arrays, whole or not at all; `groupdro.load` reads it.

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
        """Read a file of `save`, or of an estimator's own `save`. No code in it is run.

        Parameters
        ----------
        path : str or path-like
            The file.

        Returns
        -------
        TableModel
            The model; of an estimator's file the target is not known, and the groups only where it is a `GroupBy`.
        """
        found = load(path)
        if isinstance(found, GroupBy):
            columns = (found.group_by,) if isinstance(found.group_by, str) else tuple(found.group_by)
            return cls(found.estimator_, groups=columns)
        return found if isinstance(found, cls) else cls(found)


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model that `save` or `groupdro fit` wrote. No code in the file is run, and what is not known is refused.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    GroupDROClassifier, GroupDRORegressor, GroupBy or TableModel
        The fitted model; a `TableModel`, which takes tables with the columns of the training table, where
        `groupdro fit` wrote it.

    Raises
    ------
    ModelFileError
        If the file is damaged, was not written by this package, or contradicts itself.
    """
    place = check_path(path, "path")
    with as_model_error(f"{os.fspath(place)!r} cannot be read as a model"):
        return _build(*read_bundle(place))


def _build(manifest: dict[str, Any], arrays: dict[str, Array]) -> Any:
    """Return what a file holds: a table model, or an estimator."""
    if manifest.get("format") != _FORMAT:
        return build_model(manifest, arrays)
    check_version(manifest.get("version"), _VERSION)
    check(set(manifest) == _KEYS, f"its manifest has keys {sorted(map(str, manifest))}")
    check(isinstance(manifest["model"], dict), "its model is not an object")
    check("group_by" not in manifest["model"], "its model has group columns of its own")
    columns, target, groups, facts = (manifest[key] for key in ("columns", "target", "groups", "facts"))
    encoder = None if columns is None else TableEncoder.from_json(columns)
    check(target is None or isinstance(target, str), "its target is not text")
    check(isinstance(groups, list) and all(isinstance(name, str) for name in groups), "its groups are not text")
    fine = isinstance(facts, dict) and all(isinstance(v, str | int | float) for v in facts.values())
    check(fine, "its facts are not text and numbers")
    model = build_model(manifest["model"], arrays)
    fits = encoder is None or len(encoder.feature_names) == model.n_features_in_
    check(fits, "its columns and its model do not fit")
    return TableModel(model, encoder, target, tuple(groups), facts)


def _some(labels: Iterable[str | None]) -> str:
    """Return the first labels, as an error repeats them."""
    named = sorted("(missing)" if label is None else repr(label) for label in labels)
    return ", ".join(named[:5]) + (", ..." if len(named) > 5 else "")
