"""Several processes on one problem: communicators, and data divided among them."""

import importlib.util
import os
import warnings

from groupdro.data.communicator import CommunicationError, Communicator, SerialCommunicator
from groupdro.distributed.mpi_comm import MpiCommunicator
from groupdro.distributed.sharding import ShardedData, shard
from groupdro.distributed.torch_comm import TorchCommunicator
from groupdro.utils.arguments import check_choice, check_number

__all__ = [
    "CommunicationError",
    "Communicator",
    "MpiCommunicator",
    "SerialCommunicator",
    "ShardedData",
    "TorchCommunicator",
    "communicator",
    "shard",
]


def communicator(kind: str = "auto", *, timeout: float = 60.0) -> Communicator:
    """Return the communicator that matches how this process was launched.

    Parameters
    ----------
    kind : {"auto", "serial", "torch", "mpi"}
        How the processes are connected. "auto" means torch if RANK, WORLD_SIZE and MASTER_ADDR are set, as by torchrun;
        else MPI if OMPI_COMM_WORLD_SIZE or PMI_SIZE is set, as by mpirun, and mpi4py is installed; else serial.
    timeout : float
        Seconds that torch waits for another process before it raises an error.

    Returns
    -------
    Communicator
        Close it when done, or use it in a `with` statement.

    Warns
    -----
    RuntimeWarning
        If "auto" finds several MPI processes but mpi4py is not installed. Each then works alone.
    """
    check_choice(kind, "kind", ("auto", "serial", "torch", "mpi"))
    check_number(timeout, "timeout", positive=True)
    if kind == "auto":
        kind = _launched_by()
    if kind == "torch":
        return TorchCommunicator.from_environment(timeout=timeout)
    return MpiCommunicator() if kind == "mpi" else SerialCommunicator()


def _launched_by() -> str:
    if all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")):
        return "torch"
    size = os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("PMI_SIZE")
    if not size:
        return "serial"
    if importlib.util.find_spec("mpi4py") is not None:
        return "mpi"
    if size != "1":
        warnings.warn(
            f'MPI started {size} processes, but each works alone without mpi4py: pip install "groupdro[mpi]".',
            RuntimeWarning,
            stacklevel=3,
        )
    return "serial"
