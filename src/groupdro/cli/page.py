"""Reports and comparisons as self-contained HTML pages without scripts or requests, for light and dark and any screen.

Everything that comes from data goes through `html.escape`. Figures are the library's own, as SVG.
"""

import datetime
import html
import io
import re
from collections.abc import Callable
from importlib import metadata, resources
from string import Template
from typing import Any

import numpy as np

from groupdro.cli.certificate import digits_apart
from groupdro.cli.model import SavedModel
from groupdro.cli.training import Training
from groupdro.compare import Comparison
from groupdro.evaluation.plots import ConvergenceDisplay, GroupRiskDisplay, GroupWeightsDisplay
from groupdro.evaluation.report import GroupReport
from groupdro.run.result import relative_gap
from groupdro.utils.optional import import_extra
from groupdro.utils.text import group_name, objective_name, percent, table_html

__all__ = ["comparison_page", "report_page"]

Namer = Callable[[Any], str]  # returns the name of a group in HTML

_NONE = "\u2013"
_TIMES = " \u00d7 "
_MINUS = "\u2212"
_DASH = "\u2013"
_MOST_ROWS = 300  # most rows of the table
_HEADINGS = {"n": "rows", "regret": "excess risk", "ece": "ECE", "rmse": "RMSE"}
_DIGITS = {"risk": 4, "regret": 4, "rmse": 4}
_MEANING = {
    "risk": "average loss of the group's rows",
    "regret": "risk minus the smallest that any such model reaches on the group",
    "overconfidence": "mean probability of the predicted class minus the accuracy",
    "ece": "expected calibration error over ten bins",
    "rmse": "square root of the mean squared residual",
    "bias": "mean of prediction minus target",
    "weight": "the group's weight in the certificate; groups with weight determine the model",
    "note": "small: too few rows to judge; few errors: too few to judge the loss by; unseen: not a group of the fit; "
    "absent: no rows here; merged: in the fit",
}


def report_page(fitted: SavedModel, report: GroupReport, table_name: str, in_sample: str = "") -> str:
    """Return the page.

    Parameters
    ----------
    fitted : SavedModel
        The model.
    report : GroupReport
        The report.
    table_name : str
        Name of the reported table.
    in_sample : str
        A sentence on whether the model was fitted on these rows.

    Returns
    -------
    str
        An HTML document.
    """
    model = fitted.model
    target = fitted.target or "the target"
    groups = _TIMES.join(fitted.groups) or "group"
    worst = _worst(report, model)

    def name(group: Any) -> str:
        return _text(_full_name(group, fitted.groups))

    return _page(
        "page.html",
        title=_text(f"{target} by {groups}"),
        subtitle=_text(f"Performance of {type(model).__name__} on each group of {table_name}. {in_sample}"),
        tiles=_tiles(report, model, worst, name),
        **_certificate(model, name),
        risks=_figure("risks", lambda: GroupRiskDisplay.from_reports(report, labels=[type(model).__name__])),
        charts=_figure("run", lambda: ConvergenceDisplay.from_estimator(model)),
        weights=_figure("weights", lambda: GroupWeightsDisplay.from_estimator(model)),
        table=_table(report, worst, name),
        facts=_facts(fitted, report, table_name),
    )


def comparison_page(training: Training, found: Comparison) -> str:
    """Return the tables and the verdict of a comparison as one HTML page."""

    def table(title: str, columns: dict[str, list[Any]], footer: dict[str, Any] | None = None) -> str:
        return f'<div class="scroll" tabindex="0">{table_html(title, columns, footer)}</div>'

    groups = [
        table(name, report.columns, {"group": "(all rows)", **report.overall}) for name, report in found.reports.items()
    ]
    return _page(
        "compare.html",
        title=_text(f"{training.target} by {' x '.join(training.groups)}"),
        subtitle=_text(f"Plain and robust training on {training.path.name}"),
        verdict=_text(found.verdict),
        models=table(f"{training.n_held_out} held-out rows", found.columns),
        charts=_figure("changes", found.plot),
        groups="".join(groups),
    )


def _figure(name: str, draw: Callable[[], Any]) -> str:
    """Return a display as an SVG element of the page, with identifiers of its own."""
    plt = import_extra("matplotlib.pyplot", extra="plot")
    content = io.StringIO()
    with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "svg.id": f"figure-{name}"}):
        figure = draw().figure_
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    svg = re.sub(r'<metadata>.*?</metadata>| xmlns(:\w+)?="[^"]*"', "", content.getvalue(), flags=re.DOTALL)
    return f'<figure class="drawn">{svg[svg.index("<svg") :]}</figure>'


