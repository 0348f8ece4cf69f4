"""Selection of a grid cell by held-out losses: plain training, unless another cell is significantly better."""

from dataclasses import dataclass

import numpy as np

from groupdro.data.given import GivenRows
from groupdro.evaluation.enough import few_carry
from groupdro.evaluation.inference import least_falls
from groupdro.evaluation.resampling import resample
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["Selection", "select_cell"]

# Error allowed in comparisons with groups other than plain training's worst, relative to that of the worst group. All
# comparisons must succeed, so equal errors would miss many gains (benchmarks/held_out/choice.py measures 1, 2 and 4).
_ERROR_OF_OTHERS = 2.0


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
        Whether a robust cell is significantly better than plain training: on the group that is worst under plain
        training, and, with twice the error, on every other group compared with that one.
    affordable : ndarray of shape (n_cells,)
        Whether its average is within the budget.
    judged : ndarray of shape (n_groups,)
        Whether each group has enough rows to be judged, and not only a few that have most of the loss.
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
    given: GivenRows,
    *,
    confidence: float,
    n_bootstrap: int,
    min_rows: int,
    mean_budget: float | None,
    prefer: str,
    seed: int,
    classes: bool = False,
) -> Selection:
    """Select a cell conservatively.

    Start with plain training (robustness 0) at the smallest average loss. Replace it only by cells whose worst group's
    held-out loss is significantly smaller, according to a bootstrap of the pooled held-out losses. It is paired over
    rows, compares every group of a cell with the worst one under plain training, and uses the largest studentised
    deviation over all cells, which corrects for multiple comparisons. Among cells whose average is within the budget,
    take the smallest robustness and, among equals, the smallest worst loss; with `prefer="gain"`, take the smallest
    worst loss directly.

    Parameters
    ----------
    losses : ndarray of shape (n_rows, n_cells)
        Held-out loss of each row in each cell; columns of NaN are discarded cells.
    robustness : ndarray of shape (n_cells,)
        Robustness of each cell.
    given : GivenRows
        The rows, with their groups, weights and clusters; rows of a cluster are resampled together.
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
    classes : bool
        Whether the rows are those of a classification, whose losses are less skewed.

    Returns
    -------
    Selection
        The cell and the evidence.
    """
    tried = ~np.isnan(losses).any(axis=0)
    cells = np.flatnonzero(tried)
    w = given.row_weights
    mean = np.full(len(robustness), np.nan)
    mean[cells] = w @ losses[:, cells] / w.sum()
    plain = int(cells[robustness[cells] == 0.0][np.argmin(mean[cells][robustness[cells] == 0.0])])
    found = resample(
        losses[:, cells],
        given.groups,
        n_bootstrap=n_bootstrap,
        seed=seed,
        clusters=given.clusters,
        weights=given.weights,
        studentised=False,
    )
    judged = found.judged(min_rows)
    if not found.binary.all():
        # Both the losses and what distinguishes the cells must not be those of a few rows, such as outliers in X.
        apart = np.abs(losses[:, cells] - losses[:, [plain]])
        for sizes in (losses[:, cells].max(axis=1), apart.max(axis=1)):
            judged &= ~few_carry(sizes, given.groups, given.clusters, given.weights, classes=classes)
    shown = judged if judged.any() else np.ones_like(judged)
    worst = np.full(len(robustness), np.nan)
    group = np.full(len(robustness), -1)
    worst[cells] = found.means[shown].max(axis=0)
    group[cells] = np.flatnonzero(shown)[found.means[shown].argmax(axis=0)]
    gain = worst[plain] - worst
    gain_low = np.full(len(robustness), -np.inf)
    significant = np.zeros(len(robustness), dtype=bool)
    if judged.any():
        place = int(np.searchsorted(cells, plain))
        gain_low[cells] = least_falls(found, place, judged, confidence)
        significant[cells] = least_falls(found, place, judged, confidence, others=_ERROR_OF_OTHERS) > 0
    significant &= robustness > 0
    rise = (mean - mean[plain]) / max(abs(mean[plain]), 1e-300)
    budget = gain / max(abs(worst[plain]), 1e-300) if mean_budget is None else np.full_like(mean, mean_budget)
    affordable = rise <= budget
    best, able = plain, significant & affordable
    if able.any():
        if prefer == "caution":
            able &= robustness == robustness[able].min()
        best = int(np.flatnonzero(able)[np.argmin(worst[able])])
    return Selection(best, plain, mean, worst, group, gain, gain_low, significant, affordable, judged)
