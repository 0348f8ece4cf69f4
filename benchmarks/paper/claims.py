"""The paper's claims one by one: what the stored curves say of each, and by what rule.

An ordering is compared once per set-up and output, at the whole budget, without the tuning seeds where four others are
stored. It is reproduced if the paper's method is ahead in all comparisons, in part if it is ahead in more than it is
behind, and not reproduced otherwise. Only the paper's own data, synthetic and CIFAR-100, decide. The exponents of m are
reproduced if both predicted ones lie within their intervals, in part if the ratio of evaluations grows with m, with an
interval above zero, and not otherwise.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.paper.analysis import Outcome, Panel, compare
from benchmarks.paper.complexity import PREDICTED, exponent, ratios
from benchmarks.paper.figures import label
from benchmarks.paper.runs import BUDGET
from benchmarks.paper.setups import SETUPS
from benchmarks.paper.store import RESULTS
from benchmarks.paper.tables import exponent_cell, number, rows_of, slopes, spread

__all__ = ["claims_table", "exponent_verdict", "exponent_words", "judged", "ordering_verdict"]

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
FIRST = "ERMEG, first-order"
ORDERINGS = (
    Ordering(ALEG, ("MPVR",), "ALEG is ahead of MPVR"),
    Ordering(ALEG, ("SMD",), "ALEG is ahead of SMD"),
    Ordering(ALEG, SVRE, "ALEG is ahead of AL-SVRE"),
    Ordering(
        "ALEG of the paper, alterable", (ALEG,), "ALEG with alterable steps is ahead of constant ones", tests=False
    ),
    Ordering(ALEM, ("ERMEG",), "ALEM is ahead of ERMEG with our oracle"),
    Ordering(ALEM, (FIRST,), "ALEM is ahead of ERMEG with a first-order oracle"),
    Ordering(ALEM, ("TSA",), "ALEM is ahead of TSA"),
    Ordering(ALEM, ("ERMEG",), "ALEM takes less time than ERMEG with our oracle", "seconds", tests=False),
    Ordering(ALEM, (FIRST,), "ALEM takes less time than ERMEG with a first-order oracle", "seconds", tests=False),
    Ordering(ALEM, ("TSA",), "ALEM takes less time than TSA", "seconds", tests=False),
)


def comparisons(panels: list[Panel], claim: Ordering, column: str) -> list[tuple[Outcome, str, list[str]]]:
    """Return the outcome of every comparison at the whole budget, with its set-up and its cells."""
    found = []
    for own in panels:
        if claim.by == "seconds" and own.clock != "seconds":
            continue  # processor time of runs of different days, with different loads
        for output, kinds in LIKE.items():
            mine = claim.mine, output
            for curve in own.curves:
                if curve[0] not in claim.rivals or curve[1] not in kinds or mine not in own.curves:
                    continue
                budget = BUDGET if claim.by == "multiples" else own.last_second(mine, curve)
                here = compare(own, mine, curve, budget, column, claim.by, without_tuning=True)
                value = "" if here.found is None else spread(here.found)
                kind = {"no rival": "ahead"}.get(here.kind, here.kind)
                some = f"; the rival has a model on {here.seeds[1]} of {here.seeds[2]} seeds"
                word = kind + some * (here.kind == "no rival")
                at = f"{number(budget)} {claim.by if claim.by == 'multiples' else own.clock}"
                cells = [SETUPS[own.setup].title, label(mine), label(curve), at, here.sign + value, word]
                found.append((Outcome(kind, here.found, here.sign, here.seeds), own.setup, cells))
    return found


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


def judged(panels: list[Panel]) -> tuple[list[tuple[str, str, str, str]], list[list[str]]]:
    """Return each ordering with its verdicts on the paper's and on all data, and the cells of all comparisons."""
    claims, details = [], []
    for column, on in (("above", "training rows"), ("test", "test rows")):
        for claim in ORDERINGS:
            if column == "test" and not claim.tests:
                continue
            used = [own for own in panels if column == "above" or SETUPS[own.setup].tests]
            found = comparisons(used, claim, column)
            counts = {everywhere: Counter(outcome.kind for outcome, setup, _ in found
                                          if everywhere or SETUPS[setup].of_the_paper)
                      for everywhere in (False, True)}  # fmt: skip
            votes = {k: (c["ahead"], c["undecided"], c["behind"]) for k, c in counts.items()}
            won, undecided, lost = votes[False]
            figures = f"ahead in {won}, undecided in {undecided}, behind in {lost} of {won + undecided + lost}"
            figures += "; one comparison the other way would change this" * is_close(won, undecided, lost)
            claims.append((f"{claim.words} on {on}", *(ordering_verdict(*votes[k]) for k in (False, True)), figures))
            details += [[on, *cells] for _, _, cells in found]
    return claims, details


def claims_table(panels: list[Panel]) -> tuple[str, str]:
    """Return the table of claims, and that of the comparisons behind it."""
    claims, details = judged(panels)
    rows = [list(claim) for claim in claims]
    rows[3:3] = _exponent_claims()
    header = ["claim of the paper", "verdict on the paper's data", "with the census", "figures on the paper's data"]
    columns = ["on", "set-up", "the paper's method", "rival", "at", "ratio or difference", "the paper's method is"]
    return rows_of(header, rows), rows_of(columns, details)
