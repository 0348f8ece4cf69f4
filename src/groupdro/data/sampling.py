"""Random draws of members for the steps of stochastic solvers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from groupdro.utils.types import Floats, Indices

if TYPE_CHECKING:
    from groupdro.data.grouped_data import GroupedData

__all__ = ["BatchPlan", "Draw"]

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

    @classmethod
    def one_per_group(cls, data: "GroupedData", rng: np.random.Generator) -> "Draw":
        """Draw one member of every group, with probability equal to its weight in the group."""
        groups = np.arange(data.n_groups)
        return cls(data.draw_members(groups, 1, rng)[0], groups, np.ones(data.n_groups))


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

    @classmethod
    def of(cls, data: "GroupedData", rows_per_step: int) -> "BatchPlan":
        """Divide an epoch into steps of about `rows_per_step` rows, each with members of every group.

        Groups get draws in proportion to their sizes, but at least one. So a step has at least as many rows as there
        are groups, and members of small groups are drawn more than once per epoch.
        """
        sizes, n_groups = data.all_sizes, data.n_groups
        if (sizes == sizes[0]).all():
            share = max(1, min(int(sizes[0]), round(rows_per_step / n_groups)))
            counts = np.full(n_groups, share)
            steps = max(1, int(sizes[0]) // share)
        else:
            # With four rows per group on average, the extra draws of small groups stay a fraction of the epoch.
            per_step = max(rows_per_step, 4 * n_groups)
            steps = max(1, round(sizes.sum() / per_step))
            counts = np.maximum(1, np.round(sizes / steps)).astype(np.int64)
        return cls(steps, np.repeat(np.arange(n_groups), counts), np.repeat(1.0 / counts, counts))

    def draw(self, data: "GroupedData", n_steps: int, rng: np.random.Generator) -> Indices:
        """Draw the members of several steps, as an array of shape (n_steps, n_drawn).

        They depend only on the random generator, not on where the rows are stored. If the rows do not fit in memory,
        ranges of consecutive members are drawn and distributed to the steps at random. Every member is equally likely,
        and a range is read at once.
        """
        if data.in_memory or data.weighted or self.groups.ndim > 1:
            return data.draw_members(self.groups, n_steps, rng)
        counts = np.bincount(self.groups, minlength=data.n_groups)
        out = np.empty((n_steps, len(self.groups)), np.int64)
        starts = data.all_offsets[:-1]
        sizes = data.all_sizes
        place = 0
        for i in np.flatnonzero(counts).tolist():
            wanted = n_steps * int(counts[i])
            size = int(sizes[i])
            stretch = min(_STRETCH, size, wanted)
            begins = rng.integers(0, size, size=-(-wanted // stretch))
            members = ((begins[:, None] + np.arange(stretch)) % size).ravel()[:wanted]
            out[:, place : place + counts[i]] = starts[i] + rng.permutation(members).reshape(n_steps, -1)
            place += counts[i]
        return out

    def permute(self, data: "GroupedData", n_steps: int, rng: np.random.Generator) -> Indices:
        """Draw the members of several steps without replacement, starting over when a group is exhausted."""
        if data.weighted:
            raise ValueError("replacement must be True if rows have weights, because draws follow the weights.")
        sizes = data.all_sizes
        starts = data.all_offsets[:-1]
        order = np.lexsort((rng.random(int(sizes.sum())), np.repeat(np.arange(data.n_groups), sizes)))
        counts = np.bincount(self.groups, minlength=data.n_groups)
        within = np.arange(len(self.groups)) - (np.cumsum(counts) - counts)[self.groups]
        turn = (np.arange(n_steps)[:, None] * counts[self.groups] + within) % sizes[self.groups]
        return order[starts[self.groups] + turn]
