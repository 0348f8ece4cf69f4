"""The checks of what the package may run notice what they are there to notice."""

import json
import os
import pickle
import subprocess
import sys

import pytest

from tests.campaign import part_supply


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import marshal as m",
        "from pickle import loads",
        "from joblib import load",
        "import numpy as np; np.load('x')",
        "import numpy as np; np.save('x', y, allow_pickle=True)",
        "from numpy.lib import format as npy; npy.read_array(f)",
        "import torch; torch.load('x')",
        "eval('1')",
        "exec(text)",
        "__import__(name)",
        "import ast; ast.literal_eval(text)",
        "import importlib; importlib.import_module(name)",
        "def f():\n    import shelve",
    ],
)
def test_code_in_a_source_is_found(source):
    assert list(part_supply.code_in(source))


@pytest.mark.parametrize("source", ["import re; re.compile('x')", "x = 'import pickle'", "f(allow_pickle=False)"])
def test_what_is_no_code_is_not_found(source):
    assert not list(part_supply.code_in(source))


def test_a_module_that_reads_pickles_is_a_failure(tmp_path, monkeypatch):
    (tmp_path / "loader.py").write_text("import pickle\n")
    monkeypatch.setattr(part_supply, "ROOT", tmp_path)
    monkeypatch.setattr(part_supply, "ALLOWED", {("gone.py", "eval"): "it was there once"})
    assert part_supply.no_code_in_source(1, 0, 1).failures == [
        "loader.py: import pickle",
        "gone.py: eval is allowed and no longer there",
    ]


BROKEN = """
import json, pickle, subprocess, numpy as np
from pathlib import Path
from tests.campaign import part_supply as p

def by(deed):
    def load(folder):
        with p._listening():
            deed(folder)
    return load

p.LOADERS = {
    "pickle": by(lambda folder: pickle.loads(pickle.dumps(np.ones(1)))),
    "exec": by(lambda folder: exec("1")),
    "process": by(lambda folder: subprocess.run(["true"])),
    "write": by(lambda folder: Path(folder, "x").write_text("x")),
    "fine": by(lambda folder: folder.exists()),
}
print(json.dumps(p.heard_while_loading()))
"""


@pytest.mark.long
def test_a_loader_that_runs_code_or_writes_is_heard():
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=True)
    heard = json.loads(done.stdout)
    assert "pickle.find_class" in str(heard["pickle"])
    assert "exec" in str(heard["exec"])
    assert "subprocess.Popen" in str(heard["process"])
    assert "write to" in str(heard["write"])
    assert not heard["fine"]


@pytest.mark.filterwarnings("ignore")  # files that a hostile pickle opened are not closed
def test_a_reader_that_lets_all_pickles_in_is_a_failure(monkeypatch):
    import benchmarks.real_data

    monkeypatch.setattr(benchmarks.real_data, "_ArraysOnly", pickle.Unpickler)
    failures = part_supply.image_pickles(1, 0, 1).failures
    assert any("it was run" in failure for failure in failures)


def test_another_requirement_is_a_failure(monkeypatch):
    lines = [
        "numpy>=1.26",
        "scipy",
        "scikit-learn>=1.6.1",
        "numba",
        "narwhals",
        "threadpoolctl",
        'torch>=2; extra == "torch"',
    ]
    assert part_supply.core_requirements(lines) == part_supply.REQUIREMENTS
    monkeypatch.setattr(part_supply.importlib.metadata, "requires", lambda name: [*lines, "requests (>=2)"])
    monkeypatch.setattr(part_supply, "_OTHERS", {"narwhals", *part_supply._OTHERS})
    first, second = part_supply.six_requirements(2, 0, 1).failures
    assert "requests" in first
    assert "no narwhals" in second


def test_nothing_is_run_while_pickles_are_made(tmp_path):
    assert len(list(part_supply._hostile_pickles(os.fspath(tmp_path / "canary")))) > 50
    assert not list(tmp_path.iterdir())
