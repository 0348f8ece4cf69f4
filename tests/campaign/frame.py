"""What a check of the campaign is: so many cases, each of which may fail, and what was measured meanwhile."""

import multiprocessing
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

__all__ = ["Check", "Tally", "tally_cases"]


@dataclass
class Tally:
    """Counts of a check: cases tried, what failed, and figures for the table."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.tried += other.tried
        self.failures += other.failures
        self.figures += other.figures


@dataclass(frozen=True)
class Check:
    """A promise, and how it is tried.

    ``run(count, seed, jobs)`` tries it on so many cases, in up to so many processes, and returns a `Tally`. ``full`` is
    the count of the whole campaign and ``ci`` that of every test run.
    """

    name: str
    promise: str
    run: Callable[[int, int, int], Tally]
    full: int
    ci: int


def tally_cases(case: Callable[[int], object], seeds: Iterable[int], jobs: int = 1) -> Tally:
    """Call a function for every seed, in several processes if asked; what it raises is a failure.

    The function is one of a module, so that another process finds it.
    """
    tally, seeds = Tally(), list(seeds)
    if jobs == 1:
        outcomes = (_outcome(case, seed) for seed in seeds)
    else:
        pool = multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=200)
        outcomes = pool.imap_unordered(_Outcome(case), seeds, chunksize=4)
    for failure in outcomes:
        tally.tried += 1
        if failure:
            tally.failures.append(failure)
    if jobs > 1:
        pool.close()
        pool.join()
    return tally


class _Outcome:
    def __init__(self, case):
        self.case = case

    def __call__(self, seed):
        return _outcome(self.case, seed)


def _outcome(case, seed):
    try:
        case(seed)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{case.__name__}({seed}): {type(error).__name__}: {error} [{where.name}:{where.lineno}]"
    return ""
