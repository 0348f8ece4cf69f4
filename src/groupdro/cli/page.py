"""Reports and comparisons as self-contained HTML pages without scripts or requests, for light and dark and any screen.

Everything that comes from data goes through `html.escape`. Tables and figures, as SVG, are the library's own.
"""

import datetime
import html
import io
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from groupdro.cli.model import SavedModel, certificate_lines
from groupdro.cli.training import Training
from groupdro.compare import Comparison
from groupdro.evaluation.plots import ConvergenceDisplay, GroupMetricDisplay, GroupWeightsDisplay
from groupdro.evaluation.report import GroupReport
from groupdro.utils.arguments import printable
from groupdro.utils.files import write_content
from groupdro.utils.optional import import_extra
from groupdro.utils.text import table_html
from groupdro.version import __version__

__all__ = ["comparison_page", "report_page", "write_page"]

_MOST_GROUPS = 300  # of a table
_MEANINGS = {
    "risk": "average loss of the group's rows",
    "regret": "excess risk: risk minus the smallest that any such model reaches on the group",
    "overconfidence": "mean probability of the predicted class minus the accuracy",
    "ece": "expected calibration error over ten bins",
    "rmse": "square root of the mean squared residual",
    "bias": "mean of prediction minus target",
    "weight": "the group's weight in the certificate; groups with weight determine the model",
    "note": "small: too few rows; few rows: too few of the kind that the metric requires; few errors: too few rows "
    "carry the loss; equal values; undefined; unseen: not a group of the fit; absent: no rows here; merged: in the fit",
}


def report_page(fitted: SavedModel, report: GroupReport, table_name: str, in_sample: str = "") -> str:
    """Return a report as one HTML page.

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
    name = type(model).__name__
    meanings = {key: meaning for key, meaning in _MEANINGS.items() if key in report.columns}
    return _page(
        f"{fitted.target or 'Target'} by {' x '.join(fitted.groups) or 'group'}",
        f"Performance of {name} on each group of {table_name}. {in_sample}",
        report.message,
        {
            "All groups": _groups(report, report.title, details=False),
            f"{report.metrics[0].replace('_', ' ').capitalize()} of each group": _figure(
                "groups", lambda: GroupMetricDisplay.from_reports(report)
            ),
            "Intervals and details": _groups(report, "", details=True) + _pairs("column", "meaning", meanings),
            "Certificate on the training rows": f"<p>{html.escape(f'{certificate_lines(model)} {model.message_}')}</p>"
            + _figure("run", lambda: ConvergenceDisplay.from_estimator(model))
            + _figure("weights", lambda: GroupWeightsDisplay.from_estimator(model)),
            "Data and fit": _pairs("fact", "value", fitted.facts),
        },
    )


def comparison_page(training: Training, found: Comparison) -> str:
    """Return the tables and the verdict of a comparison as one HTML page."""
    facts = training.facts
    return _page(
        f"{facts['target']} by {' x '.join(facts['group_columns'])}",
        f"Plain and robust training on {facts['table']}",
        found.verdict,
        {
            "All models": table_html("Held-out rows", found.main_columns),
            "Changes": _figure("changes", found.plot),
            "Intervals and proofs": f"{table_html('', found.columns)}<p>{html.escape(found.evidence)}</p>",
            "All groups": "".join(_groups(report, name, details=False) for name, report in found.reports.items()),
        },
    )


def write_page(path: Path, page: str) -> str:
    """Write a page, and return a line that says so."""
    write_content(path, page.encode())
    return f"\nWrote {printable(path)}"


def _page(title: str, subtitle: str, lead: str, sections: dict[str, str]) -> str:
    files = resources.files("groupdro.cli")
    return Template(files.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        style=files.joinpath("page.css").read_text(encoding="utf-8"),
        title=html.escape(title),
        subtitle=html.escape(subtitle),
        lead=html.escape(lead),
        sections="".join(f"<section><h2>{heading}</h2>{part}</section>\n" for heading, part in sections.items()),
        written=f"{datetime.date.today():%d %B %Y}",
        version=__version__,
    )


def _groups(report: GroupReport, title: str, *, details: bool) -> str:
    columns = report.columns if details else report.main_columns
    shown = {key: values[:_MOST_GROUPS] for key, values in columns.items()}
    left = len(report.columns["group"]) - _MOST_GROUPS
    more = f"<p>{left} more groups, better than these, are not shown.</p>" if left > 0 else ""
    return table_html(title, shown, {"group": "(all rows)", **report.overall}) + more


def _pairs(keys: str, values: str, pairs: dict[str, Any]) -> str:
    return table_html("", {keys: list(pairs), values: list(pairs.values())})


def _figure(name: str, draw: Callable[[], Any]) -> str:
    """Return a display as an SVG element of the page, which refers only to its own parts."""
    plt = import_extra("matplotlib.pyplot", extra="plot")
    content = io.StringIO()
    with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure = draw().figure_
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    svg = re.sub(r'<metadata>.*?</metadata>| xmlns(:\w+)?="[^"]*"', "", content.getvalue(), flags=re.DOTALL)
    return f"<figure>{svg[svg.index('<svg') :]}</figure>"
