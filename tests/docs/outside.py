"""A fit of parts from outside of the package, the examples of the pages: python outside.py FOLDER PASSES.

Run by torchrun it has several workers. It keeps its checkpoint in the folder, and the first one writes the result.
"""

import json
import sys
from pathlib import Path

import numpy as np

import groupdro as gd

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "snippets"))
from l1_ball import L1Ball
from mirror_prox import MirrorProx
from one_vs_rest import OneVsRest
from worst_few import WorstFew

TOL = 1e-3


def make_problem(comm=None):
    """Return a problem of a loss, a domain and a weight set from outside; all rows, or those of a worker."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    groups = np.arange(300) % 5
    y = np.argmax(X[:, :3] + rng.gumbel(size=(300, 3)) * (1 + (groups == 4))[:, None], axis=1)
    data = gd.GroupedData.from_arrays(X, y, groups)
    if comm is not None:
        data = gd.distributed.shard(data, comm)
    return gd.Problem(data, OneVsRest(), L1Ball(3.0), WorstFew(2), fit_intercept=True)


def main(folder, max_passes):
    with gd.distributed.communicator() as comm:
        result = gd.solve(
            make_problem(comm), MirrorProx(), tol=TOL, max_passes=max_passes, checkpoint_dir=folder / "checkpoint"
        )
        if comm.rank == 0:
            facts = {
                "workers": comm.size,
                "status": result.status.name,
                "lower": result.lower_bound,
                "upper": result.upper_bound,
            }
            (folder / "result.json").write_text(json.dumps(facts))
        comm.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
