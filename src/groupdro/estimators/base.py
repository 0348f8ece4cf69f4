"""The common base of classifier and regressor: fitting, and the fitted attributes."""

from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import column_or_1d

from groupdro.data import GroupedData
from groupdro.data.given import GivenRows, refuse_other_order, refuse_own
from groupdro.data.grouping import GroupRules, names_array
from groupdro.data.training_digest import rows_digest
from groupdro.estimators.blend import Blend, row_shares
from groupdro.estimators.fitted import FittedModel, adopt, unfitted
from groupdro.estimators.fitting import (
    Task,
    choose_solver,
    merge_groups,
    read_training_rows,
    refuse_small_groups,
    warn_caller,
)
from groupdro.estimators.outcome import Outcome, read_outcome
from groupdro.estimators.parameters import Parameters
from groupdro.estimators.progress import ProgressLine
from groupdro.estimators.usefulness import warn_if_few_rows_decide, warn_if_useless
from groupdro.estimators.validation import check_outputs_offset, read_features, read_init, read_seed
from groupdro.problem import GroupMinima
from groupdro.problem.centring import typical_sizes
from groupdro.run.result import relative_gap
from groupdro.solvers import Result, Status, solve
from groupdro.solvers.slack import LeastAverage
from groupdro.store import GroupedStore
from groupdro.utils.threads import one_blas_thread
from groupdro.utils.types import Array, Floats, Indices
from groupdro.utils.vectors import read_by_group

__all__ = ["GroupDROEstimator"]


# Attributes of the result that a fitted estimator has under the same name plus an underscore.
_TAKEN_OVER = (
    "group_risks",
    "worst_group",
    "upper_bound",
    "lower_bound",
    "gap",
    "bound_radius",
    "criterion",
    "message",
    "solver",
    "trace",
)
_EVEN = 100.0  # ratio of columns' typical entries up to which they count as scaled
_REMEDIES = {
    Status.PASS_LIMIT: "Increase max_passes={max_passes} or tol={tol}.",
    Status.TIME_LIMIT: "Increase max_time={max_time} or tol={tol}.",
    Status.STALLED: "The columns' scales limit the attainable accuracy: scale the columns, or increase tol={tol}.",
    Status.NO_FINITE_MINIMISER: "Set alpha or radius to bound the coefficients.",
    Status.NUMERICAL_FAILURE: "Scale the columns of X, or y.",
    Status.INTERRUPTED: "The model is the best one found so far.",
}


