"""Lines that say how far a long computation is, and how long it may still take."""

import functools
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from groupdro.utils.arguments import check_flag

__all__ = ["Steps", "shows_progress"]

P = ParamSpec("P")
R = TypeVar("R")

_EVERY = 5.0  # seconds: what takes less says nothing, and there is a line after every so many

_shown: ContextVar[bool] = ContextVar("_shown", default=False)


def shows_progress(function: Callable[P, R]) -> Callable[P, R]:
    """Let `Steps` inside of a function print lines if it is called with ``verbose=True``."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **options: P.kwargs) -> R:
        verbose = options.get("verbose", False)
        check_flag(verbose, "verbose")
        token = _shown.set(_shown.get() or bool(verbose))
        try:
            return function(*args, **options)
        finally:
            _shown.reset(token)

    return wrapper


class Steps:
    """The steps of a computation, which take about the same time each.

    Parameters
    ----------
    doing : str
        What is done, for the lines that are printed.
    total : float
        Number of steps, or the sum of their efforts.
    """

    def __init__(self, doing: str, total: float):
        self._doing, self._total = doing, total
        self._begun = self._told = time.monotonic()
        self._so_far = 0.0

    def done(self, effort: float = 1.0) -> None:
        """Count a step, and print a line if progress is shown and the last line is five seconds old."""
        self._so_far += effort
        now = time.monotonic()
        if not _shown.get() or now - self._told < _EVERY or self._so_far >= self._total:
            return
        self._told = now
        left = (now - self._begun) * (self._total - self._so_far) / self._so_far
        print(f"{self._doing}: {self._so_far / self._total:.0%}, about {_in_words(left)} left", flush=True)


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
