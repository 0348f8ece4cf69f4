"""The verdicts of an earlier protocol, and why those of the present one differ.

That protocol tuned every method on seed 0 alone, by factors of 3.2, took the best snapshots of ALEM's first stage for
the groups' minima, and let the census decide as well. Its curves are in the history of this repository; what they say
of each claim, by the present rules of comparison, is kept in a small file.
"""

import io
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from benchmarks.paper.analysis import Panel, has
from benchmarks.paper.claims import CLAIMS, Comparison, comparisons, ordering_verdict, votes
from benchmarks.paper.figures import label
from benchmarks.paper.setups import SETUPS
from benchmarks.paper.store import RESULTS
from benchmarks.paper.tables import rows_of

__all__ = ["store", "verdicts_table"]

REVISION = "3e84c05b77156acc61f0023ccab68dc95e4c001e"  # the last one with results of that protocol alone
FILE = "paper_before.parquet"


def store() -> None:
    """Compare the curves of the earlier revision, and keep the outcomes."""
    names = ["git", "archive", REVISION, "--", "benchmarks/results"]
    archive = subprocess.run(names, cwd=RESULTS.parents[1], capture_output=True, check=True).stdout
    with TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        results = Path(folder) / "benchmarks" / "results"
        panels = [Panel(name, results) for name in SETUPS if has(name, results)]
    rows = [{"claim": one.claim, "setup": one.setup, "kind": one.kind, "mine": _key(one.mine), "rival": _key(one.rival),
             "my_setting": _setting(one.setup, one.mine, panels), "its_setting": _setting(one.setup, one.rival, panels)}
            for one in comparisons(panels) if CLAIMS[one.claim][1].before]  # fmt: skip
    pd.DataFrame(rows).to_parquet(RESULTS / FILE, compression="zstd", index=False)
    print(f"{FILE}: {len(rows)} comparisons")


def _key(curve: tuple[str, str]) -> str:
    """Return a method and its output as one text."""
    return " | ".join(curve)


def _setting(setup: str, curve: tuple[str, str], panels: list[Panel]) -> str:
    return next(own.setting(curve) for own in panels if own.setup == setup)


def verdicts_table(panels: list[Panel]) -> str:
    """Return the verdicts before and now, with the comparisons that changed them."""
    known = pd.read_parquet(RESULTS / FILE)
    now, rows = comparisons(panels), []
    for claim, (_, ordering) in CLAIMS.items():
        ahead, undecided, behind = counts = votes(now, claim, census=False)
        verdict = ordering_verdict(*counts)
        if not ordering.before:
            how = f"judged for the first time: ahead in {ahead}, undecided in {undecided}, behind in {behind}"
            rows.append([claim, "left out", "", verdict, how if any(counts) else "no runs that could be compared"])
            continue
        old = [row for row in known.itertuples() if row.claim == claim]
        with_census, without = (ordering_verdict(*(sum(row.kind == kind for row in old
                                                       if census or SETUPS[row.setup].of_the_paper)
                                                   for kind in ("ahead", "undecided", "behind")))
                                for census in (True, False))  # fmt: skip
        reasons = ["the census no longer decides"] * (with_census != without)
        reasons += _changes(old, [one for one in now if one.claim == claim], panels)
        rows.append([claim, with_census, without, verdict, "; ".join(reasons) or "no comparison changed"])
    header = ["claim", "before", "before, without the census", "now", "what changed"]
    return rows_of(header, rows)


def _changes(old: list, now: list[Comparison], panels: list[Panel]) -> list[str]:
    """Return which comparisons on the paper's data came out otherwise, and whether the settings are others."""
    before, found = {(row.setup, row.mine, row.rival): row for row in old}, []
    for one in now:
        known = before.get((one.setup, _key(one.mine), _key(one.rival)))
        where = f"{SETUPS[one.setup].title}, {label(one.mine)} and {label(one.rival)}"
        if not SETUPS[one.setup].of_the_paper:
            continue
        if known is None:
            found.append(f"{where}: new, {one.kind}")
        elif known.kind != one.kind:
            settings = ((one.mine, known.my_setting), (one.rival, known.its_setting))
            others = [label(curve) for curve, setting in settings if _setting(one.setup, curve, panels) != setting]
            why = f"new settings of {' and '.join(others)}" if others else "run again at the same settings"
            found.append(f"{where}: {known.kind} before, {one.kind} now, by {why}")
    return found
