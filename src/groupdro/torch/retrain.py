"""Retraining the last layer of a network so that it performs as well as possible on its worst group."""

import copy
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from groupdro.data.given import GivenRows
from groupdro.estimators import GroupDROClassifier
from groupdro.evaluation.folds import divide
from groupdro.torch.choosing import choose
from groupdro.torch.features import Features, read_features
from groupdro.torch.few_labels import spread_labels
from groupdro.torch.layers import layer_coefficients, named_layer, unwrap, write_last_layer
from groupdro.torch.result import Compared, LastLayerResult, compare_scores
from groupdro.torch.rows import held_out_rows, mean_variance, sample_rows, scores_of, write_rows
from groupdro.torch.unlabelled import Weighting, are_right, fit_without_groups, reported_groups
from groupdro.utils.arguments import check_choice, check_flag, check_number, check_path, check_whole
from groupdro.utils.types import Floats, Mask

__all__ = ["retrain_last_layer"]

_CONFIDENCE = 0.95


def retrain_last_layer(
    model: Any,
    loader: Any,
    *,
    layer: Any = None,
    groups: Any = None,
    robustness: float | str = 1.0,
    alpha: float | str = "cv",
    choose_by: str = "risk",
    inplace: bool = True,
    refit: bool = False,
    estimator: GroupDROClassifier | None = None,
    cv: int = 5,
    store: str | os.PathLike[str] | None = None,
    memory: int = 256 * 2**20,
    labels: Any = None,
    forward: Callable[[Any, Any], Any] | None = None,
    progress: bool = False,
    random_state: int = 0,
) -> LastLayerResult:
    """Retrain the last linear layer of a network for its worst group, and write it into the network.

    Use data that the network was not trained on: features of training rows look better than those of new data.

    1. The inputs of the layer are computed, without gradients and in evaluation mode.
    2. Penalty and robustness are chosen by cross-validation, and `GroupDROClassifier` is fitted on all rows.
    3. Every row is judged under the old layer, and under a layer fitted without its fold, with the same penalty
       and robustness. These were chosen on the same folds, which makes the result slightly optimistic; if that matters,
       pass numbers, or evaluate on a test set of your own.
    4. The layer is written into the network, unless its worst group is significantly worse than under the old layer.

    With `store`, a single fold is held out from everything instead, and the network gets the layer judged on it.

    Without group labels, rows count by how hard the network finds them, as in automatic feature reweighting: see
    `groups`. With labels of a few rows, the groups of the others are predicted from the features.

    Parameters
    ----------
    model : torch.nn.Module
        A classifier, on any device and in any precision, whose last layer has one output for two classes, or one per
        class. Everything except the layer stays the same.
    loader : DataLoader or iterable
        Batches: (inputs, labels), (inputs, labels, groups), or mappings, as in Hugging Face. Labels are numbers from 0.
    layer : str or torch.nn.Module, optional
        Name of a linear layer, as in `named_modules`, or the layer itself; a Sequential stands for its last part. The
        default is the linear layer whose output is the model's output, or its `logits`. Only a softmax or a sigmoid may
        follow the layer.
    groups : str, callable, array-like, Series or DataFrame, optional
        Groups of all rows, in the order of the loader, which then must not shuffle; or a function of the batch; or the
        name of an entry of a mapping. The default is the third item of the batch, or its entry "group" or "groups".
        What `find_groups` returned is applied to the describing columns in the batch, its third item or its entry
        "metadata": a table, a matrix or a mapping of columns. Each row gets the worst group that it is in.
        If no row has a label, and the batches have no groups, a row of class y counts by ``exp(-gamma * p) / n_y``,
        where p is the network's probability of y and n_y the size of the class, and the penalty is on the change of
        the layer. Gamma is chosen out of fold, by the accuracy on rows that the network gets right plus that on rows
        that it gets wrong. The result is reported by class and by right and wrong, and certified for the weighted
        problem. If some rows have a label and others lack one (None or NaN), the groups of the others are predicted
        from their features, within each class. See :doc:`/no_group_labels`.
    robustness : float or "cv", default=1.0
        Blend between the average (0) and the worst group (1), as in `GroupDROClassifier`. "cv" chooses it with
        `GroupDROClassifierCV` and ``prefer="gain"``, at the penalty of robustness 1, and keeps 0 if there is no
        significant gain. Requires group labels.
    alpha : float or "cv", default="cv"
        Weight of the penalty, which is L2 by default. "cv" chooses from 1e-5 to 1 times the mean variance of the
        features (for an L1 penalty, times its square root): the smallest penalty whose held-out objective is within one
        standard error of the best. Without group labels the penalty is on the change of the layer, and chosen together
        with gamma, from 1e-4 to 0.1 of that unit.
    inplace : bool, default=True
        Whether to change the model itself. False leaves it alone and returns a changed copy.
    refit : bool, default=False
        With `store`, whether to fit on all rows after judging, which takes as long again. Without `store`, the layer is
        always fitted on all rows.
    estimator : GroupDROClassifier, optional
        Estimator that provides all other parameters, such as `l1_ratio`, `small_group_bonus`, `objective` or
        `tol`. It must leave `alpha` and `robustness` at their defaults. With ``fit_intercept=False`` the bias of the
        layer becomes zero; a layer without a bias is always fitted without an intercept.
    cv : int, default=5
        Number of folds for choosing penalty and robustness, and for judging the layer.
    store : str or path-like, optional
        Folder for features larger than memory. They are written there batch by batch, and the training rows to a
        `GroupedStore`. Rerunning an interrupted call resumes it, and later calls reuse the features.
    memory : int, default=256 MiB
        Size in bytes of the sample of rows on which penalty and robustness are chosen, with all rows of small groups.
        With `store`, also the features that are held in memory at once.
    labels, forward : optional
        How to read batches of another form, as in `extract_features`.
    progress : bool, default=False
        Whether to print the number of rows read to standard error.
    random_state : int, default=0
        Seed for the held-out rows, the folds and the fit.

    Returns
    -------
    LastLayerResult
        The result. It prints as a table of each group's accuracy and risk before and after.

    Examples
    --------
    >>> import torch
    >>> from groupdro.torch import retrain_last_layer
    >>> images, place = torch.randn(400, 8), torch.arange(400)
    >>> y, groups = place % 2, place // 2 % 2
    >>> images[:, 0] += y
    >>> layers = torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
    >>> network = torch.nn.Sequential(*layers)
    >>> result = retrain_last_layer(network, [(images, y, groups)])
    >>> result.layer, result.n_judged
    ('2', 400)
    """
    _check(robustness, alpha)
    for name, flag in (("inplace", inplace), ("progress", progress), ("refit", refit)):
        check_flag(flag, name)
    check_choice(choose_by, "choose_by", ("risk", "accuracy"))
    check_whole(cv, "cv", least=2)
    check_whole(memory, "memory", least=1)
    check_whole(random_state, "random_state")
    own = GroupDROClassifier() if estimator is None else clone(estimator)
    if not isinstance(own, GroupDROClassifier):
        raise TypeError(f"estimator must be a GroupDROClassifier, got {type(own).__name__}.")
    for name in ("alpha", "robustness"):
        if getattr(own, name) != getattr(GroupDROClassifier(), name):
            raise ValueError(f"estimator must not set {name}: pass {name} to retrain_last_layer itself.")
    own._refuse_domain("retrain_last_layer")
    folder = None if store is None else check_path(store, "store")
    inner = unwrap(model)
    features = read_features(
        inner,
        loader,
        layer=layer,
        groups=groups,
        labels=labels,
        forward=forward,
        path=folder and folder / "features",
        progress=progress,
        is_output=True,
    )
    name, module = named_layer(inner, features.layer)
    task = _Task(own, module, robustness, alpha, choose_by, refit, cv, folder, memory, random_state)
    weighting = spread = None
    if features.names:
        if any(isinstance(group, int | np.integer) and group == -1 for group in features.names):
            text = "groups has -1, which counts as a group: pass None or NaN for rows whose group is not known."
            warnings.warn(text, UserWarning, stacklevel=2)
        if not features.labelled.all():
            features, spread = spread_labels(features, layer_coefficients(module)[0], random_state)
            if not spread.is_reliable:
                warnings.warn(spread.message, UserWarning, stacklevel=2)
        classifier, compared, n_judged = task.run(features)
    else:
        classifier, compared, weighting = task.run_without_groups(features)
        n_judged = len(features)
    target = inner if inplace else copy.deepcopy(inner)
    result = LastLayerResult(
        model=model if inplace else target,
        layer=name,
        classifier=classifier,
        before=compared.before,
        after=compared.after,
        fall=compared.fall,
        alpha=classifier.alpha,
        robustness=classifier.robustness,
        n_rows=len(features),
        n_judged=n_judged,
        n_folds=1 if folder is not None else cv,
        refitted=folder is None or refit,
        weighting=weighting,
        spread=spread,
    )
    if result.is_worse:
        warnings.warn(result.message, UserWarning, stacklevel=2)
    else:
        write_last_layer(target, classifier, layer=name)
    return result


