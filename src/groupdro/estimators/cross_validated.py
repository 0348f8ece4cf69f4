"""`GroupDROClassifierCV` and `GroupDRORegressorCV`: penalty and robustness chosen conservatively on held-out data."""

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, RegressorMixin, clone

from groupdro.estimators.base import GroupDROEstimator
from groupdro.estimators.classifier import GroupDROClassifier
from groupdro.estimators.fitted import adopt, unfitted
from groupdro.estimators.fitting import MissingGroupsWarning, SmallGroupWarning
from groupdro.estimators.grid_search import ROUGH, GridSearch
from groupdro.estimators.refitted import RefittedClassifier, RefittedModel
from groupdro.estimators.regressor import GroupDRORegressor
from groupdro.evaluation.judgement import Resampling
from groupdro.evaluation.selection import Selection
from groupdro.utils.arguments import check_choice, check_number, error_prefix
from groupdro.utils.text import percent
from groupdro.utils.types import Array, Floats

__all__ = ["GroupDROClassifierCV", "GroupDRORegressorCV"]

_ALPHAS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4, 1e-5)
_BLENDS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


@dataclass(eq=False, repr=False)
class _CrossValidated(MetaEstimatorMixin, BaseEstimator):
    """Common base of both estimators."""

    __metadata_request__fit = {"groups": True, "cluster": True, "offset": True}  # noqa: RUF012

    _default: ClassVar[Any]
    _scores: ClassVar[tuple[str, ...]]

    estimator: Any = None
    _: KW_ONLY
    alphas: Any = _ALPHAS
    robustness: Any = _BLENDS
    cv: Any = 5
    scoring: Any = None
    mean_budget: float | None = None
    prefer: str | None = None
    confidence: float = 0.95
    min_rows: int = 30
    n_bootstrap: int = 500
    n_jobs: int | None = None
    verbose: int = 0
    refit: bool = True
    random_state: int = 0

    def _own(self) -> GroupDROEstimator:
        """Return the estimator whose penalty and robustness are to be chosen."""
        own: GroupDROEstimator = self._default() if self.estimator is None else clone(self.estimator)
        if not isinstance(own, self._default):
            raise TypeError(f"estimator must be a {self._default.__name__}, got {type(own).__name__}.")
        return own

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        offset: Any = None,
        cluster: Any = None,
    ) -> Self:
        """Choose penalty and robustness on held-out folds, then fit on all rows.

        Parameters
        ----------
        X, y, sample_weight, groups, offset : array-like, or a GroupedStore as X
            As in the `fit` of the estimator. The rows of a store are read in parts.
        cluster : array-like of shape (n_rows,), optional
            Labels of patients, users or sites whose rows are dependent. They stay in one fold and are resampled
            together.

        Returns
        -------
        self
            The fitted estimator.
        """
        fitted = unfitted(self)
        search = fitted._search(X, y, sample_weight, groups, offset, cluster)
        fitted._keep(search, search.run())
        if self.refit:
            best = self._own().set_params(alpha=fitted.alpha_, robustness=fitted.robustness_)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", category=MissingGroupsWarning)
                warnings.simplefilter("ignore", category=SmallGroupWarning)
                fitted.best_estimator_ = best.fit(X, y, sample_weight, groups=groups, offset=offset)
        adopt(self, fitted)
        return self

    def _search(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        groups: Any = None,
        offset: Any = None,
        cluster: Any = None,
    ) -> GridSearch:
        """Check parameters and data, and return the search."""
        own = self._own()
        own._refuse_domain(type(self).__name__)
        grid = self._grid()
        Resampling(self.n_bootstrap, self.confidence, self.min_rows, self.random_state).check(least=20)
        if self.mean_budget is not None:
            check_number(self.mean_budget, "mean_budget")
        if not (self.scoring is None or callable(self.scoring)):
            check_choice(self.scoring, "scoring", self._scores)
        if self.prefer is not None:
            check_choice(self.prefer, "prefer", ("caution", "gain"))
        probe = clone(own)
        probe._check_parameters()
        rough = clone(own).set_params(tol=max(float(own.tol), ROUGH), callbacks=None, checkpoint_dir=None, verbose=0)
        _, given = probe._read(X, y, sample_weight, groups, offset, cluster)  # raises on unusable data, and warns once
        self.n_features_in_ = probe.n_features_in_
        if hasattr(probe, "feature_names_in_"):
            self.feature_names_in_ = probe.feature_names_in_
        if given is None:
            return GridSearch(self, rough, X.given(), grid, store=X)
        return GridSearch(self, rough, given.with_weight(), grid)

    def _grid(self) -> tuple[Floats, Floats]:
        grid = []
        for name in ("alphas", "robustness"):
            with error_prefix(name):
                values = np.unique(np.asarray(getattr(self, name), dtype=np.float64).ravel())
            most = 1.0 if name == "robustness" else np.inf
            if not len(values) or not (np.isfinite(values).all() and (values >= 0).all() and (values <= most).all()):
                raise ValueError(f"{name} must be numbers from 0 to {most:g}, got {getattr(self, name)!r}.")
            grid.append(values)
        return grid[0][::-1], np.unique(np.append(0.0, grid[1]))  # plain training is always included

    def _keep(self, search: GridSearch, chosen: Selection) -> None:
        """Set the attributes found by the search."""
        alphas, blends = search.cells
        self.alpha_ = float(alphas[chosen.best])
        self.robustness_ = float(blends[chosen.best])
        self.plain_alpha_ = float(alphas[chosen.plain])
        names = np.array([*search.given.groups.names, None], dtype=object)
        self.cv_results_: dict[str, Array] = {
            "param_alpha": alphas,
            "param_robustness": blends,
            "mean_test_risk": chosen.mean,
            "worst_test_risk": chosen.worst,
            "worst_group": names[chosen.worst_group],
            "gain": chosen.gain,
            "gain_low": chosen.gain_low,
            "significant": chosen.significant,
            "affordable": chosen.affordable,
        }
        self.best_index_ = chosen.best
        self.n_splits_ = search.n_splits
        self.message_ = _sentence(self, chosen, len(search.given.groups.names))

    def __sklearn_tags__(self) -> Any:
        """Declare support for sparse rows."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class GroupDROClassifierCV(RefittedClassifier, ClassifierMixin, _CrossValidated):
    """`GroupDROClassifier` with penalty and robustness chosen conservatively on held-out data.

    The default is plain training, with the penalty that gives the smallest average held-out loss. A robust model
    replaces it only if its worst group is significantly better on held-out data, by a larger percentage than its
    average is worse; among such models, the least robust one is chosen. If you say what the average may cost, by
    `mean_budget`, it is the one with the smallest worst-group loss within that budget.

    The comparison bootstraps the pooled held-out losses. Every row is held out once, all models are compared on the
    same resampled rows (or clusters), and the largest studentised deviation over all cells of the grid corrects for
    multiple comparisons. A model counts as significantly better if the worst group under plain training has a smaller
    loss under the model (at `confidence`), and if every other group's loss under the model is smaller than that of the
    worst group under plain training (with twice the error). Groups that tie therefore do not count as a gain.

    Cells are fitted to a relative gap of 1e-3, or to the estimator's own tolerance if larger, because their losses are
    only compared. The final model on all rows uses the estimator's own tolerance.

    Parameters
    ----------
    estimator : GroupDROClassifier, default=None
        Estimator that provides all other parameters; None for the defaults. Its `alpha` and `robustness` are ignored,
        and it must not have a `domain`, which would replace `alpha`.
    alphas : array-like
        Penalties to try. Extend the default range if the chosen penalty lies at either end.
    robustness : array-like
        Values of `robustness` to try. 0 is always included. Fewer values make the search faster.
    cv : int, splitter or iterable, default=5
        Number of folds, stratified by group and class; or a splitter, whose `split` receives the groups, or the
        clusters if there are any; or pairs of training and test indices.
    scoring : {None, "log", "zero_one"} or callable, default=None
        Loss per row by which cells are compared. None for the estimator's own loss; a callable takes y and predictions.
        Lower is better.
    mean_budget : float, default=None
        Largest allowed relative increase of the average held-out loss over plain training, as in `compare` and in
        `RobustnessFrontier.least_worst`. None allows as much, in percent, as the worst group's loss falls.
    prefer : {"caution", "gain"}, default=None
        Which of the eligible models to choose: the least robust one, or the one with the smallest worst-group loss.
        None is "gain" if `mean_budget` is given, and "caution" if not.
        "caution" never goes further than necessary; "gain" goes as far as the held-out data show a gain. Use "gain" if
        a group is known to be underrepresented, as in the last layer of a network.
    confidence : float, default=0.95
        Simultaneous confidence level, over all cells, at which a gain must be significant.
    min_rows : int, default=30
        Effective number of rows a group needs to count as a candidate for the worst. The losses of smaller groups are
        too noisy to compare.
    n_bootstrap : int, default=500
        Number of bootstrap resamples.
    n_jobs : int, default=None
        Number of folds fitted in parallel with joblib.
    verbose : int, default=0
        Verbosity of joblib: 10 prints a line per fold.
    refit : bool, default=True
        Whether to fit the chosen model on all rows, which predictions require.
    random_state : int, default=0
        Seed for folds and resamples.

    Attributes
    ----------
    alpha_, robustness_ : float
        The chosen penalty and robustness.
    plain_alpha_ : float
        The penalty of plain training.
    best_estimator_ : GroupDROClassifier
        The model fitted on all rows, with its certificate.
    cv_results_ : dict of str to ndarray
        One entry per cell: penalty, robustness, average and worst group's held-out loss, the worst group, the gain over
        plain training, its lower confidence bound, whether a robust model's gain is significant (with twice the error
        for groups other than the worst, so that the bound may be below zero), and whether its average is affordable.
        NaN for penalties that were discarded early because their plain training is clearly worse.
    best_index_, n_splits_ : int
        Index of the chosen cell, and the number of folds.
    message_ : str
        The choice and its evidence as a sentence.
    classes_, coef_, intercept_, n_features_in_, feature_names_in_ : ndarray, int
        As in `GroupDROClassifier`.

    Examples
    --------
    >>> from groupdro import GroupDROClassifierCV, datasets
    >>> X, y, groups = datasets.make_mero(n_groups=3, n_per_group=200, n_features=5)
    >>> search = GroupDROClassifierCV(alphas=[1e-3, 1e-1]).fit(X, y, groups=groups)
    >>> search.alpha_ in (1e-3, 1e-1)
    True
    """

    _default: ClassVar[Any] = GroupDROClassifier
    _scores = "log", "zero_one"


class GroupDRORegressorCV(RefittedModel, RegressorMixin, _CrossValidated):
    """`GroupDRORegressor` with penalty and robustness chosen conservatively on held-out data.

    It works like `GroupDROClassifierCV`, with folds stratified by group only.

    Parameters
    ----------
    estimator : GroupDRORegressor, default=None
        Estimator that provides all other parameters; None for the defaults. Its `alpha` and `robustness` are ignored,
        and it must not have a `domain`, which would replace `alpha`.
    alphas, robustness, cv, mean_budget, prefer, confidence, min_rows, n_bootstrap : object
        As in `GroupDROClassifierCV`.
    n_jobs, verbose, refit, random_state : object
        As in `GroupDROClassifierCV`.
    scoring : {None, "squared", "absolute"} or callable, default=None
        Loss per row by which cells are compared. None for the estimator's own loss. Lower is better.

    Attributes
    ----------
    alpha_, robustness_, plain_alpha_, cv_results_, best_estimator_, best_index_, n_splits_, message_ : object
        As in `GroupDROClassifierCV`.
    coef_, intercept_, n_features_in_, feature_names_in_ : ndarray, float, int
        As in `GroupDRORegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> from groupdro import GroupDRORegressorCV
    >>> rng = np.random.default_rng(0)
    >>> X, groups = rng.normal(size=(300, 3)), np.repeat([0, 1, 2], 100)
    >>> y = X[:, 0] + rng.normal(size=300)
    >>> GroupDRORegressorCV(alphas=[0.01, 1.0]).fit(X, y, groups=groups).robustness_
    0.0
    """

    _default: ClassVar[Any] = GroupDRORegressor
    _scores = "squared", "absolute"


def _sentence(search: Any, chosen: Selection, n_groups: int) -> str:
    """Return a sentence that says what was chosen, and why."""
    results = search.cv_results_
    k = chosen.best
    plain = chosen.plain
    before = f"plain training (alpha {search.plain_alpha_:g})"
    n_small = int((~chosen.judged).sum())
    small = f" {n_small} of {n_groups} groups were not judged: they have fewer than {search.min_rows} effective rows, "
    small += "or a few rows have most of the loss."
    small = small if n_small else ""
    if k == plain:
        if n_groups == 1:
            return f"Kept {before}: there is only one group."
        if not chosen.judged.any():
            return (
                f"Kept {before}: no group could be judged, because they have fewer than {search.min_rows} effective "
                "rows, or because a few rows have most of the loss."
            )
        n_dear = int(chosen.significant.sum())
        if n_dear:
            limit = "than the worst falls" if search.mean_budget is None else f"than {search.mean_budget:g}"
            models = "1 robust model is" if n_dear == 1 else f"{n_dear} robust models are"
            return (
                f"Kept {before}: {models} significantly better on the worst held-out group, but the average rises by "
                f"a larger share {limit}.{small}"
            )
        return f"Kept {before}: no robust model is significantly better on its worst held-out group.{small}"
    worst, least = results["worst_test_risk"], chosen.gain_low[k]
    price = results["mean_test_risk"][k] / results["mean_test_risk"][plain] - 1.0
    bound = f" (by at least {least:.2g} with {percent(search.confidence)} confidence)" if least > 0 else ""
    text = (
        f"Chose robustness {search.robustness_:g} and alpha {search.alpha_:g}: the worst group's held-out loss falls "
        f"from {worst[plain]:.4g} under {before} to {worst[k]:.4g}{bound}, and the average changes by {price:+.2%}."
    )
    if search.alpha_ != search.plain_alpha_:
        same = (results["param_alpha"] == search.alpha_) & (results["param_robustness"] == 0.0)
        text += f" Plain training at alpha {search.alpha_:g} has {worst[same][0]:.4g}."
    return text + small