def _page(template: str, **parts: str) -> str:
    files = resources.files("groupdro.cli")
    return Template(files.joinpath(template).read_text(encoding="utf-8")).substitute(
        style=files.joinpath("page.css").read_text(encoding="utf-8"),
        written=f"{datetime.date.today():%d %B %Y}".lstrip("0"),
        version=_text(metadata.version("groupdro")),
        **parts,
    )


def _full_name(group: Any, columns: tuple[str, ...]) -> str:
    """Return a group's name; a number is preceded by its column."""
    parts = group if isinstance(group, tuple) else (group,)
    if len(parts) != len(columns):
        return group_name(group)
    return " & ".join(
        str(part) if isinstance(part, str) else f"{column} {part}" for column, part in zip(columns, parts, strict=True)
    )


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)


def _number(value: Any, digits: int = 4) -> str:
    """Return a number as HTML, with this many digits."""
    if isinstance(value, int | np.integer):
        return fixed(float(value), 0)
    if value is None or np.isnan(value):
        return _NONE
    if value == 0 or 1e-4 <= abs(value) < 1e9:
        return fixed(value, decimals_of([value], digits))
    number, _, power = f"{value:.{digits - 1}e}".partition("e")
    return f"{number}{_TIMES}10<sup>{int(power)}</sup>".replace("-", _MINUS)


def decimals_of(values: list[Any], digits: int = 4) -> int:
    """Return the number of decimals that gives the largest value this many digits."""
    sizes = np.abs(np.array([value for value in values if np.isfinite(value) and value], dtype=float))
    return int(np.clip(digits - 1 - np.floor(np.log10(sizes.max())), 0, 8)) if len(sizes) else 0


def fixed(value: float, decimals: int) -> str:
    """Return a number with this many decimals and spaces between thousands; a dash for NaN."""
    if np.isnan(value):
        return _NONE
    return f"{value:,.{decimals}f}".replace(",", "\u202f").replace("-", _MINUS)


def _regret(report: GroupReport, model: Any) -> bool:
    return model.objective == "excess_risk" and "regret" in report.columns


def _worst(report: GroupReport, model: Any) -> int:
    """Return the index of the worst group by the model's objective, among those with enough rows."""
    values = np.array(report.columns["regret" if _regret(report, model) else "risk"], dtype=float)
    judged = np.array(report.judged)
    if (judged & np.isfinite(values)).any():
        values[~judged] = -np.inf
    return int(np.argmax(np.where(np.isnan(values), -np.inf, values)))


# ---------------------------------------------------------------------- parts


def _tiles(report: GroupReport, model: Any, worst: int, name: Namer) -> str:
    row = {key: values[worst] for key, values in report.columns.items()}
    value = "regret" if _regret(report, model) else "risk"
    low, high = (_number(row[end], 3) for end in ("risk_low", "risk_high"))
    interval = f"risk, {percent(report.confidence)} interval {low} to {high}" if value == "risk" else ""
    measure, text = ("accuracy", "{:.1%}".format) if "accuracy" in row else ("rmse", _number)
    overall = text(report.overall[measure])
    relative = _percent(relative_gap(model.gap_, model.upper_bound_))
    tiles = [
        ("Worst group", name(row["group"]), f"{_number(row['n'])} rows", "worst"),
        (f"Its {_HEADINGS.get(value, value)}", _number(row[value]), interval, ""),
        (f"Its {_HEADINGS.get(measure, measure)}", text(row[measure]), f"{overall} over all rows", ""),
        ("Suboptimality", relative, "at most, certified on the training rows", ""),
    ]
    return "".join(
        f'<div class="tile {kind}"><div class="label">{label}</div><div class="value">{shown}</div>'
        f'<div class="more">{more}</div></div>'
        for label, shown, more, kind in tiles
    )


def _percent(share: float) -> str:
    if not np.isfinite(share):
        return _NONE
    return f"{100 * share:.2g}%" if share >= 1e-6 else "&lt; 0.0001%"


