"""Communicator for processes started by mpirun or another MPI launcher."""

from groupdro.data.communicator import Numbers
from groupdro.distributed.exchange import PeerCommunicator
from groupdro.utils.optional import import_extra

__all__ = ["MpiCommunicator"]

_TAG = 7_919  # keeps messages separate from those of a program that uses COMM_WORLD itself


class MpiCommunicator(PeerCommunicator):
    """All processes of the MPI job, MPI's COMM_WORLD.

    Reductions are the package's own over `Sendrecv`, because MPI does not guarantee identical bits on all processes.

    MPI has no timeout and cannot continue after a process is lost; the launcher ends the job. Start programs with
    `mpirun -n 4 python -m mpi4py program.py`, so that an exception in one process ends the others too.

    Raises
    ------
    ImportError
        If mpi4py, or the MPI library that it loads, is not installed.
    """

    def __init__(self) -> None:
        try:
            MPI = import_extra("mpi4py.MPI", "mpi")
        except RuntimeError as error:  # mpi4py is installed but finds no MPI library
            raise ImportError(f"mpi4py finds no MPI library; install Open MPI or MPICH: {error}") from error
        self._world = MPI.COMM_WORLD
        super().__init__(self._world.rank, self._world.size)

    def _transfer(self, peer: int, sent: Numbers | None, received: Numbers | None) -> None:
        if received is None:
            self._world.Send(sent, peer, _TAG)
        elif sent is None:
            self._world.Recv(received, peer, _TAG)
        else:
            self._world.Sendrecv(sent, peer, _TAG, received, peer, _TAG)
