"""Few combinations of parameter values that contain every pair, so that a test sees what any two do together."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

__all__ = ["covering", "every_pair"]


def covering(
    sizes: Sequence[int], possible: Callable[[tuple[int, ...]], bool] = lambda row: True
) -> list[tuple[int, ...]]:
    """Return few rows of indices in which any two columns have every pair of values that a possible row has.

    Greedily: the possible row with most pairs that are still missing, the first of equals. All rows of the full product
    are looked at, so that this is for thousands of them.
    """
    columns = list(itertools.combinations(range(len(sizes)), 2)) or [(0, 0)]
    rows = {
        row: {(i, j, row[i], row[j]) for i, j in columns}
        for row in itertools.product(*map(range, sizes))
        if possible(row)
    }
    missing = set().union(*rows.values())
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(rows[row] & missing))
        missing -= rows.pop(best)
        chosen.append(best)
    return sorted(chosen)


def every_pair(
    *, unless: Callable[..., bool] = lambda **given: False, **values: Sequence[Any] | Mapping[str, Any]
) -> pytest.MarkDecorator:
    """Parametrize a test by few combinations that contain every pair of two parameters' values.

    Parameters
    ----------
    unless : callable
        Takes the parameters by name, and tells which combinations are impossible.
    **values : sequence, or mapping from names to values
        What each parameter can be. The names become part of the test's.

    Returns
    -------
    pytest.MarkDecorator
        What takes the place of one `parametrize` per parameter, which would test the full product.
    """
    choices = [list(_named(given)) for given in values.values()]

    def possible(row: tuple[int, ...]) -> bool:
        return not unless(**{name: choice[k][1] for name, choice, k in zip(values, choices, row, strict=True)})

    rows = covering([len(choice) for choice in choices], possible)
    for name, choice, used in zip(values, choices, zip(*rows, strict=True), strict=True):
        assert len(set(used)) == len(choice), f"a value of {name} is in no possible combination"
    picked = [[choice[k] for choice, k in zip(choices, row, strict=True)] for row in rows]
    return pytest.mark.parametrize(
        tuple(values),
        [tuple(value for _, value in row) for row in picked],
        ids=["-".join(name for name, _ in row) for row in picked],
    )


def _named(given: Sequence[Any] | Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each value with its name."""
    if isinstance(given, Mapping):
        yield from given.items()
    else:
        yield from ((value.__name__ if isinstance(value, type) else str(value), value) for value in given)
