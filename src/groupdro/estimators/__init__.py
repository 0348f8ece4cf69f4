"""The scikit-learn front door."""

from groupdro.estimators.classifier import GroupDROClassifier
from groupdro.estimators.fitting import MissingGroupsWarning, SmallGroupWarning
from groupdro.estimators.regressor import GroupDRORegressor

__all__ = ["GroupDROClassifier", "GroupDRORegressor", "MissingGroupsWarning", "SmallGroupWarning"]
