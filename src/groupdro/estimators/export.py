"""Conversion of models to objects of other libraries."""

from typing import Any

import numpy as np
from sklearn.base import is_classifier

from groupdro.losses import Gamma, LogLinkLoss, Poisson, Quantile, Tweedie

__all__ = ["to_sklearn", "to_torch_linear"]


def to_sklearn(model: Any) -> Any:
    """Return a plain scikit-learn estimator with the same predictions.

    It is independent of groups and of this package, so tools for scikit-learn's own models accept it: skl2onnx, MLflow,
    skops.

    Parameters
    ----------
    model : fitted GroupDROClassifier or GroupDRORegressor
        The model.

    Returns
    -------
    LogisticRegression, LinearSVC, PoissonRegressor, GammaRegressor, TweedieRegressor, QuantileRegressor or Ridge
        For the losses of these models, or the nearest of them. Its parameters other than `fit_intercept`
        are defaults, so do not refit it.
    """
    # Imported here because few users need them.
    from sklearn.linear_model import (
        GammaRegressor,
        LogisticRegression,
        PoissonRegressor,
        QuantileRegressor,
        Ridge,
        TweedieRegressor,
    )
    from sklearn.svm import LinearSVC

    kind: Any
    more: dict[str, Any] = {}
    loss = model._own_loss()
    if is_classifier(model):
        kind = LogisticRegression if hasattr(model, "predict_proba") else LinearSVC
    elif isinstance(loss, Tweedie):
        kind, more = TweedieRegressor, {"power": loss.power, "link": "log"}
    elif isinstance(loss, Quantile):
        kind, more = QuantileRegressor, {"quantile": loss.level}
    else:
        kind = {Poisson: PoissonRegressor, Gamma: GammaRegressor}.get(type(loss), Ridge)
    plain = kind(fit_intercept=model.fit_intercept, **more)
    plain.coef_ = np.array(model.coef_)
    plain.intercept_ = np.array(model.intercept_) if np.ndim(model.intercept_) else float(model.intercept_)
    plain.n_features_in_ = model.n_features_in_
    if isinstance(loss, LogLinkLoss):
        plain._base_loss = plain._get_loss()  # what its fit leaves for predict
    plain.n_iter_ = np.array([len(model.trace_)], dtype=np.int32)
    for name in ("classes_", "feature_names_in_"):
        if hasattr(model, name):
            setattr(plain, name, getattr(model, name))
    return plain


def to_torch_linear(model: Any) -> Any:
    """Return a `torch.nn.Linear` with the same outputs, such as the last layer of a frozen network.

    Parameters
    ----------
    model : fitted GroupDROClassifier or GroupDRORegressor
        The model.

    Returns
    -------
    torch.nn.Linear
        In double precision, with one output, or one per class if there are more than two.
    """
    import torch

    coef = np.atleast_2d(model.coef_)
    layer = torch.nn.Linear(coef.shape[1], coef.shape[0], bias=model.fit_intercept, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(coef)))
        if model.fit_intercept:
            layer.bias.copy_(torch.from_numpy(np.atleast_1d(np.asarray(model.intercept_, dtype=np.float64))))
    return layer
