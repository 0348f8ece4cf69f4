"""Fits whose processes are killed, stopped and interrupted still end with a certified answer.

`python -m tests.distributed.faults --kills 100` kills at many more moments.
"""

import random
import sys
from importlib.util import find_spec

import pytest

from tests.distributed.faults import KINDS, Bench
from tests.distributed.training import SOLVERS

pytestmark = [
    pytest.mark.long,  # the gate kills fits of one process, in tests/campaign
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found by their environment, in /proc"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]
MOST_REPEATED = 15  # epochs; the median of many kills is to be at most five


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("bench"))


def check(bench, solver, workers, name, victim):
    outcome = bench.run_at_random(solver, workers, name, victim, random.Random(f"{solver} {workers} {name} {victim}"))
    print(outcome)
    assert outcome.good, outcome
    assert outcome.repeated <= MOST_REPEATED, outcome


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("workers", "name", "victim"), [(workers, *kind) for workers, kinds in KINDS.items() for kind in kinds]
)
def test_every_solver_survives_every_signal(bench, solver, workers, name, victim):
    check(bench, solver, workers, name, victim)
