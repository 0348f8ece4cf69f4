"""Linear models that hold up on their worst group, with a certificate of how close to optimal they are."""

from groupdro import certificate, datasets, distributed, domains, losses, oracle, plots, solvers, weight_sets
from groupdro.compare import compare
from groupdro.data import GroupedData
from groupdro.discovery import FoundGroups, find_groups
from groupdro.estimators import (
    GroupBy,
    GroupDROClassifier,
    GroupDROClassifierCV,
    GroupDRORegressor,
    GroupDRORegressorCV,
    MissingGroupsWarning,
    SmallGroupWarning,
    UselessModelWarning,
    regularization_path,
    robustness_frontier,
)
from groupdro.evaluation.folds import GroupStratifiedKFold
from groupdro.evaluation.headroom import headroom
from groupdro.evaluation.predictions import Predictions
from groupdro.evaluation.report import group_report
from groupdro.evaluation.scoring import worst_group_scorer
from groupdro.problem import Problem
from groupdro.solvers import solve
from groupdro.store import GroupedStore
from groupdro.version import __version__ as __version__

__all__ = [
    "FoundGroups",
    "GroupBy",
    "GroupDROClassifier",
    "GroupDROClassifierCV",
    "GroupDRORegressor",
    "GroupDRORegressorCV",
    "GroupStratifiedKFold",
    "GroupedData",
    "GroupedStore",
    "MissingGroupsWarning",
    "Predictions",
    "Problem",
    "SmallGroupWarning",
    "UselessModelWarning",
    "certificate",
    "compare",
    "datasets",
    "distributed",
    "domains",
    "find_groups",
    "group_report",
    "headroom",
    "losses",
    "oracle",
    "plots",
    "regularization_path",
    "robustness_frontier",
    "solve",
    "solvers",
    "weight_sets",
    "worst_group_scorer",
]
