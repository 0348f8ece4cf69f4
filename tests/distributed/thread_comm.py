"""Workers as threads of one process, for tests of what they compute."""

import threading

import numpy as np

from groupdro.distributed import CommunicationError, Communicator


class ThreadCommunicator(Communicator):
    """A worker among threads that meet at a barrier; sums are taken in the order of ranks."""

    def __init__(self, rank, size, barrier, table):
        super().__init__(rank, size)
        self.barrier, self.table = barrier, table

    def _exchange(self, values):
        self.table[self.rank] = values.copy()
        self.barrier.wait(60)
        all_values = list(self.table)
        self.barrier.wait(60)
        return all_values

    def _allreduce(self, values, combine):
        values[...] = combine.reduce(np.stack(self._exchange(values)), axis=0)

    def _broadcast(self, values, root):
        values[...] = self._exchange(values)[root]


def run_workers(size, function):
    """Return function(communicator) of every rank, run at the same time."""
    barrier, table, results, errors = threading.Barrier(size), [None] * size, [None] * size, []

    def work(rank):
        try:
            results[rank] = function(ThreadCommunicator(rank, size, barrier, table))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = [error for error in errors if not isinstance(error, CommunicationError)]
    if errors:
        raise (first or errors)[0]
    return results
