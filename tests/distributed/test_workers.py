"""The example that users start from, under torchrun and MPI: the model of one process."""

import re
import runpy
import shutil
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import joblib
import numpy as np
import pytest

import groupdro as gd
from tests.distributed.processes import mpirun, run, running, torchrun
from tests.timing import HUNG

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "train_on_many_workers.py")
LAUNCHERS = str(Path(__file__).with_name("launchers.py"))
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
needs_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None or find_spec("mpi4py") is None, reason="mpirun or mpi4py is not installed"
)


def write_small_store(path, n=3000):
    """Write a table of three groups, of which the smallest has a slope of its own."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 8))
    groups = rng.choice(["north", "south", "west"], size=n, p=[0.6, 0.3, 0.1])
    y = np.where(X[:, 0] + (groups == "west") * X[:, 1] + rng.logistic(size=n) > 0, "yes", "no")
    gd.GroupedStore.write_arrays(path, X, y, groups)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("launch") / "store"
    write_small_store(path)
    return str(path)


def train_alone(store):
    """Return the model of one process, which also compiles the kernels for the workers."""
    path = Path(store).with_name("alone.model")
    runpy.run_path(EXAMPLE)["train"](store, str(path))
    return joblib.load(path)


@pytest.fixture(scope="module")
def alone(store):
    return train_alone(store)


def check_same_model(path, alone):
    """Check a model of several workers, which add up in another order, against that of one process."""
    model = joblib.load(path)
    assert model.status_ == "converged"
    assert model.gap_ <= model.tol * model.upper_bound_
    assert model.upper_bound_ == pytest.approx(alone.upper_bound_, rel=model.tol)
    assert model.worst_group_ == alone.worst_group_
    assert list(model.groups_) == list(alone.groups_)
    assert list(model.classes_) == list(alone.classes_)
    np.testing.assert_allclose(model.coef_, alone.coef_, atol=1e-6)
    np.testing.assert_allclose(model.intercept_, alone.intercept_, atol=1e-6)
    return model


def check_two_workers(launcher, folder, **variables):
    """Check that another launcher's two workers work together on the example, and get the model of one process."""
    store = str(folder / "store")
    write_small_store(store)
    alone = train_alone(store)
    code, output = run([sys.executable, LAUNCHERS, launcher, EXAMPLE, store, str(folder)], HUNG, **variables)
    assert code == 0, output
    first, second = ((folder / f"rank-{rank}.txt").read_text() for rank in (0, 1))
    assert "2 workers" in first
    assert second == ""
    model = check_same_model(folder / "model", alone)
    assert [(folder / f"rank-{rank}.coef").read_bytes() for rank in (0, 1)] == [model.coef_.tobytes()] * 2


@needs_torch
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.long)])
def test_workers_of_torchrun_get_the_model_of_one_process(tmp_path, store, alone, workers):
    code, output = run(torchrun(workers, EXAMPLE, store, tmp_path / "model", tmp_path / "checkpoints"), HUNG)
    assert code == 0, output
    assert re.search("converged: worst group '(west|north|south)'", output)  # several tie within the tolerance
    assert output.count(f"{workers} workers") == 1  # only the first worker speaks
    check_same_model(tmp_path / "model", alone)

    # One process resumes from the checkpoint of several.
    epochs = []
    ended = runpy.run_path(EXAMPLE)["train"](
        store, tmp_path / "ended", tmp_path / "checkpoints", callbacks=[lambda row: epochs.append(row.latest.epoch)]
    )
    assert ended.status_ == "converged"
    assert 0 not in epochs


@pytest.mark.long
@needs_torch
def test_two_machines_with_a_worker_each_get_the_model_of_one_process(tmp_path, store, alone):
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--local-addr=127.0.0.1"),
        *("--rdzv-id=visits", "--rdzv-backend=c10d", f"--rdzv-endpoint={place}"),
        *(EXAMPLE, store, str(tmp_path / "model")),
    ]
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with running(command, **variables) as one, running(command, **variables) as other:
        outputs = [job.communicate(timeout=HUNG)[0] for job in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], outputs
    assert "".join(outputs).count("2 workers") == 1
    check_same_model(tmp_path / "model", alone)


@pytest.mark.long
@needs_torch
def test_torchrun_reports_the_error_of_a_script_and_ends_all_workers(tmp_path):
    program = tmp_path / "p.py"
    program.write_text(
        "import numpy as np\n"
        "from groupdro.distributed import communicator\n"
        "with communicator() as comm:\n"
        "    comm.barrier()\n"
        "    if comm.rank == 1:\n"
        "        raise ValueError('a mistake of the script')\n"
        "    comm.allreduce(np.ones(3))\n"
    )
    code, output = run(torchrun(2, program), HUNG)
    assert code == 1
    assert "ValueError: a mistake of the script" in output


@pytest.mark.long
@needs_torch
def test_restarted_workers_do_not_look_for_those_before(tmp_path):
    program = tmp_path / "p.py"
    program.write_text(
        "import os, time\n"
        "from groupdro.distributed import communicator\n"
        "restarted = os.environ['TORCHELASTIC_RESTART_COUNT'] == '1'\n"
        "if restarted and os.environ['RANK'] == '1':\n"
        "    time.sleep(2.0)\n"  # the other one comes first, and must wait
        "with communicator() as comm:\n"
        "    comm.barrier()\n"
        "    if not restarted:\n"
        "        os._exit(1)\n"
        "    print(comm.rank, 'met the other')\n"
    )
    code, output = run(torchrun(2, program, max_restarts=1), HUNG)
    assert code == 0, output
    assert output.count("met the other") == 2


@needs_mpi
def test_two_processes_of_mpi_get_the_model_of_one_process(tmp_path, store, alone):
    code, output = run(mpirun(2, EXAMPLE, store, tmp_path / "model"), HUNG)
    assert code == 0, output
    assert output.count("2 workers") == 1
    check_same_model(tmp_path / "model", alone)
