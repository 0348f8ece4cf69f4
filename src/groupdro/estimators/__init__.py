"""Estimators with the scikit-learn interface."""

from groupdro.estimators.classifier import GroupDROClassifier
from groupdro.estimators.cross_validated import GroupDROClassifierCV, GroupDRORegressorCV
from groupdro.estimators.fitting import MissingGroupsWarning, SmallGroupWarning, UselessModelWarning
from groupdro.estimators.frontier import RobustnessFrontier, robustness_frontier
from groupdro.estimators.frontier_answers import Attainable, FrontierModel
from groupdro.estimators.group_by import GroupBy
from groupdro.estimators.path import RegularizationPath, regularization_path
from groupdro.estimators.regressor import GroupDRORegressor

__all__ = [
    "Attainable",
    "FrontierModel",
    "GroupBy",
    "GroupDROClassifier",
    "GroupDROClassifierCV",
    "GroupDRORegressor",
    "GroupDRORegressorCV",
    "MissingGroupsWarning",
    "RegularizationPath",
    "RobustnessFrontier",
    "SmallGroupWarning",
    "UselessModelWarning",
    "regularization_path",
    "robustness_frontier",
]
