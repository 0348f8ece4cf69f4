"""Warnings about fitted models: too few rows determine them, or they are no better than a constant on these rows."""

import numpy as np

from groupdro.data import GroupedData
from groupdro.estimators.blend import ALL_ROWS
from groupdro.estimators.fitting import SmallGroupWarning, Task, UselessModelWarning, warn_caller
from groupdro.estimators.outcome import Outcome
from groupdro.losses import Loss
from groupdro.oracle.intercept import best_shift
from groupdro.solvers import Result
from groupdro.utils.types import Floats

__all__ = ["least_of_constants", "warn_if_few_rows_decide", "warn_if_useless"]

# Relative improvement over a constant up to which a model is called no better: what that many features gain on noise,
# within these limits. Penalised features gain less, so the upper limit is low.
_NO_GAIN, _MOST_BY_CHANCE = 1e-3, 1e-2
_BINDING = 1e-3  # relative weight from which a group counts as one that determines the model
_VERY_SMALL = 10  # rows below which a group's risk is mostly noise and has no interval in reports


def warn_if_few_rows_decide(task: Task, result: Result, *, bonus: float) -> None:
    """Warn if very small groups dominate: with `small_group_bonus`, or so that no more rows decide than parameters."""
    sizes = task.data.counted_sizes
    q = result.q
    few = np.flatnonzero((sizes < _VERY_SMALL) & (q > 0))
    n_rows = int(sizes.sum())
    share = float(q[few].sum())
    rows = 1.0 / max(float(q @ (q / sizes)), 1e-300)  # as if of equal weight
    if share > 0.5 and (bonus > 0 or rows < min(max(_VERY_SMALL, task.data.n_features + 1), n_rows / 4)):
        heaviest = [task.data.names[i] for i in few[np.argsort(-q[few], kind="stable")][:5]]
        warn_caller(
            f"The fit is determined by about {rows:.0f} of {n_rows} rows: groups of fewer than {_VERY_SMALL} rows have "
            f"{share:.1%} of the weight, such as {heaviest}. Set min_group_size=30 to merge small groups.",
            SmallGroupWarning,
        )


def warn_if_useless(task: Task, outcome: Outcome, *, robustness: float) -> None:
    """Warn if a model is no better than a constant on the rows that determine it, those with group weight."""
    # A fit that ended early may still get better, and a correction of a good score may have nothing to add.
    if not outcome.result.converged or task.data.row_offsets.size:
        return
    own, q = outcome.result.q, outcome.q
    data = task.data if len(own) == len(q) else task.data.with_group_of_all(ALL_ROWS, task.row_weights)
    reached = float(q @ outcome.risks)
    constant = least_of_constants(data, task.loss, q, free=task.fit_intercept)
    rows = 1.0 / float(q @ (q / data.counted_sizes))  # as if of equal weight
    by_chance = np.clip((task.data.n_features + 1) / rows, _NO_GAIN, _MOST_BY_CHANCE)
    if constant <= 0.0 or constant - reached > by_chance * constant:
        return
    sizes = task.data.counted_sizes[own > _BINDING * q.max()]
    text = (
        f"The model is no better than a constant: on the rows that determine it, the average loss is {reached:.4g}, "
        f"that of the best constant {constant:.4g}."
    )
    if robustness > 0 and len(sizes) > 1:
        text += (
            f" {len(sizes)} of {len(own)} groups, of {np.median(sizes):.0f} rows in the median, have weight, which may "
            "be more than a linear model can serve. Name fewer groups, merge small ones with min_group_size, or set "
            "robustness below 1."
        )
    else:
        text += " Decrease alpha, or add features."
    warn_caller(text, UselessModelWarning)


def least_of_constants(data: GroupedData, loss: Loss, q: Floats, *, free: bool) -> float:
    """Return the least weighted loss of a model without features.

    Parameters
    ----------
    data : GroupedData
        The rows, with encoded labels.
    loss : Loss
        The loss.
    q : ndarray of shape (n_groups,)
        Weights of the groups.
    free : bool
        Whether the model has an intercept. Otherwise it is 0.

    Returns
    -------
    float
        The loss.
    """
    weights = data.row_weights(q)
    kept = np.flatnonzero(weights)
    weights = weights[kept]
    y = loss.encode(data.y[kept])
    n_outputs = loss.n_outputs(loss.encode(data.y))
    shape = (len(y),) if n_outputs == 1 else (len(y), n_outputs)
    fixed = data.row_offsets[kept] if data.row_offsets.size else np.zeros(shape)
    if free and loss.of_residual:
        fixed = (
            fixed + weights @ (y - fixed) / weights.sum()
        )  # the search begins near the targets, however far they are
    if free:
        fixed = fixed + best_shift(loss, fixed, y, weights)[0]
    return float(weights @ loss.value(fixed, y))
