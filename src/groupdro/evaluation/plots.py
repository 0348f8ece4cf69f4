"""Displays in the style of scikit-learn. They require matplotlib."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from groupdro.evaluation.drawing import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    Display,
    axes_for,
    axis_label,
    bounds_window,
    drawn_gaps,
    heaviest_groups,
)
from groupdro.evaluation.models import check_model, final_estimator
from groupdro.evaluation.report import GroupReport, group_report
from groupdro.solvers import Result, TraceRow
from groupdro.utils.arguments import check_choice, check_kind, check_whole, short_repr
from groupdro.utils.text import objective_name
from groupdro.utils.types import Floats, Mask

__all__ = ["ConvergenceDisplay", "GroupRiskDisplay", "GroupWeightsDisplay"]


def _fitted(estimator: Any) -> Any:
    """Return the fitted estimator of this package inside another."""
    inner = final_estimator(estimator)
    if not hasattr(type(inner), "_row_losses"):
        raise TypeError(f"estimator must be a groupdro estimator or contain one, got {type(inner).__name__}.")
    check_is_fitted(inner)
    return inner


@dataclass(eq=False, repr=False, kw_only=True)
class ConvergenceDisplay(Display):
    """Upper and lower bounds on the optimum during a fit.

    Parameters
    ----------
    passes, seconds, upper, lower : ndarray of shape (n_epochs,)
        The run.
    value : str
        Name of the objective, for the axis label.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        Axes and figure.
    upper_line_, lower_line_, band_ : matplotlib artists
        Both bounds and the band between them.
    gap_ax_, gap_line_ : matplotlib objects or None
        The gap on a logarithmic axis below; None if `ax` was given.
    """

    passes: Floats
    seconds: Floats
    upper: Floats
    lower: Floats
    value: str = "worst risk"

    @classmethod
    def from_estimator(cls, estimator: Any, *, x: str = "passes", ax: Any = None) -> Self:
        """Draw the fit of an estimator.

        Parameters
        ----------
        estimator : fitted estimator
            An estimator of this package, or a pipeline or search around one.
        x : {"passes", "seconds"}
            The horizontal axis.
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        ConvergenceDisplay
            The display.
        """
        inner = _fitted(estimator)
        return cls._from_trace(inner.trace_, objective_name(inner)).plot(x=x, ax=ax)

    @classmethod
    def from_result(cls, result: Result, *, x: str = "passes", ax: Any = None) -> Self:
        """Draw a run of `solve`.

        Parameters
        ----------
        result : Result
            The result of `solve`.
        x : {"passes", "seconds"}
            The horizontal axis.
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        ConvergenceDisplay
            The display.
        """
        check_kind(result, "result", Result, "a Result of solve")
        value = "worst risk" if result.group_minima is None else "worst excess risk"
        return cls._from_trace(result.trace, value).plot(x=x, ax=ax)

    @classmethod
    def _from_trace(cls, trace: Sequence[TraceRow], value: str) -> Self:
        rows = np.array([(row.passes, row.seconds, row.upper, row.lower) for row in trace]).T
        return cls(passes=rows[0], seconds=rows[1], upper=rows[2], lower=rows[3], value=value)

    def plot(self, *, x: str = "passes", ax: Any = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        x : {"passes", "seconds"}
            The horizontal axis.
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        ConvergenceDisplay
            The display.
        """
        check_choice(x, "x", ("passes", "seconds"))
        ax, *below = axes_for(ax, (6.0, 4.6), with_second=True)
        along = self.passes if x == "passes" else self.seconds
        (self.upper_line_,) = ax.plot(along, self.upper, color=ORANGE, marker="v", ms=3, label="this model")
        (self.lower_line_,) = ax.plot(along, self.lower, color=BLUE, marker="^", ms=3, label="no model is below")
        self.band_ = ax.fill_between(along, self.lower, self.upper, color=GREY, alpha=0.2, lw=0, label="certified gap")
        ax.set_ylim(*bounds_window(self.upper, self.lower))
        final = self.upper[-1]
        ax.set_ylabel(f"{self.value}, with penalty")
        gap = final - self.lower[-1]
        relative = f", {gap / abs(final):.1e} of the upper bound" if final else ""
        ax.set_title(f"certified gap {gap:.1e}{relative}", fontsize="medium", loc="left")
        ax.legend(frameon=False, loc="best")
        self.gap_ax_ = self.gap_line_ = None
        if below:
            self.gap_ax_ = below[0]
            gaps = drawn_gaps(self.upper, self.lower)
            (self.gap_line_,) = self.gap_ax_.semilogy(along, gaps, color=GREY, marker="o", ms=3)
            self.gap_ax_.set_ylabel("certified gap")
        (self.gap_ax_ or ax).set_xlabel("passes over the data" if x == "passes" else "seconds")
        return self._drawn_on(ax, *below)


