"""Progress of a fit, as lines of text."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from groupdro.run.result import Progress, TraceRow, relative_gap
from groupdro.utils.arguments import printable
from groupdro.utils.text import group_name

__all__ = ["ProgressLine", "seconds_left"]

_ACTIVE = 1e-3  # weight from which a group counts as active
_STANDSTILL = 1e-3  # decrease of the gap's logarithm over the latest epochs required to estimate a time


def seconds_left(trace: list[TraceRow], target: float) -> float:
    """Estimate the time until the gap reaches the target, from the slope of its logarithm over the latest epochs.

    Parameters
    ----------
    trace : list of TraceRow
        The run so far.
    target : float
        The gap at which it ends.

    Returns
    -------
    float
        Seconds; NaN if the gap is not decreasing yet.
    """
    recent = [row for row in trace[-8:] if np.isfinite(row.gap) and row.gap > 0]
    if len(recent) < 2 or target <= 0:
        return np.nan
    times = np.array([row.seconds for row in recent])
    logs = np.log([row.gap for row in recent])
    if not np.ptp(times) > 0:
        return np.nan
    fall = -float(np.polyfit(times - times[-1], logs, 1)[0])
    if not fall * np.ptp(times) > _STANDSTILL:
        return np.nan
    return max(0.0, float(logs[-1] - np.log(target))) / fall


class ProgressLine:
    """Print the progress of a run: gap, time left, worst value, active groups, passes and seconds.

    Parameters
    ----------
    tol : float
        Relative gap at which the run ends.
    every : float
        Minimum seconds between two lines.
    write : callable
        Function that receives a line.
    """

    def __init__(self, tol: float, *, every: float = 0.0, write: Callable[[str], Any] = print):
        self.tol = tol
        self.every = every
        self.write = write
        self.trace: list[TraceRow] = []
        self.written = -np.inf
        self.met = False  # the tolerance; what follows lowers the average

    def __call__(self, progress: Progress) -> None:
        """Write a line, unless the last one is recent and the tolerance is not met just now."""
        row = progress.latest
        risks = progress.certificate.group_risks
        problem = progress.certificate.problem
        self.trace.append(row)
        target = self.tol * abs(row.upper)
        recent = time.perf_counter() - self.written < self.every
        just_met = row.gap <= target and not self.met
        if risks is None or (recent and not just_met):
            return
        self.met |= just_met
        self.written = time.perf_counter()
        names = problem.data.names
        values = risks - problem.baseline.lower
        left = seconds_left(self.trace, target)
        self.write(
            f"epoch {row.epoch}, gap {relative_gap(row.gap, row.upper):.1e} of {self.tol:.0e}"
            + (", lowering the average" if self.met and not just_met else "")
            + ("" if np.isnan(left) or self.met else f", about {left:.0f} s left")
            + f", worst {'risk' if problem.group_minima is None else 'excess risk'} {values.max():.4g}"
            f" ({printable(group_name(names[values.argmax()]))})"
            f", {(progress.state.evaluation.q > _ACTIVE).sum()} of {len(names)} groups active"
            f", {row.passes:.1f} passes, {row.seconds:.1f} s"
        )
