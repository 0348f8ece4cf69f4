"""The result of a comparison."""

import html
from dataclasses import dataclass
from typing import Any

from groupdro.compare.contenders import IN_WORDS
from groupdro.evaluation.change_display import ChangeDisplay
from groupdro.evaluation.headroom import Headroom
from groupdro.evaluation.report import GroupReport
from groupdro.utils.arguments import printable
from groupdro.utils.text import group_name, table_html, table_text

__all__ = ["Change", "Comparison"]

Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Change:
    """Changes of a model relative to plain training, on the same held-out data.

    Attributes
    ----------
    fall : tuple of float
        Improvement of the worst group's risk: estimate, lower and upper end of a confidence interval. Intervals are
        simultaneous over all models.
    rise : tuple of float
        Increase of the average risk, likewise.
    worst, mean : float
        Worst and average risk of plain training.
    """

    fall: Interval
    rise: Interval
    worst: float
    mean: float

    @property
    def better(self) -> bool:
        """Whether the worst group is significantly better off."""
        return self.fall[1] > 0

    @property
    def worse(self) -> bool:
        """Whether the worst group is significantly worse off."""
        return self.fall[2] < 0

    @property
    def relative_fall(self) -> float:
        """Relative improvement of the worst risk over plain training."""
        return self.fall[0] / abs(self.worst) if self.worst else 0.0

    @property
    def relative_rise(self) -> float:
        """Relative increase of the average risk over plain training."""
        return self.rise[0] / abs(self.mean) if self.mean else 0.0

    @property
    def net(self) -> float:
        """Relative improvement of the worst risk minus relative increase of the average."""
        return self.relative_fall - self.relative_rise

    @property
    def worth_it(self) -> bool:
        """Whether the worst group improves significantly, and by a larger percentage than the average gets worse."""
        return self.better and self.net >= 0

    @property
    def price(self) -> float:
        """Increase of the average risk per unit of improvement of the worst; NaN if the worst does not improve."""
        return self.rise[0] / self.fall[0] if self.fall[0] > 0 else float("nan")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Models evaluated on the same held-out data, and whether robustness was worth it.

    Attributes
    ----------
    columns : dict of str to list
        One row per model: `mean_risk` over all rows, `worst_risk` and `worst_group`; `gain`, the improvement of the
        worst risk over ERM, with a confidence interval from `gain_low` to `gain_high`, simultaneous over all models;
        `price`, the increase of the average risk; `worst_regret`, the worst excess risk over the smallest training risk
        that any linear model reaches in a group; `accuracy` and `worst_accuracy` (or `rmse` and `worst_rmse`); `gap`,
        the certified relative gap of the fit; and `seconds`. NaN if a model lacks the value.
    verdict : str
        What robustness gains on these data, and at what price.
    recommended : str
        The linear model to use: the one that cross-validation preferred to plain training, unless the held-out data
        contradict it; otherwise the one that is worth its price on the held-out data; otherwise ERM.
    changes : dict of str to Change
        Changes of each model relative to ERM, with confidence intervals for worst and average risk.
    differences : dict of str to list
        One row per model and group: `difference`, the group's risk minus that under ERM, with a confidence interval
        from `low` to `high`, simultaneous over all groups of a model.
    models : dict of str to estimator
        The fitted models.
    reports : dict of str to GroupReport
        Their reports on the held-out data.
    left_out : list
        Groups with too few held-out rows, or too few errors under ERM, to count as the worst.
    confidence : float
        Level of the confidence intervals.
    headroom : Headroom or None
        Upper bound on what ERM's worst held-out group could gain from any linear model. None for losses other than the
        estimator's own logistic or squared one, and if no group has enough rows.
    """

    columns: dict[str, list[Any]]
    verdict: str
    recommended: str
    changes: dict[str, Change]
    differences: dict[str, list[Any]]
    models: dict[str, Any]
    reports: dict[str, GroupReport]
    left_out: list[Any]
    confidence: float
    headroom: Headroom | None = None

    @property
    def worth_it(self) -> bool:
        """Whether a robust linear model is recommended and worth its price on the held-out data alone."""
        return self.changes[self.recommended].worth_it

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            One row per model.
        """
        import pandas as pd

        return pd.DataFrame(self.columns)

    def to_polars(self) -> Any:
        """Return the table as a polars DataFrame.

        Returns
        -------
        polars.DataFrame
            One row per model.
        """
        import polars as pl

        return pl.DataFrame({**self.columns, "worst_group": [group_name(g) for g in self.columns["worst_group"]]})

    def plot(self, *, ax: Any = None) -> ChangeDisplay:
        """Plot the changes of each model for the worst group and on average.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        ChangeDisplay
            The display.
        """
        others = {name: change for name, change in self.changes.items() if name != self.columns["model"][0]}
        return ChangeDisplay(
            models=[IN_WORDS.get(name, name) for name in others],
            worst=[(-fall, -high, -low) for fall, low, high in (change.fall for change in others.values())],
            mean=[change.rise for change in others.values()],
            baseline=IN_WORDS[self.columns["model"][0]],
            confidence=self.confidence,
        ).plot(ax=ax)

    def __repr__(self) -> str:
        return f"{table_text('Held-out rows', self.columns)}\n{printable(self.verdict)}"

    def _repr_html_(self) -> str:
        return f"{table_html('Held-out rows', self.columns)}<p>{html.escape(self.verdict)}</p>"
