"""Intervals hold as often as they say, and cross-validation does not leave plain training for a worse model."""

import warnings

import numpy as np
from benchmarks.held_out import choice, reports

from tests.campaign.frame import Check, Tally, tally_cases

__all__ = ["CHECKS"]

_PART = 50  # data sets of a case
_CHANCE = 3.1  # standard errors that one test of a thousand exceeds


def _intervals(seed):
    """Hold the intervals of one setting against its known risks."""
    setting = reports.SETTINGS[(17 * seed) % len(reports.SETTINGS)]
    share, _ = reports.simulate(setting, n_sets=_PART, seed=seed)
    least = reports.TARGET - _CHANCE * np.sqrt(reports.TARGET * (1.0 - reports.TARGET) / _PART)
    assert share >= least, f"{setting}: {share:.1%} of {_PART} data sets"


def _ties(seed):
    """Choose by cross-validation where groups tie, and where one is neglected."""
    kind, task = choice.KINDS[seed % 3], choice.TASKS[(seed // 3) % 2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses, risks = choice.simulate(kind, task, 60, range(10_000 + 20 * seed, 10_020 + 20 * seed))
    found = choice.judge_rules(losses, risks)["2"]
    assert found.worse <= 0.05 + _CHANCE * np.sqrt(0.05 * 0.95 / 20), f"{kind}, {task}: {found}"
    assert kind != "one bad group" or found.left >= 0.5, f"{kind}, {task}: {found}"


def _run_intervals(count, seed, jobs):
    tally = tally_cases(_intervals, range(1000 * seed, 1000 * seed + count), jobs)
    tally.figures.append(f"{_PART} data sets each")
    return tally


def _run_ties(count, seed, jobs) -> Tally:
    return tally_cases(_ties, range(1000 * seed, 1000 * seed + count), jobs)


CHECKS = [
    Check(
        "intervals",
        "intervals for all groups at once hold, with light and tied weights, clusters and rare errors",
        _run_intervals,
        full=len(reports.SETTINGS),
        ci=3,
    ),
    Check(
        "ties",
        "the choice by cross-validation finds a neglected group, and leaves plain training alone where groups tie",
        _run_ties,
        full=30,
        ci=1,
    ),
]
