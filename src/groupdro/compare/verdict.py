"""Which model the data support, and why, in words."""

import math
from dataclasses import dataclass
from typing import Any

from groupdro.compare.comparison import Change
from groupdro.compare.contenders import CHOSEN, ERM, IN_WORDS
from groupdro.evaluation.headroom import Headroom
from groupdro.evaluation.metrics import METRICS, Metric
from groupdro.utils.text import group_name, percent

__all__ = ["Choice", "Price", "Rule", "evidence_of", "recommend", "verdict_on"]


@dataclass(frozen=True)
class Choice:
    """The robustness chosen by cross-validation on the training data, and the evidence as a sentence."""

    robustness: float
    message: str


@dataclass(frozen=True)
class Price:
    """A further metric, in words, and its values under the baseline and under the recommended model."""

    word: str
    mean: tuple[float, float]
    worst: tuple[float, float]

    def __str__(self) -> str:
        text = f"Its {self.word} {_change(*self.mean)} over all rows"
        return (
            f"{text}."
            if any(map(math.isnan, self.worst))
            else f"{text}, and {_change(*self.worst)} in the worst group."
        )


def _change(before: float, after: float) -> str:
    old, new = (f"{value + 0.0:.3g}" for value in (before, after))
    return f"is {new} as before" if old == new else f"{'rises' if after > before else 'falls'} from {old} to {new}"


def _instead(before: float, after: float) -> str:
    """Return a value after and before a change, with as many digits as show the change, unless it is rounding error."""
    if math.isclose(before, after):
        return f"{after:.3g} as before"
    digits = next((n for n in range(3, 17) if f"{before:.{n}g}" != f"{after:.{n}g}"), 3)
    # Beyond three digits, zeros at the end are printed, so that both numbers have as many.
    old, new = (f"{value:{'#' if digits > 3 else ''}.{digits}g}".removesuffix(".") for value in (before, after))
    return f"{new} instead of {old}"


@dataclass(frozen=True)
class Rule:
    """What makes a model better than the baseline.

    Attributes
    ----------
    metric : Metric
        The deciding metric.
    baseline : str
        Name of the baseline.
    mean_budget : float or None
        Largest relative cost over all rows; None for the relative gain of the worst group.
    floor : float or None
        Value of the metric that the worst group must reach.
    alone : bool
        Whether the metric is a one-sided rate that nothing else guards, and so ranks no models.
    """

    metric: Metric
    baseline: str
    mean_budget: float | None
    floor: float | None
    alone: bool = False

    def affordable(self, change: Change) -> bool:
        """Return whether a model costs no more than is allowed over all rows."""
        budget = change.relative_gain if self.mean_budget is None else self.mean_budget
        return change.relative_cost <= budget

    def merit(self, change: Change) -> float:
        """Return by what the best of the affordable models is chosen."""
        return change.net if self.mean_budget is None else change.relative_gain

    def supports(self, change: Change) -> bool:
        """Return whether the held-out data support a model: a better worst group, or a better average without harm."""
        if self.alone or change.note or change.objection:
            return False
        harmless = not change.harmed and not change.worse
        return (change.better and self.affordable(change)) or (change.better_on_average and harmless)

    def reaches(self, worst: float) -> bool:
        """Return whether a worst group reaches the floor."""
        return self.floor is None or self.metric.reaches(worst, self.floor)


