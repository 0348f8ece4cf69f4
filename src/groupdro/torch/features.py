"""The inputs of a network's last layer, read batch by batch."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from groupdro.data.grouping import Grouping
from groupdro.torch.batches import BatchReader, is_shuffled
from groupdro.torch.installed import torch
from groupdro.torch.layers import (
    InputReader,
    check_is_output,
    evaluating,
    find_last_layer,
    model_digest,
    named_layer,
    unwrap,
)
from groupdro.torch.spool import FileSpool, MemorySpool, Spool
from groupdro.utils.arguments import check_flag, check_path
from groupdro.utils.types import Array, Indices, Mask

__all__ = ["Features", "extract_features", "read_features"]

_EVERY = 1.0  # seconds between two lines of progress


@dataclass(frozen=True, eq=False)
class Features:
    """Inputs of a network's last layer, with labels and groups.

    Attributes
    ----------
    X : ndarray or memmap of shape (n_rows, n_features)
        The features, in the order of the loader.
    y : ndarray of shape (n_rows,)
        Class of each row.
    group_codes : ndarray of shape (n_rows,)
        Index of each row's group in `names`; -1 for rows without a group label.
    names : tuple
        Sorted names of the groups.
    layer : str
        Name of the layer.
    """

    X: Array
    y: Indices
    group_codes: Indices
    names: tuple[Any, ...]
    layer: str

    @property
    def groups(self) -> Grouping:
        """The groups in the form that `fit` and `group_report` take. Raises if a row has no group label."""
        if not self.labelled.all():
            raise ValueError(f"{np.count_nonzero(~self.labelled)} of {len(self)} rows have no group label.")
        return Grouping.of_codes(self.group_codes, self.names)

    @property
    def labelled(self) -> Mask:
        """Whether each row has a group label."""
        return np.asarray(self.group_codes >= 0)

    def __len__(self) -> int:
        return len(self.y)


def extract_features(
    model: Any,
    loader: Any,
    *,
    layer: Any = None,
    groups: Any = None,
    labels: Any = None,
    forward: Callable[[Any, Any], Any] | None = None,
    path: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Features:
    """Compute the inputs of a network's last linear layer, without gradients and in evaluation mode.

    The network does not change, and every module returns to its own mode at the end. An autocast context around the
    call is respected.

    Parameters
    ----------
    model : torch.nn.Module
        The network, on any device and in any precision.
    loader : DataLoader or iterable
        Batches: (inputs, labels), (inputs, labels, groups), or mappings, as in Hugging Face.
    layer : str or torch.nn.Module, optional
        Name of a linear layer, as in `named_modules`, or the layer itself; a Sequential stands for its last part. The
        default is the linear layer whose output is the model's output, or its `logits`.
    groups : str, callable, array-like, Series or DataFrame, optional
        Groups of all rows, in the order of the loader, which then must not shuffle; or a function of the batch; or the
        name of an entry of a mapping. The default is the third item of the batch, or its entry "group" or "groups".
        What `find_groups` returned is applied to the describing columns in the batch, its third item or its entry
        "metadata": a table, a matrix or a mapping of columns. Each row gets the worst group that it is in. Rows may
        lack a label (None or NaN), and batches may have no groups at all.
    labels : str or callable, optional
        A function of the batch that returns class numbers, or the name of an entry. The default is the second item of
        the batch, or its entry "labels", "label" or "y".
    forward : callable, optional
        Takes the model and the batch, moved to the model's device, and runs the model. The default passes the first
        item or, as keywords, all entries except labels and groups.
    path : str or path-like, optional
        Folder to write the features to, batch by batch, for features larger than memory. They are stored as float16 if
        the layer receives float16, else as float32. Rerunning an interrupted call resumes it: the loader, which must
        not shuffle, is read from the beginning, but the network is not run on rows already saved. A complete folder is
        used as it is.
    progress : bool, default=False
        Whether to print progress to standard error once per second.

    Returns
    -------
    Features
        Features, labels and groups, in memory as float32 or memory-mapped.

    Examples
    --------
    >>> import torch
    >>> from groupdro.torch import extract_features
    >>> layers = torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)
    >>> network = torch.nn.Sequential(*layers)
    >>> y, groups = torch.tensor([0, 1, 0, 1, 1]), ["a", "a", "b", "b", "b"]
    >>> batches = [(torch.ones(5, 4), y, groups)]
    >>> features = extract_features(network, batches)
    >>> features.layer, features.X.shape, features.names
    ('2', (5, 3), ('a', 'b'))
    """
    return read_features(
        model, loader, layer=layer, groups=groups, labels=labels, forward=forward, path=path, progress=progress
    )


def read_features(
    model: Any,
    loader: Any,
    *,
    layer: Any,
    groups: Any,
    labels: Any,
    forward: Callable[[Any, Any], Any] | None,
    path: str | os.PathLike[str] | None,
    progress: bool,
    is_output: bool = False,
) -> Features:
    """Compute features as `extract_features` does; with `is_output`, of a layer whose output the model returns."""
    check_flag(progress, "progress")
    inner = unwrap(model)
    shuffled = is_shuffled(loader)
    reader = BatchReader(groups, labels, forward, shuffled=shuffled)
    spool: Spool = MemorySpool()
    if path is not None:
        if shuffled:
            raise ValueError("path requires a loader with a fixed order: make it with shuffle=False.")
        spool = FileSpool(check_path(path, "path"))
    chosen = None if layer is None else named_layer(inner, layer)
    try:
        name = _run(inner, loader, reader, spool, chosen, _lines(loader) if progress else None, is_output=is_output)
        X, y, codes = spool.finish()
    except BaseException:
        if isinstance(spool, FileSpool):
            spool.interrupt()
        raise
    return _sorted_features(X, y, codes, spool.names, name)


def _run(
    model: Any,
    loader: Any,
    reader: BatchReader,
    spool: Spool,
    chosen: tuple[str, Any] | None,
    report: Any,
    *,
    is_output: bool,
) -> str:
    """Pass all batches to the spool, and return the name of the layer."""
    inputs: InputReader | None = None
    start = n_seen = 0
    n_saved = spool.n_batches
    with evaluating(model):
        for n_seen, batch in enumerate(loader, 1):
            y = reader.labels(batch)
            groups = reader.groups(batch, start, len(y))
            run = reader.runner(model, batch, _device(model))
            if inputs is None:
                inputs = InputReader(*(find_last_layer(model, run) if chosen is None else chosen))
                if is_output and chosen is not None:
                    check_is_output(*chosen, run, len(y))
                if isinstance(spool, FileSpool):
                    _begin(spool, model, inputs, run, len(y))
            if isinstance(spool, FileSpool) and n_seen <= n_saved:
                _compare(spool, start, y, groups)
            else:
                spool.add(inputs.read(run, len(y)), y, groups)
            start += len(y)
            if report is not None:
                report(start)
            if isinstance(spool, FileSpool) and spool.complete:
                return inputs.name
    if inputs is None or not start:
        raise ValueError("loader returned no rows.")
    if n_seen < n_saved:
        raise ValueError(f"loader returned {n_seen} batches, but path has {n_saved}: it belongs to another loader.")
    reader.check_end(start)
    return inputs.name


def _begin(spool: FileSpool, model: Any, inputs: InputReader, run: Callable[[], Any], n_rows: int) -> None:
    first = inputs.read(run, n_rows)
    spool.begin(first.dtype, first.shape[1], layer=inputs.name, network=model_digest(model, inputs.module))


def _compare(spool: FileSpool, start: int, y: Indices, groups: list[Any]) -> None:
    """Refuse to resume with another loader."""
    stored, names = spool.stored(start, start + len(y))
    if not (np.array_equal(stored, y) and names == groups):
        raise ValueError(f"path and loader have different labels or groups, first in the batch at row {start}.")


def _device(model: Any) -> Any:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _sorted_features(X: Array, y: Indices, codes: Indices, names: tuple[Any, ...], layer: str) -> Features:
    """Return features with sorted group names, if they can be sorted."""
    try:
        order = sorted(range(len(names)), key=names.__getitem__)
    except TypeError:
        order = list(range(len(names)))
    place = np.full(len(names) + 1, -1)  # the last is that of rows without a label
    place[order] = np.arange(len(names))
    return Features(X, y, place[codes], tuple(names[k] for k in order), layer)


def _lines(loader: Any) -> Callable[[int], None]:
    """Return a function that prints how many rows were read."""
    try:
        total = f" of {len(loader.dataset):,}"
    except (AttributeError, TypeError):
        total = ""
    begun = last = time.monotonic()

    def report(n_rows: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _EVERY:
            last = now
            print(f"features: {n_rows:,}{total} rows, {n_rows / (now - begun):,.0f} per second", file=sys.stderr)

    return report
