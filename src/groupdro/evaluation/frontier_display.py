"""A plot of the frontier between average and worst."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier

from groupdro.data.given import GivenRows, read_given
from groupdro.evaluation.drawing import BLUE, GREY, Display, axes_for, axis_label, colours_and_markers
from groupdro.evaluation.models import check_model
from groupdro.evaluation.outputs import Outputs
from groupdro.evaluation.report import group_report
from groupdro.evaluation.resampling import resample
from groupdro.utils.types import Floats

__all__ = ["FrontierDisplay"]


_POINTS = 150  # points of the limiting curve
_VISIBLE = 5e-3  # share of the axis below which a band is thinner than its line
_RESAMPLES = 1000
_CONFIDENCE = 0.95

Pair = tuple[float, float]


@dataclass(eq=False, repr=False, kw_only=True)
class FrontierDisplay(Display):
    """What linear models attain, what none can attain, and where given models lie.

    Parameters
    ----------
    mean, worst : ndarray of shape (n_points,)
        Average and worst value of models on the frontier.
    limit_mean, limit_worst : ndarray
        No model lies below this curve; empty if nothing is proved, as on held-out data.
    models : mapping of str to pair of float
        Average and worst value of other models, by name.
    intervals : mapping of str to pair of pair of float
        Confidence intervals of the average and of the worst value of these models, drawn as a cross.
    labels : pair of str
        Labels of both axes.

    Attributes
    ----------
    ax_, figure_, legend_ : matplotlib objects
        Axes, figure and legend.
    line_, limit_, band_ : matplotlib artists
        The attained curve, the limit, and the enclosure between them; the last two are None on held-out data.
    """

    mean: Floats
    worst: Floats
    limit_mean: Floats = field(default_factory=lambda: np.empty(0))
    limit_worst: Floats = field(default_factory=lambda: np.empty(0))
    models: Mapping[str, Pair] = field(default_factory=dict)
    intervals: Mapping[str, tuple[Pair, Pair]] = field(default_factory=dict)
    labels: tuple[str, str] = ("average risk", "worst group's risk")

    @classmethod
    def from_frontier(
        cls,
        frontier: Any,
        *,
        chosen: Mapping[str, Any] | None = None,
        models: Mapping[str, Any] | None = None,
        training: tuple[Any, Any, Any] | None = None,
        held_out: tuple[Any, Any, Any] | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw a frontier on the training data, or its models on held-out data.

        Parameters
        ----------
        frontier : RobustnessFrontier
            The result of `robustness_frontier`.
        chosen : mapping of str to FrontierModel, optional
            Models of the frontier to mark, such as ``{"1% of the mean": frontier.least_worst(0.01)}``.
        models : mapping of str to fitted model, optional
            Other models to mark, such as boosted trees.
        training : tuple of X, y and groups, optional
            The training data, if `models` are to be marked on them. Models of this package include the frontier's
            penalty there. The values of others do not, so they may lie below what linear models can reach.
        held_out : tuple of X, y and groups, optional
            Held-out data on which to show all models instead, each marked one with 95% confidence intervals of its
            average and of its worst group. No limit is known there. The worst group is the worst of those with enough
            rows to judge, as in `group_report`. Models on the same rows err together: use `compare` to tell them
            apart.
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        FrontierDisplay
            The display.
        """
        chosen, models, average = dict(chosen or {}), dict(models or {}), frontier.average
        of = "equal weight per group" if average == "groups" else "equal weight per row"
        if held_out is not None:
            points = np.array([_held_out(point.model, held_out, average, 0)[0] for point in frontier.models])
            ends = {"plain training": frontier.models[0].model, "worst group alone": frontier.models[-1].model}
            marked = ends | {name: one.model for name, one in chosen.items()} | models
            found = {name: _held_out(model, held_out, average, _RESAMPLES) for name, model in marked.items()}
            labels = (
                f"average risk on held-out rows\n({of}; crosses: 95% intervals)",
                "worst group's risk on held-out rows",
            )
            return cls(
                mean=points[:, 0],
                worst=points[:, 1],
                models={name: point for name, (point, _) in found.items()},
                intervals={name: ends for name, (_, ends) in found.items()},
                labels=labels,
            ).plot(ax=ax)
        if models and training is None:
            raise ValueError("models requires training or held_out, the data on which to show them.")
        if models and not frontier.of_plain_risks:
            raise ValueError("models can be shown on held_out data only: values of the frontier are not plain risks.")
        edge = frontier.edge
        limit = np.linspace(float(frontier.lower[0]), float(frontier.mean[edge].max()), _POINTS)
        marks = {name: (one.mean, one.worst) for name, one in chosen.items()}
        if training is not None:
            for name, one in models.items():
                mean, worst = _profile(one, *training, average)
                penalty = frontier.penalty_of(one)
                label = name if penalty is not None else f"{name} (no penalty)"
                marks[label] = (mean + (penalty or 0.0), worst + (penalty or 0.0))
        value = "excess risk" if frontier.regret else "risk"
        points = np.column_stack([frontier.mean[edge], frontier.worst[edge]])
        return cls(
            mean=points[:, 0],
            worst=points[:, 1],
            limit_mean=limit,
            limit_worst=np.array([frontier.worst_limit(mean) for mean in limit]),
            models=_plain(points) | marks,
            labels=(f"average {value} with penalty\n({of})", f"worst group's {value} with penalty"),
        ).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        FrontierDisplay
            The display, with its artists.
        """
        own_figure = ax is None
        (ax,) = axes_for(ax, (7.8, 4.4))
        self.limit_ = self.band_ = None
        if self.limit_mean.size:
            top = np.interp(self.limit_mean, self.mean, self.worst, left=float(self.worst.max()))
            # Leave invisible parts out of the legend.
            visible = float(np.median(top - self.limit_worst)) > _VISIBLE * float(np.ptp(self.worst))
            self.band_ = ax.fill_between(
                self.limit_mean,
                self.limit_worst,
                top,
                color=BLUE,
                alpha=0.2,
                linewidth=0,
                label="undecided" if visible else "_undecided",
            )
            (self.limit_,) = ax.plot(self.limit_mean, self.limit_worst, color=GREY, lw=1, label="no model is below")
        style = "-" if self.limit_mean.size else ":"
        (self.line_,) = ax.plot(
            self.mean, self.worst, f"{style}", marker=".", color=BLUE, lw=1.6, label="linear models"
        )
        looks = colours_and_markers(len(self.models))
        for k, ((name, (mean, worst)), (colour, marker)) in enumerate(zip(self.models.items(), looks, strict=True)):
            if name in self.intervals:
                means, worsts = self.intervals[name]
                ax.plot(means, [worst, worst], color=colour, lw=1, alpha=0.6)
                ax.plot([mean, mean], worsts, color=colour, lw=1, alpha=0.6)
            # Smaller markers come later, so that both are visible in the same place.
            size = max(9.0 - 0.4 * k, 7.0)
            ax.plot([mean], [worst], marker, color=colour, ls="", ms=size, mew=0, label=axis_label(name))
        if self.limit_mean.size:
            self._shade(ax)
        ax.set_xlabel(self.labels[0])
        ax.set_ylabel(self.labels[1])
        self._add_legend(ax, "right upper", own_figure=own_figure)
        return self._drawn_on(ax)

    def _shade(self, ax: Any) -> None:
        """Shade the impossible region up to the limits of the axes."""
        (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
        mean = np.concatenate([[left], self.limit_mean[:1], self.limit_mean, [right]])
        worst = np.concatenate([[top, top], self.limit_worst, self.limit_worst[-1:]])
        ax.fill_between(mean, np.minimum(worst, top), bottom, color=GREY, alpha=0.15, linewidth=0, zorder=0)
        ax.set_xlim(left, right)
        ax.set_ylim(bottom, top)


def _plain(points: Floats) -> dict[str, Pair]:
    """Return both ends of a frontier, by name."""
    return {"plain training": tuple(points[0].tolist()), "worst group alone": tuple(points[-1].tolist())}


def _profile(model: Any, X: Any, y: Any, groups: Any, average: str) -> Pair:
    """Return average and worst risk of any model on given rows."""
    given, losses = _losses(model, X, y, groups)
    risks = given.groups.means(losses)
    return float(losses.mean() if average == "rows" else risks.mean()), float(risks.max())


def _losses(model: Any, X: Any, y: Any, groups: Any) -> tuple[GivenRows, Floats]:
    """Return rows as given, and the losses of any model on them."""
    check_model(model, "models")
    given = read_given(X, y, groups, numeric=not is_classifier(model), missing="own")
    outputs = Outputs.of_model(model, given.X, given.y)
    outputs.check_labels()
    return given, outputs.risk


def _held_out(model: Any, rows: tuple[Any, Any, Any], average: str, n_bootstrap: int) -> tuple[Pair, tuple[Pair, Pair]]:
    """Return average and worst risk of any model on held-out rows, and a confidence interval of each."""
    X, y, groups = rows
    options: dict[str, Any] = {"n_bootstrap": n_bootstrap, "confidence": _CONFIDENCE}
    report = group_report(model, X, y, groups, metrics="risk", **options)
    worst = report.worst_row["risk"], report.worst_value[1:]
    if average == "rows":
        overall = group_report(model, X, y, np.zeros(len(y)), metrics="risk", **options)
        return (overall.overall["risk"], worst[0]), (overall.worst_value[1:], worst[1])
    given, losses = _losses(model, X, y, groups)
    found = resample(losses[:, None], given.groups, n_bootstrap=n_bootstrap, seed=0, studentised=False)
    mean, means = found.means.mean(), found.resampled_means.mean(axis=(1, 2))
    ends = np.quantile(means, [0.5 - _CONFIDENCE / 2, 0.5 + _CONFIDENCE / 2]).tolist() if n_bootstrap else [np.nan] * 2
    return (float(mean), worst[0]), ((ends[0], ends[1]), worst[1])
