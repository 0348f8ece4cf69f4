"""The paper's claims one by one: what the stored curves say of each, and by what rule.

An ordering is compared once per set-up and output, at the whole budget, without the tuning seeds where four others are
stored. It is reproduced if the paper's method is ahead in all comparisons, in part if it is ahead in more than it is
behind, and not reproduced otherwise. Only the paper's own data, synthetic and CIFAR-100, decide. The exponents of m are
reproduced if both predicted ones lie within their intervals, in part if the ratio of evaluations grows with m, with an
interval above zero, and not otherwise.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.paper.analysis import Outcome, Panel, compare
from benchmarks.paper.complexity import PREDICTED, exponent, ratios
from benchmarks.paper.figures import label
from benchmarks.paper.runs import BUDGET
from benchmarks.paper.setups import SETUPS
from benchmarks.paper.store import RESULTS
from benchmarks.paper.tables import exponent_cell, number, rows_of, slopes, spread

__all__ = ["CLAIMS", "claims_table", "comparisons", "exponent_words", "ordering_verdict", "verdicts", "votes"]

#: Averages are compared with averages, snapshots with snapshots, last points or best models.
LIKE = {"average": ("average",), "snapshot": ("snapshot", "last", "best")}
CONSTANTS = {"paper": "published", "tight": "tight"}


@dataclass(frozen=True)
class Ordering:
    """A claim that one method is ahead of another one.

    Attributes
    ----------
    mine : str
        The method that the paper proposes.
    rivals : tuple of str
        All forms of the other method.
    words : str
        The claim.
    by : {"multiples", "seconds"}
        Whether gradient evaluations or the seconds of the shorter of both runs are equal.
    tests : bool
        Whether it is judged on test rows too.
    """

    mine: str
    rivals: tuple[str, ...]
    words: str
    by: str = "multiples"
    tests: bool = True


ALEG, ALEM, SVRE = "ALEG of the paper", "ALEM of the paper", ("AL-SVRE, KL", "AL-SVRE, Euclidean")
TILTED, FIRST = "ALEG of the paper, alterable", "ERMEG, first-order"
ORDERINGS = (
    Ordering(ALEG, ("MPVR",), "ALEG is ahead of MPVR"),
    Ordering(ALEG, ("SMD",), "ALEG is ahead of SMD"),
    Ordering(ALEG, SVRE, "ALEG is ahead of AL-SVRE"),
    Ordering(TILTED, (ALEG,), "ALEG with alterable steps is ahead of constant ones", tests=False),
    Ordering(ALEM, ("ERMEG",), "ALEM is ahead of ERMEG with our oracle"),
    Ordering(ALEM, (FIRST,), "ALEM is ahead of ERMEG with a first-order oracle"),
    Ordering(ALEM, ("TSA",), "ALEM is ahead of TSA"),
    Ordering(ALEM, ("ERMEG",), "ALEM takes less time than ERMEG with our oracle", "seconds", tests=False),
    Ordering(
        ALEM, (FIRST,), "ALEM takes less time than ERMEG with a first-order oracle", "seconds", tests=False
    ),
    Ordering(ALEM, ("TSA",), "ALEM takes less time than TSA", "seconds", tests=False),
)  # fmt: skip
#: By claim, in the order of the page: on which column it is judged, and the ordering.
CLAIMS = {
    f"{claim.words} on {rows}": (column, claim)
    for column, rows in (("above", "training rows"), ("test", "test rows"))
    for claim in ORDERINGS
    if column == "above" or claim.tests
}


class Comparison(NamedTuple):
    """Two curves compared for a claim: a method and an output each, where both have spent the same, and the outcome."""

    claim: str
    setup: str
    mine: tuple[str, str]
    rival: tuple[str, str]
    at: str
    found: Outcome

    @property
    def kind(self) -> str:
        """The outcome from the side of the paper's method, which is ahead of a rival that has no model."""
        return {"no rival": "ahead"}.get(self.found.kind, self.found.kind)

    def cells(self) -> list[str]:
        """Return its line in the table of comparisons."""
        value = "" if self.found.found is None else spread(self.found.found)
        some = f"; the rival has a model on {self.found.seeds[1]} of {self.found.seeds[2]} seeds"
        word = self.kind + some * (self.found.kind == "no rival")
        return [self.claim.rsplit(" on ")[-1], SETUPS[self.setup].title, label(self.mine), label(self.rival), self.at,
                self.found.sign + value, word]  # fmt: skip


def comparisons(panels: list[Panel]) -> list[Comparison]:
    """Return every comparison at the whole budget, claim by claim."""
    return [
        Comparison(words, own.setup, mine, rival, at, found)
        for words, (column, claim) in CLAIMS.items()
        for own in panels
        if column == "above" or SETUPS[own.setup].tests
        for mine, rival, at, found in _pairs(own, claim, column)
    ]


def _pairs(own: Panel, claim: Ordering, column: str) -> Iterator[tuple[tuple[str, str], tuple[str, str], str, Outcome]]:
    """Yield the pairs of like outputs of a set-up, where they are compared, and how they compare."""
    for output, kinds in LIKE.items():
        mine = claim.mine, output
        for rival in own.curves:
            if mine in own.curves and rival[0] in claim.rivals and rival[1] in kinds:
                if claim.by == "seconds" and not {mine, rival} <= own.timed:
                    continue  # nothing that a busy machine has measured decides
                budget = BUDGET if claim.by == "multiples" else own.last_second(mine, rival)
                found = compare(own, mine, rival, budget, column, claim.by, without_tuning=True)
                yield mine, rival, f"{number(budget)} {claim.by}", found


