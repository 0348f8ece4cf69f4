"""Figures of fitted models, reports, comparisons and frontiers, as scikit-learn's displays."""

from groupdro.discovery.display import FoundGroupsDisplay
from groupdro.evaluation.change_display import ChangeDisplay
from groupdro.evaluation.frontier_display import FrontierDisplay
from groupdro.evaluation.plots import ConvergenceDisplay, GroupMetricDisplay, GroupWeightsDisplay

__all__ = [
    "ChangeDisplay",
    "ConvergenceDisplay",
    "FoundGroupsDisplay",
    "FrontierDisplay",
    "GroupMetricDisplay",
    "GroupWeightsDisplay",
]
