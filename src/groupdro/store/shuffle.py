"""Shuffling of each group, computed instead of stored.

Row k of a group of n goes to position pi(k), where pi is a permutation of 0 .. n-1 keyed by the seed and the group. A
Feistel network permutes the numbers with an even number of bits, and is applied again until the result is below n
("cycle walking"; Black and Rogaway, Ciphers with arbitrary finite domains, CT-RSA 2002). At most four applications are
expected for groups of more than 16 rows, and a permutation of 10^9 rows needs no memory.
"""

import numpy as np
from numpy.typing import NDArray

from groupdro.utils.types import Indices

__all__ = ["shuffled_places"]

Words = NDArray[np.uint64]

_ROUNDS = 6
_LEAST_HALF = 3  # bits; with shorter halves, the orders of small groups are measurably not uniform
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TURNS = np.arange(_ROUNDS, dtype=np.uint64) * _GOLDEN


def shuffled_places(order: Indices, groups: Indices, sizes: Indices, seed: int) -> Indices:
    """Return the positions of rows within their groups.

    Parameters
    ----------
    order : ndarray of shape (n,)
        Number of each row in its group, from 0, in order of arrival.
    groups : ndarray of shape (n,)
        Group of each row.
    sizes : ndarray of shape (n_groups,)
        Number of rows of each group.
    seed : int
        Seed from 0 to 2^64 - 1; each gives different permutations.

    Returns
    -------
    ndarray of shape (n,)
        Positions from 0 to the size of the group minus one: a permutation of `order` within each group.
    """
    place = order.astype(np.uint64)
    size = sizes[groups]
    keys = _mix(groups.astype(np.uint64) * _GOLDEN + _mix(np.array([seed], np.uint64)))
    # The exponent of n - 1 is its number of bits. This is exact, since files end before 2^53 rows.
    bits = np.frexp((size - 1).astype(np.float64))[1]
    half = np.maximum((bits + 1) // 2, _LEAST_HALF).astype(np.uint64)
    size = size.astype(np.uint64)
    waiting = np.flatnonzero(size > 1)
    while waiting.size:
        moved = _feistel(place[waiting], keys[waiting], half[waiting])
        place[waiting] = moved
        waiting = waiting[moved >= size[waiting]]
    return place.astype(np.int64)


def _feistel(words: Words, keys: Words, half: Words) -> Words:
    """Permute the words of 2 * `half` bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left = words >> half
    right = words & mask
    for turn in _TURNS:
        left, right = right, left ^ (_mix(keys + turn + right) & mask)
    return (left << half) | right


def _mix(words: Words) -> Words:
    """Scramble 64-bit words (the finaliser of SplitMix64); `words` is overwritten."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
