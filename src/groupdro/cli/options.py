"""Options that several commands share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from groupdro.cli.failures import UserError
from groupdro.estimators import GroupDROClassifier, GroupDRORegressor
from groupdro.problem import Huber

__all__ = [
    "OPEN_UNIT",
    "PATH",
    "POSITIVE",
    "Options",
    "flag",
    "json_option",
    "option",
    "training_options",
    "unknown_option",
]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PATH = click.Path(path_type=Path)
POSITIVE = click.FloatRange(min=0.0, min_open=True)
OPEN_UNIT = click.FloatRange(0.0, 1.0, min_open=True, max_open=True)

_OBJECTIVES = ("risk", "excess_risk")
_LOSSES = {"classification": ("logistic", "squared_hinge"), "regression": ("squared", "huber")}


def option(names: str, text: str, *, choices: tuple[str, ...] = (), **more: Any) -> Decorator:
    """Return an option.

    Parameters
    ----------
    names : str
        Its names, separated by spaces, and the name of the parameter if that differs.
    text : str
        Help text.
    choices : tuple of str
        Allowed values; the first is the default.
    **more
        Passed to `click.option`.

    Returns
    -------
    callable
        Decorator that adds the option to a command.
    """
    if choices:
        more |= {"type": click.Choice(choices), "default": choices[0]}
    return click.option(*names.split(), help=text, show_default="default" in more, **more)


def flag(names: str, text: str) -> Decorator:
    """Return an option without a value."""
    return option(names, text, is_flag=True)


json_option = flag("--json as_json", "Print one JSON document on stdout.")
unknown_option = flag("--allow-unknown", "Accept a column without any label seen in fit.")


def training_options(command: Any, *, objective: bool = True) -> Any:
    """Add the options of a fit to a command, with or without --objective, bundled as one `Options`."""
    column: dict[str, Any] = {"metavar": "COLUMN", "multiple": True}
    losses = [loss for losses in _LOSSES.values() for loss in losses]
    least = click.FloatRange(min=0.0)
    options = [
        option("--target", "Column to predict.", metavar="COLUMN"),
        option("--group groups", "Column with the groups. Repeat it for combinations.", **column),
        option("--drop", "Column to leave out. May be repeated.", **column),
        option("--categorical", "Numeric column to treat as labels. May be repeated.", **column),
        flag("--group-as-feature", "Use the group columns as features too."),
        option("--min-group-size", "Merge groups with fewer rows into one.", type=click.IntRange(min=1), default=1),
        option("--task", "Kind of target.", choices=("auto", "classification", "regression")),
        *([option("--objective", "Worst risk, or worst excess risk.", choices=_OBJECTIVES)] if objective else []),
        option(
            "--robustness",
            "Blend from the average (0) to the worst group (1).",
            type=click.FloatRange(0.0, 1.0),
            default=1.0,
        ),
        option("--average", "Whether rows or groups have equal weight in the average.", choices=("rows", "groups")),
        option(
            "--worst-share",
            "Average the worst share of the rows instead of one group.",
            type=click.FloatRange(0.0, 1.0, min_open=True),
        ),
        option("--loss", "Loss.  [default: logistic, squared]", type=click.Choice(losses)),
        option("--delta", "Residual at which Huber's loss becomes linear.", type=POSITIVE, default=1.35),
        option("--alpha", "Weight of the penalty.", type=least, default=1e-4),
        option("--tol", "Relative certified gap at which to stop.", type=least, default=1e-4),
        option("--seed", "Seed for all random numbers.", type=click.IntRange(0, 2**32 - 1), default=0),
    ]
    for give in reversed(options):
        command = give(command)
    return command


@dataclass(frozen=True)
class Options:
    """The options of `training_options`."""

    target: str | None
    groups: tuple[str, ...]
    drop: tuple[str, ...]
    categorical: tuple[str, ...]
    group_as_feature: bool
    min_group_size: int
    task: str
    robustness: float
    average: str
    worst_share: float | None
    loss: str | None
    delta: float
    alpha: float
    tol: float
    seed: int
    objective: str = _OBJECTIVES[0]

    def estimator(self, task: str, **parameters: Any) -> Any:
        """Return the unfitted estimator for a task."""
        loss = self.loss or _LOSSES[task][0]
        if loss not in _LOSSES[task]:
            raise UserError(f"--loss {self.loss} does not apply to {task}: use {' or '.join(_LOSSES[task])}.")
        for name in ("objective", "robustness", "average", "worst_share", "alpha", "tol", "min_group_size"):
            parameters[name] = getattr(self, name)
        kind = GroupDROClassifier if task == "classification" else GroupDRORegressor
        return kind(random_state=self.seed, loss=Huber(self.delta) if loss == "huber" else loss, **parameters)
