"""`groupdro predict`."""

from pathlib import Path
from typing import Any

import click

from groupdro.cli.columns import arrow
from groupdro.cli.failures import UserError, debug_option, user_errors
from groupdro.cli.model import SavedModel, known_columns, unknown_labels
from groupdro.cli.options import PATH, flag, json_option, option, unknown_option
from groupdro.cli.output import atomic_path, check_output, progress, show
from groupdro.cli.tables import read_table, refuse_bytes, table_format
from groupdro.cli.training import collected_warnings
from groupdro.utils.arguments import printable

__all__ = ["predict"]


@click.command()
@click.argument("model", type=PATH)
@click.argument("table", type=PATH)
@option("-o --output", "Table to write, named .csv, .csv.gz or .parquet.", type=PATH, required=True)
@flag("--force", "Replace the table if it exists.")
@unknown_option
@json_option
@debug_option
def predict(model: Path, table: Path, output: Path, force: bool, allow_unknown: bool, as_json: bool) -> None:
    """Predict with MODEL for each row of TABLE.

    The table is written with an additional column `prediction` and, for a classifier with the logistic loss, a column
    `probability_CLASS` per class. Group columns and target are not required. Labels not seen in fit are counted in a
    warning, and a column without any known label is refused.
    """
    if not output.name.lower().endswith((".csv", ".csv.gz", ".parquet")):
        raise UserError(f"--output {str(output)!r} must end in .csv, .csv.gz or .parquet.")
    check_output(output, "--output", force=force)
    with progress("Predicting"):
        with user_errors(), collected_warnings() as warned:
            fitted = SavedModel.load(model)
            rows = read_table(table)
            X = fitted.features(rows, allow_unknown=allow_unknown)
            if table_format(output) == "csv":
                refuse_bytes(rows, rows.column_names, "TABLE")
        unknown = unknown_labels(fitted.pipeline, X) if fitted.reads_tables else {}
        with known_columns():
            added = _predictions(fitted, X)
        for name in added:
            if name in rows.column_names:
                raise UserError(f"TABLE already has a column {name!r}, which predict would add.")
        for name, values in added.items():
            rows = rows.append_column(name, arrow().array(values))
        with user_errors("--output"), atomic_path(output) as temporary:
            _write(rows, temporary)
    predicted = added["prediction"]
    if fitted.classifies:
        kind = "counts"
        summary = {str(label): int((predicted == label).sum()) for label in fitted.model.classes_.tolist()}
    else:
        kind = "values"
        summary = {"min": predicted.min(), "mean": predicted.mean(), "max": predicted.max()}
    document = {"command": "predict", "output": output, "rows": rows.num_rows, "columns": list(added), kind: summary}
    form = "d" if fitted.classifies else ".4g"
    listed = ", ".join(f"{printable(name)}: {value:{form}}" for name, value in summary.items())
    text = f"{rows.num_rows} predictions ({listed})\nWrote {printable(output)}"
    show({**document, "unknown_labels": unknown}, text, as_json=as_json, warned=warned)


def _predictions(fitted: SavedModel, X: Any) -> dict[str, Any]:
    out = {"prediction": fitted.pipeline.predict(X)}
    if hasattr(fitted.pipeline, "predict_proba"):
        probabilities = fitted.pipeline.predict_proba(X)
        classes = fitted.model.classes_.tolist()
        out |= {f"probability_{label}": probabilities[:, k].copy() for k, label in enumerate(classes)}
    return out


def _write(table: Any, path: Path) -> None:
    if table_format(path) == "parquet":
        arrow("pyarrow.parquet").write_table(table, path)
        return
    with arrow().output_stream(path) as stream:  # compresses according to the name
        arrow("pyarrow.csv").write_csv(table, stream)
