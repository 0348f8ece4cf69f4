"""Which faults that were found in use the campaign of real data catches in the package that is imported.

    python -m tests.campaign.caught [--tried 100]

prints a table: each fault, the kind of problem that shows it, how many were tried, how many were caught. On a package
without these faults the last column is all zeros. `docs/snippets/caught.txt` has
what it printed for the last release that had them.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.campaign.part_real_data import judge
from tests.campaign.real_data import Case, describe
from tests.campaign.real_verdicts import Verdict


@dataclass(frozen=True)
class Fault:
    """A fault, which problems may show it, and what shows it."""

    name: str
    kind: str
    shows: Callable[[Verdict], bool]
    variant: str = ""
    asks: Callable[[Case], bool] = lambda case: True

    @property
    def problem(self) -> str:
        return f"{self.kind}: {self.variant}" if self.variant else self.kind

    def cases(self) -> Iterator[Case]:
        return filter(self.concerns, map(describe, itertools.count()))

    def concerns(self, case: Case) -> bool:
        return case.kind == self.kind and self.variant in ("", case.variant) and self.asks(case)


def says(words: str) -> Callable[[Verdict], bool]:
    return lambda verdict: any(words in sentence for sentence in verdict.wrong)


def any_lie(verdict: Verdict) -> bool:
    return bool(verdict.wrong)


def stops_short(verdict: Verdict) -> bool:
    return verdict.minimiser is True and verdict.status == "stalled"


def _with_outlier(case: Case) -> bool:
    return "unit and sentinel" in case.ugly and case.loss in ("logistic", "softmax")


def _false_minimiser(verdict: Verdict) -> bool:
    return verdict.status == "no_finite_minimiser" and bool(verdict.wrong)


NO_PENALTY = "no penalty and an outlying cell"
FAULTS = [
    Fault("false 'converged': the mean of y loosens the tolerance", "offset targets", says("converged, but")),
    Fault("false 'converged': y of a row of zero weight does", "zero-weight sentinel", says("converged, but")),
    Fault("false bound: the optimum lies beyond the ball that was searched", NO_PENALTY, says("lower bound")),
    Fault("false 'no_finite_minimiser' for the same reason", NO_PENALTY, _false_minimiser, asks=_with_outlier),
    Fault("a checkpoint believes a store whose rows changed", "resumed", says("lower bound"), "store changed"),
    Fault("an unknown domain is taken for the simplex", "custom", any_lie, "box"),
    Fault("the least loss is taken for zero", "custom", any_lie, "smoothed logistic"),
    Fault("an unknown loss is taken for the squared hinge", "custom", any_lie, "unknown code"),
    Fault("X of a row of zero weight ends the fit early", "zero-weight sentinel", stops_short),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tried", type=int, default=100)
    tried = parser.parse_args().tried
    print("| fault | kind of problem | tried | caught |\n|---|---|---|---|", flush=True)
    for fault in FAULTS:
        caught = sum(fault.shows(judge(case.seed)) for case in itertools.islice(fault.cases(), tried))
        print(f"| {fault.name} | {fault.problem} | {tried} | {caught} |", flush=True)


if __name__ == "__main__":
    main()
