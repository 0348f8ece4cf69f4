"""Code shared by `groupdro fit` and `compare`: reading the data, and fitting."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import Pipeline

from groupdro.cli.columns import as_numbers, as_text, kind_of
from groupdro.cli.failures import UserError, user_errors
from groupdro.cli.model import feature_columns, frame_of, pipeline_for, table_digest
from groupdro.cli.options import Options
from groupdro.cli.output import progress
from groupdro.cli.tables import check_columns, read_table, refuse_bytes, refuse_missing
from groupdro.data.grouping import read_groups
from groupdro.estimators.progress import ProgressLine
from groupdro.evaluation.folds import MOST_CLASSES, keep_classes
from groupdro.store import GroupedStore
from groupdro.utils.arguments import printable
from groupdro.utils.types import Array, Floats

__all__ = ["Training", "collected_warnings", "fit_with_progress", "group_labels", "read_training"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Features (a DataFrame), target and groups of rows. For a store, X is the store and the others are None."""

    X: Any
    y: Any
    groups: Any

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.X)


@dataclass(frozen=True, eq=False)
class Training:
    """The data of a fit.

    Attributes
    ----------
    path : Path
        The table or store.
    task, reason : str
        "classification" or "regression", and why.
    target, groups : str or None, tuple of str
        Columns, if known.
    fitted, held_out : Rows
        Rows to fit on, and held-out rows, which may be None.
    numbers, labels : list of str
        The columns of numbers and of labels among the features; both empty for a store.
    digest : str or None
        Digest of all rows of a table, including held-out ones; None for a store.
    """

    path: Path
    task: str
    reason: str
    target: str | None
    groups: tuple[str, ...]
    fitted: Rows
    held_out: Rows | None = None
    numbers: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    digest: str | None = None

    @property
    def n_held_out(self) -> int:
        """Number of rows held out."""
        return 0 if self.held_out is None else self.held_out.n_rows

    @property
    def is_store(self) -> bool:
        """Whether the rows are those of a store."""
        return isinstance(self.fitted.X, GroupedStore)

    def model(self, estimator: Any) -> Any:
        """Return the model to fit: a pipeline that ends in the estimator, or the estimator itself for a store."""
        return estimator if self.is_store else pipeline_for(self.numbers, self.labels, estimator)

    @property
    def document(self) -> dict[str, Any]:
        """The same as JSON-compatible values."""
        return {
            "task": self.task,
            "task_reason": self.reason,
            "target": self.target,
            "group_columns": self.groups,
            "rows": self.fitted.n_rows,
            "held_out_rows": self.n_held_out,
        }

    @property
    def summary(self) -> str:
        """Describe in two lines what was read and how the target was interpreted."""
        columns = f"{len(self.numbers) + len(self.labels)} columns"
        columns = f"{self.fitted.X.n_features} features" if self.is_store else columns
        held = f", of which {self.n_held_out} are held out" if self.n_held_out else ""
        by = f", groups by {printable(' x '.join(self.groups))}" if self.groups else ""
        n_rows = self.fitted.n_rows + self.n_held_out
        return (
            f"{printable(self.path.name)}: {n_rows} rows{held}, {columns}{by}\n"
            f"{self.task} of {printable(self.target or 'the target')}: {self.reason}"
        )


def read_training(path: Path, options: Options, *, test_size: float = 0.0) -> Training:
    """Read a table, or open a store, and split its rows."""
    if path.is_dir():
        return _open_store(path, options, test_size)
    if options.target is None:
        raise click.UsageError("Missing option '--target'.")
    if not options.groups:
        raise click.UsageError("Missing option '--group'.")
    with progress(f"Reading {path.name}"):
        with user_errors():
            table = read_table(path)
            labels = {"--target": (options.target,), "--group": options.groups}
            for option, names in {**labels, "--drop": options.drop, "--categorical": options.categorical}.items():
                check_columns(table.column_names, names, option)
            for option, names in labels.items():
                refuse_bytes(table, names, option)
        if options.target in options.groups:
            raise UserError(f"--group names the target column {options.target!r}.")
        task, reason, y = _read_target(table, options)
        with user_errors():
            for name in options.groups:
                remedy = "remove those rows, or fill in a label of their own"
                refuse_missing(table.column(name), f"--group: column {name!r}", remedy)
        groups = group_labels(table, options.groups)
        taken = {options.target, *options.drop, *(() if options.group_as_feature else options.groups)}
        features = [name for name in table.column_names if name not in taken]
        own, held = _divide(groups, table.num_rows, test_size, options)
        if task == "classification":
            own, held = keep_classes(own, held, y)
        with user_errors():
            numbers, columns = feature_columns(table.take(own) if len(held) else table, features, options.categorical)
            X = frame_of(table, numbers, columns)
    if task == "classification":
        _check_classes(y[own], options.target)
    digest = table_digest(X, y)
    fitted = Rows(X, y, groups)
    held_out = None
    if len(held):
        fitted, held_out = (Rows(X.iloc[rows], y[rows], groups.take(rows)) for rows in (own, held))
    return Training(path, task, reason, options.target, options.groups, fitted, held_out, numbers, columns, digest)


