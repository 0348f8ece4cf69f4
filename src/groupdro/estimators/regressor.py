"""`GroupDRORegressor`: a linear regression that performs as well as possible on its worst group."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_pinball_score, d2_tweedie_score

from groupdro.estimators.base import GroupDROEstimator
from groupdro.losses import Gamma, Huber, Loss, Poisson, Quantile, Squared, deviance_power
from groupdro.utils.arguments import error_prefix
from groupdro.utils.types import Array, Floats

__all__ = ["GroupDRORegressor"]


@dataclass(eq=False, repr=False, kw_only=True)
class GroupDRORegressor(RegressorMixin, GroupDROEstimator):
    """Linear regression that performs as well as possible on its worst group, with a certificate.

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
    loss : {"squared_error", "huber", "absolute_error", "poisson", "gamma"} or Loss, default="squared"
        Half the squared residual ("squared" is the same); Huber's loss, which is linear in residuals beyond 1.35 and so
        less sensitive to outliers; half the absolute residual, which predicts medians; half the Poisson deviance for
        counts, or half the gamma deviance for positive amounts, both with a log link; or one of `groupdro.losses` or
        your own, with one output. Adapt Huber's loss to the scale of y with ``Huber(delta)``, and
        use ``Quantile(level)`` for other quantiles, and ``Tweedie(power)`` for amounts many of which are zero. With a
        log link, predictions are the exponentials of the outputs of the linear model.
    alpha : float, default=1e-4
        Weight of the penalty, which is L2 unless `l1_ratio` is positive. `Ridge` on n rows has the same penalty with
        ``alpha = alpha * n``. Increase it to regularise more.
    l1_ratio : float, default=0.0
        Share of the L1 penalty, from 0 to 1. The penalty is
        ``alpha * (l1_ratio * sum(abs(coef)) + (1 - l1_ratio) / 2 * norm(coef)**2)``, as in scikit-learn's `ElasticNet`.
        Increase it for sparse models: coefficients that do not pay for their penalty become exactly zero.
    radius : float, default=None
        Upper bound on the norm of the coefficients; None for no bound. With ``alpha=0`` and no radius, the bounds hold
        for all models whose outputs are not huge: see `bound_radius_`. If columns are collinear up to rounding, or the
        outputs of the best model found exceed a tenth of that, no bound is claimed.
    domain : Domain, default=None
        The feasible set of the coefficients and their penalty, in place of `alpha`, `l1_ratio` and `radius`: one of
        `groupdro.domains`, such as ``ElasticNetDomain(l2=0.01, low=0.0)`` for coefficients that are not negative, or
        your own. It applies to the coefficients in the units of X, an array of shape (n_features,),
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
        Directory in which to save the fit after every epoch, one file per problem; quantile fits solve a sequence of
        smooth problems and save one file for each. Rerunning an interrupted fit resumes it, also with another solver,
        tolerance or limit. A random state of None is then replaced by 0.
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
    coef_ : ndarray of shape (n_features,)
        Coefficients.
    intercept_ : float
        Intercept.
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
        ``break_ties=False``, with `worst_share`, with an L1 penalty or bounds, with "absolute_error" and other quantile
        losses, with ``alpha=0`` and no radius, or if the fit did not converge.
    worst_lower_bound_ : float
        Proven lower bound: no model whose average is at most `mean_risk_` has a smaller worst value.
    bound_radius_ : float
        Infinite, except with ``alpha=0`` and no radius. `lower_bound_` then holds for all models whose outputs on the
        training data (minus their mean, if there is an intercept) have a root mean square of at most this value: 1e3
        times that of y around its centre. The output of a row with outliers counts relative to the size of the row.
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
    >>> import numpy as np
    >>> from groupdro import GroupDRORegressor
    >>> rng = np.random.default_rng(0)
    >>> X, site = rng.normal(size=(300, 4)), np.repeat(["a", "b", "c"], 100)
    >>> y = X @ [1.0, -2.0, 0.5, 0.0] + np.where(site == "c", 3.0, 1.0) * rng.normal(size=300)
    >>> model = GroupDRORegressor().fit(X, y, groups=site)
    >>> model.worst_group_, model.status_
    ('c', 'converged')
    """

    _losses: ClassVar[dict[str, type[Loss]]] = {
        "squared": Squared,
        "squared_error": Squared,
        "huber": Huber,
        "absolute_error": Quantile,
        "poisson": Poisson,
        "gamma": Gamma,
    }
    _regression: ClassVar[bool] = True

    loss: str | Loss = "squared"

    def predict(self, X: Any, *, offset: Any = None) -> Floats:
        """Return the model's prediction for each row.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows. Groups are not needed.
        offset : array-like of shape (n_rows,), optional
            Offsets of the rows; required if the model was fitted with offsets, not allowed otherwise.

        Returns
        -------
        ndarray of shape (n_rows,)
            Predictions, in the units of y.
        """
        return self._own_loss().mean(self._outputs(X, offset))

    def linear_predictor(self, X: Any, *, offset: Any = None) -> Floats:
        """Return the output of the linear model for each row: with a log link, the logarithm of the prediction.

        Parameters
        ----------
        X, offset : array-like
            As in `predict`.

        Returns
        -------
        ndarray of shape (n_rows,)
            Outputs.
        """
        return self._outputs(X, offset)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> float:
        """Return the share of the deviance or pinball loss that the model explains, D squared; R squared for others.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows.
        y : array-like of shape (n_rows,)
            True targets.
        sample_weight : array-like of shape (n_rows,), optional
            Weights of the rows.
        offset : array-like of shape (n_rows,), optional
            Offsets of the rows; required if the model was fitted with offsets, not allowed otherwise.

        Returns
        -------
        float
            D squared or R squared: 1 minus the loss of the model over that of the best constant.
        """
        predicted = self.predict(X, offset=offset)
        loss = self._own_loss()
        with error_prefix("y"):
            if isinstance(loss, Quantile):
                return float(d2_pinball_score(y, predicted, sample_weight=sample_weight, alpha=loss.level))
            power = deviance_power(loss)
            return float(d2_tweedie_score(y, predicted, sample_weight=sample_weight, power=power))

    def _own_loss(self) -> Loss:
        loss = self.loss if isinstance(self.loss, Loss) else self._losses[self.loss]()
        outputs = loss.n_outputs(np.zeros(1))
        if outputs != 1:
            raise ValueError(f"loss={loss!r} has {outputs} outputs, but regressors have one.")
        return loss

    def _encode(self, y: Array) -> Array:
        self._own_loss().encode(y)  # refuses labels by their row, before rows are sorted by group
        return y

    def _take_classes(self, classes: Array | None) -> None:
        if classes is not None:
            raise ValueError("X is a store with class labels; regressors require one written with task='regression'.")

    def _attributes(self, w: Floats) -> dict[str, Any]:
        d = self.n_features_in_
        return {"coef_": w[:d].copy(), "intercept_": float(w[d]) if self.fit_intercept else 0.0}

    def _codes(self, y: Any) -> Array:
        return np.asarray(y, dtype=np.float64)
