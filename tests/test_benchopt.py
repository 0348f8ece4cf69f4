import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.timing import HUNG

pytest.importorskip("benchopt")
pd = pytest.importorskip("pandas")
ROOT = Path(__file__).parents[1]
CURVES = {"gdro": 12, "mero": 8}  # the package dro is too heavy to be there


@pytest.fixture
def benchmark(tmp_path, request):
    """A copy of a benchmark, so that nothing is written into the tree."""
    name = request.param
    shutil.copytree(
        ROOT / "benchmarks",
        tmp_path / "benchmarks",
        ignore=shutil.ignore_patterns("outputs", "__cache__", "__pycache__"),
    )
    return name, tmp_path / "benchmarks" / name


def run(*arguments, cwd):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("GROUPDRO_CIFAR", None)
    command = [sys.executable, "-m", "benchopt", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=HUNG, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("benchmark", ["gdro", "mero"], indirect=True)
def test_the_smoke_run_writes_a_curve_of_every_solver(benchmark):
    name, folder = benchmark
    run("run", folder, "--config", folder / "smoke.yml", cwd=folder.parent)
    (table,) = (folder / "outputs").glob("*.parquet")
    curves = pd.read_parquet(table)
    assert curves["solver_name"].nunique() == CURVES[name]
    assert curves["objective_worst_train"].notna().all()
    assert curves["objective_worst_test"].notna().all()
    own = curves[curves["objective_certified_gap"].notna()]
    assert (own["objective_certified_gap"] >= 0).all()
    assert (own.groupby("solver_name")["objective_grad_evals"].max() > 0).all()
    first, last = (getattr(curves.groupby("solver_name")["objective_worst_train"], end)() for end in ("first", "last"))
    assert (last <= first + 0.05).all()


@pytest.mark.long  # every solver again, on benchopt's own small problem
@pytest.mark.parametrize("benchmark", ["gdro", "mero"], indirect=True)
def test_benchopts_own_tests_pass(benchmark):
    _, folder = benchmark
    assert " passed" in run("test", folder, "--skip-install", "-p", "no:xdist", cwd=folder.parent)
