"""The data and the estimator of `groupdro fit` and `compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype
from sklearn.pipeline import Pipeline

from groupdro.cli import tables
from groupdro.cli.command import UNIT, flag, option, progress
from groupdro.cli.model import encoder_for, feature_frame, table_digest
from groupdro.estimators import GroupDROClassifier, GroupDRORegressor
from groupdro.evaluation.folds import MOST_CLASSES, keep_classes
from groupdro.store import GroupedStore
from groupdro.utils.arguments import printable
from groupdro.utils.types import Array

__all__ = ["Training", "group_labels", "open_store", "read_training", "training_options"]

_LABELS = "string", "boolean", "integer", "floating"  # kinds of groups that are not converted to text
_MOST_LABELS = 1000  # of a column, each of which is a feature
_FEW_LABELS = 20  # up to this many labels never count as row identifiers
_MANY_CLASSES = 100  # from this many classes, each should have ten rows on average


def training_options(command: Any) -> Any:
    """Add the options of a fit to a command."""
    columns: dict[str, Any] = {"metavar": "COLUMN", "multiple": True}
    share = click.FloatRange(0.0, 1.0, min_open=True)
    losses = click.Choice(["logistic", "squared_hinge", "squared", "huber"])
    not_negative = click.FloatRange(min=0.0)
    options = [
        option("--target", "Column to predict.", metavar="COLUMN"),
        option("--group groups", "Column with the groups. Repeat it for combinations.", **columns),
        option("--drop", "Column to leave out. May be repeated.", **columns),
        option("--categorical", "Numeric column to treat as labels. May be repeated.", **columns),
        flag("--group-as-feature", "Use the group columns as features too."),
        option("--min-group-size", "Merge groups with fewer rows into one.", type=click.IntRange(min=1), default=1),
        option("--task", "Kind of target.", choices=("auto", "classification", "regression")),
        option("--robustness", "Blend from the average (0) to the worst group (1).", type=UNIT, default=1.0),
        option("--average", "Whether rows or groups have equal weight in the average.", choices=("rows", "groups")),
        option("--worst-share", "Average the worst share of the rows instead of one group.", type=share),
        option("--loss", "Loss.  [default: logistic or squared]", type=losses),
        option("--alpha", "Weight of the penalty.", type=not_negative, default=1e-4),
        option("--tol", "Relative certified gap at which to stop.", type=not_negative, default=1e-4),
        option("--seed", "Seed for all random numbers.", type=click.IntRange(0, 2**32 - 1), default=0),
    ]
    for add in reversed(options):
        command = add(command)
    return command


@dataclass(frozen=True, eq=False)
class Training:
    """The data of a fit.

    Attributes
    ----------
    fitted, held_out : tuple (X, y, groups)
        Rows to fit on, and held-out rows, which may be none. For a store, X is the store, and the others are None.
    steps : list of tuple
        The unfitted steps of the pipeline before the estimator; none for a store.
    facts : dict
        What --json prints about the data and the model file keeps: the table, the task ("classification" or
        "regression") and the reason for it, the columns of target and groups if known, the number of columns of
        features, the numbers of rows, and a digest of all rows of a table, including held-out ones.
    """

    fitted: tuple[Any, Any, Any]
    held_out: tuple[Any, Any, Any] | None
    steps: list[tuple[str, Any]]
    facts: dict[str, Any]

    def pipeline(self, options: dict[str, Any]) -> Pipeline:
        """Return the unfitted model. Options with the name of a parameter of the estimator are its value."""
        estimator = GroupDROClassifier() if self.facts["task"] == "classification" else GroupDRORegressor()
        given = {name: options[name] for name in estimator.get_params() if options.get(name) is not None}
        return Pipeline([*self.steps, ("model", estimator.set_params(**given, random_state=options["seed"]))])

    @property
    def summary(self) -> str:
        """What was read and how the target was interpreted, in two lines."""
        facts = self.facts
        rows = f"{facts['table']}: {facts['rows']} training rows, {facts['held_out_rows']} held-out rows"
        columns = f"{facts['columns']} columns, groups by {' x '.join(facts['group_columns']) or 'the store'}"
        target = f"{facts['task']} of {facts['target'] or 'the target'}: {facts['task_reason']}"
        return "\n".join(map(printable, (f"{rows}, {columns}", target)))


def read_training(path: Path, options: dict[str, Any]) -> Training:
    """Read a table and split its rows.

    Parameters
    ----------
    path : Path
        The table.
    options : dict
        Options of the command.

    Returns
    -------
    Training
        The data.
    """
    target, groups, test_size = options["target"], options["groups"], options["test_size"]
    if not (target and groups):
        raise click.UsageError("Missing option '--target' or '--group'.")
    with progress(f"Reading {path.name}"):
        table = tables.read_table(path)
        tables.check_columns(table, [target], "--target")
        for name in ("groups", "drop", "categorical"):
            tables.check_columns(table, options[name], f"--{name.removesuffix('s')}")
        if target in groups:
            raise ValueError(f"--group names the target column {target!r}.")
        tables.refuse_missing(table[target], "--target")
        for name in groups:
            tables.refuse_missing(table[name], "--group")
        task, reason, y = _read_target(table[target], options["task"])
        labels_of_groups = group_labels(table, groups)
        rows, held_out = _divide(labels_of_groups, test_size, options["seed"])
        if task == "classification":
            rows, held_out = keep_classes(rows, held_out, y)
        if test_size and not len(held_out):
            raise ValueError(f"--test-size {test_size:g} holds out no rows: the groups or classes are too small.")
        taken = [target, *options["drop"], *(() if options["group_as_feature"] else groups)]
        numbers, labels = _feature_columns(table.drop(columns=taken).iloc[rows], options["categorical"])
        X = feature_frame(table, numbers, labels)
        parts = [(X.iloc[part], y[part], labels_of_groups.iloc[part]) for part in (rows, held_out)]
    names = {"table": path.name, "task": task, "task_reason": reason, "target": target, "group_columns": list(groups)}
    sizes = {"columns": len(X.columns), "rows": len(rows), "held_out_rows": len(held_out)}
    facts = {**names, **sizes, "digest": table_digest(X, y)}
    steps = [("columns", encoder_for(numbers, labels))]
    return Training(parts[0], parts[1] if len(held_out) else None, steps, facts)


def open_store(path: Path, options: dict[str, Any]) -> Training:
    """Open a store, which has its own target, groups and features."""
    for name in ("target", "groups", "drop", "categorical", "group_as_feature", "test_size", "task"):
        if options[name] and options[name] != "auto":
            argument = "--" + name.removesuffix("s").replace("_", "-")
            raise ValueError(f"{argument} is for tables: a store has its own target, groups and features.")
    store = GroupedStore.open(path)
    task = "regression" if store.classes is None else "classification"
    groups = list(store.group_columns or ())
    reason = "the store was written for it"
    names = {"table": path.name, "task": task, "task_reason": reason, "target": store.target, "group_columns": groups}
    sizes = {"columns": store.n_features, "rows": store.n_rows, "held_out_rows": 0}
    return Training((store, None, None), None, [], {**names, **sizes, "digest": None})


def group_labels(table: Any, names: tuple[str, ...]) -> Any:
    """Return one column of labels, or a table of several columns whose combinations are the groups."""
    columns = {
        name: table[name] if infer_dtype(table[name]) in _LABELS else tables.as_text(table[name]) for name in names
    }
    labels = pd.DataFrame(columns)
    # Columns of truth values only, or of zeros and ones, would be read as a membership matrix.
    return labels[names[0]] if len(names) == 1 else labels.astype(object)


def _read_target(column: Any, task: str) -> tuple[str, str, Array]:
    """Return the task, the reason for it, and the target in the form that the estimator takes."""
    kind = infer_dtype(column)
    text = kind == "string" and task != "regression"
    y = tables.as_text(column).to_numpy(str) if text else tables.as_numbers(column)
    whole = text or tables.are_integers(y)
    n_distinct = column.nunique()
    reason = f"{n_distinct} distinct {kind} values"
    if task == "auto":
        few = whole and n_distinct <= MOST_CLASSES
        task = "classification" if few or kind in ("string", "boolean") else "regression"
    if task == "regression":
        return task, reason, y
    if not whole:
        raise ValueError(f"--task classification: column {column.name!r} has numbers that are not integers.")
    if n_distinct > _MANY_CLASSES and n_distinct > len(y) / 10:
        raise ValueError(f"--target: column {column.name!r} has {n_distinct} classes in {len(y)} rows, too many.")
    return task, reason, y if text else y.astype(bool if kind == "boolean" else np.int64)


def _divide(groups: Any, test_size: float, seed: int) -> tuple[Array, Array]:
    """Return the training and held-out rows, with the same share of every group."""
    columns = pd.DataFrame(groups).reset_index(drop=True)
    held_out = columns.groupby(list(columns)).sample(frac=test_size, random_state=seed).index.to_numpy()
    return np.setdiff1d(np.arange(len(columns)), held_out), np.sort(held_out)


def _feature_columns(table: Any, categorical: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the columns of numbers and those of labels among the training rows, or raise if one can be neither."""
    numbers, labels = list[str](), list[str]()
    for name in table:
        column = table[name]
        kind = infer_dtype(column)
        if column.isna().all():
            raise ValueError(f"column {name!r} has no value in the training rows: pass --drop {name}.")
        if name in categorical or kind == "string":
            n_labels = tables.as_text(column).nunique()
            if n_labels > _MOST_LABELS or (n_labels > _FEW_LABELS and n_labels > len(column) / 2):
                many = f"{n_labels} distinct labels in {len(column)} rows, too many for one feature each"
                raise ValueError(f"column {name!r} has {many}: pass --drop {name}, or merge labels.")
            labels.append(name)
        elif kind in tables.NUMBERS:
            numbers.append(name)
        else:
            remedy = f"pass --drop {name}, or --categorical {name}"
            raise ValueError(f"column {name!r} holds {kind} values, not numbers or text: {remedy}.")
    if not (numbers or labels):
        raise ValueError("no column is left for the features.")
    return numbers, labels
