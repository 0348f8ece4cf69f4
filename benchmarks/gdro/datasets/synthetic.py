import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import SyntheticDataset

import groupdro as gd


class Dataset(SyntheticDataset):
    """Groups with a linear rule of their own, labels flipped with probability 0.1."""

    name = "synthetic"
    make = staticmethod(gd.datasets.make_gdro)
