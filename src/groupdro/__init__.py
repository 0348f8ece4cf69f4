"""Models that hold up on their worst group, with a proof of how close to the best possible they are."""

from groupdro import certificate, datasets, distributed
from groupdro.compare import Comparison, compare
from groupdro.data import GroupedData
from groupdro.estimators import (
    GroupBy,
    GroupDROClassifier,
    GroupDRORegressor,
    MissingGroupsWarning,
    ModelFileError,
    RegularizationPath,
    SmallGroupWarning,
    regularization_path,
)
from groupdro.evaluation.folds import GroupStratifiedKFold
from groupdro.evaluation.plots import ConvergenceDisplay, GroupRiskDisplay, GroupWeightsDisplay
from groupdro.evaluation.report import GroupReport, group_report
from groupdro.evaluation.scoring import WorstGroupScorer, worst_group_scorer
from groupdro.problem import (
    BoxDomain,
    Floor,
    GroupRisk,
    Huber,
    L2Domain,
    Logistic,
    Simplex,
    SimplexDomain,
    Softmax,
    Squared,
    SquaredHinge,
)
from groupdro.solvers import (
    ALEG,
    ALEM,
    ALSVRE,
    ERMEG,
    MPVR,
    SMD,
    TSA,
    ALEGTheory,
    Auto,
    GroupSQP,
    Quadratic,
    Result,
    Solver,
    Status,
    solve,
)
from groupdro.store import GroupedStore, StoreError
from groupdro.tables import TableModel, load
from groupdro.version import __version__ as __version__

__all__ = [
    "ALEG",
    "ALEM",
    "ALSVRE",
    "ERMEG",
    "MPVR",
    "SMD",
    "TSA",
    "ALEGTheory",
    "Auto",
    "BoxDomain",
    "Comparison",
    "ConvergenceDisplay",
    "Floor",
    "GroupBy",
    "GroupDROClassifier",
    "GroupDRORegressor",
    "GroupReport",
    "GroupRisk",
    "GroupRiskDisplay",
    "GroupSQP",
    "GroupStratifiedKFold",
    "GroupWeightsDisplay",
    "GroupedData",
    "GroupedStore",
    "Huber",
    "L2Domain",
    "Logistic",
    "MissingGroupsWarning",
    "ModelFileError",
    "Quadratic",
    "RegularizationPath",
    "Result",
    "Simplex",
    "SimplexDomain",
    "SmallGroupWarning",
    "Softmax",
    "Solver",
    "Squared",
    "SquaredHinge",
    "Status",
    "StoreError",
    "TableModel",
    "WorstGroupScorer",
    "certificate",
    "compare",
    "datasets",
    "distributed",
    "group_report",
    "load",
    "regularization_path",
    "solve",
    "worst_group_scorer",
]
