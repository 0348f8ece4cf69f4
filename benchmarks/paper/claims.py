"""The paper's claims one by one: what the stored curves say of each, and by what rule.

An ordering is compared once per set-up and output at each of four budgets, without the tuning seeds where four others
are stored. At a budget it is reproduced if the paper's method is ahead in all comparisons, in part if it is ahead in
more than it is behind, not reproduced if it is behind in more, and undecided otherwise; a single comparison is no
verdict. Kept out, and listed, are set-ups that are not the paper's, and comparisons in which one of the two was not
tuned to the end of the search, or both have the same setting.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.paper.analysis import Outcome, Panel, compare
from benchmarks.paper.complexity import PREDICTED, exponent, ratios
from benchmarks.paper.contenders import METHODS
from benchmarks.paper.figures import label
from benchmarks.paper.runs import BUDGET
from benchmarks.paper.setups import SETUPS
from benchmarks.paper.store import RESULTS
from benchmarks.paper.tables import exponent_cell, has_finer_steps, rows_of, slopes, spread

__all__ = ["CLAIMS", "JUDGED", "claims_table", "comparisons", "exponent_words", "ordering_verdict", "verdicts", "votes"]

#: Averages are compared with averages, snapshots with snapshots, last points or best models.
LIKE = {"average": ("average",), "snapshot": ("snapshot", "last", "best")}
#: Multiples of the rows at which orderings are judged; of seconds, the same shares of the shorter run.
JUDGED = (10, 20, 30, 40)
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


ALEG, ALEM, SVRE = "ALEG of the paper", "ALEM of the paper", "AL-SVRE, Euclidean"
TILTED, FIRST = "ALEG of the paper, alterable", "ERMEG, first-order"
ORDERINGS = (
    Ordering(ALEG, ("MPVR",), "ALEG is ahead of MPVR"),
    Ordering(TILTED, ("MPVR",), "ALEG with alterable steps is ahead of MPVR"),
    Ordering(ALEG, ("SMD",), "ALEG is ahead of SMD"),
    Ordering(ALEG, (SVRE,), "ALEG is ahead of AL-SVRE"),
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
    """Two curves compared for a claim: a method and an output each, and the outcome at each budget.

    `unlike` says why the comparison decides nothing, or is empty.
    """

    claim: str
    setup: str
    mine: tuple[str, str]
    rival: tuple[str, str]
    unlike: str
    found: tuple[Outcome, ...]

    def kind(self, k: int) -> str:
        """Return the outcome at a budget for the paper's method, which is ahead of a rival that has no model."""
        return {"no rival": "ahead"}.get(self.found[k].kind, self.found[k].kind)

    def cells(self) -> list[str]:
        """Return its line in the table of comparisons."""
        outcomes = [_shown(one, self.kind(k)) for k, one in enumerate(self.found)]
        return [self.claim.rsplit(" on ")[-1], SETUPS[self.setup].title, label(self.mine), label(self.rival), *outcomes,
                self.unlike or "yes"]  # fmt: skip


def _shown(found: Outcome, kind: str) -> str:
    """Return an outcome at a budget in words."""
    value = "" if found.found is None else f" {found.sign}{spread(found.found)}"
    some = f"; the rival has a model on {found.seeds[1]} of {found.seeds[2]} seeds"
    return f"{kind}{value}{some * (found.kind == 'no rival')}"


def comparisons(panels: list[Panel]) -> list[Comparison]:
    """Return every comparison, claim by claim."""
    return [
        Comparison(words, own.setup, mine, rival, _unlike(own, mine, rival), found)
        for words, (column, claim) in CLAIMS.items()
        for own in panels
        if column == "above" or SETUPS[own.setup].tests
        for mine, rival, found in _pairs(own, claim, column)
    ]


def _unlike(own: Panel, *curves: tuple[str, str]) -> str:
    """Return why a comparison decides nothing: other data, the same setting, or a search that has not ended."""
    if not SETUPS[own.setup].of_the_paper:
        return "not the paper's data"
    unfinished = [label(curve) for curve in curves if not has_finer_steps(own, curve)]
    mine, rival = curves
    if METHODS[mine[0]].like == rival[0] and own.setting_of(mine) == (*own.setting_of(rival), 0):
        return "the same setting"
    return f"search not ended: {', '.join(unfinished)}" if unfinished else ""


def _pairs(
    own: Panel, claim: Ordering, column: str
) -> Iterator[tuple[tuple[str, str], tuple[str, str], tuple[Outcome, ...]]]:
    """Yield the pairs of like outputs of a set-up, and how they compare at each budget."""
    for output, kinds in LIKE.items():
        mine = claim.mine, output
        for rival in own.curves:
            if mine in own.curves and rival[0] in claim.rivals and rival[1] in kinds:
                if claim.by == "seconds" and not {mine, rival} <= own.timed:
                    continue  # nothing that a busy machine has measured decides
                whole = BUDGET if claim.by == "multiples" else own.last_second(mine, rival)
                yield (
                    mine,
                    rival,
                    tuple(
                        compare(own, mine, rival, whole * budget / BUDGET, column, claim.by, without_tuning=True)
                        for budget in JUDGED
                    ),
                )


def ordering_verdict(ahead: int, undecided: int, behind: int) -> str:
    """Return the verdict on an ordering."""
    n = ahead + undecided + behind
    if n < 2:
        word = "ahead" if ahead else "behind" if behind else "undecided"
        return f"{word} in the only comparison" if n else "not judged"
    if not undecided + behind:
        return "reproduced"
    if ahead == behind:
        return "undecided"
    return "reproduced in part" if ahead > behind else "not reproduced"


def votes(found: Iterable[Comparison], claim: str, k: int) -> tuple[int, int, int]:
    """Return how often the paper's method is ahead, undecided and behind at a budget, where a comparison decides."""
    kinds = Counter(one.kind(k) for one in found if one.claim == claim and not one.unlike)
    return kinds["ahead"], kinds["undecided"], kinds["behind"]


def verdicts(panels: list[Panel]) -> dict[str, list[str]]:
    """Return the verdict on each ordering at each budget."""
    found = comparisons(panels)
    return {claim: [ordering_verdict(*votes(found, claim, k)) for k in range(len(JUDGED))] for claim in CLAIMS}


def claims_table(panels: list[Panel]) -> tuple[str, str]:
    """Return the table of claims, and that of the comparisons behind it."""
    found = comparisons(panels)
    rows = []
    for claim in CLAIMS:
        counts = [votes(found, claim, k) for k in range(len(JUDGED))]
        left_out = sum(one.claim == claim and bool(one.unlike) for one in found)
        cells = [
            f"{ordering_verdict(*own)} ({'/'.join(map(str, own))})" if sum(own) else "not judged" for own in counts
        ]
        rows.append([claim, *cells, str(left_out)])
    budgets = [f"at {budget}" for budget in JUDGED]
    columns = ["on", "set-up", "the paper's method", "rival", *budgets, "decides"]
    return rows_of(["claim of the paper", *budgets, "left out"], rows), rows_of(columns, [one.cells() for one in found])


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


def exponent_words() -> str:
    """Return what the slopes in m with the theorems' own steps say, in sentences."""
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
    return "With the theorems' own steps, the exponents of m are implied by the steps. " + " ".join(parts)
