"""Communicator for processes connected by torch.distributed, as started by torchrun."""

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from groupdro.data.communicator import CommunicationError, Numbers
from groupdro.distributed.exchange import PeerCommunicator
from groupdro.utils.arguments import check_number
from groupdro.utils.optional import import_extra

__all__ = ["TorchCommunicator"]

_BACKEND = "gloo"
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PROCESS, _PARENT = os.getpid(), os.getppid()  # read as early as possible, to detect a parent that dies soon after
_LOOKS = 50  # for the thread of gloo, in half a second
_PR_SET_PDEATHSIG = 1


class TorchCommunicator(PeerCommunicator):
    """Processes connected by torch.distributed; create one with `from_environment`.

    Messages are sent by gloo with `isend` and `recv`, without copies, and reductions are built from them: gloo's own
    reduction is a ring, whose latency grows with the number of processes.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup
        A group of all processes, destroyed when this object is closed or Python exits.
    """

    def __init__(self, group: Any):
        self._torch = import_extra("torch", "distributed")
        self._dist = import_extra("torch.distributed", "distributed")
        super().__init__(self._dist.get_rank(group), self._dist.get_world_size(group))
        self._group = group
        atexit.register(self.close)  # a group that outlives the interpreter may crash the process

    @classmethod
    def from_environment(cls, *, timeout: float = 60.0) -> Self:
        """Connect to the other processes, using RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

        If torch.distributed is already initialised, as some launchers do, a separate group is created and the program's
        own is left alone. On Linux, a process started by torchrun is killed when torchrun dies; otherwise it would keep
        writing to the files of a job that has been restarted. Leave the variable TORCH_GLOO_LAZY_INIT unset.

        Parameters
        ----------
        timeout : float
            Seconds after which a process that does not connect or no longer answers is an error.

        Returns
        -------
        TorchCommunicator
            A communicator connected to all processes.

        Raises
        ------
        CommunicationError
            If variables are missing, the launcher is gone, or not all processes connected in time.
        ImportError
            If torch is not installed.
        """
        if missing := [name for name in _VARIABLES if not os.environ.get(name)]:
            raise CommunicationError(
                f"{', '.join(_VARIABLES)} must be set, as by torchrun; missing: {', '.join(missing)}."
            )
        check_number(timeout, "timeout", positive=True)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            _die_with_launcher()
        dist = import_extra("torch.distributed", "distributed")
        limit = timedelta(seconds=timeout)
        borrowed = dist.is_initialized()
        try:
            if not borrowed:
                dist.init_process_group(_BACKEND, timeout=limit, **_store_of_this_start(dist, limit))
            group = dist.new_group(backend=_BACKEND, timeout=limit) if borrowed else dist.group.WORLD
        except RuntimeError as error:
            if not borrowed and dist.is_initialized():
                dist.destroy_process_group()
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise CommunicationError(
                f"Rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: no connection through {where}: {error}"
            ) from error
        _keep_gloo_from_interrupting()
        return cls(group)

    def close(self) -> None:
        """Destroy the group. Further operations fail; closing again has no effect."""
        if self._closed:
            return
        super().close()
        atexit.unregister(self.close)
        if self._dist.is_initialized():  # unless the program has already destroyed all groups
            self._dist.destroy_process_group(self._group)

    def _transfer(self, peer: int, sent: Numbers | None, received: Numbers | None) -> None:
        try:
            # The receive comes first: its announcement would otherwise queue behind the message to the same peer.
            receiving = (
                None if received is None else self._dist.irecv(self._torch.from_numpy(received), peer, self._group)
            )
            sending = None if sent is None else self._dist.isend(self._torch.from_numpy(sent), peer, self._group)
            for pending in (receiving, sending):
                if pending is not None:
                    pending.wait()
        except RuntimeError as error:
            raise RuntimeError(f"no answer from rank {peer}: {error}") from error


def _store_of_this_start(dist: Any, timeout: timedelta) -> dict[str, Any]:
    """Return what `init_process_group` needs for workers not to read the addresses of those before a restart.

    torchrun keeps one store for all restarts, in which gloo looks up the addresses of the others (PyTorch issue
    135712). On a single machine, the number of restarts tells them apart. On several machines it is not the same for
    all once a machine was replaced; the variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 of torchrun helps there.
    """
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not shared or os.environ.get("GROUP_WORLD_SIZE") != "1":
        return {}
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout)
    return {
        "store": dist.PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store),
        "rank": int(os.environ["RANK"]),
        "world_size": int(os.environ["WORLD_SIZE"]),
    }


def _keep_gloo_from_interrupting() -> None:
    """Keep gloo's thread from interrupting the thread that sends.

    While another thread holds the lock of a connection, gloo's polls it without sleeping. If it has interrupted that
    thread on its core, it polls until its time slice ends, and an exchange of 0.2 ms takes 4 ms. Under SCHED_BATCH, a
    thread that wakes up interrupts no other.
    """
    if sys.platform != "linux":
        return
    for _ in range(_LOOKS):
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has ended, or rights that are missing
                if (task / "comm").read_text(encoding="utf-8").startswith("gloo"):
                    os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))
                    return
        time.sleep(0.01)  # a thread gets its name after it has started


def _die_with_launcher() -> None:
    """Ask the kernel to kill this process when its parent dies, and check that it is still alive."""
    if sys.platform != "linux":
        return
    launcher = _PARENT if os.getpid() == _PROCESS else os.getppid()  # a fork has another parent
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        why = os.strerror(ctypes.get_errno())
        warnings.warn(f"If torchrun is killed, this process will keep running: {why}.", RuntimeWarning, stacklevel=3)
    if os.getppid() != launcher:  # it died before the request to the kernel, and another process adopted this one
        raise CommunicationError(f"Rank {os.environ['RANK']}: the process that started it, {launcher}, is gone.")