def ordering_verdict(ahead: int, undecided: int, behind: int) -> str:
    """Return the verdict on an ordering."""
    if not ahead + undecided + behind:
        return "not run"
    if not undecided + behind:
        return "reproduced"
    return "reproduced in part" if ahead > behind else "not reproduced"


def is_close(ahead: int, undecided: int, behind: int) -> bool:
    """Return whether a single comparison, decided the other way, would decide between in part and not reproduced."""
    return undecided + behind > 0 and (ahead - 1 <= behind + 1 if ahead > behind else ahead + 1 > behind - 1)


def exponent_verdict(aleg: tuple[float, float], mpvr: tuple[float, float], ratio: tuple[float, float]) -> str:
    """Return the verdict on the exponents of m, each a slope with half of its interval, which may be NaN."""
    both = all(abs(slope - PREDICTED[name][0]) <= half for name, (slope, half) in (("ALEG", aleg), ("MPVR", mpvr)))
    return "reproduced" if both else "reproduced in part" if ratio[0] - ratio[1] > 0 else "not reproduced"


def _exponents() -> dict[str, tuple[tuple, tuple, tuple, pd.DataFrame]]:
    """Return the slopes in m of ALEG, of MPVR and of their ratio, and the ratios, by constants."""
    rows, here = pd.read_parquet(RESULTS / "paper_complexity.parquet"), {}
    found = slopes(rows)
    for constants in CONSTANTS:
        aleg, mpvr = found.get(("ALEG", constants, "m")), found.get(("MPVR", constants, "m"))
        if aleg is None or mpvr is None:
            continue
        paired = ratios(rows, constants)
        here[constants] = aleg[:3], mpvr[:3], exponent(paired, "m"), paired
    return here


def _exponent_claims() -> list[list[str]]:
    rows = []
    for constants, (aleg, mpvr, ratio, _) in _exponents().items():
        rows.append([f"ALEG needs m, MPVR m^1.5 evaluations ({CONSTANTS[constants]} constants)",
                     exponent_verdict(aleg[:2], mpvr[:2], ratio[:2]), "on problems of its own",
                     f"exponents: ALEG {exponent_cell(*aleg)} (predicted {PREDICTED['ALEG'][0]:g}), MPVR "
                     f"{exponent_cell(*mpvr)} ({PREDICTED['MPVR'][0]:g}), MPVR / ALEG {exponent_cell(*ratio)} "
                     f"({PREDICTED['MPVR'][0] - PREDICTED['ALEG'][0]:g})"])  # fmt: skip
    return rows


def exponent_words() -> str:
    """Return what the slopes in m say, in sentences."""
    parts = []
    for constants, (aleg, mpvr, ratio, paired) in _exponents().items():
        off = {name: slope[0] - PREDICTED[name][0] for name, slope in (("ALEG", aleg), ("MPVR", mpvr))}
        words = [f"{abs(by):.2f} {'above' if by > 0 else 'below'} theory for {name}" for name, by in off.items()]
        means = np.exp(np.log(paired["evaluations"]).groupby(paired["m"]).mean())
        first, last = means.index[0], means.index[-1]
        ends = (
            f"{means[first]:.2f} times as many evaluations as ALEG at m = {first}, {means[last]:.2f} times as many at m"
        )
        parts.append(f"With {CONSTANTS[constants]} constants the exponent of m is {' and '.join(words)}. The slope of "
                     f"the ratio of MPVR's evaluations to ALEG's on the same problems is {exponent_cell(*ratio)}: MPVR "
                     f"needs {ends} = {last}.")  # fmt: skip
    return " ".join(parts)


def votes(found: Iterable[Comparison], claim: str, *, census: bool) -> tuple[int, int, int]:
    """Return how often the paper's method is ahead, undecided and behind, with or without the census."""
    kinds = Counter(one.kind for one in found
                    if one.claim == claim and (census or SETUPS[one.setup].of_the_paper))  # fmt: skip
    return kinds["ahead"], kinds["undecided"], kinds["behind"]


def verdicts(panels: list[Panel]) -> dict[str, str]:
    """Return the verdict on each ordering, by the paper's own data."""
    found = comparisons(panels)
    return {claim: ordering_verdict(*votes(found, claim, census=False)) for claim in CLAIMS}


def claims_table(panels: list[Panel]) -> tuple[str, str]:
    """Return the table of claims, and that of the comparisons behind it."""
    found, rows = comparisons(panels), []
    for claim in CLAIMS:
        won, undecided, lost = ours = votes(found, claim, census=False)
        figures = f"ahead in {won}, undecided in {undecided}, behind in {lost} of {won + undecided + lost}"
        figures += "; one comparison the other way would change this" * is_close(*ours)
        rows.append([claim, ordering_verdict(*ours), ordering_verdict(*votes(found, claim, census=True)), figures])
    rows[3:3] = _exponent_claims()
    header = ["claim of the paper", "verdict on the paper's data", "with the census", "figures on the paper's data"]
    columns = ["on", "set-up", "the paper's method", "rival", "at", "ratio or difference", "the paper's method is"]
    return rows_of(header, rows), rows_of(columns, [one.cells() for one in found])
