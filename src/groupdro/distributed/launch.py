"""Start a program on several workers with torchrun and fault-tolerant defaults."""

import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groupdro.utils.arguments import check_whole
from groupdro.utils.threads import n_cores

__all__ = ["launch", "launch_command", "launch_environment"]

_RUN = str(Path(__file__).with_name("run.py"))  # torchrun with changed handling of Ctrl-C, errors and occupied ports


def launch_command(
    script: str,
    arguments: Sequence[str] = (),
    *,
    workers: int = 1,
    nodes: str = "1",
    rendezvous: str = "127.0.0.1:0",
    address: str | None = None,
    job: str | None = None,
    max_restarts: int = 3,
) -> list[str]:
    """Return the torchrun command that starts a program.

    Parameters
    ----------
    script : str
        A Python file.
    arguments : sequence of str
        Its arguments.
    workers : int
        Processes per node. A single process with several threads is faster than many processes.
    nodes : str
        Number of nodes, or ``least:most`` for an elastic job, which shrinks when a node is lost and grows when one
        joins.
    rendezvous : str
        ``host:port`` of the rendezvous, the same on all nodes. Port 0 picks a free port, on a single node only.
    address : str, optional
        Address at which the other nodes reach this one. The default is that of its host name, or that of the rendezvous
        if it is on the loopback interface.
    job : str, optional
        Name of the job, the same on all nodes. Several jobs can share a rendezvous.
    max_restarts : int
        How often workers are restarted after a loss. They resume from their checkpoints. A script that raises an error
        of its own is not restarted.

    Returns
    -------
    list of str
        Program and arguments.
    """
    check_whole(workers, "workers", least=1)
    check_whole(max_restarts, "max_restarts")
    least, _, most = nodes.partition(":")
    if not re.fullmatch("[0-9]+(:[0-9]+)?", nodes) or not 1 <= int(least) <= int(most or least):
        raise ValueError(f"nodes must be a number or least:most, got {nodes!r}.")
    host, _, port = rendezvous.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"rendezvous must be host:port, got {rendezvous!r}.")
    if int(port) == 0 and int(most or least) > 1:  # each node would wait at a different port
        raise ValueError(f"rendezvous must have a port that all nodes know, got {rendezvous!r} for nodes {nodes!r}.")
    if not Path(script).is_file():
        raise ValueError(f"script {script!r} is not a file.")
    hosts = address is not None and address == host
    if address is None and host in ("127.0.0.1", "localhost"):
        address = "127.0.0.1"
    command = [sys.executable, _RUN, f"--nnodes={nodes}", f"--nproc-per-node={workers}"]
    command += [f"--max-restarts={max_restarts}", "--rdzv-backend=c10d", f"--rdzv-endpoint={rendezvous}"]
    # By default, torchrun uses only the address of its host name.
    command += ["--rdzv-conf=is_host=1"] if hosts else []
    command += [f"--rdzv-id={job}"] if job else []
    command += [f"--local-addr={address}"] if address else []
    return [*command, script, *arguments]


def launch_environment(
    environment: Mapping[str, str], *, workers: int = 1, rendezvous: str = "127.0.0.1:0", interface: str | None = None
) -> dict[str, str]:
    """Return the environment variables for torchrun.

    Parameters
    ----------
    environment : mapping
        Environment of this process.
    workers : int
        Processes per node, which share its cores.
    rendezvous : str
        ``host:port`` of the rendezvous.
    interface : str, optional
        Network interface for messages. The default is the loopback if the rendezvous is there.

    Returns
    -------
    dict
        The variables.
    """
    out = dict(environment)
    out.setdefault("OMP_NUM_THREADS", str(max(1, n_cores() // workers)))
    # With a shared store, a lost node ends the whole job after a minute even if a replacement has joined.
    out["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # Lazy connections would be made in the middle of a step.
    out.pop("TORCH_GLOO_LAZY_INIT", None)
    if interface is None and rendezvous.rpartition(":")[0] in ("127.0.0.1", "localhost"):
        interface = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if interface is not None:
        out["GLOO_SOCKET_IFNAME"] = interface
    return out


def launch(script: str, arguments: Sequence[str] = (), *, interface: str | None = None, **options: Any) -> None:
    """Replace this process by torchrun, so that signals reach it directly.

    Options are those of `launch_command`; `interface` is that of `launch_environment`.
    """
    if os.name == "nt":  # os.execve would leave the terminal to the shell, and torchrun's agent lacks its signals
        raise NotImplementedError(
            "groupdro launch requires Linux or macOS: use the Windows Subsystem for Linux, or run the script by "
            "itself, as a single worker."
        )
    if importlib.util.find_spec("torch") is None:  # importing it takes seconds, and torchrun imports it again
        raise ImportError('torch is not installed: pip install "groupdro[distributed]".')
    command = launch_command(script, arguments, **options)
    shared = {name: options[name] for name in ("workers", "rendezvous") if name in options}
    environment = launch_environment(os.environ, interface=interface, **shared)
    environment["GROUPDRO_LAUNCHER"] = str(os.getpid())  # torchrun's too; workers check it
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environment)
