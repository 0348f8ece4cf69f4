"""Storage for features as they are computed: memory, or files from which an interrupted run resumes."""

import json
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.store.manifest import label_to_json
from groupdro.utils.files import write_content
from groupdro.utils.types import Array, Indices

__all__ = ["FileSpool", "MemorySpool", "Spool"]

_FORMAT = "groupdro-features-1"
_STATE = "state.json"
_SECONDS = 5.0  # between two saves; later rows are recomputed after an interruption


class Spool(ABC):
    """Collects rows with their labels and groups, in order.

    Attributes
    ----------
    n_rows, n_batches : int
        Rows and batches so far.
    """

    n_rows = 0
    n_batches = 0

    def __init__(self) -> None:
        self._names: dict[Any, int] = {}

    def codes(self, groups: list[Any]) -> Indices:
        """Return the numbers of groups by name, -1 for None; new names get the next numbers."""
        found = [-1 if group is None else self._names.setdefault(group, len(self._names)) for group in groups]
        return np.array(found, np.int64)

    @property
    def names(self) -> tuple[Any, ...]:
        """Names of the groups, in order of arrival."""
        return tuple(self._names)

    @abstractmethod
    def add(self, X: Array, y: Indices, groups: list[Any]) -> None:
        """Add a batch."""

    @abstractmethod
    def finish(self) -> tuple[Array, Indices, Indices]:
        """Return features, labels and group numbers, after all batches were added."""


class MemorySpool(Spool):
    """Keeps everything in memory, in single precision."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[tuple[Array, Indices, Indices]] = []

    def add(self, X: Array, y: Indices, groups: list[Any]) -> None:
        """Add a batch."""
        self._batches.append((X.astype(np.float32, copy=False), y, self.codes(groups)))
        self.n_rows = self.n_rows + len(y)
        self.n_batches = self.n_batches + 1

    def finish(self) -> tuple[Array, Indices, Indices]:
        """Join the batches and release them."""
        X, y, groups = (np.concatenate(parts) for parts in zip(*self._batches, strict=True))
        self._batches.clear()
        return X, y, groups


class FileSpool(Spool):
    """Appends to files of raw arrays. An interrupted run resumes from the last save.

    Parameters
    ----------
    folder : Path
        Folder of the files.
    """

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder
        self.state: dict[str, Any] = {}
        self._files: dict[str, Any] = {}
        self._saved = time.monotonic()
        if (folder / _STATE).exists():
            self.state = json.loads((folder / _STATE).read_bytes())
            if self.state.get("format") != _FORMAT:
                raise ValueError(f"{os.fspath(folder)!r} has files of another format: choose another folder.")
            self.n_rows = self.state["n_rows"]
            self.n_batches = self.state["n_batches"]
            names = [tuple(name) if isinstance(name, list) else name for name in self.state["names"]]
            self._names = {name: code for code, name in enumerate(names)}
        elif folder.exists() and any(folder.iterdir()):
            raise FileExistsError(f"{os.fspath(folder)!r} is not empty and has no features: choose another folder.")

    @property
    def complete(self) -> bool:
        """Whether all rows are stored."""
        return bool(self.state.get("complete"))

    def begin(self, dtype: Any, n_features: int, **about: str) -> None:
        """Open the files, or check that existing ones belong to the same network.

        Parameters
        ----------
        dtype : dtype
            Type of the features.
        n_features : int
            Number of features.
        **about : str
            Facts that must match when a run resumes.
        """
        own = {"format": _FORMAT, "dtype": np.dtype(dtype).name, "n_features": n_features, **about}
        if self.state:
            for name, value in own.items():
                if self.state[name] != value:
                    raise ValueError(
                        f"{os.fspath(self.folder)!r} has features of another {name.replace('_', ' ')}: choose another "
                        "folder, or delete this one."
                    )
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.state = {**own, "complete": False}
        if self.complete:
            return
        for name, size in self._row_sizes().items():
            file = (self.folder / name).open("r+b" if (self.folder / name).exists() else "w+b")
            file.truncate(self.n_rows * size)  # drop rows after the last save
            file.seek(0, os.SEEK_END)
            self._files[name] = file

    def stored(self, start: int, stop: int) -> tuple[Indices, list[Any]]:
        """Return labels and groups of saved rows."""
        y, groups = (self._map(name)[start:stop] for name in ("y.bin", "groups.bin"))
        names = (*self.names, None)  # -1 is the last
        return np.array(y), [names[code] for code in groups]

    def add(self, X: Array, y: Indices, groups: list[Any]) -> None:
        """Add a batch."""
        parts = X.astype(self.state["dtype"], copy=False), y, self.codes(groups)
        for file, part in zip(self._files.values(), parts, strict=True):
            file.write(np.ascontiguousarray(part).data)
        self.n_rows = self.n_rows + len(y)
        self.n_batches = self.n_batches + 1
        if time.monotonic() - self._saved > _SECONDS:
            self.save()

    def save(self, *, complete: bool = False) -> None:
        """Flush everything to disk, and record how much is saved."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        names = [label_to_json(name, "groups") for name in self.names]
        self.state |= {"n_rows": self.n_rows, "n_batches": self.n_batches, "names": names, "complete": complete}
        write_content(self.folder / _STATE, json.dumps(self.state).encode())
        self._saved = time.monotonic()

    def interrupt(self) -> None:
        """Save everything so far, so that a later run can resume from here."""
        if self._files:
            self.save()
            self._close()

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def finish(self) -> tuple[Array, Indices, Indices]:
        """Map the features, and load labels and groups."""
        if not self.complete:
            self.save(complete=True)
        self._close()
        return self._map("X.bin"), np.array(self._map("y.bin")), np.array(self._map("groups.bin"))

    def _row_sizes(self) -> dict[str, int]:
        wide = np.dtype(self.state["dtype"]).itemsize * int(self.state["n_features"])
        return {"X.bin": wide, "y.bin": 8, "groups.bin": 8}

    def _map(self, name: str) -> Any:
        shape: tuple[int, ...] = (self.n_rows,)
        if name == "X.bin":
            shape = (self.n_rows, int(self.state["n_features"]))
        return np.memmap(self.folder / name, self.state["dtype"] if name == "X.bin" else np.int64, "r", shape=shape)
