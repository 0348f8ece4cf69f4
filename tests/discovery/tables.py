"""Describing columns with a planted group."""

import numpy as np
import pandas as pd


def describing_columns(n_rows, seed):
    """Return numbers, small integers, categories, booleans and dates, some of them missing."""
    rng = np.random.default_rng(seed)
    age = rng.normal(45.0, 15.0, n_rows)
    return pd.DataFrame(
        {
            "age": np.where(rng.random(n_rows) < 0.1, np.nan, age),
            "visits": rng.integers(0, 6, n_rows),
            "region": rng.choice(["north", "south", "east", None], n_rows),
            "member": rng.random(n_rows) < 0.3,
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 400, n_rows), unit="D"),
        }
    )


def planted_losses(inside, seed, effect=3.0):
    """Return exponential losses, larger by a factor in a group."""
    return np.random.default_rng(seed).exponential(size=len(inside)) * np.where(inside, effect, 1.0)


def overlap(first, second):
    """Return intersection over union."""
    return (first & second).sum() / (first | second).sum()
