"""A few group labels used well: which rows to label, and the groups of the other rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

from groupdro.torch.batches import is_shuffled
from groupdro.torch.features import Features, read_features
from groupdro.torch.layers import layer_coefficients, named_layer, unwrap
from groupdro.torch.rows import scores_of
from groupdro.torch.unlabelled import true_class_probabilities
from groupdro.utils.arguments import check_whole
from groupdro.utils.types import Floats, Indices

__all__ = ["SpreadLabels", "propose", "rows_to_label", "spread_labels"]

# Rows of which the network is wrong, unsure and right are told apart by the probability of their class. On networks of
# benchmarks/last_layers, groups spread from rows so proposed were more often right than with 0.1 and 0.9.
_UNSURE = (0.25, 0.75)
# Inverse penalty of the model that predicts groups. On the same networks, any from 0.001 to 1 finds the groups equally
# often, within a few points.
_C = 0.1
# Weight of the network's own score as a further feature. A network that follows a shortcut knows it: with 40 labels of
# 20 normal features, this finds 95% of the rarest group instead of 63%. On the same networks, nothing changes.
_OWN = 3.0
_FOLDS = 5
# Agreement below which labels of few rows are not worth spreading. On the problems of benchmarks/last_layers/no_labels
# where it is mostly above, proposed labels repaired the layer; where it is mostly below, it was better without labels.
_RELIABLE = 0.85
_BLOCK = 1 << 20  # entries of X that are scaled at once


def rows_to_label(
    model: Any,
    loader: Any,
    n_rows: int,
    *,
    layer: Any = None,
    groups: Any = None,
    labels: Any = None,
    forward: Callable[[Any, Any], Any] | None = None,
    random_state: int = 0,
) -> Indices:
    """Propose rows whose groups to label: per class as many that a network gets wrong, is unsure of and gets right.

    Groups that a network fails are rare at random and common among its errors. Labels of the proposed rows can be
    passed to `retrain_last_layer`, with None for all others.

    Parameters
    ----------
    model : torch.nn.Module
        A classifier, as in `retrain_last_layer`.
    loader : DataLoader or iterable
        Batches of rows that the network was not trained on, in a fixed order.
    n_rows : int
        Number of rows to propose.
    layer, groups, labels, forward : optional
        How to read the batches, as in `retrain_last_layer`. Rows that already have a group label are not proposed.
    random_state : int, default=0
        Seed for the choice among rows of a class that the network finds equally hard.

    Returns
    -------
    ndarray of int
        Places of the rows in the order of the loader, from the most useful: label as many from the start as you can.

    Examples
    --------
    >>> import torch
    >>> from groupdro.torch import rows_to_label
    >>> x, y = torch.randn(100, 4), torch.arange(100) % 2
    >>> network = torch.nn.Sequential(torch.nn.Linear(4, 2))
    >>> len(rows_to_label(network, [(x, y)], 20))
    20
    """
    check_whole(n_rows, "n_rows", least=1)
    check_whole(random_state, "random_state")
    if is_shuffled(loader):
        raise ValueError("rows are numbered in the order of the loader, which shuffles: make it with shuffle=False.")
    inner = unwrap(model)
    features = read_features(
        inner,
        loader,
        layer=layer,
        groups=groups,
        labels=labels,
        forward=forward,
        path=None,
        progress=False,
        is_output=True,
    )
    places = np.flatnonzero(~features.labelled)
    if n_rows > len(places):
        raise ValueError(f"n_rows={n_rows} exceeds the {len(places)} rows without a group label.")
    old = layer_coefficients(named_layer(inner, features.layer)[1])
    (scores,) = scores_of(features, ~features.labelled, [old])
    y = features.y[places]
    return places[propose(true_class_probabilities(scores, y), y, n_rows, random_state)]


def propose(probabilities: Floats, y: Indices, n_rows: int, seed: int) -> Indices:
    """Choose rows in turn from every class and every degree of certainty, at random among these.

    Parameters
    ----------
    probabilities : ndarray of shape (n_rows,)
        Probability that the network gives to the class of each row.
    y : ndarray of shape (n_rows,)
        Class of each row.
    n_rows, seed : int
        Number of rows to choose, and the seed.

    Returns
    -------
    ndarray of int
        The rows, in the order of choice.
    """
    order = np.random.default_rng(seed).permutation(len(y))
    cells = (np.unique(y, return_inverse=True)[1] * (len(_UNSURE) + 1) + np.digitize(probabilities, _UNSURE))[order]
    order = order[np.argsort(cells, kind="stable")]
    _, starts, sizes = np.unique(np.sort(cells), return_index=True, return_counts=True)
    turn = np.arange(len(y)) - np.repeat(starts, sizes)
    return np.asarray(order[np.argsort(turn, kind="stable")][:n_rows])


@dataclass(frozen=True)
class SpreadLabels:
    """How groups were predicted from a few labelled rows.

    Attributes
    ----------
    n_labelled, n_predicted : int
        Number of rows with a group label, and of rows whose group was predicted.
    agreement : float
        Share of labelled rows whose group is predicted right by a model fitted without them.
    by_class : float
        Share of labelled rows in the most frequent group of their class, for comparison.
    """

    n_labelled: int
    n_predicted: int
    agreement: float
    by_class: float

    @property
    def is_reliable(self) -> bool:
        """Whether the features show the groups well enough for the other rows' groups to be believed."""
        return self.agreement >= _RELIABLE

    @property
    def message(self) -> str:
        """What was done, in plain words."""
        text = (
            f"The groups of {self.n_predicted} rows were predicted from the labels of {self.n_labelled}: left out in "
            f"turn, {self.agreement:.0%} of these get their own group; the most frequent group of each class would be "
            f"right for {self.by_class:.0%}. All figures are of these groups."
        )
        if self.is_reliable:
            return text
        return f"{text} The features hardly show the groups: compare with a layer fitted without labels, groups=None."


