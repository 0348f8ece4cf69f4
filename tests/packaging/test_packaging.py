"""What is installed, and what importing it costs."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib import import_module

import pytest

from groupdro.version import __version__
from tests.packaging.first_time import ROOT, install, main

OPTIONAL = (
    "click", "rich", "pandas", "matplotlib", "torch", "pyarrow", "mpi4py", "ray", "pyspark", "skl2onnx", "cvxpy",
    "groupdro.cli",
)  # fmt: skip


def test_the_wheel_has_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = wheel.namelist()
    kinds = (".py", ".typed", ".html", ".css")
    found = (path for path in (ROOT / "src" / "groupdro").rglob("*") if path.suffix in kinds)
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == {str(path.relative_to(ROOT / "src")) for path in found}
    assert "groupdro/py.typed" in inside


def test_the_core_needs_six_packages_and_extras_are_named(built):
    with zipfile.ZipFile(built[0]) as wheel:
        [metadata] = [name for name in wheel.namelist() if name.endswith("METADATA")]
        about = Parser().parsestr(wheel.read(metadata).decode())
    needs = [line for line in about.get_all("Requires-Dist") if "extra ==" not in line]
    assert sorted(re.match(r"[\w-]+", line)[0] for line in needs) == [
        "narwhals", "numba", "numpy", "scikit-learn", "scipy", "threadpoolctl",
    ]  # fmt: skip
    assert set(about.get_all("Provides-Extra")) >= {"cli", "plot", "torch", "store", "distributed", "docs", "test"}
    assert about["License-Expression"] == "BSD-3-Clause"


def test_the_source_distribution_can_be_tested(built):
    with tarfile.open(built[1]) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py", "constraints.txt"} <= names
    assert {"SECURITY.md", "CODE_OF_CONDUCT.md", "RELEASING.md", "CITATION.cff", "tests/core.txt"} <= names
    data = [name for name in names if name.endswith((".csv.gz", ".parquet", ".npz"))]
    assert all(name.startswith("benchmarks/results/") for name in data)


def test_importing_costs_little_of_our_own_and_loads_nothing_optional():
    # In CPU time of the modules themselves, relative to that of what they need, so that no machine counts.
    script = (
        "import sys, time\n"
        "first = time.process_time()\n"
        "import numpy, scipy.optimize, scipy.sparse.linalg, scipy.stats, sklearn.base, sklearn.model_selection\n"
        "import sklearn.metrics, sklearn.pipeline, sklearn.linear_model, sklearn.preprocessing\n"
        "import numba, narwhals.stable.v1\n"
        "before = set(sys.modules)\n"
        "begun = time.process_time()\n"
        "import groupdro, groupdro.distributed\n"
        "print((time.process_time() - begun) / (begun - first))\n"
        f"print([name for name in {OPTIONAL!r} if name in set(sys.modules) - before])\n"
    )
    best = 9.0
    for _ in range(3):
        command = [sys.executable, "-W", "error", "-c", script]
        share, loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert loaded == "[]"
        best = min(best, float(share))
        if best < 0.4:
            break
    assert best < 0.4


def test_networks_without_torch_name_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("groupdro.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)  # what makes an import fail
    with pytest.raises(ImportError, match=r'pip install "groupdro\[torch\]"'):
        import_module("groupdro.torch")


def test_the_conda_recipe_has_the_version_and_the_requirements_of_the_project():
    recipe = pytest.importorskip("yaml").safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert recipe["context"]["version"] == __version__
    assert recipe["about"]["summary"] == project["project"]["description"]
    needs = {
        section: [line.replace(" ", "") for line in recipe["requirements"][section]] for section in ("host", "run")
    }
    assert needs["run"] == ["python>=${{python_min}}", *project["project"]["dependencies"]]
    assert needs["host"][2:] == project["build-system"]["requires"]


def test_the_constraints_are_a_part_of_the_lock_file():
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    locked = {f"{package['name']}=={package.get('version')}" for package in lock["package"]}  # groupdro has none
    assert set((ROOT / "constraints.txt").read_text().splitlines()) <= locked
    assert {package["source"].get("registry", "") for package in lock["package"]} == {"https://pypi.org/simple", ""}


@pytest.mark.long
def test_a_newcomer_gets_from_nothing_to_results(capsys):
    main()
    assert "from nothing to all results" in capsys.readouterr().out


@pytest.mark.long
def test_the_unpacked_source_distribution_passes_its_tests(built, tmp_path):
    with tarfile.open(built[1]) as sdist:
        sdist.extractall(tmp_path, filter="data")
    [tree] = tmp_path.iterdir()
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    tests = ["test_layers.py", "test_geometry.py"]
    for command in (["tests/packaging/smoke.py"], ["-m", "pytest", "-q", *(f"tests/{name}" for name in tests)]):
        call = [sys.executable, *command]
        done = subprocess.run(call, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_the_command_says_what_it_lacks(built, tmp_path):
    python = install(built[0], tmp_path / "environment")
    done = subprocess.run([python.with_name("groupdro"), "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'pip install "groupdro[cli]"' in done.stderr
