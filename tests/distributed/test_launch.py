"""`groupdro launch`, and MPI, on the example that users start from: the model of one process."""

import json
import os
import re
import runpy
import shutil
import signal
import socket
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import joblib
import numpy as np
import pytest

import groupdro as gd
from groupdro import cli
from groupdro.distributed import run as run_file
from groupdro.distributed.launch import launch, launch_command, launch_environment
from tests.distributed.test_communicators import running
from tests.timing import HUNG

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "train_on_many_workers.py")
LAUNCHERS = str(Path(__file__).with_name("launchers.py"))
COMMAND = [str(Path(sys.executable).with_name("groupdro")), "launch"]
needs_click = pytest.mark.skipif(find_spec("click") is None, reason="click is not installed")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
needs_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None or find_spec("mpi4py") is None, reason="mpirun or mpi4py is not installed"
)
# Workers of a job that was broken off and goes on: in its first life, the first worker dies before it saves epoch 2.
LOSES_A_WORKER = """
import json, os, pathlib, runpy, signal, sys

example, store, model_file, checkpoints, seen = sys.argv[1:]
life = os.environ["TORCHELASTIC_RESTART_COUNT"]
epochs = []


def note(progress):
    epochs.append(progress.latest.epoch)
    if os.environ["RANK"] == "0":
        pathlib.Path(seen, life).write_text(json.dumps(epochs))
        if life == "0" and epochs[-1] == 1:
            os.kill(os.getpid(), signal.SIGKILL)


runpy.run_path(example)["train"](store, model_file, checkpoints, callbacks=[note])
"""


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


def run(command, **variables):
    """Run a command that ends by itself, and return its exit code and what it printed."""
    with running(command, **variables) as job:
        output, _ = job.communicate(timeout=HUNG)
    return job.returncode, output


def run_workers_of(script, *arguments, workers, max_restarts=0):
    """Run what `groupdro launch` becomes, without its own start."""
    command = launch_command(script, [str(one) for one in arguments], workers=workers, max_restarts=max_restarts)
    return run(command, **launch_environment({}, workers=workers))


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


def bits(model):
    """Return everything that a fit found, but for the time that it took."""
    found = {name: value for name, value in vars(model).items() if name.endswith("_") and name != "trace_"}
    arrays = {name: value.tobytes() if isinstance(value, np.ndarray) else value for name, value in found.items()}
    return arrays | {"trace_": [replace(row, seconds=0.0) for row in model.trace_]}


def check_two_workers(launcher, folder, **variables):
    """Check that another launcher's two workers work together on the example, and get the model of one process."""
    store = str(folder / "store")
    write_small_store(store)
    alone = train_alone(store)
    code, output = run([sys.executable, LAUNCHERS, launcher, EXAMPLE, store, str(folder)], **variables)
    assert code == 0, output
    first, second = ((folder / f"rank-{rank}.txt").read_text() for rank in (0, 1))
    assert "2 workers" in first
    assert second == ""
    model = check_same_model(folder / "model", alone)
    assert [(folder / f"rank-{rank}.coef").read_bytes() for rank in (0, 1)] == [model.coef_.tobytes()] * 2


# ---------------------------------------------------------------------- as users run it


@needs_click
def test_the_help_names_every_option():
    code, output = run([*COMMAND, "--help"])
    assert code == 0
    assert re.findall(r"^  (--[a-z-]+)", output, re.M) == [
        "--workers", "--nodes", "--rendezvous", "--address", "--interface", "--job", "--max-restarts",
    ]  # fmt: skip


@needs_click
@needs_torch
def test_a_bad_option_ends_with_a_message_and_without_a_traceback():
    code, output = run([*COMMAND, "--workers", "0", EXAMPLE])
    assert (code, output) == (1, "Error: workers must be a whole number from 1, got 0.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "Missing argument 'SCRIPT'"),
        (["missing.py"], 2, "File 'missing.py' does not exist"),
        (["--workers", "two", EXAMPLE], 2, "'two' is not a valid integer"),
        (["--nodes", "2:1", EXAMPLE], 1, "nodes must be a number or least:most, got '2:1'"),
        (["--rendezvous", "here", EXAMPLE], 1, "rendezvous must be host:port, got 'here'"),
    ],
)
@needs_click
def test_what_is_wrong_is_said(arguments, code, message):
    from click.testing import CliRunner

    result = CliRunner().invoke(cli._commands, ["launch", *arguments])
    assert (result.exit_code, type(result.exception)) == (code, SystemExit)
    assert message in result.output


