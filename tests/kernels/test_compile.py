import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import groupdro
from groupdro.kernels.arguments import DenseData
from groupdro.kernels.compile import compiled
from groupdro.kernels.dense import dense_pass
from groupdro.kernels.groups import group_means

SCRIPT = """
import numpy as np, groupdro as gd
from groupdro.kernels.groups import group_means
rng = np.random.default_rng(0)
data = gd.GroupedData.from_arrays(rng.normal(size=(20, 2)), np.sign(rng.normal(size=20)), np.arange(20) % 2)
print(type(group_means._cache).__name__)
problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=1.0))
print(gd.solve(problem, tol=0.1, max_passes=500).converged)
"""


def run(package_root: Path, home: Path, **more: str) -> list[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(package_root), **more}
    command = [sys.executable, "-B", "-W", "error", "-c", SCRIPT]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=home.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def copy_package(to: Path) -> Path:
    shutil.copytree(Path(groupdro.__file__).parent, to / "groupdro", ignore=shutil.ignore_patterns("__pycache__"))
    return to


@pytest.mark.long
def test_import_and_solve_work_where_no_cache_can_be_written(tmp_path):
    root = copy_package(tmp_path / "lib")
    # A file stands where each place of the cache would need a directory, which stops even an administrator.
    (root / "groupdro" / "kernels" / "__pycache__").write_text("")
    (tmp_path / "home").write_text("")
    assert run(root, tmp_path / "home") == ["NullCache", "True"]


@pytest.mark.long
def test_a_full_disk_under_the_cache_does_not_end_a_fit(tmp_path):
    root = copy_package(tmp_path / "lib")
    (tmp_path / "home").mkdir()
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))\n"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "PYTHONPATH": str(root)}
    env["NUMBA_CACHE_DIR"] = str(tmp_path / "cache")
    command = [sys.executable, "-B", "-W", "error", "-c", limit + SCRIPT]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["FunctionCache", "True"], done.stderr
    assert not [path for path in (tmp_path / "cache").rglob("*") if ".tmp." in path.name]


def test_a_compiled_kernel_is_found_in_the_cache():
    arguments = np.ones(4), np.array([0, 4]), np.empty(0, np.int64), np.empty(0), np.empty(1)
    group_means(*arguments)
    again = compiled(group_means.py_func)  # which knows nothing but the files
    again(*arguments)
    assert sum(again.stats.cache_hits.values()) == 1
    assert not again.stats.cache_misses


@pytest.mark.long
def test_a_later_process_finds_the_compiled_kernels(tmp_path):
    root, cache = Path(groupdro.__file__).parents[1], tmp_path / "cache"
    (tmp_path / "home").mkdir()
    first = run(root, tmp_path / "home", NUMBA_CACHE_DIR=str(cache))
    kept = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb*")}
    assert first == ["FunctionCache", "True"]
    assert kept
    assert run(root, tmp_path / "home", NUMBA_CACHE_DIR=str(cache)) == first
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb*")} == kept


def test_rows_of_two_types_in_turn_reach_the_kernel_of_their_own():
    """Numba 0.60 mistook the type of a named tuple for that of another that had lain at its place in memory."""
    for k in range(400):
        X = np.full((30, 2), 0.5, dtype=(np.float64, np.float32)[k % 2])
        rest = np.ones(30), np.ones(30), np.arange(30), np.zeros(30), np.zeros(30)
        data, intercept = DenseData(X, np.ones(30), np.empty(0), 1, (0.0, 0.0), k % 3 == 0), int(k % 3 == 0)
        gradient = np.zeros(2 + intercept)
        dense_pass(data, np.ones(2 + intercept), *rest, gradient, np.empty((2, 4)))
        np.testing.assert_allclose(gradient[:2], 15.0 * intercept)