def _check(robustness: Any, alpha: Any) -> None:
    for name, value in (("robustness", robustness), ("alpha", alpha)):
        if isinstance(value, str):
            if value != "cv":
                raise ValueError(f'{name} must be a number or "cv", got {value!r}.')
        else:
            check_number(value, name)
    if not isinstance(robustness, str) and not robustness <= 1:
        raise ValueError(f"robustness must be from 0 to 1, got {robustness!r}.")


_Judged = tuple[GroupDROClassifier, Mask, Floats]  # the model, the mask of judged rows, and their scores


@dataclass(frozen=True, eq=False)
class _Task:
    """How to fit and judge a layer, given its inputs."""

    estimator: GroupDROClassifier
    module: Any
    robustness: float | str
    alpha: float | str
    choose_by: str
    refit: bool
    cv: int
    folder: Path | None
    memory: int
    seed: int

    def run(self, features: Features) -> tuple[GroupDROClassifier, Compared, int]:
        """Choose, fit and judge; return the layer, how it compares with the old one, and on how many rows."""
        old = layer_coefficients(self.module)
        n_classes = max(2, len(old[0]))
        _check_classes(features, n_classes)
        estimator = self._estimator()
        fitted, judged, new = (self._with_one_fold if self.folder else self._with_all_folds)(estimator, features)
        (before,) = scores_of(features, judged, [old])
        rows = np.flatnonzero(judged)
        compared = compare_scores(
            [before, new],
            features.y[rows],
            features.groups.present_in(rows),
            confidence=_CONFIDENCE,
            seed=self.seed,
        )
        return fitted, compared, len(rows)

    def run_without_groups(self, features: Features) -> tuple[GroupDROClassifier, Compared, Weighting]:
        """Fit rows without group labels; return the layer, how it compares with the old one, and the weights."""
        if self.folder is not None:
            raise ValueError("store requires group labels: without them, the features must fit in memory.")
        if self.robustness != 1.0:
            raise ValueError("robustness requires group labels, and no row has one: pass groups, or leave it alone.")
        old = layer_coefficients(self.module)
        _check_classes(features, max(2, len(old[0])))
        estimator = self._estimator()
        (scores,) = scores_of(features, np.ones(len(features), bool), [old])
        fit = fit_without_groups(
            estimator,
            features,
            old,
            scores,
            alpha=self.alpha,
            variance=mean_variance(features),
            n_splits=self.cv,
            seed=self.seed,
        )
        right = are_right(scores, features.y)
        groups = reported_groups(features.y, right)
        compared = compare_scores(
            [scores, fit.scores], features.y, groups, confidence=_CONFIDENCE, seed=self.seed, verdict=False
        )
        return fit.classifier, compared, fit.weighting

    def _estimator(self) -> GroupDROClassifier:
        """Return the estimator with the seed, and without an intercept if the layer has no bias."""
        return self.estimator.set_params(
            fit_intercept=self.estimator.fit_intercept and self.module.bias is not None, random_state=self.seed
        )

    def _with_all_folds(self, estimator: GroupDROClassifier, features: Features) -> _Judged:
        """Fit on all rows, and judge each by a fit without its fold."""
        everything = np.ones(len(features), bool)
        estimator.set_params(**self._choose(estimator, features, everything))
        given = GivenRows(features.X, features.y, features.groups)
        folds = divide(given, n_splits=self.cv, seed=self.seed, classes=True)
        scores: Floats = np.empty(0)
        judged = np.zeros(len(features), bool)
        for train, test in folds:
            rows = np.zeros_like(judged)
            held_out = np.zeros_like(judged)
            rows[train], held_out[test] = True, True
            one = self._fit(clone(estimator), features, rows, "train")
            (found,) = scores_of(features, held_out, [(one.coef_, one.intercept_)])
            scores = scores if scores.size else np.empty((len(features), found.shape[1]))
            scores[held_out] = found
            judged |= held_out
        return self._fit(clone(estimator), features, everything, "all"), judged, scores[judged]

    def _with_one_fold(self, estimator: GroupDROClassifier, features: Features) -> _Judged:
        """Fit without one fold, judge on it, and optionally refit."""
        held_out = held_out_rows(features, 1 / self.cv, self.seed)
        if not held_out.any():
            raise ValueError(f"no group has {self.cv} rows of a class, so none can be held out: provide more rows.")
        estimator.set_params(**self._choose(estimator, features, ~held_out))
        fitted = self._fit(clone(estimator), features, ~held_out, "train")
        (new,) = scores_of(features, held_out, [(fitted.coef_, fitted.intercept_)])
        if self.refit:
            fitted = self._fit(clone(estimator), features, np.ones_like(held_out), "all")
        return fitted, held_out, new

    def _choose(self, estimator: GroupDROClassifier, features: Features, rows: Mask) -> dict[str, float]:
        """Choose penalty and robustness on rows that fit in memory."""
        if not isinstance(self.alpha, str) and not isinstance(self.robustness, str):
            return {"alpha": float(self.alpha), "robustness": float(self.robustness)}
        places = np.flatnonzero(rows)
        weights = None
        n_sampled = max(1, self.memory // (8 * features.X.shape[1]))
        if n_sampled < len(places):
            places, weights = sample_rows(features, places, n_sampled, self.seed)
        sample = np.asarray(features.X[places])
        alpha, robustness = choose(
            estimator,
            sample.astype(np.float32) if sample.dtype == np.float16 else sample,
            features.y[places],
            weights,
            features.groups.present_in(places),
            alpha=self.alpha,
            robustness=self.robustness,
            variance=mean_variance(features),
            n_splits=self.cv,
            seed=self.seed,
            by=self.choose_by,
        )
        return {"alpha": alpha, "robustness": robustness}

    def _fit(self, estimator: GroupDROClassifier, features: Features, rows: Mask, name: str) -> GroupDROClassifier:
        if self.folder is not None:
            return estimator.fit(write_rows(self.folder / name, features, rows, seed=self.seed, memory=self.memory))
        places = np.flatnonzero(rows)
        whole = len(places) == len(features)
        X = features.X if whole else features.X[places]
        return estimator.fit(X, features.y[places], groups=features.groups.present_in(places))


def _check_classes(features: Features, n_classes: int) -> None:
    """Raise if labels do not match the outputs of the layer."""
    least = int(features.y.min())
    most = int(features.y.max())
    if least < 0 or most >= n_classes:
        raise ValueError(
            f"labels must be from 0 to {n_classes - 1}, the outputs of layer {features.layer!r}; got {least} to {most}."
        )
    lacking = np.setdiff1d(np.arange(n_classes), features.y)
    if len(lacking):
        raise ValueError(
            f"labels have no row of class {lacking[0]}, nor of {len(lacking) - 1} others, for which the layer "
            f"{features.layer!r} has outputs: provide rows of every class."
        )
