"""Collective operations built from point-to-point messages, identical on every transport."""

from abc import abstractmethod

import numpy as np

from groupdro.data.communicator import Communicator, Numbers

__all__ = ["PeerCommunicator"]


class PeerCommunicator(Communicator):
    """A communicator whose transport only provides point-to-point messages.

    With p processes and n numbers, a reduction takes

    - up to `doubling_limit` numbers, recursive doubling: log2(p) exchanges of all n numbers, for the lowest latency;
    - above, recursive halving and doubling: 2 log2(p) exchanges of n/2, n/4, ... numbers, so that each process sends
      2 n (1 - 1/p) numbers in all, for the least traffic.

    If p is not a power of two, the processes beyond the largest power of two in p (the folded ones) hand their numbers
    to a partner beforehand and receive the result afterwards. A broadcast uses a binomial tree.

    Parameters
    ----------
    rank, size : int
        Number of this process, from 0, and the number of processes.

    Attributes
    ----------
    doubling_limit : int
        Largest number of values reduced by recursive doubling; the same on every process.
    """

    doubling_limit = 30_000

    def __init__(self, rank: int, size: int):
        super().__init__(rank, size)
        self._room = np.empty(0, np.uint8)

    # ------------------------------------------------------------------ messages

    @abstractmethod
    def _transfer(self, peer: int, sent: Numbers | None, received: Numbers | None) -> None:
        """Send to and receive from a peer at the same time; None for no message in that direction.

        Messages from one process to another arrive in order. Returns when both are done. Failures raise RuntimeError.
        """

    def _exchange(self, peer: int, sent: Numbers | None, received: Numbers | None) -> None:
        """Transfer, and count the bytes. The sent and received arrays must not overlap."""
        self.bytes_sent += 0 if sent is None else sent.nbytes
        self._transfer(peer, sent, received)

    # ------------------------------------------------------------------ collectives

    def _allreduce(self, values: Numbers, combine: np.ufunc) -> None:
        core = 1 << (self.size.bit_length() - 1)  # the largest power of two in size
        if self.rank >= core:
            self._exchange(self.rank - core, values, None)
            self._exchange(self.rank - core, None, values)
            return
        folded = self.rank + core
        if folded < self.size:
            received = self._workspace(values.size, values)
            self._exchange(folded, None, received)
            combine(values, received, out=values)
        if values.size <= self.doubling_limit:
            self._double(values, combine, core)
        else:
            self._halve_and_double(values, combine, core)
        if folded < self.size:
            self._exchange(folded, values, None)

    def _double(self, values: Numbers, combine: np.ufunc, core: int) -> None:
        """Reduce by recursive doubling: after k rounds, 2^k neighbours hold the same bits.

        Both partners compute lower rank + higher rank into a third array. In place, NumPy's loops may swap the
        operands, which makes a difference if both are NaN or, in a maximum, zeros of opposite sign.
        """
        n = values.size
        room = self._workspace(2 * n, values)
        mine = values
        received = room[:n]
        result = room[n:]
        distance = 1
        while distance < core:
            peer = self.rank ^ distance
            self._exchange(peer, mine, received)
            lower, higher = (mine, received) if self.rank < peer else (received, mine)
            combine(lower, higher, out=result)
            mine, result = result, mine
            distance *= 2
        if mine is not values:
            values[:] = mine

    def _halve_and_double(self, values: Numbers, combine: np.ufunc, core: int) -> None:
        """Reduce by recursive halving, which leaves each process a segment of the result, and copy the segments."""
        room = self._workspace(values.size - values.size // 2, values)
        begin = 0
        end = values.size
        rounds = []
        distance = core // 2
        while distance:
            peer = self.rank ^ distance
            middle = (begin + end) // 2
            kept = slice(begin, middle)
            given = slice(middle, end)
            if self.rank > peer:
                kept, given = given, kept
            mine = values[kept]
            received = room[: kept.stop - kept.start]
            self._exchange(peer, values[given], received)
            lower, higher = (mine, received) if self.rank < peer else (received, mine)
            combine(lower, higher, out=mine)
            rounds.append((peer, kept, given))
            begin = kept.start
            end = kept.stop
            distance //= 2
        for peer, kept, given in reversed(rounds):  # the peer has the complete result for what was given to it
            self._exchange(peer, values[kept], values[given])

    def _broadcast(self, values: Numbers, root: int) -> None:
        place = (self.rank - root) % self.size  # position in the tree; a parent's lacks its child's lowest bit
        distance = 1
        while distance < self.size and not place & distance:
            distance *= 2
        if place:
            self._exchange((self.rank - distance) % self.size, None, values)
        while distance := distance // 2:
            if place + distance < self.size:
                self._exchange((self.rank + distance) % self.size, values, None)

    def _workspace(self, n: int, like: Numbers) -> Numbers:
        """Return a buffer for n numbers, kept between calls: allocating it costs as much as the reduction itself."""
        if self._room.size < n * like.itemsize:
            self._room = np.empty(n * like.itemsize, np.uint8)
        return self._room[: n * like.itemsize].view(like.dtype)
