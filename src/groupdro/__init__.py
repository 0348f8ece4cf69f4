"""Linear models that hold up on their worst group, with a certificate of how close to optimal they are."""

from groupdro import certificate, datasets, distributed
from groupdro.compare import Change, Comparison, compare
from groupdro.data import GroupedData
from groupdro.estimators import (
    Attainable,
    FrontierModel,
    GroupBy,
    GroupDROClassifier,
    GroupDROClassifierCV,
    GroupDRORegressor,
    GroupDRORegressorCV,
    MissingGroupsWarning,
    RegularizationPath,
    RobustnessFrontier,
    SmallGroupWarning,
    regularization_path,
    robustness_frontier,
)
from groupdro.evaluation.change_display import ChangeDisplay
from groupdro.evaluation.folds import GroupStratifiedKFold
from groupdro.evaluation.frontier_display import FrontierDisplay
from groupdro.evaluation.headroom import Headroom, headroom
from groupdro.evaluation.plots import ConvergenceDisplay, GroupRiskDisplay, GroupWeightsDisplay
from groupdro.evaluation.report import GroupReport, group_report
from groupdro.evaluation.scoring import worst_group_scorer
from groupdro.problem import (
    Box,
    Cap,
    ElasticNetDomain,
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
    ALEGTheory,
    Auto,
    DualAscent,
    GroupSQP,
    Quadratic,
    Result,
    SketchedSQP,
    Solver,
    Status,
    solve,
)
from groupdro.store import GroupedStore, StoreError
from groupdro.version import __version__ as __version__

__all__ = [
    "ALEG",
    "ALEM",
    "ALEGTheory",
    "Attainable",
    "Auto",
    "Box",
    "Cap",
    "Change",
    "ChangeDisplay",
    "Comparison",
    "ConvergenceDisplay",
    "DualAscent",
    "ElasticNetDomain",
    "Floor",
    "FrontierDisplay",
    "FrontierModel",
    "GroupBy",
    "GroupDROClassifier",
    "GroupDROClassifierCV",
    "GroupDRORegressor",
    "GroupDRORegressorCV",
    "GroupReport",
    "GroupRisk",
    "GroupRiskDisplay",
    "GroupSQP",
    "GroupStratifiedKFold",
    "GroupWeightsDisplay",
    "GroupedData",
    "GroupedStore",
    "Headroom",
    "Huber",
    "L2Domain",
    "Logistic",
    "MissingGroupsWarning",
    "Quadratic",
    "RegularizationPath",
    "Result",
    "RobustnessFrontier",
    "Simplex",
    "SimplexDomain",
    "SketchedSQP",
    "SmallGroupWarning",
    "Softmax",
    "Solver",
    "Squared",
    "SquaredHinge",
    "Status",
    "StoreError",
    "certificate",
    "compare",
    "datasets",
    "distributed",
    "group_report",
    "headroom",
    "regularization_path",
    "robustness_frontier",
    "solve",
    "worst_group_scorer",
]
