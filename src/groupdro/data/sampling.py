"""Random draws of members for the steps of stochastic solvers."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from groupdro.data.one_worker import OneWorker
from groupdro.utils.types import Floats, Indices

__all__ = ["BatchPlan", "Draw", "Sampling"]

_STRETCH = 64  # consecutive rows that can be read about as fast as one


@dataclass(frozen=True)
class Draw:
    """Members drawn for one step of a stochastic solver.

    A group's estimate is the sum of ``weights`` times the quantity over its drawn members.

    Attributes
    ----------
    members, groups : ndarray of shape (n_drawn,)
        The drawn members and the group of each.
    weights : ndarray of shape (n_drawn,)
        The weight of each in its group's estimate; with one member per group, 1.
    """

    members: Indices
    groups: Indices
    weights: Floats


@dataclass(frozen=True)
class BatchPlan:
    """How many members of each group every step of an epoch draws, in proportion to the groups' sizes.

    Attributes
    ----------
    steps : int
        Number of steps per epoch, chosen so that an epoch draws about as many members as there are rows.
    groups : ndarray of shape (n_drawn,) or (steps, n_drawn)
        Group of each draw, the same in all steps or per step.
    weights : ndarray, shaped as groups
        Weight of each draw in the estimates; if every step has all groups, one over the number of draws from its group.
    """

    steps: int
    groups: Indices
    weights: Floats


class Sampling(OneWorker):
    """Draws from grouped data. They depend only on the random generator, not on where the rows are stored."""

    weights: Floats

    in_memory: Any  # properties of `GroupedData`
    weighted: Any

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draw one member of every group, with probability equal to its weight in the group."""
        groups = np.arange(self.n_groups)
        return Draw(self._draw_members(groups, 1, rng)[0], groups, np.ones(self.n_groups))

    def plan_batches(self, rows_per_step: int) -> BatchPlan:
        """Divide an epoch into steps of about `rows_per_step` rows, each with members of every group.

        Groups get draws in proportion to their sizes, but at least one. So a step has at least as many rows as there
        are groups, and members of small groups are drawn more than once per epoch.
        """
        sizes = self.all_sizes
        if (sizes == sizes[0]).all():
            share = max(1, min(int(sizes[0]), round(rows_per_step / self.n_groups)))
            counts = np.full(self.n_groups, share)
            steps = max(1, int(sizes[0]) // share)
        else:
            # With four rows per group on average, the extra draws of small groups stay a fraction of the epoch.
            per_step = max(rows_per_step, 4 * self.n_groups)
            steps = max(1, round(sizes.sum() / per_step))
            counts = np.maximum(1, np.round(sizes / steps)).astype(np.int64)
        return BatchPlan(steps, np.repeat(np.arange(self.n_groups), counts), np.repeat(1.0 / counts, counts))

    def draw_steps(self, plan: BatchPlan, n_steps: int, rng: np.random.Generator) -> Indices:
        """Draw the members of several steps of a plan, as an array of shape (n_steps, n_drawn).

        If the rows do not fit in memory, ranges of consecutive members are drawn and distributed to the steps at
        random. Every member is equally likely, and a range is read at once.
        """
        if self.in_memory or self.weighted or plan.groups.ndim > 1:
            return self._draw_members(plan.groups, n_steps, rng)
        counts = np.bincount(plan.groups, minlength=self.n_groups)
        drawn = np.flatnonzero(counts)
        out = np.empty((n_steps, len(plan.groups)), np.int64)
        starts = self.all_offsets[:-1]
        sizes = self.all_sizes
        place = 0
        for i in drawn.tolist():
            wanted = n_steps * int(counts[i])
            size = int(sizes[i])
            stretch = min(_STRETCH, size, wanted)
            begins = rng.integers(0, size, size=-(-wanted // stretch))
            members = ((begins[:, None] + np.arange(stretch)) % size).ravel()[:wanted]
            out[:, place : place + counts[i]] = starts[i] + rng.permutation(members).reshape(n_steps, -1)
            place += counts[i]
        return out

    def permute_steps(self, plan: BatchPlan, n_steps: int, rng: np.random.Generator) -> Indices:
        """Draw the members of several steps without replacement, starting over when a group is exhausted."""
        if self.weighted:
            raise ValueError("replacement must be True if rows have weights, because draws follow the weights.")
        sizes = self.all_sizes
        starts = self.all_offsets[:-1]
        order = np.lexsort((rng.random(int(sizes.sum())), np.repeat(np.arange(self.n_groups), sizes)))
        counts = np.bincount(plan.groups, minlength=self.n_groups)
        within = np.arange(len(plan.groups)) - (np.cumsum(counts) - counts)[plan.groups]
        turn = (np.arange(n_steps)[:, None] * counts[plan.groups] + within) % sizes[plan.groups]
        return order[starts[plan.groups] + turn]

    @property
    def can_draw(self) -> bool:
        """Whether members can be drawn."""
        return True

    # Overridden for a worker's part of larger data.

    def own(self, draw: Draw) -> Draw:
        """Return the part of a draw that is stored here, with local member numbers."""
        return draw

    def gathered(self, draw: Draw, values: Any, weights: Floats) -> tuple[Any, Floats]:
        """Return rows and weights of a draw from all workers, given the local ones."""
        del draw
        return values, weights

    def rows_worth_sharing(self, n_numbers: int, n_outputs: int) -> int:
        """Return how many rows a step should draw so that summing its results over workers takes little of the time."""
        del n_numbers, n_outputs
        return 1

    def draw_members(self, groups: Indices, rng: np.random.Generator) -> Indices:
        """Draw one member of each of the given groups."""
        return self._draw_members(groups, 1, rng)[0]

    def _draw_members(self, groups: Indices, n: int, rng: np.random.Generator) -> Indices:
        shape = (n, len(groups))
        if self.weights.size:
            # Each group's weights sum to one, so group i owns the interval [i, i + 1) of the running total. Ties in the
            # running total are rows of weight zero; searching from the right skips them.
            place = np.searchsorted(self._cumulative_weights, groups + rng.random(shape), side="right")
            first, last = self._drawable
            return np.clip(place, first[groups], last[groups])
        return rng.integers(self.all_offsets[groups], self.all_offsets[groups + 1], size=shape)

    @cached_property
    def _cumulative_weights(self) -> Floats:
        return np.cumsum(self.weights)

    @cached_property
    def _drawable(self) -> tuple[Indices, Indices]:
        """First and last member of each group with positive weight. Rounding may push a draw past either."""
        place = np.arange(len(self.weights))
        positive = self.weights > 0
        starts = self.offsets[:-1]
        first = np.minimum.reduceat(np.where(positive, place, len(place)), starts)
        return first, np.maximum.reduceat(np.where(positive, place, -1), starts)
