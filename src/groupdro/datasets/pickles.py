"""Pickles of arrays, lists and text, read without running any code of theirs."""

import pickle
from pathlib import Path
from typing import Any

__all__ = ["ArraysOnly"]


class ArraysOnly(pickle.Unpickler):
    """Unpickler for official image files, which hold arrays, lists and text: nothing else is accepted."""

    allowed = frozenset({
        ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"), ("numpy", "dtype"),
    })  # fmt: skip

    @classmethod
    def read(cls, path: Path) -> Any:
        """Return the content of a file whose text was written by Python 2, as bytes.

        Parameters
        ----------
        path : Path
            The file.

        Returns
        -------
        object
            What was pickled.
        """
        with path.open("rb") as file:
            return cls(file, encoding="bytes").load()

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that the pickle names, or refuse it."""
        if (module, name) == ("_codecs", "encode"):
            return _latin1  # how old pickles write bytes
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in an image file")
        return super().find_class(module, name)


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")
