"""The groups that were found: a table, a sentence, a plot, and the groups of new rows."""

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.data.grouping import Grouping, GroupRules
from groupdro.discovery.conditions import Columns, Rule
from groupdro.discovery.display import FoundGroupsDisplay
from groupdro.discovery.page import found_sections
from groupdro.evaluation.page import page, write_page
from groupdro.utils.arguments import printable
from groupdro.utils.optional import import_extra
from groupdro.utils.text import percent, records, table_html, table_text
from groupdro.utils.types import Array, Indices, Mask

__all__ = ["OTHERS", "FoundGroups"]

OTHERS = "(other rows)"  # the rows in no found group
_CLEARLY = 4.0  # standard deviations of a number of rows that are alike by chance
_HARD = 0.05  # relative gain up to which a group counts as hard


@dataclass(frozen=True, eq=False)
class FoundGroups(GroupRules):
    """Groups in which a model fails, worst first.

    Prints as text and shows as HTML in notebooks. It may be empty: `message` then says how large a difference would
    have been found. Pass it as ``groups=`` to `compare`, `fit`, `group_report` or `headroom`, if X there has the
    columns that describe the groups; otherwise pass ``found.groups(columns)``.

    Attributes
    ----------
    columns : dict of str to list
        The table, from the rows that were set aside for judging: `group`, the conditions in words; `metric`, if there
        are several; `rows`, the number of rows inside, and `share`, their share of the weight; `inside` and `outside`,
        the average loss (or metric) of rows inside and outside; `difference`, by how much it is worse inside, and
        `at_least`, a lower bound of that; `headroom`, if requested, the largest share of the group's loss that any
        linear model could gain; and `note`, "hard" if that is next to nothing.
    rules : tuple of Rule
        The conditions of each group.
    level : float
        Probability with which all lower bounds hold.
    metrics : tuple of str
        What was compared: "loss", or names of metrics.
    searched : tuple of str
        The columns that were searched.
    n_conditions : int
        Number of conditions that were tried, alone and in conjunctions.
    n_rows : tuple of int
        Number of rows that were searched, and of rows that the groups were judged on.
    detectable : tuple of float
        A share of the rows, and by how much worse a group of that size must be to be found four times out of five,
        approximately.
    in_sample : bool or None
        True if the model was fitted on exactly these rows: it then fails more often on new ones. False if not. None if
        the model cannot know.
    """

    columns: dict[str, list[Any]]
    rules: tuple[Rule, ...]
    level: float
    metrics: tuple[str, ...]
    searched: tuple[str, ...]
    n_conditions: int
    n_rows: tuple[int, int]
    detectable: tuple[float, float]
    in_sample: bool | None = None
    _seen: Array = field(default_factory=lambda: np.empty(0, np.uint64), repr=False)

    def __len__(self) -> int:
        return len(self.rules)

    def groups(self, X: Any) -> Any:
        """Return to which groups rows belong, as a boolean matrix with one column per group.

        Parameters
        ----------
        X : DataFrame or array-like
            Rows with the columns that describe the groups, such as new ones.

        Returns
        -------
        DataFrame or ndarray of bool
            Whether each row is in each group, and a last column for the rows in none of them. A row may be in several
            groups. Without any found group there is no column.
        """
        columns = Columns(X, "X")
        return columns.like(self._members(columns))

    def partition(self, X: Any) -> Array:
        """Return one label per row: the worst of the found groups that it belongs to.

        Parameters
        ----------
        X : DataFrame or array-like
            Rows with the columns that describe the groups.

        Returns
        -------
        ndarray of str of shape (n_rows,)
            Conditions of the group, or "(other rows)".
        """
        columns = Columns(X, "X")
        labels = np.full(columns.n_rows, OTHERS, dtype=object)
        for rule in reversed(self.rules):
            labels[rule.holds(columns)] = str(rule)
        return labels.astype(str)

    def grouping(self, X: Any) -> Grouping:
        """Return the groups of rows as other functions of this package take them; all rows, if nothing was found."""
        columns = Columns(X, "X")
        members = {name: np.flatnonzero(inside) for name, inside in self._members(columns).items()}
        members = {name: rows for name, rows in members.items() if len(rows)} or {"all": np.arange(columns.n_rows)}
        offsets = np.cumsum([0, *map(len, members.values())]).astype(np.int64)
        return Grouping(offsets, np.concatenate([*members.values()]), tuple(members), overlapping=len(members) > 1)

    def _members(self, columns: Columns) -> dict[str, Mask]:
        members = {str(rule): rule.holds(columns) for rule in self.rules}
        return {**members, OTHERS: ~np.logical_or.reduce([*members.values()])} if members else {}

    def seen(self, X: Any) -> Indices:
        """Return the rows on which the groups were found.

        Parameters
        ----------
        X : DataFrame or array-like
            Rows with the columns that were searched.

        Returns
        -------
        ndarray of int
            Positions of these rows. New rows may be alike in all columns that were searched: unless X has every row of
            the search, there are none if as many would be found by chance.
        """
        columns = Columns(X, "X")
        if not set(self.searched) <= set(columns.names):
            return np.empty(0, np.int64)
        known, times = np.unique(self._seen, return_counts=True)
        keys = columns.keys(list(self.searched))
        order = np.argsort(keys, kind="stable")
        first = np.searchsorted(keys[order], known)
        there = np.minimum(times, np.searchsorted(keys[order], known, side="right") - first)
        # Good and Turing: the share of rows that occur once is the probability that a new row is unlike all of them.
        by_chance = columns.n_rows * (1.0 - np.sum(times == 1) / max(len(self._seen), 1))
        if (there < times).any() and there.sum() <= by_chance + _CLEARLY * np.sqrt(by_chance):
            return np.empty(0, np.int64)
        # Of rows that are alike in all columns, any are as good as the others.
        places = [np.arange(begin, begin + n) for begin, n in zip(first, there, strict=True)]
        return np.sort(order[np.concatenate([np.empty(0, np.int64), *places])])

    @property
    def message(self) -> str:
        """What was found, as sentences."""
        n = len(self)
        with_level = f"with {percent(self.level)} confidence"
        if n:
            worst = records(self.columns)[0]
            what = worst.get("metric", self.metrics[0])
            groups = "a group" if n == 1 else f"{n} groups"
            text = (
                f"Found {groups} in which the model does worse, {with_level}. The clearest: {worst['group']}, with "
                f"{what} {worst['inside']:.3g} instead of {worst['outside']:.3g}, worse by at least "
                f"{worst['at_least']:.2g} ({worst['rows']} rows)."
            )
            hard = sum(note == "hard" for note in self.columns["note"])
            if hard:
                text += f" {'One is' if hard == 1 else f'{hard} are'} hard, not neglected: see the column headroom."
        else:
            share, difference = self.detectable
            text = f"No group was found in which the model does worse, {with_level}."
            if difference == 0:
                text += f" The {self.metrics[0]} is the same in all rows."
            elif np.isfinite(difference):
                text += (
                    f" A group of {share:.0%} of these rows would probably have been found if its "
                    f"{self.metrics[0]} were worse by {difference:.2g} or more."
                )
            else:
                text += " There are too few rows to find any."
        if self.in_sample:
            text += " These are the training data of the model: search on rows that it was not fitted on."
        return text

    def summary(self) -> str:
        """Return the message and the table as text."""
        return printable(self.message) + (f"\n{table_text(self._title, self._table)}" if len(self) else "")

    @property
    def _title(self) -> str:
        return (
            f"{len(self.searched)} columns and {self.n_conditions} conditions searched on {self.n_rows[0]} rows, "
            f"judged on {self.n_rows[1]} others"
        )

    @property
    def _table(self) -> dict[str, list[Any]]:
        return {name: values for name, values in self.columns.items() if name != "note" or any(values)}

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame."""
        pd = import_extra("pandas", "plot")

        return pd.DataFrame(self.columns)

    def plot(self, *, ax: Any = None) -> FoundGroupsDisplay:
        """Draw how much worse each group is, with the lower bound.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        FoundGroupsDisplay
            The display.
        """
        if not len(self):
            raise ValueError("no group was found, so there is nothing to plot.")
        return FoundGroupsDisplay(
            groups=self.columns["group"],
            difference=np.array(self.columns["difference"]),
            at_least=np.array(self.columns["at_least"]),
            rows=self.columns["rows"],
            level=self.level,
            metric=self.metrics[0],
            metrics=self.columns.get("metric"),
        ).plot(ax=ax)

    def to_html(self, path: str | Path, *, title: str = "", about: str = "") -> Path:
        """Write the groups as a page that can be handed on: one file, readable on any screen and on paper.

        It begins with what was found, and has the groups with lower bounds, how they were searched, and what the words
        mean. It has no scripts.

        Parameters
        ----------
        path : str or path-like
            The file.
        title : str
            What was judged, in your words.
        about : str
            The models, the data and the purpose, in your words.

        Returns
        -------
        Path
            The file.
        """
        return write_page(path, page(title or "Where the model does worse", about, self.message, found_sections(self)))

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        table = table_html(self._title, self._table) if len(self) else ""
        return f"<p>{html.escape(self.message)}</p>{table}"


def note_on(headroom: float) -> str:
    """Return "hard" for a group that no linear model could improve noticeably."""
    return "hard" if headroom <= _HARD else ""
