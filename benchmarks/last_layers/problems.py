"""Four problems made from real images, and a made-up one that only shows that everything runs.

Rows are split in three: for the network, held-out rows for its last layer (or for stopping its training), and test
rows. Where a shortcut is planted, groups are label x shortcut, and every test image is there once with either value of
it, so that the shortcut is worth nothing on test rows.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.last_layer import read_images
from benchmarks.real_data import _ArraysOnly

AQUATIC_MAMMALS, FISH = 0, 1  # superclasses of CIFAR-100
TINTS = np.array([[1.0, 0.8, 0.6], [0.6, 0.8, 1.0]], np.float32)  # factors of red, green and blue: warm and cool


class Rows(NamedTuple):
    """Images with channels first, labels and groups, both numbered from 0."""

    X: np.ndarray
    y: np.ndarray
    groups: np.ndarray

    def take(self, rows: np.ndarray) -> "Rows":
        return Rows(self.X[rows], self.y[rows], self.groups[rows])


class Problem(NamedTuple):
    """Rows for the network, for its last layer, and for the test; and how often training reads its rows."""

    train: Rows
    held_out: Rows
    test: Rows
    epochs: int

    @property
    def n_groups(self) -> int:
        return int(self.train.groups.max()) + 1


Plant = Callable[[np.ndarray, np.ndarray], np.ndarray]  # takes images and the shortcut of each, returns new images


def square(images: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Put a bright square into the upper right corner or the upper left one."""
    marked = images.copy()
    marked[right == 0, :, 1:5, 1:5] = 1.0
    marked[right == 1, :, 1:5, -5:-1] = 1.0
    return marked


def tint(images: np.ndarray, cool: np.ndarray) -> np.ndarray:
    """Colour images warm or cool."""
    return images * TINTS[cool][:, :, None, None]


def fashion(agreement: float, seed: int) -> Problem:
    """T-shirts and pullovers against shirts and coats, with a square that agrees with the label on most rows."""
    rng = np.random.default_rng(seed)
    images, y = read_images("train")
    held_out, train = np.split(rng.permutation(len(y)), [6000])
    return _with_shortcut(_grey(images), y, train, held_out, _test_images(), square, agreement, rng, epochs=5)


def _grey(images: np.ndarray) -> np.ndarray:
    return images.astype(np.float32)[:, None] / 255


def _test_images() -> tuple[np.ndarray, np.ndarray]:
    images, y = read_images("test")
    return _grey(images), y


def tinted(agreement: float, seed: int) -> Problem:
    """Aquatic mammals against fish, with a tint that agrees with the label on most rows."""
    rng = np.random.default_rng(seed)
    images, fine, coarse = _cifar("train")
    held_out, train = (part[np.isin(coarse[part], (AQUATIC_MAMMALS, FISH))] for part in _by_class(fine, 150, rng))
    tested, _, theirs = _cifar("test")
    used = np.isin(theirs, (AQUATIC_MAMMALS, FISH))
    test = tested[used], (theirs[used] == FISH).astype(np.int64)
    y = (coarse == FISH).astype(np.int64)
    return _with_shortcut(images, y, train, held_out, test, tint, agreement, rng, epochs=20)


def superclasses(seed: int) -> Problem:
    """Twenty superclasses to predict, with the hundred classes as groups; 250 rows of each train the network."""
    rng = np.random.default_rng(seed)
    images, fine, coarse = _cifar("train")
    held_out, others = _by_class(fine, 50, rng)
    train, _ = _by_class(fine, 250, rng, others)
    rows = Rows(images, coarse, fine)
    tested, their_fine, theirs = _cifar("test")
    return Problem(rows.take(train), rows.take(held_out), Rows(tested, theirs, their_fine), epochs=4)


def made_up(seed: int, n_labels: int = 2) -> Problem:
    """Noise with a bright row that depends on the label, and a square: seconds, without any file."""
    rng = np.random.default_rng(seed)
    y = np.arange(480) % n_labels
    images = rng.random((480, 1, 12, 12)).astype(np.float32) / 2
    images[np.arange(480), 0, 6 + y, :] += 0.3
    train, held_out, test = np.split(np.arange(480), [160, 320])
    if n_labels > 2:
        rows = Rows(images, y, 2 * y + np.arange(480) // n_labels % 2)
        return Problem(rows.take(train), rows.take(held_out), rows.take(test), epochs=2)
    return _with_shortcut(images, y, train, held_out, (images[test], y[test]), square, 0.8, rng, epochs=2)


def _with_shortcut(
    images: np.ndarray,
    y: np.ndarray,
    train: np.ndarray,
    held_out: np.ndarray,
    test: tuple[np.ndarray, np.ndarray],
    plant: Plant,
    agreement: float,
    rng: np.random.Generator,
    epochs: int,
) -> Problem:
    """Plant a shortcut that agrees with most labels of rows to learn from, and is independent of those of the test."""

    def marked(some: np.ndarray, labels: np.ndarray, shortcut: np.ndarray) -> Rows:
        return Rows(plant(some, shortcut), labels, 2 * labels + shortcut)

    def agreeing(rows: np.ndarray) -> Rows:
        own = y[rows]
        return marked(images[rows], own, np.where(rng.random(len(own)) < agreement, own, 1 - own))

    both = [marked(*test, np.full(len(test[1]), value)) for value in (0, 1)]
    tested = Rows(*(np.concatenate(parts) for parts in zip(*both, strict=True)))
    return Problem(agreeing(train), agreeing(held_out), tested, epochs)


def _by_class(
    classes: np.ndarray, n_each: int, rng: np.random.Generator, among: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows, the same number of every class, and return them and the others."""
    order = rng.permutation(np.arange(len(classes)) if among is None else among)
    members = [order[classes[order] == k] for k in np.unique(classes)]
    return np.concatenate([m[:n_each] for m in members]), np.concatenate([m[n_each:] for m in members])


def _cifar(part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images, classes and superclasses of CIFAR-100, from the folder that GROUPDRO_CIFAR names."""
    folder = os.environ.get("GROUPDRO_CIFAR")
    if not folder:
        raise SystemExit("Set GROUPDRO_CIFAR to the official folder cifar-100-python.")
    with (Path(folder) / part).open("rb") as file:
        stored: dict[bytes, Any] = _ArraysOnly(file, encoding="bytes").load()
    images = np.asarray(stored[b"data"]).reshape(-1, 3, 32, 32).astype(np.float32) / 255
    return images, np.asarray(stored[b"fine_labels"]), np.asarray(stored[b"coarse_labels"])


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "Fashion-MNIST, patch 95%": lambda seed: fashion(0.95, seed),
    "Fashion-MNIST, patch 99%": lambda seed: fashion(0.99, seed),
    "CIFAR-100, tint 95%": lambda seed: tinted(0.95, seed),
    "CIFAR-100, superclasses": superclasses,
}
QUICK: dict[str, Callable[[int], Problem]] = {
    "made up, two labels": made_up,
    "made up, three labels": lambda seed: made_up(seed, 3),
}