def recommend(changes: dict[str, Change], worst: dict[str, float], rule: Rule, choice: Choice | None) -> str:
    """Return the model to use.

    Of the models that the held-out data support, it is the one with the largest net gain, or with a budget for the
    average the one with the largest gain of the worst group; one whose worst group reaches the floor comes first. If
    there is none, it is the model that cross-validation preferred to plain training on the training rows, unless the
    held-out data contradict it; otherwise the baseline.

    Parameters
    ----------
    changes : dict of str to Change
        Changes of each model relative to the baseline.
    worst : dict of str to float
        The deciding metric in each model's worst group.
    rule : Rule
        What makes a model better.
    choice : Choice or None
        The choice of cross-validation.

    Returns
    -------
    str
        The name of the model.
    """
    supported = [name for name, change in changes.items() if name != rule.baseline and rule.supports(change)]
    reaching = [name for name in supported if rule.reaches(worst[name])]
    if reaching or (supported and not rule.reaches(worst[rule.baseline])):
        return max(reaching or supported, key=lambda name: rule.merit(changes[name]))
    chosen = changes.get(CHOSEN)
    if chosen is None or choice is None or choice.robustness == 0 or rule.baseline != ERM or rule.alone:
        return rule.baseline
    agrees = chosen.net >= 0 and not (chosen.worse or chosen.note or chosen.objection)
    return CHOSEN if agrees and rule.reaches(worst[CHOSEN]) else rule.baseline


def verdict_on(
    changes: dict[str, Change],
    recommended: str,
    rule: Rule,
    *,
    worst: dict[str, float],
    mean: dict[str, float],
    worst_group: dict[str, Any],
    word: str,
    prices: list[Price],
    room: Headroom | None,
    by_choice: bool,
) -> str:
    """Return the verdict in plain words.

    Parameters
    ----------
    changes : dict of str to Change
        Changes of each model relative to the baseline.
    recommended : str
        The model to use.
    rule : Rule
        What makes a model better.
    worst, mean, worst_group : dict
        The deciding metric in each model's worst group and over all rows, and that group.
    word : str
        The metric in words.
    prices : list of Price
        What the recommended model changes in the other metrics.
    room : Headroom or None
        What the worst group of the recommended model could gain from a linear model.
    by_choice : bool
        Whether only cross-validation on the training rows supports the model.

    Returns
    -------
    str
        A few sentences.
    """
    name, base = (IN_WORDS.get(key, key) for key in (recommended, rule.baseline))
    if rule.alone:
        text = f"Keep {base}: {_why_nothing(rule.metric, word)}"
    elif recommended == rule.baseline:
        text = f"Keep {base}: {_why_not(changes, rule, worst)}."
    else:
        change = changes[recommended]
        text = (
            f"Use {name} instead of {base}: the {word} of its worst group ({group_name(worst_group[recommended])}) is "
            f"{_instead(worst[rule.baseline], worst[recommended])}, and "
            f"{_instead(mean[rule.baseline], mean[recommended])} over all rows."
        )
        text += "".join(f" {price}" for price in prices)
        if by_choice:
            what = "a gain" if change.gain[0] < 0 else "this gain"
            text += f" Cross-validation on the training rows shows {what}; the held-out rows alone cannot confirm it."
        elif change.gain[0] < 0:
            text += " The improvement over all rows is significant; the worst group gets worse, but not significantly."
        elif change.gain[0] == 0:
            text += " The improvement over all rows is significant; the worst group is as before."
        elif not change.better:
            text += " The improvement over all rows is significant, that of the worst group is not."
        elif change.cost[0] < 0 and not change.better_on_average:
            text += " The improvement of the worst group is significant, that over all rows is not."
    if rule.floor is not None and not rule.reaches(worst[recommended]):
        side = "below" if rule.metric.larger_is_better else "above"
        text += f" Its worst group is still {side} {rule.floor:g}."
    if room is not None and room.least > room.worst:
        text += " No linear model of these columns can reach its worst group's risk."
    return text


def _why_nothing(metric: Metric, word: str) -> str:
    """Return why a one-sided rate recommends no model, and what to do."""
    other = "precision" if METRICS["precision"].guards(metric) else "recall"
    return (
        f"the {word} alone recommends no other model, because one that {metric.won_by} has a {word} of "
        f"{1 if metric.larger_is_better else 0}. Add a floor for a second metric, such as "
        f'floor={{"{other}": 0.3}}; or add a metric that may not get worse, such as "log_loss", or put that one first.'
    )


