"""The paper's claims one by one: what the stored curves say of each, and by what rule.

A comparison is won at a budget if the 95% interval of the ratio of suboptimalities lies above 1, lost if below. A claim
is reproduced if it is won in every comparison, not reproduced if it is won in none, and reproduced in part otherwise.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.paper.analysis import BUDGETS, Panel, arithmetic, ratio
from benchmarks.paper.figures import label
from benchmarks.paper.setups import SETUPS
from benchmarks.paper.tables import rows_of, slopes, spread

__all__ = ["claims_table", "comparisons"]


@dataclass(frozen=True)
class Comparison:
    """Wins, ties and losses of one curve against another over set-ups and budgets, with the figure at the last one."""

    ours: str
    other: str
    setup: str
    won: int
    open: int
    lost: int
    last: str

    def __str__(self) -> str:
        return (
            f"{self.setup}: {self.ours} against {self.other} ahead at {self.won}, undecided at {self.open}, behind at "
            f"{self.lost} of {self.won + self.open + self.lost} budgets; at the last, {self.last}"
        )


def compare(own: Panel, mine: tuple[str, str], other: tuple[str, str], column: str = "above") -> Comparison | None:
    """Compare two curves of a set-up at every budget at which both have a value on all their seeds."""
    won = undecided = lost = 0
    last = ""
    for budget in BUDGETS:
        a, b = own.at(mine, budget, column), own.at(other, budget, column)
        if not a and not b:
            continue
        if not b or not a:  # one is still in its first stage
            won, lost = won + bool(a), lost + bool(b)
            continue
        if column == "test":
            seeds = sorted(a.keys() & b.keys())
            found = arithmetic(np.array([b[s] - a[s] for s in seeds]))
            low, high, even, last = found.low, found.high, 0.0, f"a difference of {spread(found, '.4f')}"
        else:
            behind = ratio(b, a)
            assert behind is not None
            low, high, even, last = behind.low, behind.high, 1.0, f"a factor of {spread(behind)}"
        if low > even:
            won += 1
        elif high < even:
            lost += 1
        else:
            undecided += 1
    if not won + undecided + lost:
        return None
    return Comparison(label(mine), label(other), SETUPS[own.setup].title, won, undecided, lost, last)


def comparisons(panels: list[Panel], mine: str, others: tuple[str, ...], column: str = "above") -> list[Comparison]:
    """Compare like with like: averages with averages, snapshots with snapshots or last points."""
    like = {"average": ("average",), "snapshot": ("snapshot", "last", "best")}
    found = []
    for own in panels:
        for output, kinds in like.items():
            for curve in own.curves:
                if curve[0] in others and curve[1] in kinds and (mine, output) in own.curves:
                    result = compare(own, (mine, output), curve, column)
                    found += [result] if result is not None else []
    return found


def verdict(found: list[Comparison]) -> str:
    """Return one of three words."""
    if not found:
        return "not run"
    won, rest = sum(c.won for c in found), sum(c.open + c.lost for c in found)
    return "reproduced" if not rest else "reproduced in part" if won else "not reproduced"


def total(found: list[Comparison]) -> str:
    """Return wins, ties and losses in words."""
    won, undecided, lost = (sum(getattr(c, k) for c in found) for k in ("won", "open", "lost"))
    return f"ahead in {won}, undecided in {undecided}, behind in {lost} of {won + undecided + lost} comparisons"


def _exponent_claims() -> list[list[str]]:
    found, rows = slopes(), []
    for constants, words in (("paper", "published constants"), ("tight", "tight constants")):
        aleg, mpvr = found.get(("ALEG", constants, "m")), found.get(("MPVR", constants, "m"))
        if aleg is None or mpvr is None:
            continue
        difference, half = mpvr[0] - aleg[0], float(np.hypot(aleg[1], mpvr[1]))
        inside = abs(difference - 0.5) <= half
        own = abs(aleg[0] - 1.0) <= aleg[1]
        word = "reproduced" if inside and own else "reproduced in part" if inside or own else "not reproduced"
        rows.append([f"ALEG needs m, MPVR m^1.5 evaluations ({words})", word,
                     f"ALEG {aleg[0]:.2f} ± {aleg[1]:.2f} (predicted 1), MPVR {mpvr[0]:.2f} ± {mpvr[1]:.2f} (1.5), "
                     f"difference {difference:.2f} ± {half:.2f} (0.5)"])  # fmt: skip
    return rows


def claims_table(panels: list[Panel]) -> tuple[str, str]:
    """Return the table of claims, and the comparisons behind it as a list."""
    gdro = [own for own in panels if own.kind == "gdro"]
    mero = [own for own in panels if own.kind == "mero"]
    test_gdro, test_mero = ([own for own in some if SETUPS[own.setup].tests] for some in (gdro, mero))
    cases = [
        ("ALEG is ahead of MPVR on training rows", comparisons(gdro, "ALEG of the paper", ("MPVR",))),
        ("ALEG is ahead of SMD on training rows", comparisons(gdro, "ALEG of the paper", ("SMD",))),
        ("ALEM is ahead of ERMEG on training rows", comparisons(mero, "ALEM of the paper", ("ERMEG",))),
        ("ALEM is ahead of TSA on training rows", comparisons(mero, "ALEM of the paper", ("TSA",))),
        ("ALEG is ahead of MPVR and SMD on test rows",
         comparisons(test_gdro, "ALEG of the paper", ("MPVR", "SMD"), "test")),
        ("ALEM is ahead of ERMEG and TSA on test rows",
         comparisons(test_mero, "ALEM of the paper", ("ERMEG", "TSA"), "test")),
    ]  # fmt: skip
    rows, details = [], []
    for claim, found in cases:
        rows.append([claim, verdict(found), total(found) if found else ""])
        details += [f"- {claim}. {c}." for c in found]
    rows[2:2] = _exponent_claims()
    return rows_of(["claim of the paper", "verdict", "figures"], rows), "\n".join(details)
