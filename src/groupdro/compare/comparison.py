"""What a comparison found."""

import html
from dataclasses import dataclass
from typing import Any

from groupdro.evaluation.change_display import ChangeDisplay
from groupdro.evaluation.headroom import Headroom
from groupdro.evaluation.report import GroupReport
from groupdro.utils.arguments import printable
from groupdro.utils.text import group_name, table_html, table_text

__all__ = ["Change", "Comparison"]

Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Change:
    """What a model changes against plain training, on the same held-out rows.

    Attributes
    ----------
    fall : tuple of float
        How much smaller the worst group's risk is: estimate, and both ends of an interval that holds for all models
        together.
    rise : tuple of float
        How much larger the average risk is, likewise.
    worst, mean : float
        Worst and average risk of plain training.
    """

    fall: Interval
    rise: Interval
    worst: float
    mean: float

    @property
    def better(self) -> bool:
        """Whether the worst group is better off beyond chance."""
        return self.fall[1] > 0

    @property
    def worse(self) -> bool:
        """Whether the worst group is worse off beyond chance."""
        return self.fall[2] < 0

    @property
    def relative_fall(self) -> float:
        """Fall of the worst risk as a share of that of plain training."""
        return self.fall[0] / abs(self.worst) if self.worst else 0.0

    @property
    def relative_rise(self) -> float:
        """Rise of the average risk as a share of that of plain training."""
        return self.rise[0] / abs(self.mean) if self.mean else 0.0

    @property
    def net(self) -> float:
        """Share by which the worst risk falls less the share by which the average rises."""
        return self.relative_fall - self.relative_rise

    @property
    def worth_it(self) -> bool:
        """Whether the worst group is better off beyond chance, by a larger share than the average is worse off."""
        return self.better and self.net >= 0

    @property
    def price(self) -> float:
        """Rise of the average risk for each unit by which the worst falls; NaN where it does not fall."""
        return self.rise[0] / self.fall[0] if self.fall[0] > 0 else float("nan")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Models on the same held-out rows, and whether robustness was worth it.

    Attributes
    ----------
    columns : dict of str to list
        One row per model: `mean_risk` over all rows, `worst_risk` and `worst_group`; `gain`, the fall of the worst risk
        against ERM, with an interval from `gain_low` to `gain_high` that holds for all models together; `price`, the
        rise of the average risk; `worst_regret` against the least training risk that any linear model reaches in a
        group; `accuracy` and `worst_accuracy` (or `rmse` and `worst_rmse`); `gap`, the certified relative gap of the
        fit; and `seconds`. NaN where a model has no such thing.
    verdict : str
        What robustness bought here, and at what price.
    recommended : str
        The linear model to take: the one that cross-validation preferred to plain training, unless these rows speak
        against it; otherwise the one that is worth it by these rows; otherwise ERM.
    changes : dict of str to Change
        What each model changes against ERM, with intervals for worst and average risk.
    differences : dict of str to list
        One row per model and judged group: `difference`, the group's risk less that under ERM, with an interval from
        `low` to `high` that holds for all groups together.
    models : dict of str to estimator
        The fitted models.
    reports : dict of str to GroupReport
        Their reports on the held-out rows.
    left_out : list
        Groups with too few held-out rows to be judged as the worst.
    confidence : float
        Level of the intervals.
    headroom : Headroom or None
        What ERM's worst held-out group could gain from any linear model at most; None for other losses than the
        logarithmic and the squared one.
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
        """Whether a robust linear model is recommended, and worth it by the held-out rows alone."""
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
        """Draw what each model changes for the worst group and on average.

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
            models=list(others),
            worst=[(-fall, -high, -low) for fall, low, high in (change.fall for change in others.values())],
            mean=[change.rise for change in others.values()],
            baseline=self.columns["model"][0],
            confidence=self.confidence,
        ).plot(ax=ax)

    def __repr__(self) -> str:
        return f"{table_text('Held-out rows', self.columns)}\n{printable(self.verdict)}"

    def _repr_html_(self) -> str:
        return f"{table_html('Held-out rows', self.columns)}<p>{html.escape(self.verdict)}</p>"
