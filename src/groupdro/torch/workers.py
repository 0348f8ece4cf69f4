"""The processes of DistributedDataParallel, and sharing results among them."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from groupdro.torch.features import Features, sorted_features
from groupdro.torch.installed import nn, torch
from groupdro.utils.types import Array, Indices

__all__ = ["Workers", "workers_of"]

Found = TypeVar("Found")
_LONGEST = timedelta(days=7)  # other processes wait while the first one fits
_ROWS_SENT = 1 << 12  # at once
_COPIED = 1 << 24  # bytes at once


class Workers:
    """One process, or several that share the work on a model.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup or None
        A group of all processes that can send arrays in memory; None for a single process.

    Attributes
    ----------
    rank, size : int
        Number of this process, from 0, and the number of processes.
    """

    def __init__(self, group: Any = None):
        self._group = group
        self.rank = 0 if group is None else int(torch.distributed.get_rank(group))
        self.size = 1 if group is None else int(torch.distributed.get_world_size(group))

    def each(self, work: Callable[[], Found]) -> Found:
        """Run a function in every process; if it fails in one, fail in all.

        Parameters
        ----------
        work : callable
            Function to run, without communication.

        Returns
        -------
        object
            The result in this process.
        """
        if self.size == 1:
            return work()
        found = None
        error = None
        try:
            found = work()
        except BaseException as raised:
            error = raised
        said: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(said, None if error is None else repr(error), group=self._group)
        if error is not None:
            raise error
        for rank, text in enumerate(said):
            if text is not None:
                raise RuntimeError(f"Rank {rank} failed: {text}")
        return found  # type: ignore[return-value]

    def first(self, work: Callable[[], Found]) -> Found:
        """Run a function in the first process, and send its result to all.

        Parameters
        ----------
        work : callable
            Function to run.

        Returns
        -------
        object
            The result, the same in all processes.
        """
        if self.size == 1:
            return work()
        sent: list[Any] = [None]

        def attempt() -> None:
            if self.rank == 0:
                sent[0] = work()

        self.each(attempt)
        torch.distributed.broadcast_object_list(sent, src=0, group=self._group)
        return sent[0]

    def gather(self, own: Features, file: Path | None = None) -> Features | None:
        """Gather the features of all processes in the first.

        Parameters
        ----------
        own : Features
            Features of this process.
        file : Path, optional
            File to which the first process writes all features, which must be mapped from files that it can read. By
            default they are sent and kept in memory.

        Returns
        -------
        Features or None
            Features of all processes; in memory, in the order of the data set if that is known. None in the other
            processes.
        """
        if self.size == 1:
            return own
        dist = torch.distributed
        parts = [_Part()] * self.size
        place = None if file is None else Path(own.X.filename)  # type: ignore[attr-defined]
        part = _Part(own.y, own.group_codes, own.names, own.rows, own.X.shape[1], own.layer, place)
        dist.all_gather_object(parts, part, group=self._group)
        if len({(part.layer, part.n_features) for part in parts}) > 1:
            raise ValueError("the processes read different layers.")
        if file is not None:
            if self.rank:
                return None
            with file.open("wb") as whole:
                for part in parts:
                    with open(part.file, "rb") as piece:  # type: ignore[arg-type]
                        shutil.copyfileobj(piece, whole, _COPIED)
            return _joined(np.memmap(file, own.X.dtype, "r").reshape(-1, own.X.shape[1]), parts, keep_order=True)
        if self.rank:
            for start in range(0, len(own), _ROWS_SENT):
                dist.send(torch.from_numpy(np.ascontiguousarray(own.X[start : start + _ROWS_SENT])), 0, self._group)
            return None
        X = np.empty((sum(len(part.y) for part in parts), own.X.shape[1]), np.float32)
        X[: len(own)] = own.X
        first = len(own)
        for rank, part in enumerate(parts[1:], 1):
            rows = X[first : first + len(part.y)]
            for start in range(0, len(rows), _ROWS_SENT):
                dist.recv(torch.from_numpy(rows[start : start + _ROWS_SENT]), rank, self._group)
            first += len(part.y)
        return _joined(X, parts, keep_order=False)


@dataclass(frozen=True, eq=False)
class _Part:
    """What a process sends to the others about its features."""

    y: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    group_codes: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    names: tuple[Any, ...] = ()
    rows: Indices | None = None
    n_features: int = 0
    layer: str = ""
    file: Path | None = None


def _joined(X: Array, parts: list[_Part], *, keep_order: bool) -> Features:
    """Join labels and groups of several processes, and put rows in the order of the data set."""
    names = list(dict.fromkeys(name for part in parts for name in part.names))
    codes = [np.array([names.index(name) for name in part.names], np.int64)[part.group_codes] for part in parts]
    y = np.concatenate([part.y for part in parts])
    group_codes = np.concatenate(codes)
    rows = [part.rows for part in parts if part.rows is not None]
    if len(rows) == len(parts) and not keep_order:
        order = np.argsort(np.concatenate(rows), kind="stable")
        X = X[order]
        y = y[order]
        group_codes = group_codes[order]
    return sorted_features(X, y, group_codes, tuple(names), parts[0].layer)


@contextmanager
def workers_of(model: Any) -> Iterator[Workers]:
    """Yield the processes of a model wrapped by DistributedDataParallel; for any other model, this process only."""
    dist = torch.distributed
    if not isinstance(model, nn.parallel.DistributedDataParallel) or dist.get_world_size() == 1:
        yield Workers()
        return
    group = dist.new_group(backend="gloo", timeout=_LONGEST)  # for arrays in memory, whatever backend the program uses
    try:
        yield Workers(group)
    finally:
        dist.destroy_process_group(group)
