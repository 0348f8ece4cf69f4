"""Beam search for the conjunctions of conditions under which the mean loss is largest, relative to its noise."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from groupdro.discovery.bounds import Sampling
from groupdro.discovery.conditions import EncodedColumns
from groupdro.kernels.histogram import column_histograms
from groupdro.utils.progress import Steps
from groupdro.utils.threads import map_threads
from groupdro.utils.types import Array, Floats, Indices, Mask

__all__ = ["Candidate", "search", "unexplained_by"]

_WIDTH = 20  # rules that are extended at each depth
_EXTENSIONS = 60  # best extensions of each rule that are compared with those of the others
# Increase of the score by which another condition must pay for itself. Without it, every rule gets as many conditions
# as are allowed. Planted groups are found as often with 0.5, and a little less with 1.5.
_GAIN = 1.0
_RESCORED = 200  # best extensions of a depth whose scores are computed anew where rows form clusters
_SAME = 0.95  # overlap (intersection over union) from which two rules count as one
_OVERLAP = 0.5  # largest overlap of two groups that are returned
_LEAST_SCORE = 2.0  # of groups after the first: their own, and of what the groups before them do not explain
# Largest share of the rows in a group. Where more rows are bad than good, the group is not what is special; and bounds
# are too optimistic if few rows are outside and their losses are skewed to the right, as losses are.
_MOST_ROWS = 0.5
_CLIPPED = 0.99  # quantile at which losses are clipped, so that single rows do not lead the search
_PRIOR = 10.0  # rows with the variance of all rows that are added to each group's own variance


@dataclass(frozen=True, eq=False)
class Candidate:
    """A rule that the search found.

    Attributes
    ----------
    rule : tuple of int
        Numbers of the conditions.
    score : float
        Studentised difference of the mean losses inside and outside that candidates before it do not explain, on the
        rows that were searched: optimistic.
    rows : ndarray of int
        Positions of its rows among those that were searched.
    """

    rule: tuple[int, ...]
    score: float
    rows: Indices


def search(
    encoded: EncodedColumns,
    searched: Indices,
    losses: Floats,
    sampling: Sampling,
    *,
    least: float,
    depth: int,
    n_groups: int,
) -> list[Candidate]:
    """Find the rules with the largest studentised difference of the mean loss inside and outside.

    After the first rule, two kinds compete by their scores: those of the first search, without the rows that earlier
    groups already have; and those of a new search in what the earlier groups leave unexplained, the losses minus their
    mean over the rows that are in the same groups. The second kind finds a small group of very large losses inside a
    large group of somewhat large ones.

    Parameters
    ----------
    encoded : EncodedColumns
        All rows.
    searched : ndarray of int
        The rows to search.
    losses : ndarray of shape (n_rows,)
        Losses of all rows.
    sampling : Sampling
        Clusters and weights of all rows.
    least : float
        Effective number of rows (or clusters) that must be inside and outside.
    depth : int
        Largest number of conditions.
    n_groups : int
        Number of rules to return.

    Returns
    -------
    list of Candidate
        The rules, in the order in which they were found.
    """
    own = losses[searched]
    if not ((own == 0) | (own == 1)).all():
        own = np.minimum(own, np.quantile(own, _CLIPPED))
    there = sampling.take(searched)
    units, mass = there.clusters, np.ones(len(own)) if there.weights is None else there.weights / there.weights.mean()
    codes = np.ascontiguousarray(encoded.codes[searched])
    scorer = _Scorer(encoded, codes, own, mass, units, least)
    steps = Steps("searching", n_groups * depth)
    pool = _beam_search(scorer, depth, steps)
    kept = pool[:1]
    masks = [scorer.mask(one.rows) for one in kept]
    while kept and len(kept) < n_groups:
        explained = np.logical_or.reduce(masks)
        larger = [replace(one, score=scorer.score_without(one.rows, explained)) for one in pool]
        unexplained = _Scorer(encoded, codes, unexplained_by(masks, own, mass), mass, units, least)
        inner = [one for one in _beam_search(unexplained, depth, steps) if scorer.score(one.rows) > _LEAST_SCORE]
        apart = [one for one in (*larger, *inner) if all(_overlap(one.rows, mask) <= _OVERLAP for mask in masks)]
        best = max(apart, key=lambda one: one.score, default=None)
        if best is None or best.score <= _LEAST_SCORE:
            break
        kept.append(best)
        masks.append(scorer.mask(best.rows))
    return kept


def unexplained_by(masks: list[Mask], losses: Floats, mass: Floats) -> Floats:
    """Return losses minus their weighted mean over the rows that are in the same groups."""
    same = np.zeros(len(losses), dtype=np.int64)
    for mask in masks:
        same = np.unique(2 * same + mask, return_inverse=True)[1].ravel()
    means = np.bincount(same, weights=mass * losses) / np.maximum(np.bincount(same, weights=mass), 1e-300)
    return np.asarray(losses - means[same])


def _beam_search(scorer: "_Scorer", depth: int, steps: Steps) -> list[Candidate]:
    """Return the best rules of each length, best first."""
    beam = [Candidate((), 0.0, np.arange(scorer.n_rows))]
    pool: list[Candidate] = []
    for size in range(1, depth + 1):
        scores = map_threads(lambda k, beam=beam: scorer.scores(beam[k].rows), len(beam))  # type: ignore[misc]
        grown: dict[tuple[int, ...], tuple[float, Candidate, int]] = {}
        for parent, own in zip(beam, scores, strict=True):
            for c in np.argsort(-own)[:_EXTENSIONS].tolist():
                if own[c] <= parent.score + _GAIN:
                    break
                rule = scorer.shortened((*parent.rule, c))
                if len(rule) == size:
                    grown.setdefault(rule, (float(own[c]), parent, c))
        beam = scorer.distinct(grown)
        steps.done()
        pool += [one for one in beam if scorer.share(one.rows) <= _MOST_ROWS]
        if not beam:
            break
    return sorted(pool, key=lambda one: -one.score)


class _Scorer:
    """Scores of all conditions on the rows that are searched.

    Parameters
    ----------
    encoded : EncodedColumns
        The conditions.
    codes : ndarray of uint8 of shape (n_searched, n_columns)
        Codes of these rows.
    losses, mass : ndarray of shape (n_searched,)
        Their losses and weights.
    clusters : ndarray of int of shape (n_searched,), or None
        Their clusters.
    least : float
        As for `search`.
    """

    def __init__(
        self,
        encoded: EncodedColumns,
        codes: Array,
        losses: Floats,
        mass: Floats,
        clusters: Indices | None,
        least: float,
    ):
        self._conditions, self._codes, self._clusters, self._least = encoded, codes, clusters, least
        losses = losses - np.average(losses, weights=mass)  # to avoid cancellation
        self._sums = np.stack([mass, mass * losses, mass * np.square(losses)], axis=1)
        self._total = self._sums.sum(axis=0)
        self._effective = float(mass.sum() / np.square(mass).sum())  # effective rows per unit of mass
        self._n_codes = int(codes.max(initial=0)) + 1

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self._codes)

    def scores(self, rows: Indices) -> Floats:
        """Return the score of each condition in conjunction with those of the given rows."""
        encoded = self._conditions
        sums = np.empty((self._codes.shape[1], self._n_codes, 3))
        column_histograms(self._codes, rows, self._sums, sums)
        below = np.concatenate([np.zeros((len(sums), 1, 3)), np.cumsum(sums, axis=1)], axis=1)
        high, low = (np.minimum(end, self._n_codes) for end in (encoded.high, encoded.low))
        return self._from_sums(below[encoded.column, high] - below[encoded.column, low], self._total, self._least)

    def score(self, rows: Indices) -> float:
        """Return the score of a group."""
        if self._clusters is not None:
            return self._clustered(rows, self._clusters)[0]
        return float(self._from_sums(self._sums[rows].sum(axis=0)[None], self._total, self._least)[0])

    def score_without(self, rows: Indices, left_out: Mask) -> float:
        """Return the score of a group if some rows are left out, of the group and of the others."""
        inside = self._sums[rows[~left_out[rows]]].sum(axis=0)
        return float(self._from_sums(inside[None], self._total - self._sums[left_out].sum(axis=0), least=2.0)[0])

    def _from_sums(self, inside: Floats, total: Floats, least: float) -> Floats:
        """Return scores from sums over the rows inside of each group and over all rows."""
        n, variance = self._effective, self._total[2] / self._total[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean, squared = [], 0.0
            for part in (inside, total - inside):
                own = part[:, 1] / part[:, 0]
                rows_there = part[:, 0] * n
                spread = part[:, 2] / part[:, 0] - np.square(own)
                spread = (rows_there * spread + _PRIOR * variance) / (rows_there + _PRIOR)
                mean.append(own)
                squared = squared + spread / rows_there
            score = (mean[0] - mean[1]) / np.sqrt(squared)
        large = np.minimum(inside[:, 0], total[0] - inside[:, 0]) * n >= least
        return np.where(large & np.isfinite(score), score, -np.inf)

    def shortened(self, rule: tuple[int, ...]) -> tuple[int, ...]:
        """Return a rule without conditions that follow from others."""
        at, low, high = self._conditions.column, self._conditions.low, self._conditions.high
        return tuple(
            sorted(
                c
                for c in set(rule)
                if not any(at[c] == at[d] and low[c] <= low[d] and high[d] <= high[c] for d in set(rule) - {c})
            )
        )

    def distinct(self, grown: dict[tuple[int, ...], tuple[float, Candidate, int]]) -> list[Candidate]:
        """Return the best rules, without those that are nearly a copy of a better one."""
        ordered = sorted(grown.items(), key=lambda item: -item[1][0])
        found: Iterator[Candidate] = (
            Candidate(rule, score, self._extended(parent.rows, c)) for rule, (score, parent, c) in ordered
        )
        if self._clusters is not None:
            found = self._rescored(found, [parent for _, (_, parent, _) in ordered], self._clusters)
        kept: list[Candidate] = []
        masks: list[Mask] = []
        for one in found:
            if all(_overlap(one.rows, mask) <= _SAME for mask in masks):
                kept.append(one)
                masks.append(self.mask(one.rows))
            if len(kept) == _WIDTH:
                break
        return kept

    def _extended(self, rows: Indices, c: int) -> Indices:
        """Return the rows on which one more condition holds."""
        codes = self._codes[rows, self._conditions.column[c]]
        return rows[(codes >= self._conditions.low[c]) & (codes < self._conditions.high[c])]

    def _rescored(self, found: Iterator[Candidate], parents: list[Candidate], clusters: Indices) -> Iterator[Candidate]:
        """Yield candidates with enough clusters, best first, by scores that allow for dependence within clusters."""
        better = []
        for one, parent in zip(found, parents[:_RESCORED], strict=False):
            score, size = self._clustered(one.rows, clusters)
            if size >= self._least and score > parent.score + _GAIN:
                better.append(replace(one, score=score))
        yield from sorted(better, key=lambda one: -one.score)

    def _clustered(self, rows: Indices, clusters: Indices) -> tuple[float, float]:
        """Return the score of a group with the standard error over clusters, and its effective number of clusters."""
        mass, sums = self._sums[:, 0], self._sums[:, 1]
        inside = self.mask(rows)
        difference, influence = 0.0, np.zeros(len(mass))
        for part, sign in ((inside, 1.0), (~inside, -1.0)):
            mean = sums[part].sum() / mass[part].sum()
            difference += sign * mean
            influence[part] = sign * (sums[part] - mean * mass[part]) / mass[part].sum()
        error = np.sqrt(np.square(np.bincount(clusters, weights=influence)).sum())
        units = np.bincount(clusters[rows], weights=mass[rows])
        return float(difference / error) if error > 0 else 0.0, float(units.sum() ** 2 / np.square(units).sum())

    def share(self, rows: Indices) -> float:
        """Return the share of the weight that some rows have."""
        return float(self._sums[rows, 0].sum() / self._total[0])

    def mask(self, rows: Indices) -> Mask:
        """Return positions as a mask."""
        mask = np.zeros(len(self._codes), dtype=bool)
        mask[rows] = True
        return mask


def _overlap(rows: Indices, mask: Mask) -> float:
    """Return intersection over union."""
    both = int(mask[rows].sum())
    return both / (len(rows) + int(mask.sum()) - both)
