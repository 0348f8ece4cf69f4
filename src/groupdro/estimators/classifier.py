"""`GroupDROClassifier`: a linear classifier that is as good as it can be on its worst group."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from groupdro.estimators.base import GroupDROEstimator
from groupdro.problem import Logistic, Loss, Softmax, SquaredHinge
from groupdro.utils.arguments import error_prefix
from groupdro.utils.types import Array, Floats
from groupdro.utils.vectors import class_codes

__all__ = ["GroupDROClassifier"]


def _has_probabilities(estimator: "GroupDROClassifier") -> bool:
    if estimator.loss != "logistic":
        raise AttributeError(f"probabilities need loss='logistic', not {estimator.loss!r}.")
    return True


@dataclass(eq=False, repr=False, kw_only=True)
class GroupDROClassifier(ClassifierMixin, GroupDROEstimator):
    """Linear classifier that is as good as it can be on its worst group, with a certificate.

    Minimises, over the coefficients and a free intercept,

        (1 - robustness) * average of V_i(w)  +  robustness * max of V_i(w)  +  alpha / 2 * norm(coef)**2,
        norm(coef) <= radius,    V_i(w) = R_i(w) [- R_i*] [+ C / sqrt(n_i)],

    where R_i is the average loss of group i, and by default the worst group alone counts. No step size has to be set,
    and the result carries a proof of how far from the best possible it is.

    Parameters
    ----------
    objective : {"risk", "excess_risk"}, default="risk"
        The worst group's risk R_i; or its regret R_i - R_i*, where R_i* is the least that any model reaches on group
        i, so that a group which nobody can predict does not decide for all.
    robustness : float, default=1.0
        Where to stand between the average and the worst, from 0 to 1: the value minimised is
        ``(1 - robustness) * average + robustness * worst``. 0 is plain training, with the same certificate; 1 looks at
        the worst group alone. Values in between often keep most of the worst group's gain at a fraction of what the
        others pay for it: `robustness_frontier` shows all of them.
    average : {"rows", "groups"}, default="rows"
        Whether every row counts alike in the average, by its `sample_weight`, or every group.
    n_worst : int, default=None
        Let the worst be the average of so many worst groups instead of one.
    worst_share : float, default=None
        Let the worst be the average over the worst share of all rows (of all groups with ``average="groups"``): the
        conditional value at risk over groups.
    loss : {"logistic", "squared_hinge"}, default="logistic"
        Logistic loss, which is softmax for more than two classes; or the squared hinge loss, halved, for two classes.
    alpha : float, default=1e-4
        Weight of the penalty, L2 unless `l1_ratio` says otherwise, as in `SGDClassifier`; `LogisticRegression` on n
        rows has the same with ``C = 1 / (alpha * n)``.
    l1_ratio : float, default=0.0
        Share of the L1 penalty, from 0 to 1: with it the penalty is
        ``alpha * (l1_ratio * sum(abs(coef)) + (1 - l1_ratio) / 2 * norm(coef)**2)``, as in scikit-learn's `ElasticNet`.
        Coefficients that do not earn their penalty are then exactly zero.
    positive : bool, default=False
        Whether no coefficient may be negative.
    lower_bounds, upper_bounds : float or array-like of shape (n_features,), default=None
        Least and largest coefficients, of all features or of each by position, in every class; 0 must lie between them.
        None for any. `lower_bound_` and `upper_bound_` are something else: the certificate.
    radius : float, default=None
        Largest norm of the coefficients; None for any. With ``alpha=0`` and no radius, separable data have no finite
        minimiser, which the status reports; otherwise the bounds hold for all models whose outputs are not huge: see
        `bound_radius_`. Where columns depend on each other up to rounding, or the outputs of the best model found
        exceed a tenth of that, no bound is claimed.
    fit_intercept : bool, default=True
        Whether to fit an intercept, free of penalty and radius.
    precondition : bool, default=True
        Whether the solver scales the columns inside. The objective is the same, in the units of X.
    tol : float, default=1e-4
        Certified gap at which to stop, relative to the objective.
    atol : float, default=None
        Certified gap at which to stop, in the units of the loss. The fit ends when either tolerance is met, and
        `criterion_` says which. None is ``tol ** 2`` for excess risks, whose best value may be zero, and otherwise no
        more than the loss of residuals that are all rounding, which a model that fits without loss is left with.
    max_passes : float, default=1000
        Most passes over the data.
    max_time : float, default=None
        Time limit in seconds; None for no limit.
    solver : str or Solver, default="auto"
        "auto" picks by a cost model; `solver_` says what and why. Otherwise a name, such as "aleg" or "sqp", or a
        solver with options.
    warm_start : bool, default=False
        Whether to begin at the last fit's solution.
    random_state : int, RandomState instance or None, default=None
        Seed of the solvers that draw rows.
    verbose : int, default=0
        1 prints one line per second, 2 one per epoch: certified gap, time left, worst value, active groups.
    callbacks : list of callable, default=None
        Each is called with a `Progress` after every epoch; one that returns True ends the fit. Callbacks of
        scikit-learn (1.9 and later) are set by `set_callbacks`.
    checkpoint_dir : str or path-like, default=None
        Directory to which a fit is saved after every epoch, each fit in a folder of its own. A fit of the same data
        with the same parameters resumes where the last one was interrupted; a random state of None is 0 then.
    missing_group : {"error", "own"}, default="error"
        Whether missing group labels are refused, or a group of their own, named "(missing)".
    min_group_size : int, default=1
        Rows that a group should have.
    small_groups : {"warn", "merge", "raise"}, default="warn"
        What becomes of smaller groups; "merge" joins them in one group named "(merged)".
    small_group_adjustment : float, default=0.0
        C of the upper confidence bound R_i + C / sqrt(n_i) that replaces the risk of a group of n_i rows. It makes
        small groups count more, because their training risks are the least certain. To make them count less, set
        `min_group_size` with ``small_groups="merge"`` instead. A `SmallGroupWarning` is given where groups of fewer
        than ten rows get most of the weight.
    reference_risks : array-like or mapping, default=None
        The R_i* of "excess_risk" where you know better ones than the fit would find: in the order of the sorted groups,
        or by group.

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
        Weights q of the groups that prove `lower_bound_`: the groups that bind have weight.
    merged_groups_ : tuple
        Names of the groups that were merged for being small.
    worst_group_ : object
        Name of the group that sets `upper_bound_`.
    reference_risks_ : ndarray of shape (n_groups,)
        The R_i* used; only with ``objective="excess_risk"``.
    upper_bound_ : float
        The objective at the model.
    lower_bound_ : float
        No model has a smaller objective: this is proved.
    gap_ : float
        Their difference: an upper bound on the model's suboptimality.
    mean_risk_, worst_risk_ : float
        Average and worst value of the model on the training rows, with the penalty, as `upper_bound_` has it, which is
        ``(1 - robustness) * mean_risk_ + robustness * worst_risk_``. The average is NaN where it is not known: over
        the rows of a store with weights, and with ``robustness=1`` of excess risks of groups that overlap.
    mean_lower_bound_ : float
        No model whose worst value is at most `worst_risk_` has a smaller average: this is proved. With
        ``robustness=1`` no model whose worst value is at most ``(1 + tol) * lower_bound_`` has one; the model returned
        is, of all these, the one of least average. Minus infinity where that was not sought, as with `n_worst` or
        `worst_share`, with an L1 penalty or bounds, with ``alpha=0`` and no radius, or where the fit did not
        converge.
    worst_lower_bound_ : float
        No model whose average is at most `mean_risk_` has a smaller worst value.
    bound_radius_ : float
        Infinite, except with ``alpha=0`` and no radius: `lower_bound_` then holds for all models whose outputs on the
        training rows, less their mean where there is an intercept, have a root mean square of at most this:
        log-odds of 1e3. The output of a row with outlying cells counts relative to the size of the row.
    criterion_ : str or None
        Which tolerance `gap_` meets: "tol" or "atol"; None where the fit did not converge.
    status_ : str
        "converged", or why not: "pass_limit", "time_limit", "interrupted", "no_finite_minimiser", "stalled",
        "numerical_failure".
    message_ : str
        The same as a sentence.
    solver_ : str
        What ran, and why where it was chosen automatically.
    n_passes_ : float
        Passes over the data.
    trace_ : tuple of TraceRow
        Passes, seconds and both bounds after each epoch.
    training_digest_ : str or None
        Digest of the training rows, by which a report recognises them as in-sample; None where the rows were divided
        among several workers.
    uses_offset_ : bool
        Whether the model corrects an `offset`, without which it does not predict.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features, where X had them.

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

    _losses: ClassVar[tuple[str, ...]] = ("logistic", "squared_hinge")
    _regression: ClassVar[bool] = False

    loss: str = "logistic"

    def decision_function(self, X: Any, *, offset: Any = None) -> Floats:
        """Return the model's outputs.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Their offsets, where the model was fitted with them, and only there.

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
            Their offsets, where the model was fitted with them, and only there.

        Returns
        -------
        ndarray of shape (n_rows,)
            Class labels.
        """
        outputs = self._outputs(X, offset)
        return self.classes_[(outputs > 0).astype(np.intp) if outputs.ndim == 1 else outputs.argmax(axis=1)]

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any, *, offset: Any = None) -> Floats:
        """Return the probability of each class; only with the logistic loss.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Their offsets, where the model was fitted with them, and only there.

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
            Their offsets, where the model was fitted with them, and only there.

        Returns
        -------
        ndarray of shape (n_rows, n_classes)
            Logarithms, finite wherever the outputs are.
        """
        outputs = self._outputs(X, offset)
        if outputs.ndim == 1:
            return -np.column_stack([np.logaddexp(0.0, outputs), np.logaddexp(0.0, -outputs)])
        return np.asarray(log_softmax(outputs, axis=1))

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> float:
        """Return the share of rows whose class is right.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows.
        y : array-like of shape (n_rows,)
            Their classes.
        sample_weight : array-like of shape (n_rows,), optional
            Weights of the rows.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Their offsets, where the model was fitted with them, and only there.

        Returns
        -------
        float
            The accuracy.
        """
        predicted = self.predict(X, offset=offset)
        with error_prefix("y"):
            return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    def _encode(self, y: Array) -> Array:
        with error_prefix("y"):
            check_classification_targets(y)
            self.classes_, codes = np.unique(y, return_inverse=True)
        return codes

    def _own_loss(self) -> Loss:
        n_classes = len(self.classes_)
        if n_classes < 2:
            raise ValueError(f"y has only one class, {self.classes_.tolist()[0]!r}: a classifier needs two or more.")
        if n_classes > 2 and self.loss == "squared_hinge":
            raise ValueError(f"loss='squared_hinge' needs two classes, y has {n_classes}: use loss='logistic'.")
        if n_classes > 2:
            return Softmax(n_classes)
        return Logistic() if self.loss == "logistic" else SquaredHinge()

    def _take_classes(self, classes: Array | None) -> None:
        if classes is None:
            raise ValueError("X is a store of numbers as targets: a classifier needs one written with task='classes'.")
        self.classes_ = classes

    def _check_weights(self, codes: Array, sample_weight: Any) -> None:
        """Refuse what would send an intercept to infinity."""
        weighted = codes[np.asarray(sample_weight).ravel() != 0]
        lacking = np.setdiff1d(np.arange(len(self.classes_)), weighted)
        if len(lacking):
            label = self.classes_[lacking[:1]].tolist()[0]
            raise ValueError(f"sample_weight is zero on all rows of class {label!r}.")

    def _attributes(self, w: Floats) -> dict[str, Any]:
        rows = w.reshape(len(w), -1).T
        d = self.n_features_in_
        if len(rows) > 1:
            # A constant added to all classes changes no probability, and may only add to an L2 penalty. It would undo
            # zeros, and break bounds.
            moved = rows[:, d:] if self._is_separable else rows
            moved = moved - moved.mean(axis=0)
            rows = np.hstack([rows[:, :d], moved]) if self._is_separable else moved
        intercept = rows[:, d].copy() if self.fit_intercept else np.zeros(len(rows))
        return {"coef_": np.ascontiguousarray(rows[:, :d]), "intercept_": intercept}

    def _codes(self, y: Any) -> Array:
        y = np.asarray(y)
        codes, known = class_codes(y, self.classes_)
        if not known.all():
            raise ValueError(f"y has the class {y[~known].tolist()[0]!r}, which was not there at fit.")
        return codes
