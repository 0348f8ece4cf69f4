"""Tables of labels and predictions: the options that name their columns, and how these are read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype

from groupdro.cli import tables
from groupdro.cli.command import PATH, UNIT, option
from groupdro.evaluation.metrics import METRICS
from groupdro.evaluation.predictions import Predictions
from groupdro.losses import Gamma, Poisson, Quantile
from groupdro.utils.arguments import short_repr
from groupdro.utils.types import Array, Floats

__all__ = ["PredictedTable", "missing_outputs_named", "page_options", "read_predictions", "table_options"]

_LABELS = "string", "boolean", "integer", "floating"  # kinds of columns that are labels as they are
_LOSSES = {"poisson": Poisson(), "gamma": Gamma()}
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def table_options(command: Any) -> Any:
    """Add the options that say what the columns of a table are, and how to judge."""
    column: dict[str, Any] = {"metavar": "COLUMN"}
    several: dict[str, Any] = {**column, "multiple": True}
    options = [
        option("--target", "Column with the labels or numbers that were predicted.", required=True, **column),
        option("--prediction", "Column with predicted classes, or with numbers: means or quantiles.", **column),
        option("--probability probabilities", "Column with the probability of the second class. Repeat it: one "
               "column per class.", **several),
        option("--score scores", "Column with scores, such as logits. Repeat it: one column per class.", **several),
        option("--class classes", "Class, in the order of the probabilities. Repeat it.  [default: sorted labels]",
               metavar="LABEL", multiple=True),
        option("--task", "Whether --prediction has classes or numbers.",
               choices=("auto", "classification", "regression")),
        option("--weight", "Column with row weights.", **column),
        option("--cluster", "Column with patients, users or sites whose rows are dependent.", **column),
        option("--exposure", "Column with exposures: --prediction is then a rate per unit, and --target a count.",
               **column),
        option("--quantile", "The predictions are quantiles of this level, such as 0.9.",
               type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True)),
        option("--loss", "Loss behind the risk.  [default: log loss with probabilities, error rate with classes, "
               "half the squared error with numbers, poisson with --exposure]",
               type=click.Choice(["log", "zero_one", "squared", "absolute", *_LOSSES])),
        option("--metric metrics", "Metric, such as recall, roc_auc, actual_over_expected or rmse. Repeat it for "
               "several; the first one decides.", metavar="NAME", multiple=True),
        option("--confidence", "Level of the intervals.", type=UNIT, default=0.95),
        option("--seed", "Seed for all random numbers.", type=click.IntRange(0, 2**32 - 1), default=0),
    ]  # fmt: skip
    for add in reversed(options):
        command = add(command)
    return command


def page_options(command: Any) -> Any:
    """Add the options of an HTML page."""
    options = [
        option("--html", "Also write a page with the result, to be handed on.", type=PATH),
        option("--title", "Title of the page.", default=""),
        option("--about", "The model, the data and the purpose, in your words, for the page.", default=""),
        option("--force", "Replace the page if it exists.", is_flag=True),
    ]
    for add in reversed(options):
        command = add(command)
    return command


@dataclass(frozen=True, eq=False)
class PredictedTable:
    """A table of labels and predictions.

    Attributes
    ----------
    path : Path
        The file.
    table : DataFrame
        All columns.
    y : ndarray
        Labels or targets.
    predictions : Predictions
        What was predicted.
    judging : dict
        Arguments of `group_report` and `find_groups`: the loss, weights and clusters.
    used : set of str
        Columns of labels, predictions, weights, clusters and exposures.
    """

    path: Path
    table: Any
    y: Array
    predictions: Predictions
    judging: dict[str, Any]
    used: set[str]

    def labels_of(self, names: tuple[str, ...], argument: str) -> Any:
        """Return one column of labels, or a table of several columns whose combinations are the groups."""
        names = tuple(dict.fromkeys(names))
        tables.check_columns(self.table, names, argument)
        return _as_labels(tables.as_written(self.path, self.table, names))


def read_predictions(path: Path, options: dict[str, Any]) -> PredictedTable:
    """Read a table of labels and predictions.

    Parameters
    ----------
    path : Path
        A CSV or Parquet file.
    options : dict
        What `table_options` adds to a command.

    Returns
    -------
    PredictedTable
        The table.
    """
    table = tables.read_table(path)
    named = {f"--{name}": [options[name]] for name in ("target", "prediction", "weight", "cluster", "exposure")}
    named |= {"--probability": options["probabilities"], "--score": options["scores"]}
    named = {argument: [name for name in names if name is not None] for argument, names in named.items()}
    for argument, names in named.items():
        tables.check_columns(table, names, argument)
        for name in names:
            tables.refuse_missing(table[name], argument)
    numeric = _is_numeric(options)
    y = _labels(table[options["target"]], "--target", numeric=numeric)
    weights = None if options["weight"] is None else tables.as_numbers(table[options["weight"]])
    if weights is not None and not (weights >= 0).all():
        raise ValueError(f"--weight: column {options['weight']!r} has negative values.")
    if weights is not None and not weights.any():
        raise ValueError(f"--weight: column {options['weight']!r} is zero in all rows.")
    cluster = None if options["cluster"] is None else tables.as_written(path, table, [options["cluster"]])
    return PredictedTable(
        path,
        table,
        y,
        _predictions(table, y, path, options, numeric=numeric),
        {
            "loss": _loss(options),
            "sample_weight": weights,
            "cluster": None if cluster is None else _as_labels(cluster),
        },
        {name for names in named.values() for name in names},
    )


@contextmanager
def missing_outputs_named(options: dict[str, Any]) -> Iterator[None]:
    """Say which option is missing, and what can be judged without it, where a metric needs scores or probabilities."""
    try:
        yield
    except TypeError as error:
        message = str(error)
        if options["probabilities"] or "predict_proba" not in message:
            raise
        if message.startswith("metric "):
            asked = f"--metric {message.split(chr(39))[1]}"
        else:
            asked = "--loss log" if message.startswith("loss") else "--metric miscalibration"
        needed = "--score or --probability" if "decision_function" in message else "--probability"
        of_classes = [
            name
            for name, metric in METRICS.items()
            if metric.task == "classification" and not metric.of_scores and metric.target is None
        ]
        given, ranks = (
            ("--score", "of ranks (roc_auc, average_precision) and ") if options["scores"] else ("--prediction", "")
        )
        raise ValueError(
            f"{asked} requires {needed}: with {given} alone, there are only metrics {ranks}of classes "
            f"({', '.join(of_classes)})."
        ) from error


def _is_numeric(options: dict[str, Any]) -> bool:
    """Return whether an option says that numbers were predicted."""
    of_numbers = {
        "--quantile": options["quantile"] is not None,
        "--exposure": options["exposure"] is not None,
        f"--loss {options['loss']}": options["loss"] in ("squared", "absolute", *_LOSSES),
        "--task regression": options["task"] == "regression",
    }
    said = [argument for argument, there in of_numbers.items() if there]
    of_classes = {
        "--probability": options["probabilities"],
        "--score": options["scores"],
        "--class": options["classes"],
    }
    classes = [argument for argument, there in of_classes.items() if there]
    if options["task"] == "classification":
        classes.append("--task classification")
    if said and classes:
        raise ValueError(f"{said[0]} is for predicted numbers, and {classes[0]} for classes: give one of them.")
    if options["quantile"] is not None and options["loss"] is not None:
        raise ValueError("--quantile has a loss of its own: leave out --loss.")
    if options["quantile"] is not None and options["exposure"] is not None:
        raise ValueError("--exposure is for expected counts, not for quantiles.")
    return bool(said)


def _loss(options: dict[str, Any]) -> Any:
    if options["quantile"] is not None:
        return Quantile(options["quantile"])
    name = options["loss"] or ("poisson" if options["exposure"] is not None else "auto")
    return _LOSSES.get(name, name)


def _predictions(table: Any, y: Array, path: Path, options: dict[str, Any], *, numeric: bool) -> Predictions:
    given = [*options["probabilities"], *options["scores"], *filter(None, [options["prediction"]])]
    if not given:
        raise click.UsageError("Missing option '--prediction', '--probability' or '--score'.")
    predicted = None
    if options["prediction"] is not None:
        predicted = _labels(table[options["prediction"]], "--prediction", numeric=numeric)
        if predicted.dtype.kind != y.dtype.kind and "U" in (predicted.dtype.kind, y.dtype.kind):
            shown = [short_repr(np.unique(labels).tolist()) for labels in (predicted, y)]
            raise ValueError(
                f"--prediction: column {options['prediction']!r} has {shown[0]}, but --target {options['target']!r} "
                f"has {shown[1]}: code both alike."
            )
    if predicted is not None and options["exposure"] is not None:
        exposure = tables.as_numbers(table[options["exposure"]])
        if not (exposure > 0).all():
            raise ValueError(f"--exposure: column {options['exposure']!r} has values that are not positive.")
        predicted = predicted * exposure
    classes = _classes(y, options) if options["probabilities"] or options["scores"] or options["classes"] else None
    name = f"{given[0]} in {path.name}"
    return Predictions(
        predicted,
        probability=_per_class(table, classes, "--probability", options["probabilities"]),
        score=_per_class(table, classes, "--score", options["scores"]),
        classes=classes,
        task="regression" if numeric else {"auto": None}.get(options["task"], options["task"]),
        name=name if classes is None or len(classes) > 2 else f"{name} (positive: {classes[-1]})",
    )


def _classes(y: Array, options: dict[str, Any]) -> Array:
    """Return the classes in the order of the probabilities."""
    labels = np.unique(y)
    if options["classes"]:
        classes = np.array([_as_label(text, labels) for text in options["classes"]])
        if len(np.unique(classes)) < len(classes):
            raise ValueError("--class names a class twice.")
        unknown = labels[~np.isin(labels, classes)].tolist()
        if unknown:
            raise ValueError(f"--target: {options['target']!r} has labels that --class does not name: {unknown}.")
        return classes
    n_columns = max(len(options["probabilities"]), len(options["scores"]))
    if n_columns > 0 and len(labels) != max(2, n_columns):
        what = "one column of probabilities or scores is" if n_columns == 1 else f"{n_columns} columns are"
        shown = short_repr(labels.tolist())
        raise ValueError(
            f"--target: column {options['target']!r} has {len(labels)} different labels, {shown}, but "
            f"{what} of {max(2, n_columns)} classes: name all classes by --class, in the order of the columns."
        )
    return labels


def _as_label(text: str, labels: Array) -> Any:
    """Return a class that was named on the command line as a label of the target's type."""
    kind = labels.dtype.kind
    try:
        if kind == "b":
            return _TRUTH[text.lower()]
        return text if kind in "OU" else labels.dtype.type(text)
    except (KeyError, ValueError):
        raise ValueError(f"--class {text!r} is not a label like {labels[0]!s}.") from None


