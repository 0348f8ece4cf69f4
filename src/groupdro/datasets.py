"""The synthetic set-ups of Yu, Cai, Jiang and Zhang (ICML 2024), and readers of public data that you have.

The paper gives the number of groups, the dimension and the noise; it does not give the rows of a group, which are an
argument here. Nothing is downloaded.
"""

import gzip
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groupdro.utils.arguments import check_choice, check_number, check_path, check_whole
from groupdro.utils.types import Floats, Indices

__all__ = ["load_fashion_mnist", "make_gdro", "make_mero"]


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


def load_fashion_mnist(
    folder: str | os.PathLike[str], part: str = "train"
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read the images of Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017) from its four official files.

    MNIST and its other descendants have files of the same names and form, and are read as well.

    Parameters
    ----------
    folder : str or path-like
        Where ``train-images-idx3-ubyte.gz`` and its three companions are, compressed or not. Debian's package
        dataset-fashion-mnist puts them in ``/usr/share/datasets/fashion-mnist``.
    part : {"train", "test"}, default="train"
        The 60,000 images for training or the 10,000 for testing.

    Returns
    -------
    images : ndarray of shape (n_images, 28, 28)
        Grey values from 0 to 255.
    labels : ndarray of shape (n_images,)
        0 T-shirt, 1 trouser, 2 pullover, 3 dress, 4 coat, 5 sandal, 6 shirt, 7 sneaker, 8 bag, 9 ankle boot.
    """
    check_choice(part, "part", ("train", "test"))
    place, stem = check_path(folder, "folder"), "train" if part == "train" else "t10k"
    images = _read_idx(place, f"{stem}-images-idx3-ubyte", 3)
    labels = _read_idx(place, f"{stem}-labels-idx1-ubyte", 1)
    if len(images) != len(labels):
        raise ValueError(f"{place} has {len(images)} images and {len(labels)} labels of part {part!r}.")
    return images, labels


def _read_idx(folder: Path, name: str, n_dimensions: int) -> NDArray[np.uint8]:
    """Read an array of bytes: a magic number that tells type and dimensions, the shape, the values."""
    path = next((path for path in (folder / f"{name}.gz", folder / name) if path.exists()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has neither {name}.gz nor {name}.")
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    header = 4 + 4 * n_dimensions
    unsigned_bytes = 8  # the only type of values that these files have
    if len(content) < header or content[:4] != bytes([0, 0, unsigned_bytes, n_dimensions]):
        raise ValueError(f"{path} is not an IDX file of bytes with {n_dimensions} dimension(s).")
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4))
    if len(content) - header != math.prod(shape):
        raise ValueError(f"{path} has {len(content) - header} values, its shape {shape} needs {math.prod(shape)}.")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()


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
