"""`groupdro predict`."""

import io
from pathlib import Path
from typing import Any

import click

from groupdro.cli.command import PATH, Outcome, check_output, command, flag, option, progress
from groupdro.cli.model import SavedModel
from groupdro.cli.tables import read_table
from groupdro.utils.arguments import printable
from groupdro.utils.files import write_content

__all__ = ["predict"]

_SUFFIXES = ".csv", ".csv.gz", ".parquet"


@click.command()
@click.argument("model", type=PATH)
@click.argument("table", type=PATH)
@option("-o --output", "Table to write, named .csv, .csv.gz or .parquet.", type=PATH, required=True)
@flag("--force", "Replace the table if it exists.")
@flag("--allow-unknown", "Accept a column without any label seen in fit.")
@command
def predict(model: Path, table: Path, output: Path, force: bool, allow_unknown: bool) -> Outcome:
    """Predict with MODEL for each row of TABLE.

    The table is written with an additional column `prediction` and, for a classifier with the logistic loss, a column
    `probability_CLASS` per class. Group columns and target are not required. Labels not seen in fit are counted in a
    warning, and a column without any known label is refused.
    """
    if not output.name.lower().endswith(_SUFFIXES):
        raise ValueError(f"--output {str(output)!r} must end in one of {', '.join(_SUFFIXES)}.")
    check_output(output, "--output", force=force)
    with progress("Predicting"):
        fitted = SavedModel.load(model)
        rows = read_table(table)
        X = fitted.features(rows, allow_unknown=allow_unknown)
        added = _predictions(fitted, X)
        for name in added:
            if name in rows:
                raise ValueError(f"TABLE already has a column {name!r}, which predict would add.")
        rows = rows.assign(**added)
        write_content(output, _content(rows, output.name.lower()))
    counts = {} if fitted.classes is None else rows["prediction"].value_counts().to_dict()
    listed = ", ".join(f"{printable(label)}: {count}" for label, count in counts.items())
    document = {"output": output, "rows": len(rows), "columns": list(added), "counts": counts}
    text = f"{len(rows)} predictions{f' ({listed})' if listed else ''}\nWrote {printable(output)}"
    return document, text, ""


def _predictions(fitted: SavedModel, X: Any) -> dict[str, Any]:
    added = {"prediction": fitted.pipeline.predict(X)}
    if hasattr(fitted.pipeline, "predict_proba"):
        assert fitted.classes is not None
        probabilities = fitted.pipeline.predict_proba(X)
        added |= {f"probability_{label}": probabilities[:, k] for k, label in enumerate(fitted.classes.tolist())}
    return added


def _content(table: Any, name: str) -> bytes:
    """Return a table as the content of a file with this name."""
    content = io.BytesIO()
    if name.endswith(".parquet"):
        table.to_parquet(content)
    else:
        table.to_csv(content, index=False, compression="gzip" if name.endswith(".gz") else None)
    return content.getvalue()
