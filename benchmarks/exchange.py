"""Latency of an all-reduce: the package's own exchange beside gloo's.

    python -m benchmarks.exchange [WORKERS]    2 by default; needs torch

Workers run on this machine and talk by the loopback interface. Both ways take turns in one run, so that they meet the
same load; the times are those of rank 0.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.torchrun import torchrun_command, torchrun_environment
from groupdro.distributed import TorchCommunicator

SIZES = {1_000: 1_000, 100_000: 200, 1_000_000: 30}  # numbers: repetitions


def start(workers: int) -> int:
    command = torchrun_command(workers, ["-m", "benchmarks.exchange"])
    return subprocess.run(command, env=torchrun_environment(), check=False).returncode


def milliseconds(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begun)


def measure() -> None:
    import torch
    import torch.distributed as dist

    with TorchCommunicator.from_environment() as communicator:
        if communicator.rank == 0:
            print(f"{communicator.size} workers, ms   {'median':>9} {'p95':>9}", flush=True)
        for n, times in SIZES.items():
            array = np.zeros(n)
            tensor = torch.from_numpy(array)
            ways: dict[str, Callable[[], object]] = {
                "own": lambda array=array: communicator.allreduce(array),  # type: ignore[misc]
                "gloo": lambda tensor=tensor: dist.all_reduce(tensor),  # type: ignore[misc]
            }
            taken: dict[str, list[float]] = {way: [] for way in ways}
            for k in range(times + 10):
                for way, run in ways.items():
                    spent = milliseconds(run)
                    if k >= 10:  # the first ones open connections and touch memory
                        taken[way].append(spent)
            if communicator.rank == 0:
                for way, spent_in in taken.items():
                    median, late = np.percentile(spent_in, [50, 95])
                    print(f"n = {n:>9,}  {way:>5} {median:9.3f} {late:9.3f}", flush=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        measure()
    else:
        sys.exit(start(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
