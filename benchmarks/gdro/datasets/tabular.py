import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import TabularDataset


class Dataset(TabularDataset):
    """Public tables with group columns."""

    name = "tabular"
