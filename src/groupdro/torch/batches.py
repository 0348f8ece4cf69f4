"""Reading inputs, labels and groups from the batches of a loader."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from groupdro.data.grouping import MISSING, GroupRules, read_groups
from groupdro.torch.installed import torch
from groupdro.utils.types import Indices

__all__ = ["BatchReader", "is_shuffled"]

_LABELS = "labels", "label", "y"
_GROUPS = "groups", "group"
_METADATA = ("metadata",)


def is_shuffled(loader: Any) -> bool:
    """Return whether a loader's order of rows is, or may be, random, as with a custom sampler.

    Anything other than a DataLoader is assumed to keep the order of rows.
    """
    data = torch.utils.data
    if not isinstance(loader, data.DataLoader) or isinstance(loader.dataset, data.IterableDataset):
        return False
    batches = loader.batch_sampler
    if batches is not None and not isinstance(batches, data.BatchSampler):
        return True
    sampler = loader.sampler if batches is None else batches.sampler
    if isinstance(sampler, data.distributed.DistributedSampler):
        raise ValueError("loader has a DistributedSampler, which returns some of the rows: pass a loader of all rows.")
    return not isinstance(sampler, data.SequentialSampler)


class BatchReader:
    """Extracts inputs, labels and groups from batches.

    Parameters
    ----------
    groups : object
        None for the third item of a tuple or the entry "group" or "groups" of a mapping; the name of an entry; a
        callable that takes the batch; the groups of all rows, in the order of the loader; or rules that find them in
        the third item of a tuple or the entry "metadata" of a mapping: a table, a matrix, or a mapping of columns.
    labels : object
        None for the second item or the entry "labels", "label" or "y"; the name of an entry; or a callable.
    forward : callable or None
        Takes the model and the batch, on the device of the model, and runs the model. None passes the first item of a
        tuple to the model or, as keywords, all entries of a mapping except labels and groups.
    shuffled : bool
        Whether the loader's order of rows is, or may be, random.
    """

    def __init__(self, groups: Any, labels: Any, forward: Callable[[Any, Any], Any] | None, *, shuffled: bool):
        for name, value in (("labels", labels), ("forward", forward)):
            if not (value is None or callable(value) or (name == "labels" and isinstance(value, str))):
                raise TypeError(f"{name} must be callable or None, got {type(value).__name__}.")
        self._labels = labels
        self._forward = forward
        self._rules = groups if isinstance(groups, GroupRules) else None
        self._from_batch = groups if groups is None or callable(groups) or isinstance(groups, str) else None
        self._codes: Indices | None = None
        self._names: tuple[Any, ...] = ()
        if groups is not None and self._rules is None and self._from_batch is None:
            if shuffled:
                raise ValueError(
                    "groups are given in the order of the rows, but the loader shuffles: make it with shuffle=False, "
                    "or include the groups in its batches."
                )
            self._codes, self._names = _read_all(groups)

    def groups(self, batch: Any, start: int, n_rows: int) -> list[Any]:
        """Return the groups of a batch that starts at a given row.

        Parameters
        ----------
        batch : object
            The batch.
        start, n_rows : int
            First row, and number of rows.

        Returns
        -------
        list
            One name per row; None for a row without a label, and for all rows if the batch has no groups and none were
            asked for.
        """
        if self._codes is not None:
            if start + n_rows > len(self._codes):
                raise ValueError(f"groups has {len(self._codes)} rows, but the loader returns more.")
            return [self._names[code] for code in self._codes[start : start + n_rows]]
        if self._rules is not None:
            table = _table_of(_take(batch, None, 2, _METADATA, "metadata"))
            values = self._rules.partition(table).tolist()
        else:
            if self._from_batch is None and not _has_groups(batch):
                return [None] * n_rows
            values = _rows_of(_take(batch, self._from_batch, 2, _GROUPS, "groups"))
        if len(values) != n_rows:
            raise ValueError(f"groups has {len(values)} rows for a batch of {n_rows}.")
        return [None if value is None or value != value else value for value in values]

    def check_end(self, n_rows: int) -> None:
        """Raise if there are more groups than rows of the loader.

        Parameters
        ----------
        n_rows : int
            Total number of rows of the loader.
        """
        if self._codes is not None and n_rows != len(self._codes):
            raise ValueError(f"groups has {len(self._codes)} rows, but the loader returned {n_rows}.")

    def labels(self, batch: Any) -> Indices:
        """Return the labels of a batch.

        Parameters
        ----------
        batch : object
            The batch.

        Returns
        -------
        ndarray of int
            One class per row.
        """
        found = _take(batch, self._labels, 1, _LABELS, "labels")
        values = np.asarray(_plain(found))
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1 or values.dtype.kind not in "biuf" or not (values == np.floor(values)).all():
            raise ValueError(
                f"labels must be class numbers, one per row; got {values.dtype} of shape {values.shape}. Pass labels="
                "lambda batch: ... to compute them."
            )
        return values.astype(np.int64)

    def runner(self, model: Any, batch: Any, device: Any) -> Callable[[], Any]:
        """Return a function that runs the model on a batch.

        Parameters
        ----------
        model : torch.nn.Module
            The model.
        batch : object
            The batch.
        device : torch.device
            Device of the model.

        Returns
        -------
        callable
            Function without arguments that returns the output.
        """
        if self._forward is not None:
            forward = self._forward
            there = _to(batch, device)
            return lambda: forward(model, there)
        if isinstance(batch, Mapping):
            taken = {name for name in (self._labels, self._from_batch) if isinstance(name, str)}
            taken |= {*_LABELS, *_GROUPS}
            taken |= set() if self._rules is None else {*_METADATA}
            inputs = {name: _to(value, device) for name, value in batch.items() if name not in taken}
            return lambda: model(**inputs)
        inputs = _to(batch[0], device)
        return lambda: model(inputs)


def _take(batch: Any, how: Any, place: int, names: tuple[str, ...], argument: str) -> Any:
    """Return labels or groups of a batch."""
    if callable(how):
        return how(batch)
    if isinstance(batch, Mapping):
        for name in names if how is None else (how,):
            if name in batch:
                return batch[name]
        raise ValueError(f"{argument} are not in the batch, which has {list(batch)}: pass {argument}=.")
    if how is not None:
        raise TypeError(f"{argument} is the name {how!r}, which requires batches that are mappings.")
    if not isinstance(batch, tuple | list) or len(batch) > 3:
        what = f"{len(batch)} items" if isinstance(batch, tuple | list) else type(batch).__name__
        raise TypeError(
            f"a batch must be (inputs, labels), (inputs, labels, groups) or a mapping, got {what}: pass forward=, "
            "labels= and groups= to read it."
        )
    if len(batch) <= place:
        raise ValueError(f"{argument} are not in the batch, which has {len(batch)} items: pass {argument}=.")
    return batch[place]


def _has_groups(batch: Any) -> bool:
    """Return whether a batch has groups where they are looked for by default."""
    if isinstance(batch, Mapping):
        return any(name in batch for name in _GROUPS)
    return not (isinstance(batch, tuple | list) and len(batch) <= 2)  # other forms are refused with a reason


def _table_of(metadata: Any) -> Any:
    """Return describing columns of a batch as a table or matrix."""
    if isinstance(metadata, Mapping):
        import pandas as pd

        return pd.DataFrame({name: _plain(column) for name, column in metadata.items()})
    return _plain(metadata)


def _plain(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values


def _rows_of(values: Any) -> list[Any]:
    """Return one plain value per row; tuples if there are several columns."""
    values = _plain(values)
    if isinstance(values, np.ndarray):
        return values.tolist() if values.ndim == 1 else list(map(tuple, values.tolist()))
    if isinstance(values, tuple | list):
        return [value.item() if hasattr(value, "item") else value for value in values]
    codes, names = _read_all(values)
    return [names[code] for code in codes]


def _read_all(groups: Any) -> tuple[Indices, tuple[Any, ...]]:
    """Return the index of each row's group in a list of names, which is None for rows without a label."""
    n_rows = len(groups)
    groups = _plain(groups)
    if isinstance(groups, np.ndarray) and groups.ndim == 2:
        # Treat columns like those of data frames, whose combinations are the groups; zeros and ones are not a
        # membership.
        groups = np.fromiter(map(tuple, groups.tolist()), dtype=object, count=n_rows)
    grouping = read_groups(groups, n_rows, missing="own")
    if grouping.overlapping:
        raise ValueError("groups is a membership matrix, but every row must be in exactly one group.")
    return grouping.codes(n_rows), tuple(None if _is_missing(name) else name for name in grouping.names)


def _is_missing(name: Any) -> bool:
    """Return whether a group is that of missing labels, or a combination with one."""
    return name == MISSING or (isinstance(name, tuple) and MISSING in name)


def _to(value: Any, device: Any) -> Any:
    """Move tensors to a device, in any nesting."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _to(inner, device) for name, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_to(inner, device) for inner in value))
    if isinstance(value, tuple | list):
        return type(value)(_to(inner, device) for inner in value)
    return value
