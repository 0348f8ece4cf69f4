"""Jobs of several workers under faults: the right answer or a clear error, and nothing left behind.

`python -m tests.distributed.faults 100` draws many more.
"""

import importlib.util
import sys

import pytest

from tests.distributed.faults import Bench, Fault, can_mount, can_network, run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture
def needs_network():
    if not can_network():
        pytest.skip("network namespaces cannot be made (needs root and ip)")


def check(verdicts, *, outcome="right answer", note="the same bits"):
    for verdict in verdicts:
        assert verdict.good, verdict
        assert verdict.outcome == outcome, verdict
        assert note in verdict.note, verdict
        print(verdict)


@pytest.mark.long  # a worker that is lost, and the same bits after it, are in test_launch
def test_a_job_survives_one_fault_after_another(bench, tmp_path):
    verdicts = run(
        bench, tmp_path,
        Fault("kill in a write", "rename", epoch=2),
        Fault("corrupt checkpoint", "pass", epoch=4, detail="flip40"),
    )  # fmt: skip
    check(verdicts)
    # At most the epoch in progress, and one more where a checkpoint is lost; a fault may also come just after a save.
    assert all(verdict.repeated <= 1 for verdict in verdicts)


@pytest.mark.long
def test_a_job_survives_a_full_disk(bench, tmp_path):
    verdicts = run(bench, tmp_path, Fault("disk full", "step", epoch=1, detail="tmpfs" if can_mount() else "limit"))
    check(verdicts)
    assert verdicts[0].repeated <= 2


@pytest.mark.long  # mostly waiting for workers that must not come
@pytest.mark.skipif(importlib.util.find_spec("click") is None, reason="click is not installed")
def test_workers_whose_launcher_is_killed_while_they_start_do_not_run_on(bench, tmp_path):
    check(run(bench, tmp_path, Fault("kill the launcher", "start", epoch=0)))


def test_a_job_on_a_damaged_store_says_so(bench, tmp_path):
    verdicts = run(bench, tmp_path, Fault("corrupt shard", detail="X.npy:flip70"))
    check(verdicts, outcome="clear error", note="X.npy is damaged in block 0")


@pytest.mark.long  # torchrun gives a stopped worker half a minute
def test_a_stopped_worker_is_replaced(bench, tmp_path):
    check(run(bench, tmp_path, Fault("stop", "pass", epoch=1), solver="sqp"))


@pytest.mark.long
def test_a_job_whose_checkpoints_are_all_damaged_says_so(bench, tmp_path):
    verdicts = run(bench, tmp_path, Fault("corrupt checkpoints, all", epoch=3, detail="cut50"))
    check(verdicts, outcome="clear error", note="CheckpointError: No checkpoint in")


@pytest.mark.long
@pytest.mark.usefixtures("needs_network")
@pytest.mark.parametrize("nodes", ["2", "1:2"])
def test_a_lost_node_is_replaced_and_one_that_was_cut_off_comes_back(bench, tmp_path, nodes):
    verdicts = run(
        bench, tmp_path, Fault("node lost", epoch=1), Fault("node cut off", epoch=4, seconds=8.0), nodes=nodes
    )
    check(verdicts, note="the same bits" if nodes == "2" else "")
