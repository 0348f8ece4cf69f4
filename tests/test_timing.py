"""Tests limit work in CPU seconds, and wait for other processes as long as it takes."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.timing import cpu_seconds, cpu_seconds_of, interrupted_after, spin

TESTS = Path(__file__).parent
#: What reads the clock to report a duration or to choose a random moment, never to judge.
REPORTS = {
    "campaign/__main__.py", "campaign/interrupted_fits.py", "campaign/watched.py", "house/speed.py",
    "house/speed_items.py", "packaging/first_time.py",
}  # fmt: skip


def test_sleeping_costs_no_cpu_seconds_and_spinning_does():
    assert cpu_seconds(lambda: time.sleep(0.5) or "slept")[0] == "slept"
    assert cpu_seconds(lambda: time.sleep(0.5))[1] < 0.4
    assert 0.2 <= cpu_seconds(lambda: spin(0.2))[1] < 0.4


def test_cpu_seconds_of_a_process_are_its_own():
    spin(0.1)
    assert cpu_seconds_of(os.getpid()) == pytest.approx(time.process_time(), abs=0.1)


def _work_for_ever():
    while True:
        pass


def test_ctrl_c_comes_after_the_work_and_not_after_the_end():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interrupted_after(0.05):
            pass
        begun = time.process_time()
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.1):
            _work_for_ever()
        assert time.process_time() - begun >= 0.1
    finally:
        signal.signal(signal.SIGINT, before)


def test_no_test_limits_work_by_the_clock():
    wrong = []
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            clock = re.search(r"\bperf_counter\(\)|\btime\.time\(\)", line) and name not in REPORTS
            # Whatever waits for a process waits until it counts as hung.
            short = re.search(r"(run|wait|communicate|get)\(.*\btimeout=\d", line)
            if (clock or short) and path != Path(__file__):
                wrong.append(f"{name}:{number}: {line.strip()}")
    assert not wrong, "\n".join(wrong)
