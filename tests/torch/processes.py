"""Processes that torch.distributed connects over the loopback interface: python -m tests.torch.processes TASK ..."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

from tests.timing import HUNG

ROOT = Path(__file__).parents[2]


def run_together(task, folder, size=2):
    """Run a function of a test module, named "module:function", as `task(rank, folder)` in several processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.torch.processes", task, str(folder), str(rank), str(size)],
            env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        printed = [job.communicate(timeout=HUNG)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert [job.returncode for job in jobs] == [0] * size, "\n".join(printed)


def main(task, folder, rank, size):
    import torch.distributed as dist

    module, _, name = task.partition(":")
    meeting = f"file://{Path(folder).resolve()}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    getattr(importlib.import_module(module), name)(rank, Path(folder))
    dist.barrier()
    dist.destroy_process_group()
    # Threads of torch that outlive the group can end the interpreter's own way out with an abort.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
