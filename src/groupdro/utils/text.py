"""Group names and tables, as plain text and as HTML."""

import html
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from groupdro.utils.arguments import printable

__all__ = ["group_name", "metric_name", "objective_name", "percent", "records", "table_html", "table_text"]


def group_name(group: Any) -> str:
    """Return a group's name as text. A combination of columns shows the value of each."""
    return " & ".join(map(str, group)) if isinstance(group, tuple) else str(group)


_METRICS = {"roc_auc": "ROC AUC", "rmse": "RMSE", "mae": "MAE", "d2": "D²", "ece": "ECE"}


def metric_name(metric: str) -> str:
    """Return a metric's name in words."""
    return _METRICS.get(metric, metric.replace("_", " "))


def percent(share: float) -> str:
    """Return a share as a percentage, without rounding."""
    return f"{100.0 * share:.10g}%"


def records(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return a table as a list of rows."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def table_text(title: str, columns: dict[str, list[Any]], footer: dict[str, Any] | None = None) -> str:
    """Format a table as text.

    Parameters
    ----------
    title : str
        The line above the table.
    columns : dict of str to list
        The table.
    footer : dict, optional
        A last row, as values by column.

    Returns
    -------
    str
        The table as several lines.
    """
    rows = [tuple(columns), *_body(columns), *([_footer(columns, footer)] if footer else [])]
    rows = [[printable(cell) for cell in row] for row in rows]
    marks = ["<" if all(isinstance(value, str | tuple) for value in values) else ">" for values in columns.values()]
    forms = [f"{mark}{max(map(len, cells))}" for mark, cells in zip(marks, zip(*rows, strict=True), strict=True)]
    lines = ["  ".join(map(format, row, forms)).rstrip() for row in rows]
    return "\n".join([printable(title), *lines])


def table_html(title: str, columns: dict[str, list[Any]], footer: dict[str, Any] | None = None) -> str:
    """Format a table as HTML.

    Parameters
    ----------
    title : str
        The caption.
    columns : dict of str to list
        The table.
    footer : dict, optional
        A last row, as values by column.

    Returns
    -------
    str
        A `table` element with all text escaped.
    """

    def row(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(row(cells, "td") for cells in _body(columns))
    foot = f"<tfoot>{row(_footer(columns, footer), 'td')}</tfoot>" if footer else ""
    return (
        f"<table><caption>{html.escape(title)}</caption><thead>{row(columns, 'th')}</thead>"
        f"<tbody>{body}</tbody>{foot}</table>"
    )


def _body(columns: dict[str, list[Any]]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each row, with groups by their full names."""
    texts = [map(group_name if key in ("group", "worst_group") else _text, values) for key, values in columns.items()]
    return zip(*texts, strict=True)


def _footer(columns: dict[str, list[Any]], footer: dict[str, Any]) -> list[str]:
    return [_text(footer.get(key, "")) for key in columns]


def _text(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value + 0.0:.4g}"  # without a negative zero
    return str(value)


def objective_name(model: Any) -> str:
    """Return the name of the objective that a fitted model's bounds are about, such as "worst risk"."""
    value = "excess risk" if model.objective == "excess_risk" else "risk"
    worst = f"worst {value}"
    t = float(model.robustness)
    if model.worst_share is not None:
        worst = f"average of the worst {model.worst_share:.3g} of all {model.average}' {value}s"
    if t == 1.0:
        return worst
    return f"average {value}" if t == 0.0 else f"{1.0 - t:.3g} average + {t:.3g} {worst}"
