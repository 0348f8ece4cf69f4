import hashlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from groupdro.distributed import CommunicationError, SerialCommunicator, TorchCommunicator, communicator
from groupdro.distributed.mpi_comm import MpiCommunicator
from tests.distributed.processes import VARIABLES, mpirun, running, torchrun
from tests.distributed.test_exchange import together
from tests.distributed.worker import LENGTHS, digests, inputs
from tests.timing import HUNG

WORKER = str(Path(__file__).with_name("worker.py"))


def wait_for(condition, job):
    """Return the first true value of a condition while a job runs."""
    end = time.monotonic() + HUNG
    while not (value := condition()):
        assert time.monotonic() < end, "waited too long"
        assert job.poll() is None, job.stdout.read()
        time.sleep(0.02)
    return value


def read(folder, pattern, count):
    """Return what `count` processes wrote, once all have."""
    paths = sorted(folder.glob(pattern))
    return [json.loads(path.read_text()) for path in paths] if len(paths) == count else None


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def check_digests(all_found):
    """Check that all processes got the same bits, the right ones, and those that threads get for the same inputs."""
    found = all_found[0]
    assert all(own == found for own in all_found)
    for n in LENGTHS:
        given = [inputs(rank, n) for rank in range(len(all_found))]
        for name, reduce in (("sum", np.sum), ("max", np.max)):
            for which in ("whole", "int"):
                expected = reduce([one[which] for one in given], axis=0)
                assert found[f"{name} of {n} {which}"] == hashlib.sha256(expected.tobytes()).hexdigest()
        for root, one in enumerate(given):
            assert found[f"copy of {n} float from {root}"] == hashlib.sha256(one["float"].tobytes()).hexdigest()
    assert found == together(len(all_found), digests)[0][0]


def check_results(results, kind):
    assert [result["kind"] for result in results] == [kind] * len(results)
    check_digests([result["digests"] for result in results])


@pytest.fixture
def needs_torch():
    if importlib.util.find_spec("torch") is None:  # not imported here, where only the workers need it
        pytest.skip("torch is not installed")


@pytest.fixture
def needs_mpi():
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")


# ---------------------------------------------------------------------- torch


@pytest.mark.long
@pytest.mark.usefixtures("needs_torch")
def test_two_workers_agree_and_exit_cleanly(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    command = [sys.executable, WORKER, str(tmp_path), "close", str(HUNG)]
    with running(command, RANK="0", **place) as first, running(command, RANK="1", **place) as second:
        outputs = [job.communicate(timeout=HUNG)[0] for job in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    results = read(tmp_path, "rank-*.json", 2)
    check_results(results, "TorchCommunicator")
    assert read(tmp_path, "exit-*.json", 2) == [{"group": False}] * 2  # rank 1 never closed its communicator
    for threads in (result["threads"] for result in results if sys.platform == "linux"):
        # Gloo's thread interrupts no other: else exchanges of workers with one core each take 4 ms instead of 0.5.
        assert [batch for name, batch in threads if name.startswith("gloo")] == [True], threads
        assert {batch for name, batch in threads if not name.startswith("gloo")} == {False}, threads


@pytest.mark.long
@pytest.mark.usefixtures("needs_torch")
def test_three_workers_agree_and_notice_soon_that_one_was_killed(tmp_path):
    with running(torchrun(3, WORKER, tmp_path, "die", HUNG)) as job:
        output, _ = job.communicate(timeout=HUNG)
        assert job.returncode != 0, output
    check_results(read(tmp_path, "rank-*.json", 3), "TorchCommunicator")
    [lost] = read(tmp_path, "lost.json", 1)
    for rank, noticed in enumerate(read(tmp_path, "noticed-*.json", 2)):
        assert noticed["error"].startswith(f"Rank {rank} of 3: allreduce of 1000 float64 failed: no answer from rank")
        assert noticed["at"] - lost["at"] < HUNG / 2  # not only at the timeout


@pytest.mark.usefixtures("needs_torch")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
@pytest.mark.long  # as three do
def test_four_workers_agree_notice_a_hung_one_at_the_timeout_and_die_with_torchrun(tmp_path):
    with running(torchrun(4, WORKER, tmp_path, "hang", HUNG)) as job:
        results = wait_for(lambda: read(tmp_path, "rank-*.json", 4), job)
        check_results(results, "TorchCommunicator")
        closed = wait_for(lambda: read(tmp_path, "closed-*.json", 3), job)
        assert all(one["program_group"] for one in closed)  # only the communicator's own group was destroyed
        [lost] = read(tmp_path, "lost.json", 1)
        for rank, noticed in enumerate(read(tmp_path, "noticed-*.json", 3)):
            assert noticed["error"].startswith(f"Rank {rank} of 4: allreduce of 1000 float64 failed: no answer from")
        assert max(noticed["at"] for noticed in read(tmp_path, "noticed-*.json", 3)) - lost["at"] > 4.5
        pids = [result["pid"] for result in results]
        assert all(alive(pid) for pid in pids)
        job.send_signal(signal.SIGKILL)
        end = time.monotonic() + HUNG
        while left := [pid for pid in pids if alive(pid)]:
            if time.monotonic() > end:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                pytest.fail(f"{len(left)} workers outlived torchrun")
            time.sleep(0.02)


# ---------------------------------------------------------------------- mpirun


@pytest.mark.usefixtures("needs_mpi")
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.long)])
def test_processes_of_mpi_agree(tmp_path, workers):
    with running(mpirun(workers, WORKER, tmp_path, "close", HUNG)) as job:
        output, _ = job.communicate(timeout=HUNG)
        assert job.returncode == 0, output
    check_results(read(tmp_path, "rank-*.json", workers), "MpiCommunicator")