def _certificate(model: Any, name: Namer) -> dict[str, str]:
    """Return the parts of the page about the certificate."""
    lower = model.lower_bound_
    upper = model.upper_bound_
    status = model.status_.replace("_", " ")
    digits = digits_apart(lower, upper)
    hold = "" if status in ("converged", "numerical failure") else " The bounds still hold."
    return {
        "value": objective_name(model),
        "lower": _number(lower, digits),
        "upper": _number(upper, digits),
        "gap": _number(model.gap_, 2),
        "relative": _percent(relative_gap(model.gap_, upper)),
        "tol": _percent(float(model.tol)),
        "kind": "good" if status == "converged" else "bad",
        "status": _text(status),
        "passes": f"{model.n_passes_:.3g}",
        "penalty": f", with the penalty of alpha = {model.alpha:g}" if model.alpha else "",
        "worst_group": name(model.worst_group_),
        "message": _text(model.message_) + hold,
    }


def _table(report: GroupReport, worst: int, name: Namer) -> str:
    columns = report.columns
    keys = [key for key in columns if key not in ("risk_low", "risk_high")]
    if not any(columns["note"]):
        keys.remove("note")
    decimals = {key: decimals_of(columns[key], _DIGITS.get(key, 3)) for key in keys[2:] if key != "note"}
    decimals["weight"] = 3
    head = "".join(f'<th scope="col">{_heading(key, report)}</th>' for key in keys)
    rows = []
    for k in range(min(len(columns["group"]), _MOST_ROWS)):
        row = {key: values[k] for key, values in columns.items()}
        badge = ' <span class="badge">worst</span>' if k == worst else ""
        cells = [f'<th scope="row">{name(row["group"])}{badge}</th>']
        cells += [_cell(key, row, decimals) for key in keys[1:]]
        rows.append(f"<tr{' class=worst' if k == worst else ''}>{''.join(cells)}</tr>")
    last = {**dict.fromkeys(columns, np.nan), **report.overall, "note": ""}
    foot = '<th scope="row">all rows</th>' + "".join(_cell(key, last, decimals) for key in keys[1:])
    left = len(columns["group"]) - len(rows)
    more = f"<p class=quiet>{left} more groups with lower risks are not shown.</p>" if left > 0 else ""
    terms = "".join(
        f"<div><dt>{_HEADINGS.get(key, key)}</dt><dd>{_MEANING[key]}</dd></div>" for key in keys if key in _MEANING
    )
    return (
        '<p class="hint">Swipe for more columns.</p>'
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
        f"<tfoot><tr>{foot}</tr></tfoot></table></div>{more}<dl class=terms>{terms}</dl>"
    )


def _heading(key: str, report: GroupReport) -> str:
    return f"risk ({percent(report.confidence)} interval)" if key == "risk" else _HEADINGS.get(key, key)


def _cell(key: str, row: dict[str, Any], decimals: dict[str, int]) -> str:
    value = row[key]
    if key == "note":
        return f"<td class=note>{_text(value)}</td>"
    if key == "n":
        return f"<td>{_number(value)}</td>"
    if key == "accuracy":
        return f"<td>{_NONE if np.isnan(value) else f'{value:.1%}'}</td>"
    if key == "weight" and value == 0:
        return "<td class=quiet>0</td>"
    interval = ""
    if key == "risk" and not np.isnan(row["risk_low"]):
        ends = [fixed(row[end], max(0, decimals["risk"] - 1)) for end in ("risk_low", "risk_high")]
        interval = f"<span class=quiet> ({_DASH.join(ends)})</span>"
    return f"<td>{fixed(value, decimals[key])}{interval}</td>"


def _facts(fitted: SavedModel, report: GroupReport, table_name: str) -> str:
    model = fitted.model
    known = fitted.facts
    classes = getattr(fitted.model, "classes_", np.array([])).tolist()
    shown = {
        "Reported table": table_name,
        "Rows, groups": f"{_number(report.overall['n'])}, {len(report.columns['group'])}",
        "Target": fitted.target or _NONE,
        "Groups by": _TIMES.join(fitted.groups) or _NONE,
        "Fitted on": f"{known['table']}, {_number(int(known['rows']))} rows" if "table" in known else "",
        "Classes": ", ".join(map(str, classes[:12])) + (" …" if len(classes) > 12 else ""),
        "Model": type(model).__name__,
        "Objective": objective_name(model),
        "Loss": getattr(model.loss, "name", model.loss),
        "Penalty alpha": f"{model.alpha:g}",
        "Features": _number(int(model.n_features_in_)),
        "Columns": ", ".join(fitted.columns),
        "Solver": model.solver_,
        "Time of the fit": f"{known['seconds']:.2g} s" if "seconds" in known else "",
    }
    return "".join(
        f"<div><dt>{_text(term)}</dt><dd>{_text(value)}</dd></div>" for term, value in shown.items() if value
    )