def _per_class(table: Any, classes: Array | None, argument: str, names: tuple[str, ...]) -> Floats | None:
    """Return probabilities or scores, in one column or in one per class."""
    if not names or classes is None:
        return None
    found = np.column_stack([tables.as_numbers(table[name]) for name in names])
    if len(names) not in (1, len(classes)) or (len(names) == 1 and len(classes) > 2):
        shown = short_repr(classes.tolist())
        raise ValueError(f"{argument}: there are {len(classes)} classes, {shown}, so give one column per class.")
    outside = (found < 0) | (found > 1)
    if argument == "--probability" and outside.any():
        row, place = np.argwhere(outside)[0]
        raise ValueError(
            f"--probability: column {names[place]!r} has {found[row, place]:g}, first in data row {row + 1}, which is "
            "not between 0 and 1: other scores are given by --score."
        )
    return found[:, 0] if len(names) == 1 else found


def _labels(column: Any, argument: str, *, numeric: bool) -> Array:
    """Return labels, or numbers."""
    kind = infer_dtype(column)
    if kind == "boolean" and not numeric:
        return column.to_numpy(dtype=bool)
    numeric = numeric or tables.has_decimal_commas(column)  # which is an error of its own
    if kind == "string" and not numeric:
        return tables.as_text(column).to_numpy(str)
    if kind not in tables.NUMBERS and not numeric:
        raise ValueError(f"{argument}: column {column.name!r} holds {kind} values, not numbers or text.")
    values = tables.as_numbers(column)
    return values.astype(np.int64) if tables.are_integers(values) and not numeric else values


def _as_labels(frame: Any) -> Any:
    columns = {
        name: frame[name] if infer_dtype(frame[name]) in _LABELS else tables.as_text(frame[name]) for name in frame
    }
    labels = pd.DataFrame(columns)
    # Columns of truth values only, or of zeros and ones, would be read as a membership matrix.
    return labels[frame.columns[0]] if len(frame.columns) == 1 else labels.astype(object)