def _open_store(path: Path, options: Options, test_size: float) -> Training:
    given: dict[str, Any] = {"--target": options.target, "--group": options.groups, "--drop": options.drop}
    given |= {"--categorical": options.categorical, "--group-as-feature": options.group_as_feature}
    given["--test-size"] = test_size
    for name, value in given.items():
        if value:
            raise UserError(f"{name} is for tables: the store {str(path)!r} has its own target, groups and features.")
    with user_errors():
        store = GroupedStore.open(path)
    task = "regression" if store.classes is None else "classification"
    if options.task not in ("auto", task):
        raise UserError(f"--task {options.task}: the store {str(path)!r} was written for {task}.")
    reason = "the store was written for it"
    groups = store.group_columns or ()
    return Training(path, task, reason, store.target, groups, Rows(store, None, None))


def _read_target(table: Any, options: Options) -> tuple[str, str, Array]:
    """Return the task, the reason for it, and the target in the form that the estimator takes."""
    assert options.target is not None
    name = options.target
    column = table.column(options.target)
    with user_errors():
        refuse_missing(column, f"--target: column {name!r}", "remove those rows")
    kind = kind_of(column)
    task = options.task
    if kind not in ("text", "truth", "number"):
        raise UserError(f"--target: column {name!r} holds {kind}, not numbers or text.")
    numbers = None
    if kind == "number":
        with user_errors("--target"):
            numbers = as_numbers(column, name)
    reason = "as requested"
    if task == "auto":
        task, reason = _guess(kind, numbers)
    if task == "regression":
        if numbers is None:
            raise UserError(f"--task regression requires a numeric target, but column {name!r} is {kind}.")
        return task, reason, numbers
    if numbers is None:
        return task, reason, np.array(column.to_pylist() if kind == "truth" else as_text(column).to_pylist())
    whole = (numbers == np.round(numbers)).all() and (np.abs(numbers) < 2**53).all()
    if not whole:
        raise UserError(f"--task classification: column {name!r} has numbers that are not integers.")
    return task, reason, numbers.astype(np.int64)


def _guess(kind: str, numbers: Floats | None) -> tuple[str, str]:
    if numbers is None:
        return "classification", f"it is {'text' if kind == 'text' else 'true or false'}"
    distinct = np.unique(numbers)
    if len(distinct) <= MOST_CLASSES and (distinct == np.round(distinct)).all():
        return "classification", f"it has {len(distinct)} integers (--task regression to change that)"
    return "regression", f"it has {len(distinct)} distinct numbers"


def _check_classes(y: Array, target: str) -> None:
    classes = np.unique(y)
    if len(classes) < 2:
        raise UserError(f"--target: column {target!r} has only one class, {classes.tolist()[0]!r}.")
    if len(classes) > 100 and len(classes) > len(y) / 10:
        raise UserError(
            f"--target: column {target!r} has {len(classes)} classes in {len(y)} rows: pass --task regression, or "
            "another column."
        )


def group_labels(table: Any, names: tuple[str, ...]) -> Any:
    """Return one column of labels, or a table of several columns whose combinations are the groups."""
    if len(names) == 1:
        return table.column(names[0])
    chosen = table.select(list(names))
    for place, name in enumerate(names):
        # A frame of only boolean columns would be read as a membership matrix.
        if kind_of(chosen.column(place)) == "truth":
            chosen = chosen.set_column(place, name, as_text(chosen.column(place)))
    return chosen


def _divide(groups: Any, n_rows: int, test_size: float, options: Options) -> tuple[Array, Array]:
    """Return the training and held-out rows, with the same share of every group; at least one row of each is kept."""
    with user_errors("--group"):
        grouping = read_groups(groups, n_rows)
    rng = np.random.default_rng(options.seed)
    held = np.zeros(n_rows, dtype=bool)
    for i in range(len(grouping.names)):
        rows = grouping.rows_of(i)
        held[rng.permutation(rows)[: min(round(test_size * len(rows)), len(rows) - 1)]] = True
    if test_size and not held.any():
        raise UserError(f"--test-size {test_size:g} holds out no rows: the groups are too small.")
    return np.flatnonzero(~held), np.flatnonzero(held)


# ---------------------------------------------------------------------- fit


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect warnings, except those of fits that did not converge, which the status reports."""
    kept: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield kept
    kept += dict.fromkeys(" ".join(str(w.message).split()) for w in caught if w.category is not ConvergenceWarning)


def fit_with_progress(model: Any, rows: Rows, doing: str) -> list[str]:
    """Fit a model and return its warnings, except for non-convergence, which the status reports."""
    estimator, step = (model[-1], "model__") if isinstance(model, Pipeline) else (model, "")
    with collected_warnings() as kept, progress(doing) as tell, user_errors():
        estimator.set_params(callbacks=[ProgressLine(estimator.tol, write=tell)])
        try:
            model.fit(rows.X, rows.y, **{f"{step}groups": rows.groups})
        finally:
            estimator.set_params(callbacks=None)
    return kept
