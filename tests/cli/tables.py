"""The command as a user runs it, and tables of predictions."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from groupdro import cli
from tests.timing import HUNG

testing = pytest.importorskip("click.testing")

COMMAND = str(Path(sys.executable).with_name("groupdro"))


def predictions(n=1800, seed=0):
    """Return a table of labels, of predictions of every kind, and of groups, weights and clusters."""
    rng = np.random.default_rng(seed)
    risk, site = rng.normal(size=n), rng.choice(["north", "south", "west"], n)
    p = 1 / (1 + np.exp(-risk))
    y = (rng.random(n) < np.where(site == "west", p**3, p)).astype(int)
    three = rng.dirichlet([2.0, 3.0, 4.0], n)
    exposure = rng.uniform(0.2, 2.0, n)
    mu = np.exp(0.4 * risk)
    return pd.DataFrame(
        {
            "y": y,
            "p": p,
            "logit": risk,
            "class": (p > 0.4).astype(int),
            "word": np.array(["bad", "good"])[y],
            "level": np.array(["high", "low", "mid"])[[rng.choice(3, p=row) for row in three]],
            **dict(zip(("p_high", "p_low", "p_mid"), three.T, strict=True)),
            "claims": rng.poisson(mu * exposure),
            "rate": mu,
            "exposure": exposure,
            "amount": risk + rng.normal(size=n),
            "upper": risk + 1.3,
            "site": site,
            "sex": rng.choice(["f", "m"], n),
            "age": rng.integers(18, 90, n),
            "weight": np.where(rng.random(n) < 0.1, 0.0, rng.exponential(size=n)),
            "patient": rng.integers(0, n // 3, n),
        }
    )


def call(*arguments, code=0):
    """Run a command in this process, and return what it printed."""
    result = testing.CliRunner().invoke(cli._commands, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


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
