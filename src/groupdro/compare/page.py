"""The sections of a page about a comparison of models."""

import html
from typing import TYPE_CHECKING

import numpy as np

from groupdro.compare.contenders import MEANINGS
from groupdro.evaluation.page import as_figure, cell, definitions, heading, meanings_of, table
from groupdro.evaluation.plots import GroupMetricDisplay
from groupdro.utils.text import group_name, percent

if TYPE_CHECKING:
    from groupdro.compare.comparison import Comparison

__all__ = ["comparison_sections"]

_MOST_GROUPS = 300  # of a table


def comparison_sections(found: "Comparison") -> dict[str, str]:
    """Return the sections of a page: the models, their changes, each group, the evidence, and what the words mean."""
    sections = {"The models": _models(found)}
    if len(found.changes) > 1:
        sections[f"Compared with {html.escape(found.baseline)}"] = as_figure("changes", found.plot)
    other = _other(found)
    if other is not None:
        both = {name: found.reports[name] for name in (found.baseline, other)}
        sections["The groups at a glance"] = as_figure("groups", lambda: GroupMetricDisplay.from_reports(both))
        sections[f"{heading(found.metrics[0])} in each group"] = _groups(found, other)
    sections["The evidence"] = f"<p>{html.escape(found.evidence)}</p>"
    words = meanings_of(found.metrics)
    words |= {name: text for name in found.columns["model"] for key, text in MEANINGS.items() if name.startswith(key)}
    sections["What the words mean"] = definitions(words)
    return sections


def _other(found: "Comparison") -> str | None:
    """Return the model that is recommended; if that is the baseline, the one with the largest net gain, if any."""
    if found.worth_it:
        return found.recommended
    others = {name: change.net for name, change in found.changes.items() if name != found.baseline}
    return max(others, key=lambda name: np.nan_to_num(others[name], nan=-np.inf), default=None)


def _models(found: "Comparison") -> str:
    columns = found.columns
    head = ["model"]
    for metric in found.metrics:
        head += [f"{heading(metric)}<small>all rows</small>", f"{heading(metric)}<small>worst group</small>"]
    rows = []
    for k, name in enumerate(columns["model"]):
        marks = ["recommended"] if name == found.recommended else []
        marks += ["baseline"] if name == found.baseline else []
        cells = [html.escape(name) + "".join(f"<small>{mark}</small>" for mark in marks)]
        for metric in found.metrics:
            worst = cell(columns[f"worst_{metric}"][k])
            if metric == found.metrics[0]:
                worst += f"<small>{html.escape(group_name(columns['worst_group'][k]))}</small>"
            cells += [cell(columns[f"mean_{metric}"][k]), worst]
        rows.append(cells)
    return table(head, rows)


def _groups(found: "Comparison", other: str) -> str:
    metric = found.metrics[0]
    of_both = [found.reports[name].by_group for name in (found.baseline, other)]
    of_other = [k for k, name in enumerate(found.differences["model"]) if name == other]
    apart = {
        found.differences["group"][k]: [found.differences[key][k] for key in ("difference", "low", "high")]
        for k in of_other
    }
    better = found.reports[other].meanings[metric].better
    rows = []
    for name, row in list(of_both[0].items())[:_MOST_GROUPS]:
        if name not in of_both[1]:
            continue
        values = [cell(report[name][metric]) for report in of_both]
        change = "too few rows"
        if name in apart:
            difference, low, high = apart[name]
            change = cell(difference, low, high) + _in_words(low, high, better)
        rows.append([html.escape(group_name(name)), str(row["n"]), *values, change])
    how = (
        f"Below each difference is its {percent(found.confidence)} confidence interval. Both models are judged on the "
        "same rows, so a difference can be clear although the intervals of the two values overlap. The intervals hold "
        "for all groups at once."
    )
    head = ["group", "rows", html.escape(found.baseline), html.escape(other), "difference"]
    return table(head, rows) + f"<p>{how}</p>"


def _in_words(low: float, high: float, better: str) -> str:
    """Return whether a difference is clear."""
    if not (low > 0 or high < 0):
        return ""
    return f"<small>clearly {'better' if (low > 0) == (better == 'larger') else 'worse'}</small>"
