"""MurmurHash3 of text, the hash of scikit-learn's FeatureHasher."""

import numpy as np

from groupdro.kernels.compile import compiled

__all__ = ["hash_words"]

_WORD = np.uint64(0xFFFFFFFF)


@compiled
def _turned(x, n):
    return ((x << np.uint64(n)) | (x >> np.uint64(32 - n))) & _WORD


@compiled
def _scrambled(k):
    return (_turned((k * np.uint64(0xCC9E2D51)) & _WORD, 15) * np.uint64(0x1B873593)) & _WORD


@compiled
def _murmur(key, length):
    """Return the 32-bit MurmurHash3, with seed 0, of the first bytes of key."""
    h, whole = np.uint64(0), length // 4
    for i in range(whole):
        k = np.uint64(0)
        for b in range(4):
            k |= np.uint64(key[4 * i + b]) << np.uint64(8 * b)
        h = (_turned(h ^ _scrambled(k), 13) * np.uint64(5) + np.uint64(0xE6546B64)) & _WORD
    k = np.uint64(0)
    for b in range(length - 4 * whole):
        k |= np.uint64(key[4 * whole + b]) << np.uint64(8 * b)
    if length > 4 * whole:
        h ^= _scrambled(k)
    h ^= np.uint64(length)
    h = ((h ^ (h >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & _WORD
    h = ((h ^ (h >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & _WORD
    return h ^ (h >> np.uint64(16))


@compiled
def hash_words(prefix, text, offsets, n_features, out):
    """Set out[i] to the feature of prefix + word i, where word i is text[offsets[i]:offsets[i + 1]], all in bytes.

    The feature is the absolute value of the hash, as a signed number, modulo the number of features.
    """
    longest = 0
    for i in range(offsets.size - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    key = np.empty(prefix.size + longest, np.uint8)
    key[: prefix.size] = prefix
    for i in range(offsets.size - 1):
        length = prefix.size
        for b in range(offsets[i], offsets[i + 1]):
            key[length] = text[b]
            length += 1
        h = np.int64(_murmur(key, length))
        if h >= 2**31:
            h = 2**32 - h
        out[i] = h % n_features
