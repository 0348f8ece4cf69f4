"""Self-contained HTML pages without scripts or requests, to be handed on: for light and dark, any screen, and paper.

Everything that comes from data goes through `html.escape`. Tables and figures, as SVG, are the library's own.
"""

import datetime
import html
import io
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from groupdro.data.grouping import ALL_ROWS
from groupdro.evaluation.drawing import narrow_figures
from groupdro.utils.files import write_content
from groupdro.utils.optional import import_extra
from groupdro.utils.text import group_name, metric_name, percent
from groupdro.version import __version__

if TYPE_CHECKING:
    from groupdro.evaluation.report import GroupReport

__all__ = [
    "METRICS_IN_WORDS",
    "as_figure",
    "cell",
    "definitions",
    "heading",
    "meanings_of",
    "number",
    "page",
    "report_sections",
    "table",
    "write_page",
]

_MOST_GROUPS = 300  # of a table
_LEAST_SHOWN = 5e-5  # a smaller positive number is written as a bound

#: What each metric is, for readers who do not know its name.
METRICS_IN_WORDS = {
    "risk": "average loss of the rows",
    "accuracy": "share of rows whose predicted class is the true one",
    "balanced_accuracy": "mean over the classes of the share of their rows that are predicted as such",
    "recall": "share of the positive rows that are predicted as positive",
    "precision": "share of the rows predicted as positive that are positive",
    "f1": "harmonic mean of precision and recall",
    "selection_rate": "share of rows predicted as positive",
    "false_positive_rate": "share of the negative rows that are predicted as positive",
    "false_negative_rate": "share of the positive rows that are predicted as negative",
    "roc_auc": "probability that a positive row has a larger score than a negative one",
    "average_precision": "mean precision over all thresholds of the score",
    "brier": "mean squared difference of the probabilities and what happened",
    "log_loss": "mean of minus the logarithm of the probability given to the true class",
    "d2": "share of the loss of a constant prediction that the model explains",
    "rmse": "square root of the mean squared difference of prediction and target",
    "mae": "mean absolute difference of prediction and target",
    "median_error": "median absolute difference of prediction and target",
    "actual_over_expected": "sum of the targets over the sum of the predictions",
    "calibration_intercept": "by how much the log-odds of the probabilities are too low; 0 if they are right",
    "calibration_slope": "by what the log-odds of the probabilities would have to be multiplied; 1 if they are right",
    "share_below": "share of targets that are not above the predicted quantile",
}
_COLUMNS_IN_WORDS = {
    "effective_n": "effective number of independent rows, which is smaller if rows belong together or weights differ",
    "actual": "sum of the targets",
    "expected": "sum of the predictions",
    "regret": "excess risk: the risk minus the smallest that any such model reaches on the group",
    "overconfidence": "mean probability of the predicted class minus the accuracy",
    "ece": "expected calibration error: mean distance of probabilities and shares over ten bins",
    "bias": "mean of prediction minus target",
    "weight": "the group's weight in the certificate; groups with weight determine the model",
}
_NOTES_IN_WORDS = {
    "small": "too few rows to judge",
    "few rows": "too few rows of the kind that the metric needs, such as positive ones",
    "few errors": "a few rows have most of the loss",
    "few beyond": "too few rows are expected beyond the quantile",
    "few events": "the probabilities promise too few events, or too few rows without one",
    "equal values": "all rows have the same value",
    "undefined": "the metric is not defined for these rows",
    "unseen": "not a group of the training data",
    "merged": "merged with other small groups in training",
    "absent": "no rows here",
}


def write_page(path: str | Path, text: str) -> Path:
    """Write a page, and return where it is."""
    write_content(Path(path), text.encode())
    return Path(path)


def page(title: str, subtitle: str, lead: str, sections: Mapping[str, str], *, footer: str = "") -> str:
    """Return an HTML document.

    Parameters
    ----------
    title, subtitle, lead : str
        What it is about, what was judged, and the result in a sentence or two.
    sections : mapping of str to str
        Headings, and their contents as HTML.
    footer : str
        A sentence for the end.

    Returns
    -------
    str
        The document.
    """
    files = resources.files("groupdro.evaluation")
    return Template(files.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        style=files.joinpath("page.css").read_text(encoding="utf-8"),
        title=html.escape(title),
        subtitle=html.escape(subtitle),
        lead=html.escape(lead),
        sections="".join(f"<section><h2>{heading}</h2>{part}</section>\n" for heading, part in sections.items()),
        footer=html.escape(footer),
        written=f"{datetime.date.today():%d %B %Y}",
        version=__version__,
    )


def as_figure(name: str, draw: Callable[[], Any]) -> str:
    """Return a display as an SVG element of the page, which refers only to its own parts."""
    plt = import_extra("matplotlib.pyplot", extra="plot")
    content = io.StringIO()
    with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}), narrow_figures():
        figure = draw().figure_
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    svg = re.sub(r'<metadata>.*?</metadata>| xmlns(:\w+)?="[^"]*"', "", content.getvalue(), flags=re.DOTALL)
    return f"<figure>{svg[svg.index('<svg') :]}</figure>"