@needs_click
@needs_torch
def test_two_workers_get_the_model_of_one_process_and_the_same_bits_after_a_loss(tmp_path, store, alone):
    whole = tmp_path / "whole.model"
    code, output = run([*COMMAND, "--workers", "2", EXAMPLE, store, str(whole)])
    assert code == 0, output
    assert re.search("converged: worst group '(west|north|south|east)'", output)  # several tie within the tolerance
    assert output.count("2 workers") == 1  # only the first worker speaks
    model = check_same_model(whole, alone)

    program, resumed, checkpoints, lives = (
        tmp_path / name for name in ("p.py", "resumed.model", "checkpoints", "lives")
    )
    program.write_text(LOSES_A_WORKER)
    lives.mkdir()
    arguments = (EXAMPLE, store, resumed, checkpoints, lives)
    code, output = run_workers_of(str(program), *arguments, workers=2, max_restarts=1)
    assert code == 0, output
    assert json.loads((lives / "0").read_text()) == [0, 1]
    assert json.loads((lives / "1").read_text()) == [2]
    again = joblib.load(resumed)
    assert bits(again) == bits(model)

    # The end of a job is a checkpoint too, whoever reads it: nothing is left to do for one process.
    runpy.run_path(EXAMPLE)["train"](store, str(tmp_path / "ended.model"), str(checkpoints))
    ended = joblib.load(tmp_path / "ended.model")
    assert [row.seconds for row in ended.trace_] == [row.seconds for row in again.trace_]
    # Only what is done with the slack of the tolerance is computed anew, by one process in place of two.
    np.testing.assert_allclose(ended.coef_, again.coef_, rtol=1e-6)


RAISES = """
import os, pathlib, sys

pathlib.Path(sys.argv[1], f"run-{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['RANK']}").touch()
if sys.argv[2] == "at once":
    raise ValueError("a mistake of the script")
import numpy as np
from groupdro.distributed import communicator

with communicator() as comm:
    comm.barrier()
    if comm.rank == 1:
        raise ValueError("a mistake of the script")
    comm.allreduce(np.ones(3))
"""


@needs_torch
@pytest.mark.parametrize("when", ["at once", pytest.param("connected", marks=pytest.mark.long)])
def test_a_script_that_raises_is_not_started_again(tmp_path, when):
    program = tmp_path / "p.py"
    program.write_text(RAISES)
    runs = tmp_path / "runs"
    runs.mkdir()
    code, output = run_workers_of(str(program), runs, when, workers=2, max_restarts=3)
    assert code == 1
    assert "ValueError: a mistake of the script" in output
    assert "The script failed with an error of its own and is not restarted." in output
    assert {path.name for path in runs.iterdir()} <= {"run-0-0", "run-0-1"}
    assert list(runs.iterdir())


@needs_click
@needs_torch
def test_an_interrupt_ends_all_workers_with_its_exit_code_and_no_traceback(tmp_path):
    program = tmp_path / "p.py"
    program.write_text(
        "import os, pathlib, sys, time\n"
        "pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    pids = tmp_path / "pids"
    pids.mkdir()
    with running([*COMMAND, "--workers", "2", str(program), str(pids)]) as job:
        end = time.monotonic() + HUNG
        while len([path for path in pids.iterdir() if path.read_text()]) < 2:
            assert job.poll() is None, job.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.05)
        job.send_signal(signal.SIGINT)  # workers have sessions of their own, which a terminal does not reach
        output, _ = job.communicate(timeout=HUNG)
    assert job.returncode == 130, output
    assert "Traceback" not in output
    assert output.endswith("Interrupted: all workers were ended.\n")
    for path in pids.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)


@pytest.mark.long
@needs_torch
def test_a_port_that_another_program_holds_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        place = f"127.0.0.1:{stranger.getsockname()[1]}"
        command = launch_command(EXAMPLE, rendezvous=place)
        code, output = run(command, **launch_environment({}, rendezvous=place))
    assert (code, output) == (
        1,
        f"Error: the rendezvous {place} is held by another program, which does not answer like torchrun: use "
        "another port.\n",
    )


