"""Data divided among workers: each holds consecutive rows, in the order of groups.

All workers draw the same members from the same seed and evaluate those they hold; the communicator sums over rows. So
the answer depends on the number of workers only through rounding, except for dual ascent. Groups that are not large lie
entirely on one worker, so each one's own minimum is found there without messages.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from groupdro.data import Draw, GroupedData
from groupdro.data.communicator import Communicator, SerialCommunicator
from groupdro.data.cuts import cuts_between, row_cuts
from groupdro.distributed.cost import rows_per_step
from groupdro.utils.arguments import check_kind
from groupdro.utils.types import Array, Floats, Indices, KernelLoss, Mask

__all__ = ["ShardedData", "shard"]


@dataclass(frozen=True, eq=False)
class ShardedData(GroupedData):
    """A worker's part of grouped data. Build it with `shard`.

    Offsets, labels and weights are those of the local rows. A member's weight is its share of the whole group, so a
    local mean is this worker's contribution to the group's mean.

    Attributes
    ----------
    comm : Communicator
        Connection to the other workers.
    first : int
        Position of the first local row among all rows.
    whole_offsets : ndarray of shape (n_groups + 1,)
        Where each group begins and ends among all rows.
    weighted : bool
        Whether rows of a group have different weights.
    in_memory : bool
        Whether every worker can keep its rows in memory.
    """

    comm: Communicator = field(default_factory=SerialCommunicator)
    first: int = 0
    whole_offsets: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    weighted: bool = False
    in_memory: bool = True

    @property
    def n_workers(self) -> int:
        """Number of processes that hold the rows."""
        return self.comm.size

    @property
    def rank(self) -> int:
        """Number of this worker."""
        return self.comm.rank

    @property
    def n_total(self) -> int:
        """Number of rows of all workers."""
        return int(self.whole_offsets[-1])

    @property
    def all_offsets(self) -> Indices:
        """Where each group's members begin and end among all rows."""
        return self.whole_offsets

    @property
    def all_sizes(self) -> Indices:
        """Number of members of each group, over all workers."""
        return np.diff(self.whole_offsets)

    def add_up(self, *arrays: Floats) -> None:
        """Replace arrays by their sums over all workers, in one message."""
        if len(arrays) == 1 and arrays[0].flags.c_contiguous:
            self.comm.allreduce(arrays[0])
            return
        packed = self.comm.allreduce(np.concatenate([array.ravel() for array in arrays]))
        place = 0
        for array in arrays:
            array[...] = packed[place : place + array.size].reshape(array.shape)
            place += array.size

    def partial_means(self, values: Floats) -> Floats:
        """Return the contribution of the locally stored rows to each group's average."""
        return super().partial_means(values) if self.n_rows else np.zeros(self.n_groups)

    def largest(self, values: Floats) -> Floats:
        """Return the largest values over all workers."""
        return self.comm.allreduce_max(np.array(values, dtype=np.float64))

    def _holds(self, members: Indices) -> Mask:
        return (members >= self.first) & (members < self.first + self.n_rows)

    def own(self, draw: Draw) -> Draw:
        """Return the part of a draw that is stored here, with local member numbers."""
        here = self._holds(draw.members)
        return Draw(draw.members[here] - self.first, draw.groups[here], draw.weights[here])

    def gathered(self, draw: Draw, values: Any, weights: Floats) -> tuple[Any, Floats]:
        """Return all drawn rows and their weights."""
        here = self._holds(draw.members)
        n = len(draw.members)
        all_rows = np.zeros((n, self.n_features))
        all_weights = np.zeros(n)
        all_rows[here], all_weights[here] = values, weights
        self.add_up(all_rows, all_weights)
        return all_rows.astype(values.dtype), all_weights

    def flat(self, loss: KernelLoss | None, *, intercept: bool) -> None:
        """Return None: kernels would need the rows of all workers."""

    def rows_worth_sharing(self, n_numbers: int, n_outputs: int) -> int:
        """Return the number of rows per step at which messages take a small share of the time."""
        entries = self.largest(np.array([self.rows.n_entries]))[0]  # all workers must make the same steps
        return rows_per_step(float(entries) * n_outputs, n_numbers, self.n_workers)

    def read_ahead(self, members: Indices) -> None:
        """Let the system prefetch local members that will be needed soon."""
        self.rows.read_ahead(members[self._holds(members)] - self.first)

    def share(self, content: bytes) -> bytes:
        """Return the first worker's content, on every worker."""
        size = self.comm.broadcast(np.array([len(content)], dtype=np.int64))
        words = np.zeros(-(-int(size[0]) // 8), dtype=np.int64)
        if self.comm.rank == 0:
            words.view(np.uint8)[: len(content)] = np.frombuffer(content, np.uint8)
        return self.comm.broadcast(words).tobytes()[: int(size[0])]

    def whole_groups(self) -> Mask:
        """Return which groups are stored here with all their members."""
        return self.group_sizes == self.all_sizes

    @property
    def one_worker_per_group(self) -> bool:
        """Whether no group is divided among workers."""
        return cuts_between(self.whole_offsets, self.n_workers)

    def with_labels(self, y: Array, *, encoded: bool = False) -> "ShardedData":
        """Return the same rows with the same labels in the encoding of a loss."""
        if not encoded:
            raise ValueError("y must be set before the data are divided among workers.")
        part = super().with_labels(y, encoded=True)
        assert isinstance(part, ShardedData)
        return part

    def group(self, i: int) -> GroupedData:
        """Return one group's data: whole if this worker holds all of it, otherwise a part."""
        part = super().group(i)
        assert isinstance(part, ShardedData)
        size = int(self.whole_offsets[i + 1] - self.whole_offsets[i])
        if part.n_rows == size:
            weights = part.weights if self.weighted else np.empty(0)
            alone = GroupedData(part.rows, part.y, part.offsets, part.members, weights, part.names, part.source)
            return replace(alone, row_offsets=part.row_offsets)
        first = min(max(int(self.first - self.whole_offsets[i]), 0), size)
        return replace(part, first=first, whole_offsets=np.array([0, size]))

    def as_one_group(self, weights: Floats) -> "ShardedData":
        """Return the same rows as a part of a single group in which each has the given weight."""
        part = super().as_one_group(weights)
        assert isinstance(part, ShardedData)
        return replace(part, whole_offsets=np.array([0, self.n_total]), weighted=True)

    @property
    def can_draw(self) -> bool:
        """Weighted rows cannot be drawn, because each worker knows only its own weights."""
        return not self.weighted

    def draw_members(self, groups: Indices, n: int, rng: np.random.Generator) -> Indices:
        """Draw members of the given groups, which all workers must do together."""
        if not self.can_draw:
            raise ValueError(
                "sample_weight: solvers that draw rows do not support weights over several workers; use solver='sqp'."
            )
        return rng.integers(self.all_offsets[groups], self.all_offsets[groups + 1], size=(n, len(groups)))


def shard(data: GroupedData, comm: Communicator) -> GroupedData:
    """Return a worker's part of data that all workers can read.

    Parameters
    ----------
    data : GroupedData
        The whole data, the same on every worker: in memory or, better, memory-mapped from a store, so that only the
        part is read. Rows must be in the order of groups, without overlap.
    comm : Communicator
        Connection to the other workers.

    Returns
    -------
    GroupedData
        This worker's part; all of the data if there is only one worker.
    """
    check_kind(data, "data", GroupedData, "GroupedData")
    check_kind(comm, "comm", Communicator, "a Communicator")
    if comm.size == 1:
        return replace(data, key=data.digest)  # a job that shrinks to one worker can resume from its checkpoints
    mark = float(int.from_bytes(data.digest[:6], "little"))
    ends = comm.allreduce_max(np.array([mark, -mark]))
    if ends[0] != -ends[1]:
        raise ValueError("data must be the same on all workers, but they differ.")
    if data.members.size:
        raise ValueError("groups that overlap and memory-mapped rows in another order cannot be divided among workers.")
    if data.n_rows < comm.size:
        raise ValueError(f"data has only {data.n_rows} rows for {comm.size} workers.")
    first, last = row_cuts(data.offsets, comm.size)[comm.rank : comm.rank + 2].tolist()
    here = slice(first, last)
    offsets = np.clip(data.offsets, first, last) - first
    sizes = np.diff(offsets)
    weights = data.weights[here] if data.weights.size else np.repeat(1.0 / data.group_sizes, sizes)
    rows = data.rows.take(here)
    short = comm.allreduce_max(np.array([float(not rows.in_memory)]))
    return ShardedData(
        rows=rows,
        y=data.y[here],
        row_offsets=data.row_offsets[here] if data.row_offsets.size else data.row_offsets,
        offsets=offsets,
        members=np.empty(0, np.int64),
        weights=np.ascontiguousarray(weights),
        names=data.names,
        source=data.source[here],
        feature_names=data.feature_names,
        comm=comm,
        first=first,
        whole_offsets=data.offsets,
        weighted=bool(data.weights.size),
        in_memory=not short[0],
        key=data.digest,
        key_check=data.key_check,
    )