def _why_not(changes: dict[str, Change], rule: Rule, worst: dict[str, float]) -> str:
    others = {name: change for name, change in changes.items() if name != rule.baseline}
    gaining = {name: change for name, change in others.items() if change.better and not change.note}
    if not gaining:
        on_average = {name: change for name, change in others.items() if change.better_on_average and not change.note}
        if on_average:
            best = min(on_average, key=lambda name: on_average[name].relative_cost)
            if on_average[best].objection:
                return f"{IN_WORDS.get(best, best)} is better over all rows, but {on_average[best].objection}"
            harmed = ", ".join(group_name(group) for group in on_average[best].harmed[:5]) or "its worst group"
            return f"{IN_WORDS.get(best, best)} is better over all rows, but worse for {harmed}"
        unjudged = ", ".join(IN_WORDS.get(name, name) for name, change in others.items() if change.note)
        which = "no other model that can be judged is" if unjudged else "no other model is"
        text = f"{which} significantly better, neither for its worst group nor over all rows"
        return text + (f" (not {unjudged}: see the details)" if unjudged else "")
    best = max(gaining, key=lambda name: gaining[name].net)
    who = IN_WORDS.get(best, best)
    if gaining[best].objection:
        return f"{who} improves the worst group, but {gaining[best].objection}"
    if rule.supports(gaining[best]) and not rule.reaches(worst[best]):
        return f"{who} improves the worst group, but does not reach {rule.floor:g} there"
    limit = "" if rule.mean_budget is None else f", and more than {rule.mean_budget:.3g} is not allowed"
    return (
        f"{who} improves the worst group by {_share(gaining[best].relative_gain, rule)}, but is worse over all rows by "
        f"{_share(gaining[best].relative_cost, rule)}{limit}"
    )


def _share(relative: float, rule: Rule) -> str:
    return f"{relative:.3g}" if rule.metric.larger_is_better else f"{relative:.1%}"


def evidence_of(
    changes: dict[str, Change],
    recommended: str,
    *,
    confidence: float,
    choice: Choice | None,
    room: Headroom | None,
    left_out: list[Any],
) -> str:
    """Return the intervals and bounds behind the verdict.

    Parameters
    ----------
    changes : dict of str to Change
        Changes of each model relative to the baseline, whose own are 0.
    recommended : str
        The model to use.
    confidence : float
        Level of the intervals.
    choice : Choice or None
        The choice of cross-validation.
    room : Headroom or None
        What the worst group of the recommended model could gain from a linear model.
    left_out : list
        Groups with too few rows to be compared.

    Returns
    -------
    str
        Several sentences.
    """
    text = f"Gains and costs with {percent(confidence)} confidence intervals that hold for all models together:"
    for name, change in changes.items():
        if change.gain == change.cost == (0.0, 0.0, 0.0):
            continue
        text += f" {name}: worst group {_interval(change.gain)}, all rows {_interval(change.cost, sign=-1.0)}"
        text += f" ({change.note})." if change.note else "."
        if change.objection:
            text += f" Not recommended: {change.objection}."
        if change.harmed:
            text += f" It harms {', '.join(group_name(group) for group in change.harmed[:5])}."
    if choice is not None:
        text += f" Cross-validation on the training rows: {choice.message}"
    if room is not None:
        text += f" Headroom of {recommended}: {room.message}"
    if left_out:
        groups = "1 group has" if len(left_out) == 1 else f"{len(left_out)} groups have"
        text += f" {groups} too few held-out rows, or too few errors, to be judged."
    return text


def _interval(change: tuple[float, float, float], sign: float = 1.0) -> str:
    estimate, *ends = (sign * value + 0.0 for value in change)
    return f"{estimate:+.3g} ({min(ends):+.2g} to {max(ends):+.2g})"
