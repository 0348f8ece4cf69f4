"""`GroupDROClassifier`: a linear classifier that performs as well as possible on its worst group."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from groupdro.estimators.base import GroupDROEstimator
from groupdro.evaluation.models import unknown_labels
from groupdro.losses import Logistic, Loss, Softmax, SquaredHinge
from groupdro.utils.arguments import check_number, error_prefix, short_repr
from groupdro.utils.types import Array, Floats
from groupdro.utils.vectors import class_codes, read_target

__all__ = ["GroupDROClassifier"]


_SHOWN = 5  # classes that a message names


def _has_probabilities(estimator: "GroupDROClassifier") -> bool:
    if estimator.loss == "logistic" or isinstance(estimator.loss, Logistic | Softmax):
        return True
    raise AttributeError(f"probabilities require loss='logistic', not {estimator.loss!r}.")


@dataclass(eq=False, repr=False, kw_only=True)
class GroupDROClassifier(ClassifierMixin, GroupDROEstimator):
    """Linear classifier that performs as well as possible on its worst group, with a certificate.

    Minimises, over the coefficients and a free intercept,

        (1 - robustness) * average of V_i(w)  +  robustness * max of V_i(w)
            +  alpha / 2 * norm(coef)**2,
        norm(coef) <= radius,    V_i(w) = R_i(w) [- R_i*] [+ C / sqrt(n_i)],

    where R_i is the average loss of group i. By default only the worst group counts. There is no step size to tune, and
    the result comes with a proven bound on its suboptimality.

    Parameters
    ----------
    objective : {"risk", "excess_risk"}, default="risk"
        The quantity to minimise for the worst group: its risk R_i, or its excess risk R_i - R_i*, where R_i* is the
        smallest risk that any model reaches on group i. Use "excess_risk" to keep one inherently noisy group from
        dominating; it costs one more fit per group.
    robustness : float, default=1.0
        Blend between average and worst, from 0 to 1: the fit minimises
        ``(1 - robustness) * average + robustness * worst``. 1 considers the worst group only; 0 is plain training, with
        the same certificate. Values in between often keep most of the worst group's gain at a fraction of the cost to
        the others: `robustness_frontier` shows all of them, and the CV variant chooses one.
    average : {"rows", "groups"}, default="rows"
        Whether the average gives equal weight to rows (scaled by `sample_weight`) or to groups.
    worst_share : float, default=None
        Replace the worst group by the average over the worst `worst_share` of all rows (of all groups with
        ``average="groups"``): the conditional value at risk over groups. To average the k worst of m groups, use
        ``average="groups"`` and ``k / m``. None for the single worst group.
    break_ties : bool, default=True
        With ``robustness=1``, many models have a worst value within `tol` of the best. Whether to look among them for
        the one with the smallest average, which usually costs half as much again as the fit; False stops as soon as
        `tol` is met. See :doc:`/robustness`.
    loss : {"logistic", "squared_hinge"} or Loss, default="logistic"
        Logistic loss (softmax for more than two classes), half the squared hinge loss, for two classes only, or one of
        `groupdro.losses` or your own. A loss sees the classes as 0, 1, ... in the order of `classes_`. For two classes
        it has one output, which is positive for the second class; for more, one output per class.
    class_weight : dict, "balanced" or None, default=None
        Factors of the rows' weights by class. "balanced" gives all classes the same total weight over all rows. Within
        a group's risk only the ratios of weights matter.
    alpha : float, default=1e-4
        Weight of the penalty, which is L2 unless `l1_ratio` is positive, as in `SGDClassifier`. `LogisticRegression` on
        n rows has the same penalty with ``C = 1 / (alpha * n)``. Increase it to regularise more.
    l1_ratio : float, default=0.0
        Share of the L1 penalty, from 0 to 1. The penalty is
        ``alpha * (l1_ratio * sum(abs(coef)) + (1 - l1_ratio) / 2 * norm(coef)**2)``, as in scikit-learn's `ElasticNet`.
        Increase it for sparse models: coefficients that do not pay for their penalty become exactly zero.
    radius : float, default=None
        Upper bound on the norm of the coefficients; None for no bound. With ``alpha=0`` and no radius, separable data
        have no finite minimiser, which the status reports. Otherwise the bounds hold for all models whose outputs are
        not huge: see `bound_radius_`. If columns are collinear up to rounding, or the outputs of the best model found
        exceed a tenth of that, no bound is claimed.
    domain : Domain, default=None
        The feasible set of the coefficients and their penalty, in place of `alpha`, `l1_ratio` and `radius`: one of
        `groupdro.domains`, such as ``ElasticNetDomain(l2=0.01, low=0.0)`` for coefficients that are not negative, or
        your own. It applies to the coefficients in the units of X, an array of shape (n_features,)
        or (n_features, n_classes),
        and not to the intercept.
    fit_intercept : bool, default=True
        Whether to fit an intercept. It is not subject to penalties and bounds.
    tol : float, default=1e-4
        Relative tolerance: stop when the certified gap is at most `tol` times the objective. Decrease it for a more
        accurate optimum.
    atol : float, default=None
        Absolute tolerance: stop when the certified gap is at most `atol`, in the units of the loss. Meeting either
        tolerance ends the fit; `criterion_` says which one was met. None means, for excess risks, whose optimum may be
        zero, ``tol ** 2`` times the loss of a constant prediction in the group where it is smallest. Otherwise it means
        a tiny value, just large enough for a model that fits perfectly up to rounding to count as optimal.
    max_passes : float, default=1000
        Limit on passes over the data. Increase it if `status_` is "pass_limit".
    max_time : float, default=None
        Time limit in seconds, checked after every epoch; None for no limit.
    solver : str or Solver, default="auto"
        "auto" picks a solver by a cost model, and `solver_` says which and why. To choose yourself, pass a name such as
        "aleg" or "sqp", or a solver object with options.
    random_state : int, RandomState instance or None, default=None
        Seed for solvers that draw rows.
    verbose : int, default=0
        0 prints nothing, 1 one line per second, 2 one line per epoch: certified gap, time left, worst value, active
        groups.
    callbacks : list of callable, default=None
        Called with a `Progress` after every epoch. A callback that returns True ends the fit.
    checkpoint_dir : str or path-like, default=None
        Directory in which to save the fit after every epoch, one file per problem. Rerunning an interrupted fit resumes
        it, also with another solver, tolerance or limit. A random state of None is then replaced by 0.
    min_group_size : int, default=1
        Groups with fewer rows are merged into one group named "(merged)", with a `SmallGroupWarning`. The risks of very
        small groups are mostly noise: the same warning is issued if groups of fewer than ten rows get most of the
        weight and a handful of rows determines the fit.
    small_group_bonus : float, default=0.0
        Factor C of the bonus C / sqrt(n_i) that is added to the risk of a group of n_i rows, as in an upper confidence
        bound. It gives small groups more weight, because their training risks are the least certain. To give them less
        weight, use `min_group_size` instead. With a bonus, the warning is issued whenever groups of fewer than ten rows
        get most of the weight.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    groups_ : ndarray of shape (n_groups,)
        Names of the groups.
    group_risks_ : ndarray of shape (n_groups,)
        Average training loss of each group.
    group_weights_ : ndarray of shape (n_groups,)
        Group weights q that prove `lower_bound_`. Groups with weight are binding: they determine the optimum.
    merged_groups_ : tuple
        Names of the small groups that were merged.
    worst_group_ : object
        Name of the group that sets `upper_bound_`.
    group_minima_ : ndarray of shape (n_groups,)
        The R_i* used, or upper bounds on them that the fit found; only with ``objective="excess_risk"``.
    upper_bound_ : float
        The objective at the fitted model.
    lower_bound_ : float
        Proven lower bound: no model has a smaller objective.
    gap_ : float
        ``upper_bound_ - lower_bound_``: an upper bound on the model's suboptimality.
    mean_risk_, worst_risk_ : float
        Average and worst value of the model on the training data, including the penalty. They satisfy
        ``upper_bound_ = (1 - robustness) * mean_risk_ + robustness * worst_risk_``. The average is NaN if it is
        unknown: for excess risks of overlapping groups with ``robustness=1``.
    mean_lower_bound_ : float
        Proven lower bound: no model whose worst value is at most `worst_risk_` has a smaller average. With
        ``robustness=1``, it holds for models whose worst value is at most ``(1 + tol) * lower_bound_``; among these,
        the fit returns the one with the smallest average. Minus infinity if that model was not searched for: with
        ``break_ties=False``, with `worst_share`, with an L1 penalty or bounds, with ``alpha=0`` and no radius, or if
        the fit did not converge.
    worst_lower_bound_ : float
        Proven lower bound: no model whose average is at most `mean_risk_` has a smaller worst value.
    bound_radius_ : float
        Infinite, except with ``alpha=0`` and no radius. `lower_bound_` then holds for all models whose outputs on the
        training data (minus their mean, if there is an intercept) have a root mean square of at most this value,
        log-odds of 1e3. The output of a row with outliers counts relative to the size of the row.
    criterion_ : str or None
        Which tolerance `gap_` meets, "tol" or "atol"; None if the fit did not converge.
    status_ : str
        "converged", or why not: "pass_limit", "time_limit", "interrupted", "no_finite_minimiser", "stalled",
        "numerical_failure".
    message_ : str
        The status as a sentence, with details.
    solver_ : str
        The solver that ran, and why if it was chosen automatically.
    n_passes_ : float
        Passes over the data.
    trace_ : tuple of TraceRow
        Passes, seconds and both bounds after each epoch.
    training_digest_ : str or None
        Digest of the training data, by which a report recognises them as in-sample; None if they were divided among
        several workers.
    uses_offset_ : bool
        Whether the model was fitted with an `offset`, which predictions then require.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features, if X has them.

    Examples
    --------
    >>> from groupdro import GroupDROClassifier, datasets
    >>> X, y, groups = datasets.make_mero(n_groups=5, n_per_group=200, n_features=10)
    >>> model = GroupDROClassifier().fit(X, y, groups=groups)
    >>> model.status_
    'converged'
    >>> bool(model.gap_ <= 1e-4 * model.upper_bound_)
    True
    """

    __metadata_request__decision_function = {"offset": True}  # noqa: RUF012
    __metadata_request__predict_proba = {"offset": True}  # noqa: RUF012
    __metadata_request__predict_log_proba = {"offset": True}  # noqa: RUF012

    _losses: ClassVar[dict[str, type[Loss]]] = {"logistic": Logistic, "squared_hinge": SquaredHinge}
    _regression: ClassVar[bool] = False

    loss: str | Loss = "logistic"
    class_weight: Any = None

    def decision_function(self, X: Any, *, offset: Any = None) -> Floats:
        """Return the model's outputs.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Offsets of the rows; required if the model was fitted with offsets, not allowed otherwise.

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_classes)
            For two classes one number per row, positive for the second class; otherwise one per class.
        """
        return self._outputs(X, offset)

    def predict(self, X: Any, *, offset: Any = None) -> Array:
        """Return the most likely class of each row.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows. Groups are not needed.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Offsets of the rows; required if the model was fitted with offsets, not allowed otherwise.

        Returns
        -------
        ndarray of shape (n_rows,)
            Class labels.
        """
        outputs = self._outputs(X, offset)
        return self.classes_[(outputs > 0).astype(np.intp) if outputs.ndim == 1 else outputs.argmax(axis=1)]

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any, *, offset: Any = None) -> Floats:
        """Return the probability of each class. Available only with the logistic loss.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Offsets of the rows; required if the model was fitted with offsets, not allowed otherwise.

        Returns
        -------
        ndarray of shape (n_rows, n_classes)
            Probabilities, in the order of `classes_`.
        """
        outputs = self._outputs(X, offset)
        if outputs.ndim == 1:
            return np.column_stack([expit(-outputs), expit(outputs)])
        return np.asarray(softmax(outputs, axis=1))

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any, *, offset: Any = None) -> Floats:
        """Return the logarithms of the probabilities.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Offsets of the rows; required if the model was fitted with offsets, not allowed otherwise.

        Returns
        -------
        ndarray of shape (n_rows, n_classes)
            Log-probabilities, finite whenever the outputs are.
        """
        outputs = self._outputs(X, offset)
        if outputs.ndim == 1:
            return -np.column_stack([np.logaddexp(0.0, outputs), np.logaddexp(0.0, -outputs)])
        return np.asarray(log_softmax(outputs, axis=1))

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> float:
        """Return the accuracy: the share of rows whose class is predicted correctly.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows.
        y : array-like of shape (n_rows,)
            True classes.
        sample_weight : array-like of shape (n_rows,), optional
            Weights of the rows.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Offsets of the rows; required if the model was fitted with offsets, not allowed otherwise.

        Returns
        -------
        float
            The accuracy.
        """
        predicted = self.predict(X, offset=offset)
        unknown_labels(self.classes_, read_target(y, len(predicted), numeric=False))
        with error_prefix("y"):
            return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    def _encode(self, y: Array) -> Array:
        with error_prefix("y"):
            check_classification_targets(y)
            self.classes_, codes = np.unique(y, return_inverse=True)
        return codes

    def _weights(self, y: Array, weights: Floats | None) -> Floats | None:
        if self.class_weight is None:
            return weights
        with error_prefix("y"):
            classes, codes = np.unique(y, return_inverse=True)
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            totals = np.bincount(codes, weights)
            with np.errstate(divide="ignore"):  # a class without weight is refused below
                factors = totals.sum() / (len(totals) * totals)
        else:
            factors = self._factors_of(classes.tolist())
        wrong = np.flatnonzero(~(np.isfinite(factors) & (factors > 0)))
        if wrong.size:
            name, value = classes.tolist()[wrong[0]], factors[wrong[0]]
            raise ValueError(f"class_weight must be positive and finite for every class, got {value:g} for {name!r}.")
        own = factors[codes]
        return np.asarray(own if weights is None else own * weights)

    def _factors_of(self, classes: list[Any]) -> Floats:
        """Return the factors that `class_weight` gives to these classes; 1 for those that it leaves out."""
        given = self.class_weight
        shown = "[" + ", ".join(map(repr, classes[:_SHOWN])) + (", ...]" if len(classes) > _SHOWN else "]")
        if not isinstance(given, dict):
            example = {name: float(k + 1) for k, name in enumerate(classes[:2])}
            raise ValueError(
                f"class_weight must be a dict from classes to weights such as {example!r}, 'balanced' or None, "
                f"got {short_repr(given)}."
            )
        unknown = [name for name in given if name not in classes]
        missing = [name for name in classes if name not in given]
        if unknown and missing:  # probably a typing error; classes that some fold lacks are fine
            raise ValueError(
                f"class_weight names {short_repr(unknown[0])} and not {missing[0]!r}, but the classes of y are {shown}."
            )
        for name, value in given.items():
            check_number(value, f"class_weight[{name!r}]", positive=True)
        return np.array([given.get(name, 1.0) for name in classes], dtype=np.float64)

    def _own_loss(self) -> Loss:
        n_classes = len(self.classes_)
        if n_classes < 2:
            raise ValueError(f"y has only one class, {self.classes_.tolist()[0]!r}: classifiers require at least two.")
        if n_classes > 2 and self.loss == "logistic":
            return Softmax(n_classes)
        loss = self.loss if isinstance(self.loss, Loss) else self._losses[self.loss]()
        if loss.of_residual:
            raise ValueError(f"loss={loss!r} is a loss of residuals, for regressors.")
        outputs = loss.n_outputs(np.arange(n_classes))
        if outputs == 1 and n_classes > 2:
            raise ValueError(f"loss={self.loss!r} requires two classes, but y has {n_classes}; use loss='logistic'.")
        if outputs != (1 if n_classes == 2 else n_classes):
            raise ValueError(
                f"loss={loss!r} has {outputs} outputs, but y has {n_classes} classes: two classes require a loss with "
                "one output, more classes one output per class."
            )
        return loss

    def _take_classes(self, classes: Array | None) -> None:
        if classes is None:
            raise ValueError("X is a store with numeric targets; classifiers require one written with task='classes'.")
        self.classes_ = classes

    def _check_weights(self, codes: Array, sample_weight: Any) -> None:
        """Refuse weights that would send an intercept to infinity."""
        weighted = codes[np.asarray(sample_weight).ravel() != 0]
        lacking = np.setdiff1d(np.arange(len(self.classes_)), weighted)
        if len(lacking):
            label = self.classes_[lacking[:1]].tolist()[0]
            raise ValueError(f"sample_weight is zero on all rows of class {label!r}.")

    def _attributes(self, w: Floats) -> dict[str, Any]:
        rows = w.reshape(len(w), -1).T
        d = self.n_features_in_
        if isinstance(self._own_loss(), Softmax):
            # A constant added to all classes does not change the probabilities and can only increase an L2 penalty.
            # With an L1 penalty or bounds, centring would destroy zeros and violate bounds.
            domain = self._domain(float(self.alpha))
            first = 0 if domain is None or domain.ball is not None else d
            rows = np.hstack([rows[:, :first], rows[:, first:] - rows[:, first:].mean(axis=0)])
        intercept = rows[:, d].copy() if self.fit_intercept else np.zeros(len(rows))
        return {"coef_": np.ascontiguousarray(rows[:, :d]), "intercept_": intercept}

    def _codes(self, y: Any) -> Array:
        y = np.asarray(y)
        codes, known = class_codes(y, self.classes_)
        if not known.all():
            raise ValueError(f"y has the class {y[~known].tolist()[0]!r}, which was not seen in fit.")
        return codes