def spread_labels(features: Features, coef: Floats, seed: int) -> tuple[Features, SpreadLabels]:
    """Predict the groups of rows without a label, within each class, from features and scores of those with one.

    Parameters
    ----------
    features : Features
        Rows of which some have a group label.
    coef : ndarray of shape (n_outputs, n_features)
        Coefficients of the network's layer.
    seed : int
        Seed of the folds in which the prediction is judged.

    Returns
    -------
    features : Features
        The same rows, all with a group.
    spread : SpreadLabels
        How well labelled rows are predicted.
    """
    labelled = features.labelled
    places = np.flatnonzero(labelled)
    inputs = _scaled(features, coef)
    Z = np.asarray(features.X[places], np.float64) @ inputs.T
    centre = Z.mean(axis=0)
    Z -= centre
    y, codes = features.y[places], features.group_codes[places]
    classes = np.unique(features.y)
    # A class without a labelled row takes its groups from those of all classes.
    own = [np.flatnonzero(y == c) if (y == c).any() else np.arange(len(y)) for c in classes]
    models = [_fit(Z[rows], codes[rows]) for rows in own]
    raw = [(own @ inputs, intercept - own @ centre) for own, intercept, _ in models]
    complete = features.group_codes.copy()
    others = np.flatnonzero(~labelled)
    for c, scores, (_, _, groups) in zip(classes, scores_of(features, ~labelled, raw), models, strict=True):
        members = features.y[others] == c
        complete[others[members]] = groups[scores[members].argmax(axis=1)]
    members_of = [np.flatnonzero(y == c) for c in np.unique(y)]
    right = sum(_predicted_right(Z[rows], codes[rows], seed) for rows in members_of)
    frequent = sum(int(np.bincount(codes[rows]).max()) for rows in members_of)
    spread = SpreadLabels(len(places), len(others), right / len(places), frequent / len(places))
    return replace(features, group_codes=complete), spread


def _scaled(features: Features, coef: Floats) -> Floats:
    """Return combinations of features that a group is predicted from: each feature, and the scores, by their spread."""
    n_columns = features.X.shape[1]
    features_of, scores_of_rows = StandardScaler(), StandardScaler()
    step = max(1, _BLOCK // n_columns)
    for start in range(0, len(features), step):
        block = np.asarray(features.X[start : start + step], np.float64)
        features_of.partial_fit(block)
        scores_of_rows.partial_fit(block @ coef.T)
    return np.concatenate([np.diag(1 / features_of.scale_), _OWN * coef / scores_of_rows.scale_[:, None]])


def _fit(Z: Floats, codes: Indices) -> tuple[Floats, Floats, Indices]:
    """Return coefficients and intercepts, one row per group, and the groups."""
    groups = np.unique(codes)
    if len(groups) == 1:
        return np.zeros((1, Z.shape[1])), np.zeros(1), groups
    model = LogisticRegression(C=_C, class_weight="balanced", max_iter=1000).fit(Z, codes)
    coef, intercept = model.coef_, model.intercept_
    if len(groups) == 2:
        return np.concatenate([-coef, coef]), np.concatenate([-intercept, intercept]), groups
    return coef, intercept, groups


def _predicted_right(Z: Floats, codes: Indices, seed: int) -> int:
    """Return how many rows get their own group from a model fitted without them."""
    if len(codes) == 1:
        return 0
    right = 0
    for train, test in KFold(min(_FOLDS, len(codes)), shuffle=True, random_state=seed).split(Z):
        coef, intercept, groups = _fit(Z[train], codes[train])
        right += int(np.count_nonzero(groups[(Z[test] @ coef.T + intercept).argmax(axis=1)] == codes[test]))
    return right
