"""Which cell of a grid to take, given every cell's held-out losses: plain training, unless another is surely better."""

from dataclasses import dataclass

import numpy as np

from groupdro.data.grouping import Grouping
from groupdro.evaluation.inference import falls_of_worst, resample
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["Selection", "select_cell"]


@dataclass(frozen=True, eq=False)
class Selection:
    """The cell that was selected, and why.

    Attributes
    ----------
    best, plain : int
        The selected cell, and that of plain training.
    mean, worst : ndarray of shape (n_cells,)
        Average and worst group's held-out loss of each cell; NaN for cells that were discarded.
    worst_group : ndarray of shape (n_cells,)
        Number of the group that has it; -1 for cells that were discarded.
    gain, gain_low : ndarray of shape (n_cells,)
        Fall of the worst group's loss against plain training, and its lower confidence bound for all cells together.
    significant : ndarray of shape (n_cells,)
        Whether a cell was preferred to plain training beyond noise, and within the budget of the mean.
    judged : ndarray of shape (n_groups,)
        Groups with enough rows to be judged.
    """

    best: int
    plain: int
    mean: Floats
    worst: Floats
    worst_group: Indices
    gain: Floats
    gain_low: Floats
    significant: Mask
    judged: Mask


def select_cell(
    losses: Floats,
    robustness: Floats,
    grouping: Grouping,
    *,
    clusters: Indices | None,
    weights: Floats | None,
    confidence: float,
    n_bootstrap: int,
    min_rows: int,
    mean_budget: float | None,
    seed: int,
) -> Selection:
    """Select a cell that does no harm.

    Begin with plain training (robustness 0) at the least average loss. Leave it only for cells whose worst group's
    held-out loss is significantly smaller: by a bootstrap of the pooled held-out losses, paired over rows, with the
    largest studentised deviation over all cells, so that trying many of them is allowed for. Of those, take the least
    robustness, and of equals the least worst loss.

    Parameters
    ----------
    losses : ndarray of shape (n_rows, n_cells)
        Held-out loss of each row in each cell; columns of NaN are cells that were discarded.
    robustness : ndarray of shape (n_cells,)
        Robustness of each cell.
    grouping : Grouping
        Groups of the rows.
    clusters : ndarray of shape (n_rows,) or None
        Rows that are resampled together.
    weights : ndarray of shape (n_rows,) or None
        Weights of the rows.
    confidence : float
        Level of the comparison, one-sided, for all cells together.
    n_bootstrap, seed : int
        Resamples and their seed.
    min_rows : int
        Effective number of rows that a group needs to be judged.
    mean_budget : float or None
        Largest relative rise of the average loss; None for any.

    Returns
    -------
    Selection
        The cell and the evidence.
    """
    tried = ~np.isnan(losses).any(axis=0)
    cells = np.flatnonzero(tried)
    w = np.ones(len(losses)) if weights is None else weights
    mean = np.full(len(robustness), np.nan)
    mean[cells] = w @ losses[:, cells] / w.sum()
    plain = int(cells[robustness[cells] == 0.0][np.argmin(mean[cells][robustness[cells] == 0.0])])
    found = resample(losses[:, cells], grouping, n_bootstrap=n_bootstrap, seed=seed, clusters=clusters, weights=weights)
    judged = found.sizes >= min_rows
    shown = judged if judged.any() else np.ones_like(judged)
    worst, group = np.full(len(robustness), np.nan), np.full(len(robustness), -1)
    worst[cells] = found.means[shown].max(axis=0)
    group[cells] = np.flatnonzero(shown)[found.means[shown].argmax(axis=0)]
    gain, gain_low = worst[plain] - worst, np.full(len(robustness), -np.inf)
    if judged.any():
        # The lower ends of two-sided intervals at this level are one-sided bounds at `confidence`.
        falls = falls_of_worst(found, 2.0 * confidence - 1.0, against=int(np.searchsorted(cells, plain)), groups=judged)
        gain_low[cells] = falls.low
    significant = (gain_low > 0) & (robustness > 0)
    if mean_budget is not None:
        significant &= mean <= mean[plain] + mean_budget * abs(mean[plain])
    best = plain
    if significant.any():
        least = robustness[significant].min()
        equals = np.flatnonzero(significant & (robustness == least))
        best = int(equals[np.argmin(worst[equals])])
    return Selection(best, plain, mean, worst, group, gain, gain_low, significant, judged)
