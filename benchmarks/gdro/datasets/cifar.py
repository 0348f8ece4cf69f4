import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import CifarDataset


class Dataset(CifarDataset):
    """CIFAR-100, groups = classes."""

    name = "cifar-100"