@pytest.mark.usefixtures("needs_mpi")
@pytest.mark.long
def test_an_exception_in_one_process_of_mpi_ends_all(tmp_path):
    with running(mpirun(2, WORKER, tmp_path, "raise", HUNG)) as job:
        output, _ = job.communicate(timeout=HUNG)
        assert job.returncode != 0
        assert "one process fails" in output


# ---------------------------------------------------------------------- which communicator


@pytest.fixture
def bare(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_process_started_by_hand_is_serial(bare):
    assert isinstance(communicator(), SerialCommunicator)
    bare.setenv("RANK", "0")  # alone, it may mean anything
    assert isinstance(communicator(), SerialCommunicator)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kind must be 'auto', 'serial', 'torch' or 'mpi', got 'ray'"):
        communicator("ray")


def test_the_missing_variables_are_named(bare):
    bare.setenv("RANK", "0")
    with pytest.raises(CommunicationError, match="missing: WORLD_SIZE, MASTER_ADDR, MASTER_PORT"):
        communicator("torch")


def test_the_timeout_is_checked_before_anyone_is_called(bare):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        bare.setenv(name, value)
    with pytest.raises(ValueError, match="timeout must be positive"):
        TorchCommunicator.from_environment(timeout=0.0)


def test_without_torch_or_mpi4py_the_error_names_the_extra(bare):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        bare.setenv(name, value)
    for module in ("torch", "torch.distributed", "mpi4py"):  # an earlier test may have imported the submodule
        bare.setitem(sys.modules, module, None)  # what makes an import fail
    with pytest.raises(ImportError, match=r'torch cannot be imported .* pip install "groupdro\[distributed\]"'):
        communicator()
    with pytest.raises(ImportError, match=r'mpi4py cannot be imported .* pip install "groupdro\[mpi\]"'):
        MpiCommunicator()


def test_processes_of_mpi_without_mpi4py_are_warned_that_each_works_alone(bare):
    bare.setattr(importlib.util, "find_spec", lambda name: None)
    bare.setenv("PMI_SIZE", "1")
    assert isinstance(communicator(), SerialCommunicator)
    bare.setenv("PMI_SIZE", "4")
    with pytest.warns(RuntimeWarning, match="4 processes, but each works alone"):
        assert isinstance(communicator(), SerialCommunicator)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_a_worker_whose_launcher_died_before_it_connected_does_not_run_on(tmp_path):
    out = tmp_path / "out"
    worker = (
        "import os, pathlib, time\n"
        "from groupdro.distributed import torch_comm\n"
        f"out = pathlib.Path({str(out)!r})\n"
        "out.with_suffix('.ready').touch()\n"
        "while os.getppid() == torch_comm._PARENT: time.sleep(0.01)\n"
        "try: torch_comm.TorchCommunicator.from_environment()\n"
        "except torch_comm.CommunicationError as error: message = str(error)\n"
        "else: message = 'connected'\n"
        "out.with_suffix('.part').write_text(message)\n"
        "out.with_suffix('.part').rename(out)\n"
    )
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    launcher = (
        "import subprocess, sys, time, pathlib\n"
        f"subprocess.Popen([sys.executable, '-c', {worker!r}])\n"
        f"while not pathlib.Path({str(out)!r}).with_suffix('.ready').exists(): time.sleep(0.01)\n"
    )
    environment = {**os.environ, **variables, "TORCHELASTIC_RUN_ID": "test"}
    subprocess.run([sys.executable, "-c", launcher], env=environment, check=True, timeout=HUNG)
    end = time.monotonic() + HUNG
    while not out.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert "the process that started it" in out.read_text()
    assert "is gone" in out.read_text()
