"""Result of retraining a last layer: each group before and after, on held-out rows."""

import html
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, log_softmax, softmax

from groupdro.data.given import GivenRows
from groupdro.data.grouping import ALL_ROWS, Grouping
from groupdro.estimators import GroupDROClassifier
from groupdro.evaluation.inference import falls_of_worst
from groupdro.evaluation.judgement import Judgement, Resampling
from groupdro.evaluation.metrics import METRICS
from groupdro.evaluation.outputs import Outputs, RowLoss
from groupdro.evaluation.plots import GroupMetricDisplay
from groupdro.evaluation.report import Fit, GroupReport, report_on
from groupdro.torch.few_labels import SpreadLabels
from groupdro.torch.unlabelled import Weighting
from groupdro.utils.text import group_name, percent, table_html, table_text
from groupdro.utils.types import Floats, Indices

__all__ = ["LastLayerResult", "compare_scores"]


_WIDTH = 88  # line width of text in notebooks and on pages
_LEAST = 30  # rows a group needs to be judged, as in reports
_SHOWN = 3  # small groups that a message names


def _outputs_of(scores: Floats, y: Indices) -> Outputs:
    """Return what scores predict: one per row for two classes, else one per class."""
    pair = scores.shape[1] == 1
    own = scores[:, 0]

    def losses(_: Outputs) -> Floats:  # finite for any scores, which probabilities are not
        if pair:
            return np.logaddexp(0.0, np.where(y == 1, -own, own))
        return -np.asarray(log_softmax(scores, axis=1))[np.arange(len(scores)), y]

    return Outputs(
        y,
        {
            "predict": lambda: (own > 0).astype(np.int64) if pair else scores.argmax(axis=1),
            "predict_proba": lambda: np.column_stack([expit(-own), expit(own)]) if pair else softmax(scores, axis=1),
        },
        classes=np.arange(2 if pair else scores.shape[1]),
        classifies=True,
        loss=RowLoss(losses, "log loss"),
    )


@dataclass(frozen=True, eq=False)
class Compared:
    """Reports of two models on the same rows, and the improvement of the worst group's risk."""

    before: GroupReport
    after: GroupReport
    fall: tuple[float, float, float]


def compare_scores(
    scores: list[Floats], y: Indices, groups: Grouping, *, confidence: float, seed: int, verdict: bool = True
) -> Compared:
    """Compare two models by their scores.

    Parameters
    ----------
    scores : list of two ndarray
        Scores before and after.
    y, groups : ndarray, Grouping
        Classes and groups of the rows.
    confidence : float
        Level of the confidence intervals.
    seed : int
        Seed for the resamples.
    verdict : bool
        Whether the change of the worst group's risk is wanted; it is NaN otherwise.

    Returns
    -------
    Compared
        Both reports, and the improvement of the worst judged group's risk with its confidence interval; NaN if none can
        be judged.
    """
    risk, accuracy = METRICS["risk"], METRICS["accuracy"]
    rows = GivenRows(np.empty((len(y), 0)), y, groups)
    outputs = {name: _outputs_of(own, y) for name, own in zip(("before", "after"), scores, strict=True)}
    how = Resampling(confidence=confidence, seed=seed)
    judgement = Judgement(rows, outputs, (risk, accuracy), how, compared=[risk])
    fit = Fit(f"{len(y)} rows")
    before, after = (report_on(judgement, name, (risk, accuracy), fit) for name in outputs)
    judged = np.all([judgement.why_not(name, risk) == "" for name in outputs], axis=0)
    fall = (np.nan, np.nan, np.nan)
    if verdict and judged.any():
        found, _ = judgement.compared(risk)
        falls = falls_of_worst(found, confidence, against=0, groups=judged[judgement.resampled_groups])
        fall = float(falls.estimates[1]), float(falls.low[1]), float(falls.high[1])
    return Compared(before, after, fall)


def _interval_of_accuracy(row: dict[str, Any]) -> str:
    """Return the interval of a row's accuracy, which holds for all groups at once, as the end of a list."""
    low, high = row["accuracy_low"], row["accuracy_high"]
    return f", interval {low:.1%} to {high:.1%}" if np.isfinite([low, high]).all() else ""