class GroupDROEstimator(FittedModel, Parameters):
    """Base class of the estimators: a linear model that performs as well as possible on its worst group."""

    # Scikit-learn's metadata routing passes groups and offsets to fit without a set_fit_request.
    __metadata_request__fit = {"groups": True, "offset": True}  # noqa: RUF012

    _regression: ClassVar[bool]

    # ------------------------------------------------------------------ implemented by subclasses

    def _encode(self, y: Array) -> Array:
        """Set the attributes learned from y, and return encoded labels."""
        raise NotImplementedError

    def _take_classes(self, classes: Array | None) -> None:
        """Set the attributes learned from a store's labels; `classes` is None for numeric targets."""
        raise NotImplementedError

    def _weights(self, y: Array, weights: Floats | None) -> Floats | None:
        """Return the weights of rows in the fit; None if they are equal."""
        return weights

    def _attributes(self, w: Floats) -> dict[str, Any]:
        """Return `coef_` and `intercept_` of parameters in the user's units."""
        raise NotImplementedError

    # ------------------------------------------------------------------ fit

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        offset: Any = None,
        group_minima: Any = None,
        coef_init: Any = None,
        intercept_init: Any = None,
        q_init: Any = None,
    ) -> Self:
        """Fit the model that performs as well as possible on its worst group.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features), or GroupedStore
            Training data. float32 stays float32; memory-mapped arrays are not copied. A store has its own labels,
            groups, weights and offsets; with several workers, pass ``store.shard(communicator)``.
        y : array-like of shape (n_rows,)
            Labels or targets; None with a store.
        sample_weight : array-like of shape (n_rows,), optional
            Nonnegative weights. Within a group's risk only their ratios matter: they determine which rows of the group
            count more, not which group does. In the average over rows, a group counts by its total weight.
        groups : array-like, Series, DataFrame, boolean or sparse matrix, optional
            One label per row; or several columns, whose combinations are the groups; or a boolean or sparse membership
            matrix with one column per group, where groups may overlap; or what `find_groups` returned. Without groups,
            a warning is issued and all rows form one group, which is plain empirical risk minimisation.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            A score per row that the model corrects; it is added to the model's outputs. For two classes, this is the
            log-odds of the second class; for more classes, one number per class in the order of `classes_`; for a
            regressor, a prediction. Scores of training rows should be out-of-fold. Predictions then require `offset`
            too.
        group_minima : array-like of shape (n_groups,) or mapping, optional
            Your own values of R_i* for ``objective="excess_risk"``, if you know better ones than the fit would find: in
            the order of the sorted groups, or by group.
        coef_init, intercept_init : array-like, optional
            Coefficients and intercepts to start from, shaped like `coef_` and `intercept_`, such as those of an earlier
            fit.
        q_init : array-like of shape (n_groups,) or mapping, optional
            Group weights to start from, in the order of the sorted groups or by group.

        Returns
        -------
        self
            The fitted estimator.
        """
        self._check_parameters()
        fitted = unfitted(self)  # its attributes become those of self when nothing can fail any more
        task, _ = fitted._read(X, y, sample_weight, groups, offset)
        task = fitted._with_minima(task, group_minima)
        start = fitted._start(task, coef_init, intercept_init, q_init)
        outcome = fitted._solve(task, self.alpha, start)
        result = fitted._store(outcome)
        adopt(self, fitted)
        warn_if_few_rows_decide(task, result, bonus=float(self.small_group_bonus))
        if task.data.is_whole:
            warn_if_useless(task, outcome, robustness=float(self.robustness))
        if not result.converged:
            sizes = typical_sizes(task.data, centred=self.fit_intercept)
            self._warn(result, scaled=bool(sizes.max() <= _EVEN * sizes.min()))
        return self

    def _read(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, offset: Any = None, cluster: Any = None
    ) -> tuple[Task, GivenRows | None]:
        """Validate the data, set the attributes that need no solver, and return the task.

        Also return the rows as they were read; None for a store.
        """
        if isinstance(X, GroupedStore):
            refuse_own(y=y, sample_weight=sample_weight, groups=groups, offset=offset)
            return self._read_store(X), None
        refuse_other_order(X, y=y, sample_weight=sample_weight, groups=groups, offset=offset, cluster=cluster)
        if isinstance(groups, GroupRules):  # which may need columns by their names
            shares = self.worst_share is not None and self.average == "rows"  # which overlapping groups do not have
            groups = groups.partition(X) if shares else groups.grouping(X)
        X = read_features(self, X, reset=True)
        rows = read_training_rows(X, y, groups, sample_weight, cluster, offset, numeric=self._regression)
        if len(getattr(y, "shape", ())) == 2:
            column_or_1d(y, warn=True)  # a single column is accepted, with scikit-learn's warning
        return self._read_rows(rows), rows

    def _read_rows(self, given: GivenRows) -> Task:
        """Set the attributes learned from valid rows, and return the task."""
        self.n_features_in_ = given.X.shape[1]
        self.uses_offset_ = given.offset is not None
        given = replace(given, weights=self._weights(given.y, given.weights))
        given, self.merged_groups_ = merge_groups(given, least=self.min_group_size)
        labels = self._encode(given.y)
        offset = given.offset
        loss = self._own_loss()
        self.training_digest_: str | None = rows_digest(given.X, labels)
        if offset is not None:
            check_outputs_offset(offset, len(labels), loss.n_outputs(labels))
        data = GroupedData.of_given(replace(given, y=labels))
        if given.weights is not None and not self._regression:
            self._check_weights(labels, given.weights)
        row_weights = None if given.weights is None else given.weights[data.source]
        return self._task(data, row_shares(data, given.weights), row_weights)

    def _read_store(self, store: GroupedStore, rows: Indices | None = None) -> Task:
        """Set the attributes learned from a store, or from some of its rows in ascending order, and return the task."""
        if getattr(self, "class_weight", None) is not None:
            raise ValueError("class_weight must be None if X is a store: write weights to the store.")
        data = store.data() if rows is None else store.data().restricted(rows)
        refuse_small_groups(store.names, data.counted_sizes, least=self.min_group_size)
        self.n_features_in_ = store.n_features
        self.merged_groups_ = ()
        self.uses_offset_ = store.offset is not None
        if store.feature_names is not None:
            self.feature_names_in_: Array = np.array(store.feature_names, dtype=object)
        self._take_classes(store.classes)
        if store.offset is not None:
            check_outputs_offset(store.offset, store.n_rows, self._own_loss().n_outputs(data.y))
        # A worker has only the labels of its own rows.
        whole = rows is None and len(data.y) == store.n_rows
        self.training_digest_ = rows_digest(store.X, data.y) if whole else None
        return self._task(data, store.group_shares if rows is None else _shares_of(store, rows), None)

    def _task(self, data: GroupedData, shares: Floats | None, row_weights: Floats | None) -> Task:
        blend = Blend.of(
            shares,
            data.n_groups,
            average=self.average,
            worst_share=self.worst_share,
        )
        loss = self._own_loss()
        if loss.of_residual and data.row_offsets.size:  # before the size of the targets is measured
            data = data.without_offsets(data.y - data.row_offsets)
        self._n_outputs = loss.n_outputs(data.y)
        bonus = float(self.small_group_bonus) / np.sqrt(data.counted_sizes)
        return Task(data, row_weights, blend, loss, self.fit_intercept, bonus, group_minima=None)

    def _with_minima(self, task: Task, given: Any) -> Task:
        """Return the task with the user's minimal risks of the groups, if there are any."""
        if given is None:
            return task
        if self.objective != "excess_risk":
            raise ValueError("group_minima requires objective='excess_risk'.")
        values = read_by_group(given, task.data.names, "group_minima")
        return replace(task, group_minima=GroupMinima.exact(values))

    @one_blas_thread()
    def _solve(
        self,
        task: Task,
        alpha: float,
        start: tuple[Any, Any],
        robustness: float | None = None,
    ) -> Outcome:
        """Solve the problem for one penalty and robustness, and return the outcome in the user's units."""
        robustness = float(self.robustness if robustness is None else robustness)
        callbacks = list(self.callbacks or ())
        if self.verbose and task.data.is_first:  # once per job, not per worker
            every = 1.0 if self.verbose == 1 else 0.0
            callbacks.append(ProgressLine(self.tol, every=every))
        posed = task.problem(self._domain(float(alpha)), robustness)
        solver = choose_solver(self.solver, objective=self.objective, minima_given=task.group_minima is not None)
        # A cap on the weights leaves little freedom, and often more groups than its search could handle.
        if self.break_ties and robustness == 1.0 and task.blend.caps is None:
            solver = LeastAverage(solver, task.blend.base, row_weights=task.row_weights)
        result = solve(
            posed.problem,
            solver,
            w=None if start[0] is None else posed.inward(start[0]),
            q=None if start[1] is None else posed.weights(start[1]),
            tol=float(self.tol),
            max_passes=float(self.max_passes),
            max_time=np.inf if self.max_time is None else float(self.max_time),
            atol=None if self.atol is None else float(self.atol),
            seed=read_seed(self.random_state),
            callbacks=callbacks,
            checkpoint_dir=self.checkpoint_dir,
        )
        outcome = read_outcome(posed.problem, result, task.blend, robustness, task.row_weights)
        return replace(outcome, result=replace(outcome.result, w=posed.outward(outcome.result.w)))

    def _start(self, task: Task, coef_init: Any, intercept_init: Any, q_init: Any) -> tuple[Any, Any]:
        """Return the w and q to start from; None for those that are not given."""
        outputs = self._n_outputs
        q = None
        if q_init is not None:
            q = read_by_group(q_init, task.data.names, "q_init")
            if (q < 0).any() or not q.max() > 0:
                raise ValueError("q_init must be nonnegative, with a positive sum.")
            q = q / q.max()  # first, so that the sum cannot overflow
            q /= q.sum()
        if coef_init is None:
            if intercept_init is not None:
                raise ValueError("intercept_init requires coef_init.")
            return None, q
        coef = read_init(coef_init, "coef_init", outputs * self.n_features_in_)
        w = coef.reshape(outputs, self.n_features_in_).T
        intercept = read_init(
            np.zeros(outputs) if intercept_init is None else intercept_init, "intercept_init", outputs
        )
        if self.fit_intercept:
            w = np.vstack([w, intercept])
        elif intercept.any():
            raise ValueError("intercept_init must be zero with fit_intercept=False.")
        return np.ascontiguousarray(w[:, 0] if outputs == 1 else w), q

    def _store(self, outcome: Outcome) -> Result:
        """Set the fitted attributes, and return the result."""
        result = outcome.result
        self.mean_risk_ = outcome.mean
        self.worst_risk_ = outcome.worst
        self.mean_lower_bound_ = outcome.mean_lower
        self.worst_lower_bound_ = outcome.worst_lower
        for name, value in self._attributes(result.w).items():
            setattr(self, name, value)
        self.groups_ = names_array(result.group_names)
        self.group_weights_ = result.q
        self.status_ = result.status.name.lower()
        self.n_passes_ = result.passes
        self._atol = result.atol  # the value in force; the parameter may be None
        for name in _TAKEN_OVER:
            setattr(self, f"{name}_", getattr(result, name))
        self._interrupted = result.interrupted
        if result.group_minima is not None:
            self.group_minima_ = result.group_minima.upper
        return result

    def _with_outcome(self, outcome: Outcome, **parameters: Any) -> Self:
        """Return an estimator with other parameters that was fitted to the same data with this outcome."""
        model = clone(self).set_params(**parameters)
        for name, value in vars(self).items():
            if name not in model.get_params(deep=False):
                setattr(model, name, value)  # attributes learned from the data
        model._store(outcome)
        return model

    def _warn(self, result: Result, *, scaled: bool) -> None:
        relative = relative_gap(result.gap, result.upper_bound)
        remedy = _REMEDIES[result.status]
        if result.status is Status.NO_FINITE_MINIMISER and self._domain(float(self.alpha)) is not None:
            remedy = ""  # neither bounds an intercept that no label holds back
        if result.status is Status.STALLED and scaled:  # which leaves only what limits the digits of the data
            remedy = "Increase tol={tol}, or try another solver than {solver!r}."
        remedy = remedy.format(**self.get_params(deep=False))
        text = f"{result.message} The certified relative gap is {relative:.2g}, the tolerance {self.tol:g}. {remedy}"
        warn_caller(text.rstrip(), ConvergenceWarning)

    def __sklearn_tags__(self) -> Any:
        """Declare support for sparse rows."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _shares_of(store: GroupedStore, rows: Indices) -> Floats:
    """Return each group's share of some rows of a store, or of their total weight."""
    given = store.given()
    totals = np.add.reduceat(given.row_weights[rows], given.groups.restrict(rows).offsets[:-1])
    return np.asarray(totals / totals.sum())