@dataclass(eq=False, repr=False, kw_only=True)
class GroupRiskDisplay(Display):
    """Risk of each group under one or two models, with confidence intervals.

    Parameters
    ----------
    groups : list
        Names, by descending risk before.
    before, after : ndarray of shape (n_groups, 3)
        Risk and both ends of its confidence interval; `after` may be None for a single model.
    labels : tuple of str
        Names of the models.
    judged : ndarray of bool of shape (n_groups,), optional
        Whether each group has enough rows to be judged; by default all have. The others are drawn hollow.
    worst : tuple of float, optional
        Risk of the worst group of each model, marked by dashed lines; by default the largest of the judged groups.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        Axes and figure.
    before_points_, after_points_ : matplotlib artists
        The risks.
    """

    groups: list[Any]
    before: Floats
    after: Floats | None
    labels: Sequence[str]
    judged: Mask | None = None
    worst: Sequence[float] | None = None

    @classmethod
    def from_estimators(
        cls,
        before: Any,
        after: Any,
        X: Any,
        y: Any,
        groups: Any,
        *,
        labels: tuple[str, str] = ("plain", "robust"),
        max_groups: int = 25,
        ax: Any = None,
    ) -> Self:
        """Draw two fitted models on the same rows.

        Parameters
        ----------
        before, after : fitted estimator
            The models.
        X, y, groups : array-like
            Rows, labels and groups, preferably held-out data.
        labels : tuple of two str
            Names of the models.
        max_groups : int
            Number of groups to show, those with the largest risk before.
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        GroupRiskDisplay
            The display.
        """
        for name, model in (("before", before), ("after", after)):
            check_model(model, name)
        old, new = (group_report(model, X, y, groups) for model in (before, after))
        return cls.from_reports(old, new, labels=labels, max_groups=max_groups, ax=ax)

    @classmethod
    def from_reports(
        cls,
        before: GroupReport,
        after: GroupReport | None = None,
        *,
        labels: Sequence[str] = ("plain", "robust"),
        max_groups: int = 25,
        ax: Any = None,
    ) -> Self:
        """Draw one report, or two on the same rows.

        Parameters
        ----------
        before, after : GroupReport
            The reports.
        labels : tuple of str
            Names of the models.
        max_groups : int
            Number of groups to show, those with the largest risk before.
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        GroupRiskDisplay
            The display.
        """
        check_kind(before, "before", GroupReport, "a GroupReport")
        check_kind(after, "after", GroupReport | None, "a GroupReport")
        check_whole(max_groups, "max_groups", least=1)
        reports = [before] if after is None else [before, after]
        fine = isinstance(labels, tuple | list) and all(isinstance(one, str) for one in labels)
        if not (fine and len(labels) >= len(reports)):
            raise TypeError(f"labels must be the names of the models, got {short_repr(labels)}.")

        tables = [{g: row for g, row in report.by_group.items() if row["n"]} for report in reports]
        groups = [group for group in tables[0] if group in tables[-1]][:max_groups]
        if not groups:
            raise ValueError("before and after have no group in common.")
        keys = ("risk", "risk_low", "risk_high")
        values = [np.array([[table[group][key] for key in keys] for group in groups]) for table in tables]
        judged = dict(zip(before.columns["group"], before.judged, strict=True))
        return cls(
            groups=groups,
            before=values[0],
            after=None if after is None else values[1],
            labels=labels,
            judged=np.array([judged[group] for group in groups]),
            worst=[report.worst_row["risk"] for report in reports],
        ).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        GroupRiskDisplay
            The display.
        """
        n = len(self.groups)
        (ax,) = axes_for(ax, (6.5, 1.2 + 0.3 * n))
        place = np.arange(n)[::-1]  # the worst on top
        judged = np.ones(n, bool) if self.judged is None or not self.judged.any() else self.judged
        models = [self.before] if self.after is None else [self.before, self.after]
        worst = self.worst or [values[judged, 0].max() for values in models]
        shifts = (0.0,) if self.after is None else (0.14, -0.14)
        points = []
        for values, colour, marker, label, shift, mark in zip(
            models, (INK, ORANGE), ("o", "D"), self.labels, shifts, worst, strict=False
        ):
            ax.hlines(place + shift, values[:, 1], values[:, 2], color=colour, lw=1.5, alpha=0.6)
            points.append(ax.plot(values[:, 0], place + shift, marker, color=colour, ms=5, label=label)[0])
            ax.plot(values[~judged, 0], (place + shift)[~judged], marker, color="white", ms=3)  # hollow
            ax.axvline(mark, color=colour, lw=1, ls="--", zorder=0)
        self.before_points_, self.after_points_ = points[0], points[-1] if len(points) > 1 else None
        for k in place[1::2]:
            ax.axhspan(k - 0.5, k + 0.5, color=GREY, alpha=0.1, lw=0, zorder=-1)
        ax.set_yticks(place, [axis_label(group) for group in self.groups])
        ax.set_ylim(-0.5, n - 0.5)
        hollow = "" if judged.all() else "; hollow: too few rows to judge"
        ax.set_xlabel(f"average loss, with interval; dashed: the worst group{hollow}")
        if len(models) > 1:
            ax.legend(frameon=False, loc="lower right")
        return self._drawn_on(ax)


@dataclass(eq=False, repr=False, kw_only=True)
class GroupWeightsDisplay(Display):
    """The weights of the binding groups in the certificate.

    Parameters
    ----------
    groups : list
        Names, by descending weight.
    weights : ndarray of shape (n_groups,)
        Weights q.
    n_groups : int
        Total number of groups, including those not shown.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        Axes and figure.
    bars_ : matplotlib artist
        The bars.
    """

    groups: list[Any]
    weights: Floats
    n_groups: int

    @classmethod
    def from_estimator(cls, estimator: Any, *, max_groups: int = 20, ax: Any = None) -> Self:
        """Draw the weights of a fitted estimator.

        Parameters
        ----------
        estimator : fitted estimator
            An estimator of this package, or a pipeline or search around one.
        max_groups : int
            Number of groups to show, those with the largest weights. Groups without weight are not shown.
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        GroupWeightsDisplay
            The display.
        """
        check_whole(max_groups, "max_groups", least=1)
        inner = _fitted(estimator)
        names, q = inner.groups_.tolist(), inner.group_weights_
        order = heaviest_groups(q, max_groups)
        return cls(groups=[names[k] for k in order], weights=q[order], n_groups=len(names)).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        GroupWeightsDisplay
            The display.
        """
        n = len(self.groups)
        (ax,) = axes_for(ax, (6.0, 1.3 + 0.27 * n))
        place = np.arange(n)[::-1]
        self.bars_ = ax.barh(place, self.weights, color=BLUE, height=0.65)
        ax.bar_label(self.bars_, [f"{weight:.2g}" for weight in self.weights], padding=3)
        ax.set_yticks(place, [axis_label(group) for group in self.groups])
        ax.set_xlim(0.0, max(float(self.weights.max()) * 1.15, 1e-3))
        ax.set_xlabel("weight in the certificate")
        share = float(self.weights.sum())
        carried = "all weight" if share > 0.995 else f"{share:.0%} of the weight"
        ax.set_title(f"{n} of {self.n_groups} groups carry {carried}", fontsize="medium", loc="left")
        return self._drawn_on(ax)
