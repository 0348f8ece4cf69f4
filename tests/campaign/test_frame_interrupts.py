"""The checks of interrupts and poor places notice a product that is broken on purpose."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.campaign.interrupted_fits import faults
from tests.campaign.part_interrupts import ctrl_c, interrupt, killed, poor_places

# The frame changes seldom, and these start many processes.
pytestmark = pytest.mark.long

SOUND = {
    "status": "interrupted",
    "upper": 0.5,
    "lower": 0.4,
    "recomputed": 0.5,
    "q": np.array([0.25, 0.75]),
    "latest": SimpleNamespace(upper=0.5, lower=0.4),
    "known": [0.41, 0.49],
}


def test_sound_bounds_have_no_fault():
    assert faults(**SOUND) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"recomputed": 0.5 + 1e-6}, "recomputed"),
        ({"lower": 0.6, "latest": None}, "above the upper"),
        ({"status": "converged"}, "converged at a gap"),
        ({"status": "time_limit"}, "status"),
        ({"q": np.array([0.25, 0.76])}, "outside the simplex"),
        ({"q": np.array([-0.25, 1.25])}, "outside the simplex"),
        ({"latest": SimpleNamespace(upper=0.45, lower=0.4)}, "worse than"),
        ({"latest": SimpleNamespace(upper=0.5, lower=0.45)}, "worse than"),
        ({"known": [0.5 + 1e-6, 0.6]}, "both called certified"),
        ({"known": [0.2, 0.4 - 1e-6]}, "both called certified"),
    ],
)
def test_every_fault_of_bounds_is_named(change, fault):
    assert any(fault in one for one in faults(**{**SOUND, **change}))


def test_an_interrupt_that_comes_late_is_noticed():
    hold = """
from groupdro.oracle import Oracle
from tests.timing import spin
whole = Oracle.risks
def slow(self, w):
    spin(1.3)  # the last pass, which Ctrl-C does not reach
    return whole(self, w)
Oracle.risks = slow
"""
    tally = ctrl_c(2, 0, 1, hold)
    assert tally.tried == 2
    assert any("p99" in failure for failure in tally.failures)


def test_a_certified_pair_that_is_lost_is_noticed():
    lose = """
from groupdro.run.run import Run
whole = Run._finish
def lost(self, status, average):
    if status.name == "INTERRUPTED":
        raise KeyboardInterrupt
    return whole(self, status, average)
Run._finish = lost
"""
    _, wrong = interrupt("aleg small", 4, 0, lose)
    assert any("was certified, and lost" in fault for fault in wrong)


def test_files_that_are_not_written_whole_are_noticed():
    tear = """
import tests.campaign.killed_runs as runs
def torn(path, content):
    with open(path, "wb", buffering=0) as file:
        for start in range(0, len(content), 1000):
            file.write(content[start:start + 1000])
runs.write_content = torn
"""
    tally = killed("writes", 12, 0, 1, tear)
    assert tally.tried == 12
    assert any("not whole" in failure for failure in tally.failures)


def test_a_bound_that_is_not_proved_is_noticed():
    lie = """
import tests.campaign.killed_runs as runs
runs.RUNS = {"aleg, logistic": runs.RUNS["aleg, logistic"]}  # in which most kills come after a checkpoint
from groupdro.certificate import Certificate
whole = Certificate.take_over
def raised(self, lower, q, cut):
    whole(self, 1.5 * lower, q, cut)
Certificate.take_over = raised
"""
    tally = killed("runs", 4, 0, 1, lie)
    assert any("another answer" in failure for failure in tally.failures)


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (
            "import groupdro.utils.files as b\nfrom contextlib import nullcontext\nb.filename_in_errors = nullcontext",
            "without the path",
        ),
        ("import pathlib\npathlib.Path.unlink = lambda self, missing_ok=False: None", "left behind"),
    ],
)
def test_errors_without_a_path_and_files_left_behind_are_noticed(broken, fault):
    tally = poor_places(1, 0, 1, broken)
    assert tally.tried == 1
    assert any(fault in failure for failure in tally.failures)
