"""Workers of a benchmark: plain torchrun on this machine, one thread each, over the loopback interface."""

import os
import sys
from collections.abc import Sequence

__all__ = ["torchrun_command", "torchrun_environment"]


def torchrun_command(workers: int, program: Sequence[str]) -> list[str]:
    """Return the command that runs a program (a file, or -m and a module) with its arguments in several workers."""
    options = [f"--nproc-per-node={workers}", "--local-addr=127.0.0.1"]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", *options, *program]


def torchrun_environment() -> dict[str, str]:
    """Return the environment of the workers, which import from the current folder too."""
    paths = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": paths}