@dataclass(frozen=True, eq=False, repr=False)
class LastLayerResult:
    """A network with a retrained last layer, and the effect on each group.

    Attributes
    ----------
    model : torch.nn.Module
        The network with the new layer: the given one, or a copy with ``inplace=False``. It has the old layer if
        `is_worse`; ``write_last_layer(model, classifier, layer=layer)`` writes the new one.
    layer : str
        Name of the layer.
    classifier : GroupDROClassifier
        The linear model in the layer, with its certificate: `gap_`, `lower_bound_`, `worst_group_`.
    before, after : GroupReport
        Performance on each group of the judged rows, under the old layer and under layers fitted without them.
    fall : tuple of float
        Improvement of the worst group's risk on the judged rows, and both ends of its confidence interval. Only groups
        of at least 30 rows count; NaN if there are none, and without group labels.
    alpha, robustness : float
        Penalty and robustness, given or chosen.
    n_rows, n_judged : int
        Number of rows, and of those on which the layer was judged.
    n_folds : int
        Number of folds, each judged by a fit without it; 1 if a single fold was held out.
    refitted : bool
        Whether the layer in the network was fitted on all rows; otherwise it is the one that was judged.
    weighting : Weighting or None
        Without group labels: the chosen weights, and all that were tried, each with its accuracy out of fold. The
        certificate is then of the weighted problem, with the penalty on the change of the layer.
    spread : SpreadLabels or None
        With group labels of some rows only: how many groups were predicted, and how often that is right. The reports
        and the certificate are then of the predicted groups.
    """

    model: Any
    layer: str
    classifier: GroupDROClassifier
    before: GroupReport
    after: GroupReport
    fall: tuple[float, float, float]
    alpha: float
    robustness: float
    n_rows: int
    n_judged: int
    n_folds: int
    refitted: bool
    weighting: Weighting | None = None
    spread: SpreadLabels | None = None

    @property
    def message(self) -> str:
        """The outcome in plain words."""
        if self.weighting is not None:
            return self.weighting.message(self.before, self.after, self.classifier, self.n_folds)
        old = self.before.worst_row
        new = self.after.worst_row
        small = [
            group for group, judged in zip(self.before.columns["group"], self.before.judged, strict=True) if not judged
        ]
        of = "the worst judged group" if small and any(self.before.judged) else "the worst group"
        text = (
            f"On {self.n_judged} held-out rows{self._by_folds} the accuracy of {of} goes from "
            f"{old['accuracy']:.1%} ({group_name(old['group'])}) to {new['accuracy']:.1%} "
            f"({group_name(new['group'])}{_interval_of_accuracy(new)}), that of all rows from "
            f"{self.before.overall['accuracy']:.1%} to {self.after.overall['accuracy']:.1%}."
        )
        if self.spread is not None:
            text = f"{self.spread.message} {text}"
        estimate, low, high = self.fall
        level = percent(self.before.confidence)
        if np.isnan(estimate):
            text += " No group has enough held-out rows to say whether that is significant."
        elif low > 0:
            text += f" The worst group's risk falls by {estimate:.3g} ({level} interval {low:.3g} to {high:.3g})."
        elif high < 0 and not self.is_worse:
            first, last = ({group: row["risk"] for group, row in r.by_group.items()} for r in (self.before, self.after))
            helped = max(first, key=lambda group: first[group])
            text += (
                f" The worst judged group's risk rises by {-estimate:.3g} ({level} interval {-high:.3g} to "
                f"{-low:.3g}), but that of {group_name(helped)}, which was larger, falls from {first[helped]:.3g} to "
                f"{last[helped]:.3g}."
            )
        elif self.is_worse:
            text += (
                f" The worst group's risk rises by {-estimate:.3g} ({level} interval {-high:.3g} to {-low:.3g}), so "
                "the network keeps its old layer."
            )
        else:
            text += (
                f" This is not a significant improvement: the worst group's risk changes by {-estimate:+.3g} "
                f"({level} interval {-high:+.3g} to {-low:+.3g})."
            )
        if small and not np.isnan(estimate):
            before, after = (report.by_group for report in (self.before, self.after))
            shown = "; ".join(
                f"{group_name(group)} from {before[group]['accuracy']:.1%} to {after[group]['accuracy']:.1%}"
                for group in small[:_SHOWN]
            )
            text += f" Not judged, for fewer than {_LEAST} rows or too few errors ({len(small)} here): {shown}."
        if self.is_worse:
            return text
        if self.refitted:
            text += f" The layer in the network was fitted on all {self.n_rows} rows."
        else:
            text += f" The layer in the network is the one judged, fitted on {self.n_rows - self.n_judged} rows."
        fitted = self.classifier
        if fitted.status_ != "converged":
            return f"{text} Its fit did not converge: {fitted.message_}"
        return f"{text} Its objective is proven to be within {fitted.gap_:.2g} of the optimum on those rows."

    @property
    def is_worse(self) -> bool:
        """Whether the worst judged group's risk is significantly larger than before, and the largest of all groups too.

        A shortcut misleads groups that may be too small to be judged; repairing them costs the others. Without group
        labels: whether it is less accurate, and corrects a smaller share of errors than it loses of other rows.
        """
        if self.weighting is not None:
            return self.weighting.is_worse
        largest, before = (max(report.columns["risk"]) for report in (self.after, self.before))
        return self.fall[2] < 0 and largest > before

    @property
    def _by_folds(self) -> str:
        return "" if self.n_folds == 1 else f", each judged by a fit without its fold ({self.n_folds} folds),"

    @property
    def by_group(self) -> dict[str, list[Any]]:
        """Accuracy and risk of each group before and after, by descending risk before, as columns of a table."""
        after = self.after.by_group
        rows = self.before.by_group.items()
        columns: dict[str, list[Any]] = {"group": [group for group, _ in rows], "n": [row["n"] for _, row in rows]}
        for name in ("accuracy", "risk"):
            columns[f"{name} before"] = [row[name] for _, row in rows]
            columns[f"{name} after"] = [after[group][name] for group, _ in rows]
        return columns

    def plot(self, *, ax: Any = None) -> GroupMetricDisplay:
        """Draw the risk of each group before and after, with confidence intervals.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        GroupMetricDisplay
            The display.
        """
        return GroupMetricDisplay.from_reports({"before": self.before, "retrained": self.after}, ax=ax)

    @property
    def _footer(self) -> dict[str, Any]:
        both = {"before": self.before.overall, "after": self.after.overall}
        found = {f"{name} {when}": row[name] for when, row in both.items() for name in ("accuracy", "risk")}
        return {"group": ALL_ROWS, "n": self.n_judged, **found}

    def __repr__(self) -> str:
        title = f"Layer {self.layer!r} on {self.n_judged} held-out rows"
        return f"{table_text(title, self.by_group, self._footer)}\n{textwrap.fill(self.message, _WIDTH)}"

    def _repr_html_(self) -> str:
        title = f"Layer {self.layer!r} on {self.n_judged} held-out rows"
        return f"{table_html(title, self.by_group, self._footer)}<p>{html.escape(self.message)}</p>"
