"""Whether the rows of a store are still those that its checksums were made of."""

import os
from pathlib import Path

import numpy as np

from groupdro.distributed import Communicator
from groupdro.store.document import StoreError, check
from groupdro.store.files import check_blocks
from groupdro.store.layout import MANIFEST, Manifest
from groupdro.store.reader import map_array, read_manifest

__all__ = ["RowsCheck"]


class RowsCheck:
    """Compares the files behind the rows with the checksums of the manifest, when it is first called.

    Every worker reads the blocks that hold its own part of the rows, in bounded memory. If one of them finds a
    difference, all raise the same error.

    Parameters
    ----------
    path : Path
        Directory of the store.
    manifest : Manifest
        Its manifest, as it was opened.
    comm : Communicator
        The way to the other workers, all of whom make the call.
    """

    def __init__(self, path: Path, manifest: Manifest, comm: Communicator):
        self.path, self.manifest, self.comm = path, manifest, comm
        self._passed = False

    def __call__(self) -> None:
        """Check once.

        Raises
        ------
        StoreError
            If a file has changed; the message names it.
        """
        if self._passed:
            return
        # Row pointers come first: they say which entries of the others are read.
        names = [MANIFEST, *sorted(self.manifest.files, key=lambda name: (name != "indptr.bin", name))]
        changed, fault = 0, None
        for place, name in enumerate(names, 1):
            try:
                self._check(name)
            except (StoreError, OSError) as error:
                changed, fault = place, error
                break
        changed = int(self.comm.allreduce_max(np.array([changed]))[0])
        if changed:
            raise StoreError(
                f"{os.fspath(self.path)!r} has changed: its {names[changed - 1]} does not match the checksums that the "
                "store was opened with, and neither would a checkpoint. Restore the file, or write the store again."
            ) from fault
        self._passed = True

    def _check(self, name: str) -> None:
        if name == MANIFEST:
            check(read_manifest(self.path) == self.manifest, f"its {MANIFEST} is another")
        else:
            check_blocks(self.path / name, self.manifest.files[name], *self._span(name))

    def _span(self, name: str) -> tuple[int, int]:
        """Return which bytes of a file belong to the rows of this worker."""
        n_rows, size = self.manifest.n_rows, self.manifest.files[name].size
        if name not in self.manifest.arrays or name == "offsets.bin":
            return 0, size
        dtype, shape = self.manifest.arrays[name]
        first, last = (n_rows * rank // self.comm.size for rank in (self.comm.rank, self.comm.rank + 1))
        if name in ("data.bin", "indices.bin"):
            indptr = map_array(self.path, self.manifest, "indptr.bin")
            first, last = int(indptr[first]), int(indptr[last])
        else:
            last += name == "indptr.bin"
        width = dtype.itemsize * (shape[1] if len(shape) > 1 else 1)
        return first * width, last * width
