"""The scikit-learn front door."""

import os
from typing import Any

from groupdro.arguments import check_path
from groupdro.estimators.classifier import GroupDROClassifier
from groupdro.estimators.fitting import MissingGroupsWarning, SmallGroupWarning
from groupdro.estimators.group_by import GroupBy
from groupdro.estimators.model_file import ModelFileError, read_model
from groupdro.estimators.path import RegularizationPath, regularization_path
from groupdro.estimators.regressor import GroupDRORegressor

__all__ = [
    "GroupBy",
    "GroupDROClassifier",
    "GroupDRORegressor",
    "MissingGroupsWarning",
    "ModelFileError",
    "RegularizationPath",
    "SmallGroupWarning",
    "load",
    "regularization_path",
]


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model that `save` wrote. No code in the file is run, and what is not known is refused.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    GroupDROClassifier, GroupDRORegressor or GroupBy
        The fitted model.
    """
    classes = {cls.__name__: cls for cls in (GroupDROClassifier, GroupDRORegressor)}
    return read_model(check_path(path, "path"), classes, GroupBy._around)