def report_sections(report: "GroupReport") -> dict[str, str]:
    """Return the sections of a page about a report: the table, a figure, details, and what the words mean."""
    notes = {note for text in report.columns["note"] for note in text.split(", ") if note}
    meanings = meanings_of(report.metrics)
    others = [name for name in report.columns if name in _COLUMNS_IN_WORDS]
    meanings |= {heading(name): _COLUMNS_IN_WORDS[name] for name in others}
    level = percent(report.confidence)
    how = (
        f"Below each value is its {level} confidence interval. The intervals hold for all judged groups of a column at "
        "once: that the worst group was picked out is accounted for. Groups with too few rows are shown last, and are "
        "never called the worst."
    )
    # The first metric decides, and of those that should have a value a figure shows who has it.
    drawn = [name for name in report.metrics if name == report.metrics[0] or _has_target(report, name)]
    figures = [as_figure(f"groups {name}", partial(report.plot, metric=name)) for name in drawn]
    sections = {
        "All groups": _groups(report, report.metrics) + f"<p>{how}</p>",
        "The groups at a glance": "".join(figures),
    }
    if others:
        sections["Details"] = _groups(report, (), *others)
    sections["What the words mean"] = definitions(meanings)
    if notes:
        words = {note: _NOTES_IN_WORDS[note] for note in sorted(notes) if note in _NOTES_IN_WORDS}
        sections["What the notes mean"] = definitions(words)
    return sections


def _has_target(report: "GroupReport", metric: str) -> bool:
    """Return whether a metric has a value that it should have, and some group that can be judged by it."""
    meaning = report.meanings.get(metric)
    there = np.isfinite(np.array(report.columns[metric], dtype=np.float64))
    return meaning is not None and meaning.target is not None and bool(there.any())


def _groups(report: "GroupReport", metrics: tuple[str, ...], *others: str) -> str:
    """Return a table of groups, the intervals and numbers of rows of metrics below their values."""
    columns, overall = report.columns, report.overall
    head = ["group", "rows", *map(heading, (*metrics, *others))]
    noted = bool(metrics) and any(columns["note"])
    rows = []
    for k, name in enumerate(columns["group"][:_MOST_GROUPS]):
        cells = [html.escape(group_name(name)), str(columns["n"][k])]
        for key in (*metrics, *others):
            cells.append(
                cell(*(columns.get(part, {k: None})[k] for part in (key, f"{key}_low", f"{key}_high", f"n_{key}")))
            )
        rows.append([*cells, html.escape(columns["note"][k])] if noted else cells)
    footer = [ALL_ROWS, str(overall["n"])]
    footer += [cell(overall.get(key, np.nan), None, None, overall.get(f"n_{key}")) for key in (*metrics, *others)]
    footer += [""] * noted
    left = len(columns["group"]) - _MOST_GROUPS
    more = f"<p>{left} more groups are not shown.</p>" if left > 0 else ""
    return table([*head, "note"] if noted else head, rows, footer) + more


def table(head: list[str], rows: list[list[str]], footer: list[str] | None = None) -> str:
    """Return a table of cells that are HTML."""
    # On a phone, rows are stacked, and each cell shows the head of its column.
    labels = [html.escape(re.sub("<.*?>", " ", each), quote=True).replace("&amp;", "&") for each in head]
    first = "".join(f"<th>{each}</th>" for each in head)
    foot = "" if footer is None else f"<tfoot>{_row(footer, labels)}</tfoot>"
    return (
        f'<div class="wide"><table><thead><tr>{first}</tr></thead><tbody>'
        f"{''.join(_row(cells, labels) for cells in rows)}</tbody>{foot}</table></div>"
    )


def _row(cells: list[str], labels: list[str]) -> str:
    pairs = zip(labels, cells, strict=True)
    inside = "".join(f'<td data-label="{label}"><span>{each}</span></td>' for label, each in pairs)
    return f"<tr>{inside}</tr>"


def meanings_of(metrics: Iterable[str]) -> dict[str, str]:
    """Return what metrics mean, by what they are called on a page."""
    return {heading(name): METRICS_IN_WORDS[name] for name in metrics if name in METRICS_IN_WORDS}


def heading(name: str) -> str:
    """Return a column's name in words."""
    text = "effective rows" if name == "effective_n" else metric_name(name)
    return html.escape(text[:1].upper() + text[1:])


def cell(value: Any, low: float | None = None, high: float | None = None, n: int | None = None) -> str:
    """Return a value, with its interval and number of rows below."""
    more = []
    if low is not None and high is not None and not np.isnan(low):
        more.append(f"{number(low)} to {number(high)}")
    if n is not None:
        more.append(f"of {n} rows")
    return number(value) + (f"<small>{'<br>'.join(more)}</small>" if more else "")


def number(value: Any) -> str:
    """Return a number without an exponent where possible."""
    if isinstance(value, str | int | np.integer):
        return str(value)
    if np.isnan(value):
        return ""
    if np.isinf(value):
        return "∞" if value > 0 else "-∞"
    if 0 < abs(value) < _LEAST_SHOWN:
        return "below 0.0001" if value > 0 else "above -0.0001"
    if abs(value) < 1:
        return f"{value + 0.0:.3g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.4f}"
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.4g}"


def definitions(words: Mapping[str, str]) -> str:
    """Return words and their meanings."""
    pairs = (f"<dt>{html.escape(word)}</dt><dd>{html.escape(meaning)}</dd>" for word, meaning in words.items())
    return f"<dl>{''.join(pairs)}</dl>"
