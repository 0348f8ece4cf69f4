"""The verdict of a comparison in words: gain and price, with their numbers."""

from dataclasses import dataclass
from typing import Any

from groupdro.compare.comparison import Change
from groupdro.compare.contenders import CHOSEN, ERM, GDRO
from groupdro.utils.text import percent

__all__ = ["Choice", "recommend", "verdict_on"]


@dataclass(frozen=True)
class Choice:
    """The robustness chosen by cross-validation on the training data, and the evidence as a sentence."""

    robustness: float
    message: str


def recommend(changes: dict[str, Change], choice: Choice | None) -> str:
    """Return the recommended robust model, or plain training if none is worth its price.

    If cross-validation significantly prefers a model, that one comes first, unless the held-out data contradict it.
    Otherwise it is the model that is worth its price on the held-out data, with the largest net gain.

    Parameters
    ----------
    changes : dict of str to Change
        Changes of each linear model relative to plain training.
    choice : Choice or None
        The choice of cross-validation.

    Returns
    -------
    str
        The name of the model.
    """
    if choice is not None and choice.robustness > 0 and changes[CHOSEN].net >= 0 and not changes[CHOSEN].worse:
        return CHOSEN
    worth = [name for name, change in changes.items() if name != ERM and change.worth_it]
    return max(worth, key=lambda name: changes[name].net) if worth else ERM


def verdict_on(
    changes: dict[str, Change],
    recommended: str,
    *,
    confidence: float,
    choice: Choice | None,
    better: dict[str, tuple[float, float]],
    left_out: list[Any],
    judged: bool,
) -> str:
    """Return the verdict.

    Parameters
    ----------
    changes : dict of str to Change
        Changes of each linear model relative to plain training.
    recommended : str
        The recommended model.
    confidence : float
        Level of the intervals.
    choice : Choice or None
        The choice of cross-validation.
    better : dict of str to tuple of float
        Worst and average risk of models of other kinds whose worst group does significantly better than under the
        recommended model.
    left_out : list
        Groups with too few rows to be compared.
    judged : bool
        Whether any group has enough rows.

    Returns
    -------
    str
        The verdict, as several sentences.
    """
    if not judged:
        return "No group has enough held-out rows to be judged, so nothing can be said about the worst. Prefer ERM."
    gaining = {name: change for name, change in changes.items() if change.better}
    if changes[recommended].worth_it:
        shown, text = recommended, "Robustness helps"
    elif recommended != ERM:
        shown, text = recommended, "Cross-validation shows a gain that these held-out rows alone cannot confirm"
    elif gaining:
        shown = max(gaining, key=lambda name: gaining[name].net)
        text = "Robustness costs more than it gains here; this is the best trade"
    elif changes[GDRO].worse:
        shown, text = GDRO, "Robustness hurts here"
    else:
        shown, text = GDRO, "Robustness brings no significant improvement on the held-out rows"
    text += f": under {shown} {_trade(changes[shown], confidence)}"
    if shown != GDRO:
        text += f" GDRO changes the worst risk by {-changes[GDRO].relative_fall:+.1%}, the average by "
        text += f"{changes[GDRO].relative_rise:+.1%}."
    if recommended == ERM:
        text += " Prefer ERM."
    for name, (worst, mean) in better.items():
        text += (
            f" {name} is significantly better on its worst group than {recommended}: {worst:.4g}, with an average of "
            f"{mean:.4g}."
        )
    if choice is not None:
        text += f" Cross-validation on the training rows: {choice.message}"
    if left_out:
        groups = "1 group has" if len(left_out) == 1 else f"{len(left_out)} groups have"
        text += f" {groups} too few held-out rows, or too few errors, to be judged."
    return text


def _trade(change: Change, confidence: float) -> str:
    """Describe how the worst and the average risk change, and the price of the gain."""
    (fall, low, high), (rise, rise_low, rise_high) = change.fall, change.rise
    level = f"{percent(confidence)} confidence interval"
    text = (
        f"the worst held-out group's risk {_moves(change.worst, -fall)} "
        f"({level} of the change {0.0 - high:+.2g} to {0.0 - low:+.2g}), and the average "
        f"{_moves(change.mean, rise)} ({rise_low:+.2g} to {rise_high:+.2g})"
    )
    if fall > 0 and rise > 0:
        text += f": each unit of gain costs {change.price:.2g} units of the average"
    return f"{text}."


def _moves(before: float, by: float) -> str:
    share = f", by {abs(by / before):.1%}" if before else ""
    return f"{'rises' if by > 0 else 'falls'} from {before:.4g} to {before + by:.4g}{share}"
