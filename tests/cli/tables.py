"""Small tables of public data, and the command as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.timing import HUNG

COMMAND = str(Path(sys.executable).with_name("groupdro"))
BIKE = ["--target", "cnt", "--group", "hr"]
BIKE += [part for name in ("instant", "dteday", "casual", "registered") for part in ("--drop", name)]


def public(name, n_rows=None):
    """Return the first rows of a public table as pandas reads it."""
    pd = pytest.importorskip("pandas")
    folder = os.environ.get("GROUPDRO_DATA")
    path = Path(folder or "", "tabular", f"{name}.csv.gz")
    if not folder or not path.exists():
        pytest.skip(f"{name}.csv.gz is not in the folder that GROUPDRO_DATA names")
    return pd.read_csv(path, nrows=n_rows)


def run(*arguments, cwd, code=0):
    """Run `groupdro` in a process of its own, and return what it printed."""
    done = subprocess.run(
        [COMMAND, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False, timeout=HUNG
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def left_over(folder):
    """Return files that a command should not have left."""
    return [path.name for path in Path(folder).iterdir() if path.name.startswith(".")]
