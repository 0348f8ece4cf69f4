"""The sections of a page about groups that were found."""

import html
from typing import TYPE_CHECKING

from groupdro.evaluation.page import as_figure, cell, definitions, heading, meanings_of, table
from groupdro.utils.text import percent, records

if TYPE_CHECKING:
    from groupdro.discovery.found import FoundGroups

__all__ = ["found_sections"]

_HARD = "no linear model of the columns would do noticeably better there: the group is hard, not neglected"
_APART = {
    "predicted too low": "what happened minus what was predicted, on average",
    "predicted too high": "what was predicted minus what happened, on average",
    "loss": "average loss of the rows",
}


def found_sections(found: "FoundGroups") -> dict[str, str]:
    """Return the sections of a page: the groups, a figure, how they were searched, and what the words mean."""
    searched, judged = found.n_rows
    how = (
        f"{found.n_conditions} conditions on {len(found.searched)} columns, alone and combined, were tried on one "
        f"random half of the rows ({searched}). All numbers here are from the other half ({judged} rows), which the "
        "search has not seen. "
        f"All lower bounds hold together with {percent(found.level)} confidence: if there were no group in which the "
        f"model does worse, something would be reported with a probability of at most {percent(1.0 - found.level)}."
    )
    columns = "".join(f"<li>{html.escape(name)}</li>" for name in found.searched)
    sections = {}
    if len(found):
        sections = {
            "Groups in which the model does worse": _groups(found),
            "The groups at a glance": as_figure("found", found.plot),
        }
    sections |= {"How they were searched": f"<p>{how}</p><p>The columns:</p><ul>{columns}</ul>"}
    if len(found):
        words = {"Rows": "number of rows of the group among those that it was judged on, and their share"}
        words |= {"In the group, elsewhere": "the value in the group, and in all rows outside of it"}
        words |= {"Worse by": "the difference, and below it what it is at least"}
        words |= {heading(name): _APART[name] for name in found.metrics if name in _APART} | meanings_of(found.metrics)
        if "headroom" in found.columns:
            words |= {
                "Headroom": "the largest share of the group's loss that any linear model of the columns could gain"
            }
            words |= {"hard": _HARD} if any(found.columns["note"]) else {}
        sections["What the words mean"] = definitions(words)
    return sections


def _groups(found: "FoundGroups") -> str:
    more = [name for name in ("headroom", "note") if any(found.columns.get(name, ()))]
    several = "metric" in found.columns
    head = ["group", *(["what"] if several else []), "rows", "in the group", "elsewhere", "worse by", *more]
    rows = []
    for row in records(found.columns):
        conditions = "<br>and ".join(html.escape(part) for part in row["group"].split(" & "))
        rows.append(
            [
                conditions,
                *([html.escape(row["metric"])] if several else []),
                f"{row['rows']}<small>{row['share']:.1%}</small>",
                cell(row["inside"]),
                cell(row["outside"]),
                f"{cell(row['difference'])}<small>at least {cell(row['at_least'])}</small>",
                *(html.escape(row[name]) if name == "note" else cell(row[name]) for name in more),
            ]
        )
    return table(head, rows)
