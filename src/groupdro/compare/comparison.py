"""The result of a comparison."""

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupdro.compare.page import comparison_sections
from groupdro.evaluation.change_display import ChangeDisplay
from groupdro.evaluation.headroom import Headroom
from groupdro.evaluation.page import page, write_page
from groupdro.evaluation.report import GroupReport
from groupdro.utils.arguments import printable
from groupdro.utils.optional import import_extra
from groupdro.utils.text import group_name, table_html, table_text

__all__ = ["Change", "Comparison"]

Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Change:
    """Changes of a model relative to the baseline, on the same held-out data, in the deciding metric.

    Attributes
    ----------
    gain : tuple of float
        Improvement of the worst group: estimate, lower and upper end of a confidence interval. Positive is better,
        whether larger or smaller values of the metric are. Intervals are simultaneous over all models.
    cost : tuple of float
        By how much the metric over all rows gets worse, likewise.
    relative_gain, relative_cost : float
        Both estimates in proportion to the baseline's worst group and to its value over all rows; as they are if larger
        values of the metric are better.
    harmed : list
        Groups that are significantly worse off.
    note : str
        Why the model cannot be judged; empty if it can.
    objection : str
        Why the model is not recommended even if it is better by the deciding metric, such as a floor of another metric
        that it does not reach; empty if nothing speaks against it.
    """

    gain: Interval
    cost: Interval
    relative_gain: float
    relative_cost: float
    harmed: list[Any]
    note: str = ""
    objection: str = ""

    @property
    def better(self) -> bool:
        """Whether the worst group is significantly better off."""
        return self.gain[1] > 0

    @property
    def worse(self) -> bool:
        """Whether the worst group is significantly worse off."""
        return self.gain[2] < 0

    @property
    def better_on_average(self) -> bool:
        """Whether the metric over all rows is significantly better."""
        return self.cost[2] < 0

    @property
    def net(self) -> float:
        """Relative improvement of the worst group minus the relative cost."""
        return self.relative_gain - self.relative_cost


@dataclass(frozen=True, eq=False)
class Comparison:
    """Models evaluated on the same held-out data, and the one to use.

    Prints as text and shows as HTML in notebooks: what to use, in a sentence, and a table of the metrics.
    `summary(details=True)` adds the evidence.

    Attributes
    ----------
    columns : dict of str to list
        One row per model. For each metric: its value over all rows, `mean_<metric>`, and in the worst group that can
        be judged by it, `worst_<metric>`. `worst_group`, by the first metric; `gain`, by how much its worst group
        improves on that of the baseline, with a confidence interval from `gain_low` to `gain_high`, simultaneous over
        all models; `cost`, by how much it is worse over all rows; `worst_regret`, the worst excess risk over the
        smallest training risk that any linear model reaches in a group; `gap`, the certified relative gap of the fit;
        and `seconds`. NaN if a model lacks the value.
    verdict : str
        What to use, and why, in plain words.
    evidence : str
        The confidence intervals and bounds behind the verdict.
    recommended : str
        The model to use: the baseline, unless the data support another one.
    baseline : str
        The model that the others are compared with.
    metrics : tuple of str
        The metrics; the first one decides.
    changes : dict of str to Change
        Changes of each model relative to the baseline.
    differences : dict of str to list
        One row per model and group: `difference`, the first metric minus that under the baseline, with a confidence
        interval from `low` to `high`, simultaneous over all groups of a model.
    models : dict of str to estimator
        The fitted models.
    reports : dict of str to GroupReport
        Their reports on the held-out data.
    left_out : list
        Groups with too few held-out rows, or too few errors under the baseline, to count as the worst.
    confidence : float
        Level of the confidence intervals.
    headroom : Headroom or None
        Upper bound on what the worst held-out group of the recommended model could gain from any linear model. None if
        the first metric is not the risk, if `loss` was given, if no group has enough rows, and for classifiers without
        probabilities or with another loss than the logistic one.
    """

    columns: dict[str, list[Any]]
    verdict: str
    evidence: str
    recommended: str
    baseline: str
    metrics: tuple[str, ...]
    changes: dict[str, Change]
    differences: dict[str, list[Any]]
    models: dict[str, Any]
    reports: dict[str, GroupReport]
    left_out: list[Any]
    confidence: float
    headroom: Headroom | None = None

    @property
    def worth_it(self) -> bool:
        """Whether another model than the baseline is recommended."""
        return self.recommended != self.baseline

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            One row per model.
        """
        pd = import_extra("pandas", "plot")

        return pd.DataFrame({**self.columns, "worst_group": [group_name(g) for g in self.columns["worst_group"]]})

    def plot(self, *, ax: Any = None) -> ChangeDisplay:
        """Plot by how much each model improves on the baseline for the worst group and over all rows.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        ChangeDisplay
            The display.
        """
        others = {name: change for name, change in self.changes.items() if name != self.baseline}
        return ChangeDisplay(
            models=list(others),
            worst=[change.gain for change in others.values()],
            mean=[(-cost, -high, -low) for cost, low, high in (change.cost for change in others.values())],
            baseline=self.baseline,
            metric=self.metrics[0],
            confidence=self.confidence,
        ).plot(ax=ax)

    def to_html(self, path: str | Path, *, title: str = "", about: str = "") -> Path:
        """Write the comparison as a page that can be handed on: one file, readable on any screen and on paper.

        It begins with the verdict, and has a table of the models, the changes of the recommended one in each group with
        intervals, the evidence, and what the words mean. It has no scripts.

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
        n_rows, n_groups = self.reports[self.baseline].overall["n"], len(self.reports[self.baseline].columns["group"])
        subtitle = f"{about} Judged on {n_rows} held-out rows in {n_groups} groups.".strip()
        return write_page(
            path, page(title or "Comparison of models", subtitle, self.verdict, comparison_sections(self))
        )

    def summary(self, *, details: bool = False) -> str:
        """Return the comparison as text.

        Parameters
        ----------
        details : bool
            Whether to add the gains with their intervals, and the evidence.

        Returns
        -------
        str
            Several lines.
        """
        text = f"{printable(self.verdict)}\n{table_text('Held-out rows', self.main_columns)}"
        return f"{text}\n\n{table_text('Details', self._more)}\n{printable(self.evidence)}" if details else text

    @property
    def main_columns(self) -> dict[str, list[Any]]:
        """The columns of the short table: the metrics over all rows and in the worst group."""
        names = [f"{kind}_{metric}" for metric in self.metrics for kind in ("mean", "worst")]
        return {name: self.columns[name] for name in ("model", *names, "worst_group")}

    @property
    def _more(self) -> dict[str, list[Any]]:
        shown = [name for name in self.main_columns if name != "model"]
        return {name: values for name, values in self.columns.items() if name not in shown}

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return (
            f"<p>{html.escape(self.verdict)}</p>{table_html('Held-out rows', self.main_columns)}"
            f"<details><summary>Intervals and proofs</summary>{table_html('', self._more)}"
            f"<p>{html.escape(self.evidence)}</p></details>"
        )
