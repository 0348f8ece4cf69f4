"""One process of the tests of communicators: python worker.py FOLDER ENDING PATIENCE."""

import atexit
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from groupdro.distributed import CommunicationError, TorchCommunicator, communicator

LENGTHS = (1, 1000, 40_001)


def inputs(rank, n):
    """Return whole numbers as floats and as integers, and floats of many magnitudes."""
    rng = np.random.default_rng([rank, n])
    whole = rng.integers(-1000, 1000, n)
    return {"whole": whole.astype(np.float64), "int": whole, "float": rng.normal(size=n) * 10.0 ** (whole % 20)}


def digests(comm):
    """Return a digest of the result of every operation."""
    found = {}
    for n in LENGTHS:
        for kind, array in inputs(comm.rank, n).items():
            for name, operate in (("sum", comm.allreduce), ("max", comm.allreduce_max)):
                found[f"{name} of {n} {kind}"] = hashlib.sha256(operate(array.copy()).tobytes()).hexdigest()
            for root in range(comm.size):
                copied = comm.broadcast(array.copy(), root)
                found[f"copy of {n} {kind} from {root}"] = hashlib.sha256(copied.tobytes()).hexdigest()
        comm.barrier()
    return found


def write(path, **content):
    """Write a file that is complete as soon as it is there."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content))
    unfinished.rename(path)


def lose_the_last(comm, folder, how):
    """Stop or kill the last rank, and write when and how the others noticed."""
    comm.barrier()
    if comm.rank == comm.size - 1:
        write(folder / "lost.json", at=time.monotonic(), pid=os.getpid())
        os.kill(os.getpid(), how)
    try:
        while True:
            comm.allreduce(np.ones(1000))
    except CommunicationError as error:
        write(folder / f"noticed-{comm.rank}.json", at=time.monotonic(), error=str(error))


def threads():
    """Return the name of every thread of this process, and whether it runs only where no other wants to."""
    tasks = Path("/proc/self/task").glob("*")
    found = [((task / "comm").read_text().strip(), int(task.name)) for task in tasks]
    return [(name, os.sched_getscheduler(number) == os.SCHED_BATCH) for name, number in found]


def write_exit(folder):
    """Write whether torch still holds a group."""
    if torch := sys.modules.get("torch"):
        write(folder / f"exit-{os.environ['RANK']}.json", group=torch.distributed.is_initialized())


def main(folder, ending, patience):
    if ending == "hang":  # in a group of its own beside the program's, which waits longer than the test
        import torch.distributed as dist

        dist.init_process_group("gloo")
        comm = TorchCommunicator.from_environment(timeout=5.0)
    else:
        atexit.register(write_exit, folder)  # before the communicator's own, so that it runs after
        comm = communicator(timeout=patience)
    write(
        folder / f"rank-{comm.rank}.json",
        digests=digests(comm),
        pid=os.getpid(),
        kind=type(comm).__name__,
        threads=threads(),
    )
    if ending == "die":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, which would come while the others are noticing
        lose_the_last(comm, folder, signal.SIGKILL)
        comm.close()
    elif ending == "hang":
        lose_the_last(comm, folder, signal.SIGSTOP)
        comm.close()
        write(folder / f"closed-{comm.rank}.json", program_group=dist.is_initialized())
        time.sleep(patience)  # until torchrun is killed
    elif ending == "raise" and comm.rank == 1:
        raise ValueError("one process fails")
    elif ending == "raise":
        comm.barrier()
    elif comm.rank == 0:  # the others leave it to the interpreter's exit
        comm.close()
        comm.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
