"""How many rows a step should draw so that workers spend most of the time computing."""

import numpy as np

__all__ = ["exchange_seconds", "rows_per_step"]

# Share of a step's time that messages may take. Workers also wait for the slowest, which on two busy cores turns 3%
# into 9%; and steps of 10,000 rows needed no more passes than steps of 2,000 (benchmarks/scale.py).
SHARE = 0.03
# Measured on one core each over loopback (benchmarks/exchange.py, benchmarks/scale.py).
_SECONDS_PER_ROUND = 1.5e-4  # for the shortest exchange between two workers
_SECONDS_PER_NUMBER = 7e-9
_SECONDS_PER_VALUE = 1.2e-9  # for the gradient of a gathered dense row
_SECONDS_PER_STEP = 1e-4  # fixed cost of a step


def exchange_seconds(n_numbers: int, n_workers: int) -> float:
    """Return the time to sum an array over all workers.

    Parameters
    ----------
    n_numbers : int
        Length of the array.
    n_workers : int
        Number of workers.

    Returns
    -------
    float
        Seconds.
    """
    rounds = int(np.ceil(np.log2(n_workers))) if n_workers > 1 else 0
    return rounds * _SECONDS_PER_ROUND + (_SECONDS_PER_NUMBER * n_numbers if rounds else 0.0)


def rows_per_step(n_values: float, n_numbers: int, n_workers: int) -> int:
    """Return the total number of rows per step at which messages take a small share of the time.

    Parameters
    ----------
    n_values : float
        Multiplications per row: features times outputs; a sparse entry counts as several.
    n_numbers : int
        Length of a step's message: parameters and groups.
    n_workers : int
        Number of workers.

    Returns
    -------
    int
        Rows.
    """
    compute = exchange_seconds(n_numbers, n_workers) * (1.0 - SHARE) / SHARE
    return max(1, int(n_workers * max(compute - _SECONDS_PER_STEP, 0.0) / (_SECONDS_PER_VALUE * n_values)))
