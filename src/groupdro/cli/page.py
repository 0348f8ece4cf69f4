"""Reports and comparisons of the command line's own models as HTML pages."""

import html
from pathlib import Path
from typing import Any

from groupdro.cli.model import SavedModel, certificate_lines
from groupdro.cli.training import Training
from groupdro.compare import Comparison
from groupdro.evaluation import page
from groupdro.evaluation.plots import ConvergenceDisplay, GroupMetricDisplay, GroupWeightsDisplay
from groupdro.evaluation.report import GroupReport
from groupdro.utils.arguments import printable
from groupdro.utils.text import table_html

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
            f"{report.metrics[0].replace('_', ' ').capitalize()} of each group": page.as_figure(
                "groups", lambda: GroupMetricDisplay.from_reports(report)
            ),
            "Intervals and details": _groups(report, "", details=True) + _pairs("column", "meaning", meanings),
            "Certificate on the training rows": f"<p>{html.escape(f'{certificate_lines(model)} {model.message_}')}</p>"
            + page.as_figure("run", lambda: ConvergenceDisplay.from_estimator(model))
            + page.as_figure("weights", lambda: GroupWeightsDisplay.from_estimator(model)),
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
            "Changes": page.as_figure("changes", found.plot),
            "Intervals and proofs": f"{table_html('', found.columns)}<p>{html.escape(found.evidence)}</p>",
            "All groups": "".join(_groups(report, name, details=False) for name, report in found.reports.items()),
        },
    )


def write_page(path: Path, text: str) -> str:
    """Write a page, and return a line that says so."""
    return f"\nWrote {printable(page.write_page(path, text))}"


def _page(title: str, subtitle: str, lead: str, sections: dict[str, str]) -> str:
    return page.page(title, subtitle, lead, sections, footer="Certificates hold for the training rows only.")


def _groups(report: GroupReport, title: str, *, details: bool) -> str:
    columns = report.columns if details else report.main_columns
    shown = {key: values[:_MOST_GROUPS] for key, values in columns.items()}
    left = len(report.columns["group"]) - _MOST_GROUPS
    more = f"<p>{left} more groups are not shown.</p>" if left > 0 else ""
    return table_html(title, shown, {"group": "(all rows)", **report.overall}) + more


def _pairs(keys: str, values: str, pairs: dict[str, Any]) -> str:
    return table_html("", {keys: list(pairs), values: list(pairs.values())})
