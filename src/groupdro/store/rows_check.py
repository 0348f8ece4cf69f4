"""Whether the rows of a store are still those that its checksums were made of."""

import math
import os
from pathlib import Path

import numpy as np

from groupdro.data.communicator import Communicator
from groupdro.store.document import StoreError
from groupdro.store.files import check_blocks
from groupdro.store.reader import Opened, read_manifest
from groupdro.utils.bundle import BundleError

__all__ = ["RowsCheck"]


class RowsCheck:
    """Compares the files behind the rows with the checksums of the manifest, when it is first called.

    Every worker reads the blocks that hold its own part of the rows, in bounded memory. If one of them finds a
    difference, all raise the same error.

    Parameters
    ----------
    path : Path
        Directory of the store.
    opened : Opened
        What it was opened as.
    comm : Communicator
        The way to the other workers, all of whom make the call.
    """

    def __init__(self, path: Path, opened: Opened, comm: Communicator):
        self.path, self.opened, self.comm = path, opened, comm
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
        manifest = self.opened.manifest
        # Row pointers come first: they say which entries of the others are read.
        names = sorted(manifest.files, key=lambda name: (name != "indptr.bin", name))
        changed, fault = 0, None  # 1 for a store that was replaced, 2 and more for a file
        for number, name in enumerate(names, 2):
            try:
                check_blocks(manifest.place(self.path) / name, manifest.files[name], *self._span(name))
            except (BundleError, OSError) as error:
                changed, fault = number, error
                break
        if not self._is_current():
            changed = 1
        changed = int(self.comm.allreduce_max(np.array([changed]))[0])
        if changed == 1:
            raise StoreError(f"{os.fspath(self.path)!r} was replaced since it was opened: open it again.")
        if changed:
            raise StoreError(
                f"{os.fspath(self.path)!r} has changed: its {names[changed - 2]} does not match the checksums that the "
                "store was opened with, and neither would a checkpoint. Restore the file, or write the store again."
            ) from fault
        self._passed = True

    def _is_current(self) -> bool:
        """Whether the manifest is still the one that the store was opened with."""
        try:
            return read_manifest(self.path) == self.opened.manifest
        except (BundleError, OSError):
            return False

    def _span(self, name: str) -> tuple[int, int]:
        """Return which bytes of a file belong to the rows of this worker."""
        manifest = self.opened.manifest
        if name not in manifest.arrays or name == "offsets.bin":
            return 0, manifest.files[name].size
        dtype, shape = manifest.arrays[name]
        first, last = (manifest.n_rows * rank // self.comm.size for rank in (self.comm.rank, self.comm.rank + 1))
        if name in ("data.bin", "indices.bin"):
            first, last = (int(self.opened.arrays["indptr.bin"][row]) for row in (first, last))
        else:
            last += name == "indptr.bin"
        width = dtype.itemsize * math.prod(shape[1:])
        return first * width, last * width
