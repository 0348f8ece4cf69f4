"""Selection of a grid cell by held-out losses: plain training, unless another cell is significantly better."""

from dataclasses import dataclass

import numpy as np

from groupdro.data.grouping import Grouping
from groupdro.evaluation.inference import Resampled, resample
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["Selection", "select_cell"]


@dataclass(frozen=True, eq=False)
class Selection:
    """The selected cell, and why.

    Attributes
    ----------
    best, plain : int
        Index of the selected cell, and of plain training.
    mean, worst : ndarray of shape (n_cells,)
        Average and worst group's held-out loss of each cell; NaN for discarded cells.
    worst_group : ndarray of shape (n_cells,)
        Number of the worst group; -1 for discarded cells.
    gain, gain_low : ndarray of shape (n_cells,)
        Decrease of the worst group's loss relative to plain training, and its simultaneous lower confidence bound.
    significant : ndarray of shape (n_cells,)
        Whether a robust cell is significantly better on its worst group than plain training.
    affordable : ndarray of shape (n_cells,)
        Whether its average is within the budget.
    judged : ndarray of shape (n_groups,)
        Whether each group has enough rows to be judged.
    """

    best: int
    plain: int
    mean: Floats
    worst: Floats
    worst_group: Indices
    gain: Floats
    gain_low: Floats
    significant: Mask
    affordable: Mask
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
    prefer: str,
    seed: int,
) -> Selection:
    """Select a cell conservatively.

    Start with plain training (robustness 0) at the smallest average loss. Replace it only by cells whose worst group's
    held-out loss is significantly smaller, according to a bootstrap of the pooled held-out losses. It is paired over
    rows and uses the largest studentised deviation over all cells, which corrects for multiple comparisons. Among cells
    whose average is within the budget, take the smallest robustness and, among equals, the smallest worst loss; with
    `prefer="gain"`, take the smallest worst loss directly.

    Parameters
    ----------
    losses : ndarray of shape (n_rows, n_cells)
        Held-out loss of each row in each cell; columns of NaN are discarded cells.
    robustness : ndarray of shape (n_cells,)
        Robustness of each cell.
    grouping : Grouping
        Groups of the rows.
    clusters : ndarray of shape (n_rows,) or None
        Cluster of each row; rows of a cluster are resampled together.
    weights : ndarray of shape (n_rows,) or None
        Weights of the rows.
    confidence : float
        One-sided simultaneous confidence level over all cells.
    prefer : {"caution", "gain"}
        Which eligible cell to choose: the one with the smallest robustness, or with the smallest worst loss.
    n_bootstrap, seed : int
        Number of resamples, and their seed.
    min_rows : int
        Effective number of rows a group needs to be judged.
    mean_budget : float or None
        Largest relative increase of the average loss; None for the relative decrease of the worst.

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
    judged = found.judged(min_rows)
    shown = judged if judged.any() else np.ones_like(judged)
    worst, group = np.full(len(robustness), np.nan), np.full(len(robustness), -1)
    worst[cells] = found.means[shown].max(axis=0)
    group[cells] = np.flatnonzero(shown)[found.means[shown].argmax(axis=0)]
    gain, gain_low = worst[plain] - worst, np.full(len(robustness), -np.inf)
    if judged.any():
        gain_low[cells] = _least_falls(found, int(np.searchsorted(cells, plain)), judged, confidence)
    significant = (gain_low > 0) & (robustness > 0)
    rise = (mean - mean[plain]) / max(abs(mean[plain]), 1e-300)
    budget = gain / max(abs(worst[plain]), 1e-300) if mean_budget is None else np.full_like(mean, mean_budget)
    affordable = rise <= budget
    best, able = plain, significant & affordable
    if able.any():
        if prefer == "caution":
            able &= robustness == robustness[able].min()
        best = int(np.flatnonzero(able)[np.argmin(worst[able])])
    return Selection(best, plain, mean, worst, group, gain, gain_low, significant, affordable, judged)


def _least_falls(found: Resampled, plain: int, judged: Mask, confidence: float) -> Floats:
    """Return simultaneous one-sided lower bounds on the decrease of the worst mean relative to plain training.

    They use the resampled decreases themselves. Deviations are taken from their own mean, because the worst of tied
    groups is biased upward in every sample, which must not count as a gain of a model without ties.
    """
    worst, again = found.means[judged].max(axis=0), found.resampled_means[:, judged].max(axis=1)
    falls = again[:, [plain]] - again
    spread = falls.std(axis=0)
    moving = spread > 1e-12 * np.abs(worst)
    least = np.full(len(worst), -np.inf)
    if moving.any():
        deviations = (falls - falls.mean(axis=0))[:, moving] / spread[moving]
        reach = float(np.quantile(deviations.max(axis=1), confidence))
        least[moving] = (worst[plain] - worst)[moving] - reach * spread[moving]
    return least
