"""The synthetic data of Yu, Cai, Jiang and Zhang (ICML 2024).

The paper gives the number of groups, the dimension and the noise. It does not give the number of rows per group, which
is an argument here.
"""

from typing import Any

import numpy as np

from groupdro.utils.arguments import check_number, check_whole
from groupdro.utils.types import Floats, Indices

__all__ = ["make_gdro", "make_mero"]


def make_gdro(
    n_groups: int = 25, n_per_group: int = 1000, n_features: int = 1024, *, correct: float = 0.9, seed: int = 0
) -> tuple[Floats, Floats, Indices]:
    """Generate groups that each follow a linear rule of their own, with labels flipped at random.

    Group i has a direction w_i uniform on the unit sphere, rows x ~ N(0, I), and y = sign(x.w_i), which is flipped
    with probability 1 - correct.

    Parameters
    ----------
    n_groups, n_per_group, n_features : int
        Sizes.
    correct : float
        Probability that a label follows the rule.
    seed : int
        Seed.

    Returns
    -------
    X : ndarray of shape (n_groups * n_per_group, n_features)
        Rows, ordered by group.
    y : ndarray
        Labels -1 and +1.
    groups : ndarray
        Group of each row, from 0.
    """
    check_number(correct, "correct")
    if correct > 1:
        raise ValueError(f"correct must be a probability, got {correct!r}.")
    return _generate(n_groups, n_per_group, n_features, (correct, correct), seed)


def make_mero(
    n_groups: int = 25, n_per_group: int = 1000, n_features: int = 1024, *, seed: int = 0
) -> tuple[Floats, Floats, Indices]:
    """Generate groups as `make_gdro` does, with noise that grows from group to group.

    The labels of group i follow its rule with probability 0.95 - i / 160: from 0.95 to 0.80 over the paper's 25
    groups. Other numbers of groups keep the two ends.

    Parameters
    ----------
    n_groups, n_per_group, n_features : int
        Sizes.
    seed : int
        Seed.

    Returns
    -------
    X, y, groups : ndarray
        As `make_gdro`.
    """
    return _generate(n_groups, n_per_group, n_features, (0.95, 0.80), seed)


def _generate(n_groups: int, n_per_group: int, n_features: int, correct: tuple[float, float], seed: int) -> Any:
    """Generate rows; the labels of the first and of the last group are correct with these probabilities."""
    for name, size in {"n_groups": n_groups, "n_per_group": n_per_group, "n_features": n_features}.items():
        check_whole(size, name, least=1)
    check_whole(seed, "seed")
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((n_groups, n_features))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    groups = np.repeat(np.arange(n_groups), n_per_group)
    X = rng.standard_normal((len(groups), n_features))
    scores = np.concatenate([X[groups == i] @ directions[i] for i in range(n_groups)])
    follows = rng.random(len(groups)) < np.linspace(*correct, n_groups)[groups]
    y = np.where((scores >= 0) == follows, 1.0, -1.0)
    return X, y, groups
