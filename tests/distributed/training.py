"""A fit with a checkpoint that is killed by `faults`: python training.py FOLDER SOLVER.

Run by Python it is one worker; torchrun starts several. Each process writes when it began, the first one also a row per
epoch and, at the end, the result.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse

import groupdro as gd

TIMEOUT = 10.0  # seconds after which a worker that does not answer is an error
PENALTIES = {"aleg": 1e-5, "sqp": 1e-5, "dual-ascent": 1e-2, "alem": 1e-5}
# Such that each fit takes 30 epochs or more, with one worker and with two.
TOLERANCES = {"aleg": 1e-6, "sqp": 1e-6, "dual-ascent": 1e-4, "alem": 3e-6}
SOLVERS = {
    "aleg": gd.solvers.ALEG(),
    "sqp": gd.solvers.GroupSQP("lbfgs"),
    "dual-ascent": gd.solvers.DualAscent(),
    "alem": gd.solvers.ALEM(stage_two=gd.solvers.ALEG()),  # by default it would take five epochs of SQP
}


def make_data(solver):
    """Return rows of badly conditioned features, of which dual ascent gets sparse ones in many groups."""
    rng = np.random.default_rng(0)
    sparse = solver == "dual-ascent"
    n_rows = 10_000
    n_features = 60 if sparse else 200
    n_groups = 200 if sparse else 6
    latent = rng.normal(size=(n_rows, n_features))
    groups = rng.integers(0, n_groups, n_rows)
    rotation = np.linalg.qr(rng.normal(size=(n_features, n_features)))[0]
    X = (latent * np.logspace(0.0, -0.5 if sparse else -2.0, n_features)) @ rotation
    slopes = rng.normal(size=n_features) + 0.5 * rng.normal(size=(n_groups, n_features))
    scores = 2.0 / np.sqrt(n_features) * (latent * slopes[groups]).sum(axis=1)
    y = np.where(scores + rng.logistic(size=n_rows) > 0.0, 1.0, -1.0)
    if sparse:
        X = scipy.sparse.csr_array(X * (rng.random(X.shape) < 0.2))
    return X, y, groups


def main(folder, solver):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits an ignored Ctrl-C
    rank = int(os.environ.get("RANK", "0"))
    diary = folder / f"worker-{rank}-{os.getpid()}.jsonl"

    def write(**row):
        with diary.open("a") as file:
            file.write(json.dumps({"at": time.monotonic(), **row}) + "\n")

    write(begun=True)
    with gd.distributed.communicator(timeout=TIMEOUT) as comm:
        data = gd.distributed.shard(gd.GroupedData.from_arrays(*make_data(solver)), comm)
        domain = gd.domains.L2Domain(penalty=PENALTIES[solver])
        problem = gd.Problem(data, gd.losses.Logistic(), domain, fit_intercept=True)
        result = gd.solve(
            problem,
            SOLVERS[solver],
            tol=TOLERANCES[solver],
            checkpoint_dir=folder / "checkpoint",
            callbacks=[lambda progress: write(epoch=progress.latest.epoch) if rank == 0 else None],
        )
        if result.interrupted and not result.converged:
            sys.exit(128 + signal.SIGINT)
        if rank == 0:
            found = {
                "status": result.status.name,
                "lower": result.lower_bound,
                "upper": result.upper_bound,
                "gap": result.gap,
                "allowed": max(result.tol * abs(result.upper_bound), result.atol),
                "w": result.w.tolist(),
                "group_risks": result.group_risks.tolist(),
            }
            unfinished = folder / "result.unfinished"
            unfinished.write_text(json.dumps(found))
            unfinished.rename(folder / "result.json")
        comm.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
