"""The order of the gallery: what most readers look for first comes first."""

from pathlib import Path
from typing import Any

__all__ = ["ORDER", "ReadingOrder"]

ORDER = (
    "plot_last_layer.py",
    "plot_bike_rentals.py",
    "plot_frontier.py",
    "plot_last_layer_torch.py",
    "plot_adult.py",
    "plot_regret_or_risk.py",
    "plot_scorecard.py",
    "plot_claims.py",
    "plot_readmission.py",
    "plot_wine.py",
    "plot_boosted_trees.py",
    "plot_corrected_trees.py",
    "plot_cifar100.py",
    "plot_robust_ensemble.py",
    "plot_german_credit.py",
)


class ReadingOrder:
    """Sort key of sphinx-gallery, which makes one for each folder of examples."""

    def __init__(self, folder: Any):
        self.folder = folder

    def __call__(self, name: Any) -> int:
        """Return the place of an example."""
        return ORDER.index(Path(name).name)

    def __repr__(self) -> str:
        return "<ReadingOrder>"
