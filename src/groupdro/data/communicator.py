"""How processes that work on one problem exchange numbers: sums, maxima, copies and barriers, all in place."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self, TypeVar

import numpy as np

from groupdro.utils.arguments import short_repr
from groupdro.utils.types import Array

__all__ = ["CommunicationError", "Communicator", "Numbers", "SerialCommunicator"]

Numbers = Array  # of float64 or int64
Given = TypeVar("Given", bound=Numbers)

_DTYPES = (np.dtype(np.float64), np.dtype(np.int64))


class CommunicationError(RuntimeError):
    """A collective operation failed: a process is lost or does not answer, or there is no connection to it."""


class Communicator(ABC):
    """Collective operations of `size` processes; this one has number `rank`.

    Every process calls the same operations in the same order, on arrays of the same shape and type: C-contiguous,
    writeable, of float64 or int64. All end with identical bits, and for a given number of processes those bits are a
    function of the inputs alone, so that state which is computed from them stays the same everywhere without being
    sent. After an error the processes no longer agree on what was sent, and every further operation fails.

    Parameters
    ----------
    rank, size : int
        The number of this process, from 0, and of all.

    Attributes
    ----------
    rank, size : int
        As given.
    seconds : float
        Time spent in operations so far, waiting for the others included.
    calls : int
        Operations so far.
    bytes_sent : int
        Bytes that this process sent to others so far.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.seconds = 0.0
        self.calls = self.bytes_sent = 0
        self._closed = self._failed = False

    def allreduce(self, array: Given) -> Given:
        """Replace the array of every process by the sum of all.

        Parameters
        ----------
        array : ndarray of float64 or int64, C-contiguous
            What this process adds; overwritten.

        Returns
        -------
        ndarray
            The array itself.
        """
        self._run("allreduce", array, lambda values: self._allreduce(values, np.add))
        return array

    def allreduce_max(self, array: Given) -> Given:
        """Replace the array of every process by the entry-wise maximum of all; a NaN anywhere makes a NaN.

        Parameters
        ----------
        array : ndarray of float64 or int64, C-contiguous
            What this process brings; overwritten.

        Returns
        -------
        ndarray
            The array itself.
        """
        self._run("allreduce_max", array, lambda values: self._allreduce(values, np.maximum))
        return array

    def broadcast(self, array: Given, root: int = 0) -> Given:
        """Replace the array of every process by that of one.

        Parameters
        ----------
        array : ndarray of float64 or int64, C-contiguous
            What to send from the root; overwritten elsewhere.
        root : int
            Whose array to copy.

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
        """Wait until every process has come here."""
        self._run("barrier", np.zeros(1, np.int64), lambda values: self._allreduce(values, np.add))

    def close(self) -> None:
        """Give up the connections; further operations fail, and closing again does nothing."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------------ what a kind of communicator implements

    @abstractmethod
    def _allreduce(self, values: Numbers, combine: np.ufunc) -> None:
        """Reduce a one-dimensional array, which is not empty, by `add` or `maximum`, in place."""

    @abstractmethod
    def _broadcast(self, values: Numbers, root: int) -> None:
        """Copy a one-dimensional array, which is not empty, from the root, in place."""

    def _run(self, operation: str, array: Numbers, method: Callable[[Numbers], None]) -> None:
        values = _flat(operation, array)
        if self._closed or self._failed:
            why = "the communicator is closed" if self._closed else "an operation before it failed"
            raise CommunicationError(f"Rank {self.rank} of {self.size}: {operation} is not possible: {why}.")
        begun = time.perf_counter()
        try:
            if values.size:  # every process brings the same shape, so all leave here or none
                method(values)
        except RuntimeError as error:  # what torch and mpi4py raise
            self._failed = True
            what = f"{operation} of {values.size} {values.dtype}"
            raise CommunicationError(f"Rank {self.rank} of {self.size}: {what} failed: {error}") from error
        except BaseException:  # such as Ctrl-C: others may have continued
            self._failed = True
            raise
        finally:
            self.calls += 1
            self.seconds += time.perf_counter() - begun


class SerialCommunicator(Communicator):
    """The one process of a program that runs alone: operations check their arguments and change nothing."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def _allreduce(self, values: Numbers, combine: np.ufunc) -> None:
        pass

    def _broadcast(self, values: Numbers, root: int) -> None:
        pass


def _flat(operation: str, array: Numbers) -> Numbers:
    """Return a one-dimensional view, after checking that others can read and write the array as plain memory."""
    if not isinstance(array, np.ndarray) or array.dtype not in _DTYPES:
        given = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"{operation} takes an ndarray of float64 or int64; got {given}.")
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise ValueError(f"{operation} works in place on a C-contiguous, writeable array; copy this one first.")
    return array.reshape(-1)
