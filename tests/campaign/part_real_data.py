"""Thousands of problems with real data's faults, judged by models that are found without the package.

A failure prints the call that reruns it:

    from tests.campaign.part_real_data import judge
    print(judge(1234).wrong)
"""

import time
import warnings
from collections import Counter, defaultdict
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from groupdro import UselessModelWarning
from tests.campaign.frame import Check, Tally
from tests.campaign.judging import map_cases
from tests.campaign.real_data import describe, draw
from tests.campaign.real_fits import judge_case
from tests.campaign.real_verdicts import Verdict


def judge(seed: int) -> Verdict:
    """Fit the problem of a seed and look for anything that the fit says wrongly."""
    begun = time.process_time()
    case = describe(seed)
    verdict = Verdict(case, "raised")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UselessModelWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            judge_case(case, draw(case), verdict)
        except Exception as error:
            verdict.wrong.append(f"{type(error).__name__}: {error}")
    verdict.seconds = time.process_time() - begun
    return verdict


def tally(verdicts: Any) -> Tally:
    """Count verdicts."""
    out, statuses, by_kind = Tally(), Counter(), defaultdict(Counter)
    solvable = converged = unresolved = by_cvxpy = 0
    for verdict in verdicts:
        out.tried += 1
        statuses[verdict.status] += 1
        by_kind[verdict.case.kind][verdict.status] += 1
        solvable += verdict.minimiser is True
        converged += verdict.minimiser is True and verdict.status == "converged"
        unresolved += verdict.unresolved
        by_cvxpy += verdict.by_cvxpy
        out.failures += [f"judge({verdict.case.seed}): {sentence} {verdict.case!r}" for sentence in verdict.wrong]
    out.figures = [
        ", ".join(f"{count:,} {status}" for status, count in statuses.most_common()),
        f"{converged:,} of {solvable:,} that have a minimiser converged ({converged / max(solvable, 1):.1%})",
        f"{unresolved} held only up to what the data's digits resolve",
        f"{by_cvxpy:,} searched by CVXPY too",
        *(f"{kind}: " + ", ".join(f"{n} {s}" for s, n in found.most_common()) for kind, found in by_kind.items()),
    ]
    return out


def run(count: int, seed: int, jobs: int) -> Tally:
    return tally(map_cases(judge, range(1_000_000 * seed, 1_000_000 * seed + count), jobs))


CHECKS = [
    Check(
        name="real data",
        promise="offsets, units, sentinels, tails, many rows: no lower bound above another model, no false converged",
        run=run,
        full=10_000,
        ci=80,
    )
]
