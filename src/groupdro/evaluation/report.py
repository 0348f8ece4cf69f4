"""How each group fares under a fitted model: a table for people and for programs."""

import html
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_scalar

from groupdro.data.grouping import MERGED, Grouping, read_groups
from groupdro.evaluation.headroom import Headroom, headroom
from groupdro.evaluation.metrics import ask, check_model, final_estimator, row_losses
from groupdro.utils.arguments import number_of_rows
from groupdro.utils.text import group_name, records, table_html, table_text
from groupdro.utils.types import Array, Floats
from groupdro.utils.vectors import read_target

__all__ = ["GroupReport", "bootstrap_interval", "check_resampling", "group_report", "middle_of"]


_RESAMPLED_AT_ONCE = 1 << 22  # numbers drawn at a time
_LEAST_RESAMPLED = 10
_BINS = 10


@dataclass(frozen=True, eq=False)
class GroupReport:
    """One row per group, worst first.

    Prints as text, shows as HTML in notebooks, and turns into a DataFrame.

    Attributes
    ----------
    columns : dict of str to list
        The table. `group`, `n`; `risk`, the average loss, with a bootstrap interval `risk_low` to `risk_high` where a
        group has ten rows or more;
        `regret` where the model has references; `accuracy` or `rmse`; for classifiers with probabilities
        `overconfidence`, the mean probability of the predicted class less the accuracy, and `ece`, the expected
        calibration error over ten bins; for regressors `bias`, the mean residual; `weight`, the group's weight q in the
        certificate; `note`: "small" (too few rows to judge), "unseen" (not a group of the fit), "merged" (joined with
        other small groups at fit), "absent" (a group of the fit without a row here).
    overall : dict of str to float
        The same quantities over all rows.
    confidence : float
        Level of the intervals.
    title : str
        Line above the table.
    in_sample : bool or None
        True where these are the training rows, all of them in their order: their risks are then too optimistic about
        new rows. False where they are not, although some of them may be. None where the model cannot know.
    headroom : Headroom or None
        What the worst group could gain from a linear model at most, where that was asked for.
    """

    columns: dict[str, list[Any]]
    overall: dict[str, Any]
    confidence: float
    title: str = ""
    in_sample: bool | None = None
    headroom: Headroom | None = None

    @property
    def worst_group(self) -> Any:
        """The group with the largest risk among those that are not too small to judge."""
        return self.columns["group"][self.judged.index(True) if True in self.judged else 0]

    @property
    def judged(self) -> list[bool]:
        """Whether each group has enough rows to be judged."""
        return ["small" not in note and "absent" not in note for note in self.columns["note"]]

    @property
    def by_group(self) -> dict[Any, dict[str, Any]]:
        """The rows of the table, by group."""
        return {row["group"]: row for row in records(self.columns)}

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            One row per group.
        """
        import pandas as pd

        return pd.DataFrame(self._with_text_groups())

    def to_polars(self) -> Any:
        """Return the table as a polars DataFrame.

        Returns
        -------
        polars.DataFrame
            One row per group.
        """
        import polars as pl

        return pl.DataFrame(self._with_text_groups(), strict=False)

    def _with_text_groups(self) -> dict[str, list[Any]]:
        """Give groups of several kinds, or of several columns, as text: frames have one type per column."""
        groups = self.columns["group"]
        kinds = {type(group) for group in groups}
        if len(kinds) == 1 and not kinds & {tuple}:
            return dict(self.columns)
        return {**self.columns, "group": [group_name(group) for group in groups]}

    def __repr__(self) -> str:
        text = table_text(self.title, {**self.columns}, {"group": "(all rows)", **self.overall})
        return text if self.headroom is None else f"{text}\n{self.headroom.message}"

    def _repr_html_(self) -> str:
        table = table_html(self.title, {**self.columns}, {"group": "(all rows)", **self.overall})
        return table if self.headroom is None else f"{table}<p>{html.escape(self.headroom.message)}</p>"


def group_report(
    model: Any,
    X: Any,
    y: Any,
    groups: Any = None,
    *,
    loss: Any = "auto",
    n_bootstrap: int = 1000,
    confidence: float = 0.95,
    min_rows: int = 30,
    random_state: int = 0,
    linear: Any = None,
) -> GroupReport:
    """Report how each group fares under a fitted model.

    Parameters
    ----------
    model : fitted estimator
        An estimator of this package, a pipeline or search around one, or any other classifier or regressor.
    X, y : array-like
        Rows and labels, preferably held-out ones; the report says so where they are the training rows. All rows count
        alike, whatever weights they had in the fit.
    groups : array-like, Series, DataFrame, boolean or sparse matrix, optional
        Their groups, as in `fit`; missing labels are a row of their own. By default those in the columns of a `GroupBy`
        model; of another model, all rows are one group.
    loss : str or callable
        The loss behind `risk`, as in `groupdro.evaluation.metrics.row_losses`.
    n_bootstrap : int
        Resamples behind an interval.
    confidence : float
        Level of the intervals.
    min_rows : int
        Rows below which a group is noted as small.
    random_state : int
        Seed of the resamples.
    linear : bool, Pipeline or transformer, optional
        Linear models to hold the worst group against, by `headroom`: True for the columns that `headroom` takes by
        default, or what makes their columns. Groups of fewer than `min_rows` rows are left out of it.

    Returns
    -------
    GroupReport
        The table, worst group first.
    """
    check_resampling(n_bootstrap, confidence, min_rows, random_state)
    check_model(model, "model")
    labels = read_target(y, number_of_rows(X, "X"), numeric=not is_classifier(model))
    groups = ask(model, X, "_own_groups") if groups is None else groups
    grouping = read_groups(groups, len(labels), missing="own")
    measured = _measure(model, X, labels, loss)
    inner = final_estimator(model)
    known = {name: k for k, name in enumerate(getattr(inner, "groups_", np.array([])).tolist())}
    if groups is None or len(known) < 2:
        known = {}  # fitted without groups, so that none of these is new to the model
    references = getattr(inner, "reference_risks_", None) if isinstance(loss, str) and loss == "auto" else None
    merged = set(getattr(inner, "merged_groups_", ()))
    rng = np.random.default_rng(random_state)

    rows = []
    for i, name in enumerate(grouping.names):
        own, k = grouping.rows_of(i), known.get(name)
        low, high = bootstrap_interval(measured["risk"][own], n_bootstrap, confidence, rng)
        row: dict[str, Any] = {"group": name, "n": len(own), "risk": float(measured["risk"][own].mean())}
        row |= {"risk_low": low, "risk_high": high}
        if references is not None:
            row["regret"] = np.nan if k is None else row["risk"] - float(references[k])
        row |= _summarise({key: values[own] for key, values in measured.items()})
        row["weight"] = np.nan if k is None else float(inner.group_weights_[k])
        notes = ["small"] if len(own) < min_rows else []
        if known and k is None:
            notes.append("merged" if name in merged else "unseen")
        row["note"] = ", ".join(notes)
        rows.append(row)
    rows.sort(key=lambda row: -row["risk"])
    for name in [name for name in known if name not in {*grouping.names, MERGED}]:
        weight = float(inner.group_weights_[known[name]])
        rows.append({**dict.fromkeys(rows[0], np.nan), "group": name, "n": 0, "weight": weight, "note": "absent"})

    overall = {"n": len(labels), "risk": float(measured["risk"].mean()), **_summarise(measured)}
    in_sample = ask(model, X, "_are_training_rows", labels)
    rows_named = f"{len(labels)} {'training rows (in-sample)' if in_sample else 'rows'}"
    return GroupReport(
        columns={key: [row[key] for row in rows] for key in rows[0]},
        overall=overall,
        confidence=confidence,
        title=f"{type(inner if hasattr(inner, 'groups_') else model).__name__} on {rows_named}",
        in_sample=in_sample,
        headroom=_headroom(model, X, labels, grouping, linear, min_rows),
    )


def _headroom(model: Any, X: Any, y: Array, grouping: Grouping, linear: Any, min_rows: int) -> Headroom | None:
    if linear is None or linear is False:
        return None
    least = max(1, min_rows) if (grouping.sizes >= min_rows).any() else 1
    return headroom(model, X, y, grouping, linear=None if linear is True else linear, min_rows=least)


def check_resampling(n_bootstrap: int, confidence: float, min_rows: int, random_state: int, *, least: int = 0) -> None:
    """Refuse what cannot be resampled by; `least` is the least number of resamples."""
    check_scalar(confidence, "confidence", Real)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}.")
    for name, value in {"min_rows": min_rows, "random_state": random_state}.items():
        check_scalar(value, name, Integral, min_val=0)
    check_scalar(n_bootstrap, "n_bootstrap", Integral, min_val=least)


def _measure(model: Any, X: Any, y: Array, loss: Any) -> dict[str, Floats]:
    """Return what is known of each row: its loss, whether it is right and how sure, or its residual."""
    out = {"risk": row_losses(model, X, y, loss)}
    predicted = np.asarray(model.predict(X))
    if is_classifier(model):
        out["right"] = (predicted == y).astype(np.float64)
        if hasattr(model, "predict_proba"):
            out["confidence"] = np.asarray(model.predict_proba(X)).max(axis=1)
    else:
        out["residual"] = predicted - y.astype(np.float64)
    return out


def _summarise(measured: dict[str, Floats]) -> dict[str, float]:
    if "residual" in measured:
        residual = measured["residual"]
        return {"rmse": float(np.sqrt(np.mean(residual**2))), "bias": float(residual.mean())}
    out = {"accuracy": float(measured["right"].mean())}
    if "confidence" in measured:
        sure, right = measured["confidence"], measured["right"]
        bins = np.minimum((sure * _BINS).astype(np.int64), _BINS - 1)
        gaps = np.bincount(bins, weights=sure - right, minlength=_BINS)
        out |= {"overconfidence": float((sure - right).mean()), "ece": float(np.abs(gaps).sum() / len(sure))}
    return out


def bootstrap_interval(
    values: Floats, n_bootstrap: int, confidence: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the percentile interval of a mean, by resampling the rows.

    Parameters
    ----------
    values : ndarray of shape (n,)
        The quantity of each row.
    n_bootstrap : int
        Resamples.
    confidence : float
        Level.
    rng : numpy.random.Generator
        Source of the resamples.

    Returns
    -------
    low, high : float
        The interval; NaN for fewer than ten rows, of which resampling would promise far too much.
    """
    n = len(values)
    if n < _LEAST_RESAMPLED or n_bootstrap < 1:
        return np.nan, np.nan
    at_once = max(1, _RESAMPLED_AT_ONCE // n)
    means = [
        values[rng.integers(0, n, size=(min(at_once, n_bootstrap - start), n))].mean(axis=1)
        for start in range(0, n_bootstrap, at_once)
    ]
    return middle_of(np.concatenate(means), confidence)


def middle_of(values: Floats, confidence: float) -> tuple[float, float]:
    """Return the ends of the interval that holds the middle share of some values."""
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(values, [tail, 1.0 - tail])
    return float(low), float(high)
