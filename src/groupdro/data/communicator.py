"""Communication between processes that work on one problem: in-place sums, maxima, copies, and barriers."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self, TypeVar

import numpy as np

from groupdro.utils.arguments import short_repr
from groupdro.utils.types import Array

__all__ = ["CommunicationError", "Communicator", "Numbers", "SerialCommunicator"]

Numbers = Array  # float64 or int64
Given = TypeVar("Given", bound=Numbers)

_DTYPES = (np.dtype(np.float64), np.dtype(np.int64))


class CommunicationError(RuntimeError):
    """A collective operation failed: a process died, does not answer or cannot be reached."""


class Communicator(ABC):
    """Collective operations of `size` processes; this process has number `rank`.

    Every process calls the same operations in the same order, on arrays of the same shape and type: C-contiguous,
    writeable, float64 or int64. All processes end up with identical bits, which depend only on the inputs and the
    number of processes. State computed from them therefore stays the same everywhere without being sent. After an error
    the processes may be out of step, so every further operation fails.

    Parameters
    ----------
    rank, size : int
        Number of this process, from 0, and the number of processes.

    Attributes
    ----------
    rank, size : int
        The arguments.
    seconds : float
        Time spent in operations so far, including waiting for others.
    calls : int
        Operations so far.
    bytes_sent : int
        Bytes that this process sent to others so far.
    """

    def __init__(self, rank: int, size: int):
        self.rank = rank
        self.size = size
        self.seconds = 0.0
        self.calls = self.bytes_sent = 0
        self._closed = self._failed = False

    def allreduce(self, array: Given) -> Given:
        """Replace the array of every process by the sum of all.

        Parameters
        ----------
        array : ndarray of float64 or int64, C-contiguous
            Contribution of this process; overwritten.

        Returns
        -------
        ndarray
            The array itself.
        """
        self._run("allreduce", array, lambda values: self._allreduce(values, np.add))
        return array

    def allreduce_max(self, array: Given) -> Given:
        """Replace the array of every process by the element-wise maximum of all; NaN propagates.

        Parameters
        ----------
        array : ndarray of float64 or int64, C-contiguous
            Contribution of this process; overwritten.

        Returns
        -------
        ndarray
            The array itself.
        """
        self._run("allreduce_max", array, lambda values: self._allreduce(values, np.maximum))
        return array

    def broadcast(self, array: Given, root: int = 0) -> Given:
        """Replace the array of every process by that of the root.

        Parameters
        ----------
        array : ndarray of float64 or int64, C-contiguous
            Array to send from the root; overwritten elsewhere.
        root : int
            Rank of the process whose array is copied.

        Returns
        -------
        ndarray
            The array itself.
        """
        if not isinstance(root, int | np.integer) or not 0 <= root < self.size:
            raise ValueError(f"root must be a rank from 0 to {self.size - 1}; got {short_repr(root)}.")
        self._run("broadcast", array, lambda values: self._broadcast(values, root))
        return array

    def barrier(self) -> None:
        """Wait until every process has reached this point."""
        self._run("barrier", np.zeros(1, np.int64), lambda values: self._allreduce(values, np.add))

    def close(self) -> None:
        """Close the connections. Further operations fail; closing again has no effect."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------------ implemented by subclasses

    @abstractmethod
    def _allreduce(self, values: Numbers, combine: np.ufunc) -> None:
        """Reduce a nonempty one-dimensional array in place, by `add` or `maximum`."""

    @abstractmethod
    def _broadcast(self, values: Numbers, root: int) -> None:
        """Copy a nonempty one-dimensional array from the root, in place."""

    def _run(self, operation: str, array: Numbers, method: Callable[[Numbers], None]) -> None:
        values = _flat(operation, array)
        if self._closed or self._failed:
            why = "the communicator is closed" if self._closed else "an earlier operation failed"
            raise CommunicationError(f"Rank {self.rank} of {self.size}: {operation} is not possible: {why}.")
        begun = time.perf_counter()
        try:
            if values.size:  # all processes have the same shape, so all skip this or none does
                method(values)
        except RuntimeError as error:  # raised by torch and mpi4py
            self._failed = True
            what = f"{operation} of {values.size} {values.dtype}"
            raise CommunicationError(f"Rank {self.rank} of {self.size}: {what} failed: {error}") from error
        except BaseException:  # such as Ctrl-C; others may have continued
            self._failed = True
            raise
        finally:
            self.calls += 1
            self.seconds += time.perf_counter() - begun


class SerialCommunicator(Communicator):
    """Communicator of a single process: operations check their arguments and change nothing."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def _allreduce(self, values: Numbers, combine: np.ufunc) -> None:
        pass

    def _broadcast(self, values: Numbers, root: int) -> None:
        pass


def _flat(operation: str, array: Numbers) -> Numbers:
    """Return a one-dimensional view, after checking that the array is plain readable and writeable memory."""
    if not isinstance(array, np.ndarray) or array.dtype not in _DTYPES:
        given = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"{operation} takes an ndarray of float64 or int64; got {given}.")
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise ValueError(f"{operation} works in place on a C-contiguous, writeable array; copy this one first.")
    return array.reshape(-1)
