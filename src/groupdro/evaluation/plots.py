"""Displays in the style of scikit-learn. They require matplotlib."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from groupdro.evaluation.drawing import (
    BLUE,
    GREY,
    ORANGE,
    Display,
    axes_for,
    axis_label,
    bounds_window,
    colours_and_markers,
    drawn_gaps,
    heaviest_groups,
    in_figures,
    set_title,
)
from groupdro.evaluation.metrics import Meaning
from groupdro.evaluation.models import check_model, final_estimator
from groupdro.evaluation.report import GroupReport, group_report
from groupdro.solvers import Result, TraceRow
from groupdro.utils.arguments import check_choice, check_kind, check_whole, short_repr
from groupdro.utils.text import objective_name, percent
from groupdro.utils.types import Floats, Mask

__all__ = ["ConvergenceDisplay", "GroupMetricDisplay", "GroupWeightsDisplay"]

_PER_INCH = 9  # characters of a line below the axes, in a figure one inch wide
_LINE = 32  # characters of a vertical label that fit beside the upper axes


def _lines(parts: list[str], width: float) -> list[str]:
    """Return remarks in as few lines as a figure of a width has room for, none of them divided."""
    lines: list[str] = []
    for part in parts:
        joined = f"{lines[-1]}; {part}" if lines else part
        if lines and len(joined) <= _PER_INCH * width:
            lines[-1] = joined
        else:
            lines.append(part)
    return lines


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
        ax.set_ylabel(textwrap.fill(f"{self.value}, with penalty", _LINE))
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
class GroupMetricDisplay(Display):
    """A metric of each group under one or several models, with confidence intervals.

    Parameters
    ----------
    groups : list
        Names: first the groups that can be judged under the first model, worst first, then the others.
    values : dict of str to ndarray of shape (n_groups, 3)
        For each model, the metric in each group and both ends of its confidence interval.
    judged : dict of str to ndarray of bool of shape (n_groups,), optional
        For each model, whether each group has enough rows to be judged; by default all have. Markers of the others are
        hollow.
    worst : dict of str to float, optional
        For each model, the metric in its worst group, marked by a dashed line; by default no lines.
    metric : str
        The metric, for the axis label.
    n_groups : int, optional
        Total number of groups, including those not shown.
    meaning : Meaning, optional
        Whether larger or smaller values are better, for the title, and the value that the metric should have, for a
        dotted line.
    confidence : float, optional
        Level of the confidence intervals, which hold for all groups at once; None if there are none.
    groups_are : str
        What the groups are, for the vertical axis, such as the name of a column.

    Attributes
    ----------
    ax_, figure_, legend_ : matplotlib objects
        Axes, figure and legend; the legend is None for a single model.
    points_ : dict of str to matplotlib artist
        The values of each model.
    """

    groups: list[Any]
    values: Mapping[str, Floats]
    judged: Mapping[str, Mask] | None = None
    worst: Mapping[str, float] = field(default_factory=dict)
    metric: str = "risk"
    n_groups: int | None = None
    meaning: Meaning | None = None
    confidence: float | None = None
    groups_are: str = ""

    @classmethod
    def from_estimators(
        cls,
        models: Any,
        X: Any,
        y: Any = None,
        groups: Any = None,
        *,
        metric: Any = "risk",
        max_groups: int = 25,
        ax: Any = None,
    ) -> Self:
        """Draw fitted models on the same rows.

        Parameters
        ----------
        models : fitted estimator, or dict of str to fitted estimator
            The models, by name.
        X, y, groups : array-like
            Rows, labels and groups, preferably held-out data, as in `group_report`.
        metric : str or callable
            The metric, as in `group_report`.
        max_groups : int
            Number of groups to show.
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        GroupMetricDisplay
            The display.
        """
        named = models if isinstance(models, Mapping) else {type(models).__name__: models}
        for name, model in named.items():
            check_model(model, f"models[{name!r}]" if named is models else "models")
        reports = {name: group_report(model, X, y, groups, metrics=metric) for name, model in named.items()}
        return cls.from_reports(reports, max_groups=max_groups, ax=ax)

    @classmethod
    def from_reports(
        cls,
        reports: GroupReport | Mapping[str, GroupReport],
        *,
        metric: str | None = None,
        max_groups: int = 25,
        ax: Any = None,
    ) -> Self:
        """Draw reports on the same rows.

        Parameters
        ----------
        reports : GroupReport, or dict of str to GroupReport
            The reports, by name of the model, such as `Comparison.reports`.
        metric : str, optional
            A metric of the reports; by default the first one, which orders the groups. Its worst value under each model
            is marked by a dashed line.
        max_groups : int
            Number of groups to show. Groups that cannot be judged come last.
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        GroupMetricDisplay
            The display.
        """
        named = reports if isinstance(reports, Mapping) else {"": reports}
        if not (named and all(isinstance(report, GroupReport) for report in named.values())):
            raise TypeError(f"reports must be a GroupReport, or a dict of these by name, got {short_repr(reports)}.")
        if not all(isinstance(name, str) for name in named):
            raise TypeError(f"reports must have the names of the models as keys, got {short_repr(list(named))}.")
        check_whole(max_groups, "max_groups", least=1)
        first = next(iter(named.values()))
        name = first.metrics[0] if metric is None else metric
        for report in named.values():
            if not (name == "risk" or name in report.metrics):
                raise ValueError(f"metric must be one of {list(report.metrics)}, got {short_repr(name)}.")
        tables = {label: report.by_group for label, report in named.items()}
        # Judged groups come first, and the worst come first among these.
        order = sorted(range(len(first.judged)), key=lambda k: not first.judged[k])
        names = [first.columns["group"][k] for k in order]
        shared = [g for g in names if all(g in table and table[g]["n"] for table in tables.values())]
        groups = shared[:max_groups]
        if not groups:
            raise ValueError("reports have no group in common.")
        keys = name, f"{name}_low", f"{name}_high"
        values = {label: np.array([[table[g][key] for key in keys] for g in groups]) for label, table in tables.items()}
        decides = {label: report for label, report in named.items() if report.metrics[0] == name}
        judged = {}
        for label, report in named.items():
            own = dict(zip(report.columns["group"], report.judged, strict=True))
            known = np.array([own[g] for g in groups])
            # Groups that cannot be judged by another metric than the first have no interval of it.
            judged[label] = known if label in decides or not report.resampled else np.isfinite(values[label][:, 1])
        worst = {label: report.worst_row[name] for label, report in decides.items() if any(report.judged)}
        return cls(
            groups=groups,
            values=values,
            judged=judged,
            worst=worst,
            metric=name,
            n_groups=len(shared),
            meaning=first.meanings.get(name),
            confidence=first.confidence if first.resampled else None,
            groups_are=" & ".join(first.group_columns),
        ).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        GroupMetricDisplay
            The display.
        """
        n = len(self.groups)
        m = len(self.values)
        own_figure = ax is None
        (ax,) = axes_for(ax, (6.5, 1.8 + n * (0.22 + 0.06 * m)))
        place = np.arange(n)[::-1]  # the worst on top
        distance = min(0.28, 0.8 / m)
        self.points_, hollow = {}, False
        for k, (label, (colour, marker)) in enumerate(zip(self.values, colours_and_markers(m), strict=True)):
            numbers = self.values[label]
            judged = np.ones(n, bool) if self.judged is None else self.judged[label]
            at = place + distance * (0.5 * (m - 1) - k)
            hollow |= not judged.all()
            ax.hlines(at, numbers[:, 1], numbers[:, 2], color=colour, lw=1.5, alpha=0.6)
            faces = [colour if fine else "none" for fine in judged]
            self.points_[label] = ax.scatter(
                numbers[:, 0], at, s=25, marker=marker, edgecolors=colour, facecolors=faces, zorder=2
            )
            ax.plot([], [], marker, color=colour, ms=5, label=axis_label(label))  # for the legend
            if label in self.worst:
                ax.axvline(self.worst[label], color=colour, lw=1, ls="--", zorder=0)
        for k in place[1::2]:
            ax.axhspan(k - 0.5, k + 0.5, color=GREY, alpha=0.1, lw=0, zorder=-1)
        better, target = ("", None) if self.meaning is None else (self.meaning.better, self.meaning.target)
        if target is not None:
            ax.axvline(target, color=GREY, lw=1.2, ls=":", zorder=0)
        ax.set_yticks(place, [axis_label(group) for group in self.groups])
        ax.set_ylim(-0.5, n - 0.5)
        told = {
            f"dotted: {target or 0.0:g}, the value it should have": target is not None,
            "dashed: worst group": bool(self.worst),
            "hollow: too few rows or errors": hollow,
            f"{n} of {self.n_groups} groups": (self.n_groups or n) > n,
        }
        name = in_figures(self.metric)
        more = [text for text, there in told.items() if there]
        ax.set_xlabel("\n".join([name, *_lines(more, ax.figure.get_figwidth())]))
        ax.set_ylabel(axis_label(self.groups_are))
        of_each = " of each model" if m > 1 else ""
        lines = self.confidence is not None and f"lines: {percent(self.confidence)}, for all groups{of_each} at once"
        how = [f"{better} is better" if better else "", lines or ""]
        set_title(ax, f"{name} per group", "; ".join(filter(None, how)), own_figure=own_figure)
        if m > 1:
            self._add_legend(ax, "lower left", own_figure=own_figure)
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
        names = inner.groups_.tolist()
        q = inner.group_weights_
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
