"""What data know about other workers if there are none. A worker's part of larger data overrides it."""

from typing import Any

import numpy as np

from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["OneWorker"]


class OneWorker:
    """Data of which all rows are stored here; see `distributed.sharding` for others."""

    rows: Any
    offsets: Indices

    n_rows: Any  # properties of `GroupedData`
    n_groups: Any
    group_sizes: Any

    @property
    def n_workers(self) -> int:
        """Number of processes that hold the rows."""
        return 1

    @property
    def is_whole(self) -> bool:
        """Whether all rows are stored here."""
        return self.n_workers == 1

    @property
    def rank(self) -> int:
        """Number of this worker."""
        return 0

    @property
    def is_first(self) -> bool:
        """Whether this is the first worker, which writes files."""
        return self.rank == 0

    @property
    def n_total(self) -> int:
        """Number of rows over all workers."""
        return int(self.n_rows)

    @property
    def all_offsets(self) -> Indices:
        """Where each group's members begin and end, over all workers."""
        return self.offsets

    @property
    def all_sizes(self) -> Indices:
        """Number of members of each group, over all workers."""
        sizes: Indices = self.group_sizes
        return sizes

    @property
    def mean_entries(self) -> float:
        """Mean number of a row's stored entries, over all workers: they must make the same choices."""
        total = np.array([self.rows.n_entries * self.n_rows])
        self.add_up(total)
        return float(total[0]) / self.n_total

    def add_up(self, *arrays: Floats) -> None:
        """Replace arrays by their sums over all workers."""

    def largest(self, values: Floats) -> Floats:
        """Return the largest values over all workers."""
        return values

    def share(self, content: bytes) -> bytes:
        """Return the first worker's content, on every worker."""
        return content

    def whole_groups(self) -> Mask:
        """Return which groups are stored here with all their members."""
        return np.ones(self.n_groups, dtype=bool)

    @property
    def one_worker_per_group(self) -> bool:
        """Whether no group is divided among workers."""
        return True
