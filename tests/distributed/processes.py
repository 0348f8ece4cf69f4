"""Programs in several processes of this machine, which talk by the loopback interface only."""

import os
import subprocess
import sys
from contextlib import contextmanager

__all__ = ["LOOPBACK", "VARIABLES", "mpirun", "own_environment", "run", "running", "torchrun"]

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOOPBACK = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def torchrun(workers, *program, max_restarts=0):
    """Return the command of a program and its arguments under plain torchrun."""
    options = [f"--nproc-per-node={workers}", f"--max-restarts={max_restarts}", "--local-addr=127.0.0.1"]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", *options, *map(str, program)]


def mpirun(workers, *program):
    """Return the command of a program and its arguments under Open MPI."""
    loopback = ["--mca", "oob_tcp_if_include", "lo", "--mca", "btl_tcp_if_include", "lo"]
    options = ["--allow-run-as-root", "--oversubscribe", *loopback, "-n", str(workers)]
    return ["mpirun", *options, sys.executable, "-m", "mpi4py", *map(str, program)]


def own_environment(**variables):
    """Return the environment of this process without what a launcher would have set."""
    return {name: value for name, value in os.environ.items() if name not in VARIABLES} | LOOPBACK | variables


@contextmanager
def running(command, **variables):
    """Run a command, and kill it at the end if it has not ended."""
    environment = own_environment(**variables)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        try:
            yield job
        finally:
            job.kill()


def run(command, timeout, **variables):
    """Run a command that ends by itself, and return its exit code and what it printed."""
    with running(command, **variables) as job:
        output, _ = job.communicate(timeout=timeout)
    return job.returncode, output
