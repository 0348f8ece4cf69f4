"""The radius of the set-ups with 4,000 rows per group, chosen once for all methods, on validation rows of seed 1000.

No run uses that seed.
"""

from dataclasses import replace

import numpy as np
import pandas as pd

import groupdro as gd
from benchmarks.paper.setups import SETUPS, synthetic_rows
from benchmarks.paper.store import RESULTS
from groupdro.oracle import Oracle

__all__ = ["choose"]

SEED = 1000  # no run uses it
RADII = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3)
SIZES = {1000: "at 1,000 rows per group", 4000: "at 4,000 rows per group"}


def choose() -> None:
    """Fit every radius to a relative 1e-4, and keep the worst risks on training and validation rows."""
    rows = []
    for n in SIZES:
        train, validation = synthetic_rows("gdro", (n, 4000), SEED, np.float32)
        for radius in RADII:
            setup = replace(SETUPS["gdro_4000"], radius=radius)
            problem, held_out = setup.problem(train), setup.problem(validation)
            found = gd.solve(problem, tol=1e-4)
            rows.append({"n": n, "radius": radius, "train": found.upper_bound,
                         "validation": float(Oracle(held_out).risks(found.w).max())})  # fmt: skip
            print(f"radius {radius:g}, n = {n}: {rows[-1]['train']:.4f}, {rows[-1]['validation']:.4f}", flush=True)
    pd.DataFrame(rows).to_parquet(RESULTS / "paper_radius.parquet", compression="zstd", index=False)
