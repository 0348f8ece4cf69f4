"""Headroom: a proven upper bound on how much the worst group of any model could gain from a linear model."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_array, check_is_fitted

from groupdro.data import GroupedData
from groupdro.data.given import read_given
from groupdro.data.grouping import Grouping
from groupdro.evaluation.models import check_model, linear_columns, own_loss
from groupdro.evaluation.outputs import Outputs
from groupdro.losses import Logistic, Loss, Softmax, Squared
from groupdro.problem import L2Domain, Problem
from groupdro.solvers import solve
from groupdro.utils.arguments import check_number, check_whole, error_prefix, printable, short_repr
from groupdro.utils.text import group_name
from groupdro.utils.types import Array, Indices

__all__ = ["Headroom", "headroom"]

_ALPHA = 1e-4  # penalty of the fit that finds a radius


@dataclass(frozen=True, eq=False)
class Headroom:
    """Upper bound on what a model's worst group could gain from a linear model.

    Attributes
    ----------
    worst, worst_group : float, object
        The model's worst risk, and its group.
    least : float
        Proven lower bound: no linear model of the class has a smaller worst risk.
    attained : float
        Worst risk of the best linear model found; `least` does not exceed it.
    headroom : float
        ``(worst - least) / worst``. Negative if no linear model of the class is as good as the model.
    radius : float
        Largest norm of the coefficients in the class; the intercept is free.
    n_columns : int
        Number of columns of the class.
    converged : bool
        Whether `least` and `attained` are within the tolerance of each other.
    message : str
        The bound as a sentence.
    """

    worst: float
    worst_group: Any
    least: float
    attained: float
    radius: float
    n_columns: int
    converged: bool

    @property
    def headroom(self) -> float:
        """Largest possible relative gain in the worst risk."""
        return (self.worst - self.least) / self.worst if self.worst else -np.inf

    @property
    def message(self) -> str:
        """The bound as a sentence."""
        of = f"of {self.n_columns} columns with coefficients of norm at most {self.radius:.4g}"
        worst = f"the worst risk of this model is {self.worst:.4g} (group {printable(group_name(self.worst_group))})"
        if self.least > self.worst:
            return f"No linear model {of} reaches it: {worst}, and theirs are at least {self.least:.4g}."
        return (
            f"On these rows {worst}; no linear model {of} has one below {self.least:.4g}: at most {self.headroom:.2%} "
            "can be gained."
        )

    def __repr__(self) -> str:
        return f"Headroom({self.message})"


def headroom(
    model: Any,
    X: Any,
    y: Any,
    groups: Any,
    *,
    linear: Any = None,
    radius: float | None = None,
    alpha: float = _ALPHA,
    loss: Loss | None = None,
    sample_weight: Any = None,
    offset: Any = None,
    min_rows: int = 1,
    tol: float = 1e-4,
) -> Headroom:
    """Bound how much the worst group of any model could gain from a linear model, on the given data.

    The linear models are those on the given columns with coefficients of bounded norm and a free intercept. The bound
    is on their risk without a penalty. It holds for every one of them, even a model fitted on these very data.

    Parameters
    ----------
    model : fitted classifier or regressor
        Any model: trees, a pipeline, the one in production. Classifiers must have `predict_proba`.
    X, y : array-like or DataFrame
        Rows and labels, in-sample or held-out.
    groups : array-like, Series, DataFrame, boolean or sparse matrix
        Groups of the rows, as in `fit`.
    linear : Pipeline or transformer, optional
        Computes the columns of the linear models from X: a transformer, or a pipeline, whose last step is left out if
        it is an estimator. If fitted, it is used as it is; otherwise a copy is fitted on X. The default is the columns
        that reach the last step of a pipeline, or those of X.
    radius : float, optional
        Upper bound on the norm of the coefficients. The default is that of the best model with the penalty `alpha`.
    alpha : float
        Penalty of the fit that finds the radius.
    loss : Loss, optional
        Loss of a regressor, such as ``Poisson()``. The default is its own for a regressor of this package, the pinball
        loss for quantile regressors of others, and half the squared error for the rest. That of classifiers is the log
        loss.
    sample_weight : array-like of shape (n_rows,), optional
        Weights of the rows.
    offset : array-like, optional
        Offsets of the rows, if the model was fitted with them; the linear models have none.
    min_rows : int
        Number of rows a group needs to count as a candidate for the worst. Smaller groups are left out.
    tol : float
        Relative gap to which the bound is computed.

    Returns
    -------
    Headroom
        The bound, with a sentence that describes it.
    """
    check_model(model, "model")
    check_number(alpha, "alpha", positive=True)
    check_number(tol, "tol", positive=True)
    check_whole(min_rows, "min_rows", least=1)
    if radius is not None:
        check_number(radius, "radius", positive=True)
    classifier = is_classifier(model)
    if classifier and not hasattr(model, "predict_proba"):
        raise TypeError("model must have predict_proba, because headroom uses the log loss.")
    if loss is not None and (classifier or not isinstance(loss, Loss)):
        raise TypeError(f"loss must be a Loss, for regressors only, got {short_repr(loss)}.")
    given = read_given(
        X, y, groups, sample_weight=sample_weight, offset=offset, numeric=not classifier, missing="own"
    ).with_weight()
    if not classifier:
        loss = loss or own_loss(model) or Squared()
    outputs = Outputs.of_model(model, given.X, given.y, loss=loss or "log", offset=given.offset)
    outputs.check_labels()
    columns = linear_columns(model, given.X) if linear is None else _columns(linear, given.X, given.y)
    with error_prefix("X"):
        columns = check_array(columns, accept_sparse="csr", dtype=(np.float64, np.float32))
    rows, grouping = _large_groups(given.groups, min_rows)
    labels, losses = given.y[rows], outputs.risk[rows]
    columns = columns if len(rows) == len(given.y) else columns[rows]  # a copy of a file may not fit in memory
    weights = None if given.weights is None else given.weights[rows]
    risks = grouping.means(losses, weights)
    worst = int(np.argmax(risks))
    loss, codes = _loss_of_classes(labels) if loss is None else (loss, loss.encode(labels))
    data = GroupedData.from_arrays(columns, codes, grouping, weights)
    domain = L2Domain(penalty=alpha) if radius is None else L2Domain(radius=radius)
    found = solve(Problem(data, loss, domain, fit_intercept=True), tol=tol)
    coef = found.w[:-1]
    least, norm = found.lower_bound, float(np.linalg.norm(coef))
    if radius is None:
        # Within this norm the penalty is at most that of the bound: subtract its contribution again.
        least = least - 0.5 * alpha * norm**2
        radius = norm
    return Headroom(
        worst=float(risks[worst]),
        worst_group=grouping.names[worst],
        least=least,
        attained=float(found.group_risks.max()),
        radius=float(radius),
        n_columns=data.n_features,
        converged=found.converged,
    )


def _columns(linear: Any, X: Any, y: Array) -> Any:
    """Return the columns computed by a transformer, or by a pipeline without its last step."""
    if isinstance(linear, Pipeline) and not hasattr(linear[-1], "transform"):
        if len(linear) == 1:
            return X
        linear = linear[:-1]
    if not hasattr(linear, "transform"):
        raise TypeError(f"linear must be a transformer or a pipeline, got {type(linear).__name__}.")
    try:
        check_is_fitted(linear)
    except NotFittedError:
        return clone(linear).fit(X, y).transform(X)
    return linear.transform(X)


def _large_groups(grouping: Grouping, least: int) -> tuple[Indices, Grouping]:
    """Return the rows of groups with at least `least` rows, and these groups restricted to them."""
    kept = np.flatnonzero(grouping.sizes >= least)
    if not len(kept):
        raise ValueError(f"groups has no group with at least min_rows={least} rows.")
    large = grouping.only(kept)
    rows = np.unique(large.members)
    return rows, large.restrict(rows)


def _loss_of_classes(labels: Array) -> tuple[Loss, Array]:
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y has only one class, {classes.tolist()[0]!r}.")
    return (Logistic() if len(classes) == 2 else Softmax(len(classes))), codes