@needs_torch
def test_a_store_of_torch_at_the_rendezvous_is_no_stranger():
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert not run_file._held_by_another_program(f"127.0.0.1:{store.port}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    assert not run_file._held_by_another_program(place)  # nobody is there yet
    assert not run_file._held_by_another_program("127.0.0.1:0")


@pytest.mark.long
@needs_torch
def test_three_workers_get_the_model_of_one_process(tmp_path, store, alone):
    code, output = run_workers_of(EXAMPLE, store, tmp_path / "model", workers=3)
    assert code == 0, output
    assert output.count("3 workers") == 1
    check_same_model(tmp_path / "model", alone)


@needs_mpi
def test_two_processes_of_mpi_get_the_model_of_one_process(tmp_path, store, alone):
    command = [
        "mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "oob_tcp_if_include", "lo",
        "--mca", "btl_tcp_if_include", "lo", "-n", "2",
        sys.executable, "-m", "mpi4py", EXAMPLE, store, str(tmp_path / "model"),
    ]  # fmt: skip
    code, output = run(command, OMP_NUM_THREADS="1")
    assert code == 0, output
    assert output.count("2 workers") == 1
    check_same_model(tmp_path / "model", alone)


# ---------------------------------------------------------------------- the command of torchrun


def test_one_node_stays_on_the_loopback():
    command = launch_command(EXAMPLE, ["a", "--b"], workers=2)
    assert command[:2] == [sys.executable, run_file.__file__]
    assert command[-3:] == [EXAMPLE, "a", "--b"]
    assert set(command[2:-3]) == {
        "--nnodes=1", "--nproc-per-node=2", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0",
        "--local-addr=127.0.0.1",
    }  # fmt: skip


def test_several_nodes_meet_where_they_are_told():
    command = launch_command(EXAMPLE, nodes="1:4", rendezvous="head:29400", job="night", max_restarts=0)
    assert {"--nnodes=1:4", "--rdzv-endpoint=head:29400", "--rdzv-id=night", "--max-restarts=0"} <= set(command)
    assert not any(part.startswith("--local-addr") for part in command)  # torchrun asks the host's name
    assert "--local-addr=10.0.0.7" in launch_command(EXAMPLE, rendezvous="head:29400", address="10.0.0.7")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"workers": 0}, "workers must be a whole number from 1, got 0"),
        ({"max_restarts": -1}, "max_restarts must be a whole number from 0, got -1"),
        *(
            ({"nodes": nodes}, "nodes must be a number or least:most")
            for nodes in ("0", "2:1", "2:", ":2", "x", "-1", "")
        ),
        *(({"rendezvous": place}, "rendezvous must be host:port") for place in ("head", ":29400", "head:", "head:x")),
        ({"nodes": "2"}, "a port that all nodes know, got '127.0.0.1:0' for nodes '2'"),
        ({"nodes": "1:2", "rendezvous": "head:0"}, "a port that all nodes know"),
    ],
)
def test_options_are_checked(options, match):
    with pytest.raises(ValueError, match=match):
        launch_command(EXAMPLE, **options)


def test_a_script_must_be_a_file(tmp_path):
    with pytest.raises(ValueError, match="is not a file"):
        launch_command(str(tmp_path))


# ---------------------------------------------------------------------- its variables


def test_workers_share_the_cores_unless_the_user_divided_them(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    assert launch_environment({}, workers=2)["OMP_NUM_THREADS"] == "3"
    assert launch_environment({}, workers=4)["OMP_NUM_THREADS"] == "1"
    assert launch_environment({}, workers=8)["OMP_NUM_THREADS"] == "1"
    assert launch_environment({"OMP_NUM_THREADS": "5"}, workers=2)["OMP_NUM_THREADS"] == "5"


def test_numbers_stay_on_the_loopback_with_the_rendezvous(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    assert launch_environment({})["GLOO_SOCKET_IFNAME"] == "lo"
    assert launch_environment({}, rendezvous="localhost:29400")["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in launch_environment({}, rendezvous="head:29400")
    assert launch_environment({}, rendezvous="head:29400", interface="eth1")["GLOO_SOCKET_IFNAME"] == "eth1"
    assert launch_environment({"GLOO_SOCKET_IFNAME": "ib0"}, rendezvous="head:1")["GLOO_SOCKET_IFNAME"] == "ib0"


def test_losses_are_survived_and_the_rest_of_the_environment_is_kept():
    given = {"HOME": "/somewhere", "TORCH_GLOO_LAZY_INIT": "1"}
    found = launch_environment(given)
    assert found["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert found["HOME"] == "/somewhere"
    assert "TORCH_GLOO_LAZY_INIT" not in found
    assert given == {"HOME": "/somewhere", "TORCH_GLOO_LAZY_INIT": "1"}


@needs_torch
def test_the_process_becomes_torchrun(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call))
    launch(EXAMPLE, ["store"], workers=2, interface="eth1")
    [(program, command, environment)] = calls
    assert (program, command) == (sys.executable, launch_command(EXAMPLE, ["store"], workers=2))
    assert environment["GLOO_SOCKET_IFNAME"] == "eth1"


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # what makes an import fail
    monkeypatch.setitem(sys.modules, "torch.distributed.run", None)
    with pytest.raises(ImportError, match=r'pip install "groupdro\[distributed\]"'):
        launch(EXAMPLE)
