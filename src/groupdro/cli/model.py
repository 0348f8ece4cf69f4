"""The model that `groupdro fit` writes: a scikit-learn pipeline, with the names of its table's columns."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from groupdro.cli.tables import as_numbers, as_text, check_columns
from groupdro.run.result import relative_gap
from groupdro.utils.arguments import printable
from groupdro.utils.files import write_content
from groupdro.utils.optional import import_extra
from groupdro.utils.text import group_name, objective_name
from groupdro.utils.types import Array

__all__ = ["SavedModel", "certificate_lines", "certificate_of", "encoder_for", "feature_frame", "table_digest"]

# All that a file may contain besides what skops itself trusts: arrays, text and scikit-learn's own classes.
_TRUSTED = [
    "numpy.dtype",  # of which scikit-learn's imputer keeps one
    "sklearn.compose._column_transformer._RemainderColsList",  # up to scikit-learn 1.8
    "groupdro.estimators.classifier.GroupDROClassifier",
    "groupdro.estimators.regressor.GroupDRORegressor",
    "groupdro.losses.Huber",
    "groupdro.run.result.TraceRow",
]
_CERTIFICATE = ["lower_bound", "upper_bound", "gap", "status", "message", "worst_group"]
_CERTIFICATE += ["worst_risk", "worst_lower_bound", "mean_risk", "mean_lower_bound"]


def feature_frame(table: Any, numbers: Iterable[str], labels: Iterable[str]) -> Any:
    """Return the features of a table: columns of floats, then columns of text, with NaN where they are missing."""
    check_columns(table, [*numbers, *labels], "features of the model")
    columns = {name: as_numbers(table[name]) for name in numbers} | {name: as_text(table[name]) for name in labels}
    return pd.DataFrame(columns)


def encoder_for(numbers: list[str], labels: list[str]) -> ColumnTransformer:
    """Return the first step of a pipeline: missing numbers filled in, numbers standardised, labels one-hot encoded."""
    parts = [
        ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        ("labels", OneHotEncoder(handle_unknown="warn", sparse_output=False), labels),
    ]
    return ColumnTransformer([part for part in parts if part[2]])


def table_digest(X: Any, y: Array) -> str:
    """Return a digest of features and target in any order, by which a report recognises the table of the fit."""
    target = y if y.dtype.kind == "U" else y.astype(np.float64)
    hashes = pd.util.hash_pandas_object(X.assign(target=target), index=False)
    return f"{hashes.sum():016x}-{len(y)}"


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A fitted pipeline, with the columns of its table.

    Attributes
    ----------
    pipeline : Pipeline
        The fitted model: the estimator after the encoder of the columns or, if it was fitted on a store, alone.
    target : str or None
        Column of the target, if known.
    groups : tuple of str
        Columns of the groups, whose combinations are the groups; empty if unknown.
    facts : dict of str to str, int or float
        Facts about the fit, for reports.
    """

    pipeline: Pipeline
    target: str | None
    groups: tuple[str, ...]
    facts: dict[str, Any]

    @property
    def reads_tables(self) -> bool:
        """Whether the model takes the columns of a table, and not the rows of a store."""
        return len(self.pipeline) > 1

    @property
    def model(self) -> Any:
        """The estimator at the end of the pipeline."""
        return self.pipeline[-1]

    @property
    def classes(self) -> Array | None:
        """The classes that the model predicts; None for a regression."""
        return getattr(self.model, "classes_", None)

    @property
    def labels(self) -> dict[str, Array]:
        """The labels seen in fit of each column that is one-hot encoded."""
        encoder = getattr(self.pipeline[0], "named_transformers_", {}).get("labels")
        return dict(zip(encoder.feature_names_in_, encoder.categories_, strict=True)) if encoder else {}

    def features(self, table: Any, *, allow_unknown: bool = False) -> Any:
        """Return the features of the rows of a table.

        Parameters
        ----------
        table : DataFrame
            A table with the columns of the training table; others are ignored.
        allow_unknown : bool, default=False
            Whether to accept a column without any label seen in fit.

        Returns
        -------
        DataFrame
            The columns that the model reads. A warning counts labels not seen in fit.
        """
        columns = getattr(self.pipeline[0], "feature_names_in_", None)
        if columns is None:
            raise ValueError("the model was fitted on a store without column names, and cannot read a table.")
        X = feature_frame(table, [name for name in columns if name not in self.labels], self.labels)
        unknown = {name: int((~X[name].isin(labels)).sum()) for name, labels in self.labels.items()}
        unknown = {name: count for name, count in unknown.items() if count}
        lost = [name for name, count in unknown.items() if count == len(X)]
        if lost and not allow_unknown:
            known = ", ".join(map(repr, self.labels[lost[0]][:5]))
            remedy = "pass --allow-unknown to encode all as zeros"
            raise ValueError(f"column {lost[0]!r} has no label that was seen in fit, such as {known}: {remedy}.")
        if unknown:
            listed = ", ".join(f"column {name!r} in {count} of {len(X)} rows" for name, count in unknown.items())
            warnings.warn(f"labels not seen in fit are encoded as zeros: {listed}.", UserWarning, stacklevel=2)
        return X

    def target_of(self, table: Any) -> Array:
        """Return the target of the rows of a table, as the model's classes or numbers."""
        text = self.classes is not None and self.classes.dtype.kind == "U"
        return as_text(table[self.target]).to_numpy(str) if text else as_numbers(table[self.target])

    def save(self, path: Path) -> None:
        """Write the model with skops."""
        write_content(path, import_extra("skops.io", extra="cli").dumps(vars(self)))

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
        try:
            return cls(**import_extra("skops.io", extra="cli").load(path, trusted=_TRUSTED))
        except FileNotFoundError:
            raise
        except Exception as error:  # a damaged file can raise anything; skops runs no code of it
            raise ValueError(
                f"MODEL {str(path)!r} cannot be read as a model of `groupdro fit`: {type(error).__name__}: {error}"
            ) from None


# ---------------------------------------------------------------------- certificate


def certificate_of(model: Any) -> dict[str, Any]:
    """Return the certificate of a fitted model as a dict."""
    fitted = {name: getattr(model, f"{name}_") for name in _CERTIFICATE}
    relative = relative_gap(model.gap_, model.upper_bound_)
    return {**fitted, "relative_gap": relative, "tol": float(model.tol), "robustness": float(model.robustness)}


def certificate_lines(model: Any) -> str:
    """Return the certificate as two lines of text."""
    lower, upper = model.lower_bound_ + 0.0, model.upper_bound_  # not "-0"
    digits = next((digits for digits in range(4, 8) if f"{lower:.{digits}g}" != f"{upper:.{digits}g}"), 8)
    about = "group " if model.robustness == 1.0 else "worst group "
    about += printable(group_name(model.worst_group_)) + (", with penalty" if model.alpha else "")
    if model.bound_radius_ < np.inf and lower > 0:
        about += f", of models with outputs up to {model.bound_radius_:.0e}"
    relative = relative_gap(model.gap_, upper)
    return (
        f"{lower:.{digits}g} <= best possible {objective_name(model)} <= {upper:.{digits}g} ({about})\n"
        f"{model.status_.replace('_', ' ')}: relative gap {relative:.1e}, tolerance {model.tol:.0e}"
    )
