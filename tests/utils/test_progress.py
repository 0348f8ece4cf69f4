"""Progress is told after five seconds, with an estimate of the time left, and only if asked for."""

import re

import numpy as np
import pytest

from groupdro import Predictions, compare, find_groups, group_report
from groupdro.utils import progress
from groupdro.utils.progress import Steps, shows_progress

RNG = np.random.default_rng(0)
N = 400
X = RNG.normal(size=(N, 2))
GROUPS = RNG.choice(["a", "b", "c"], N)
Y = (X[:, 0] + RNG.logistic(size=N) > 0).astype(int)
LINE = re.compile(r"^(.+): (\d+)%, about (\d+) (s|min) left$", re.MULTILINE)


class Clock:
    """A clock that goes on by a second whenever it is read."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", Clock(6.0))


@shows_progress
def work(n, *, verbose=False):
    steps = Steps("working", n)
    for _ in range(n):
        steps.done()
    return n


def test_the_time_left_is_that_of_the_steps_that_are_left(slow, capsys):
    assert work(4, verbose=True) == 4
    assert capsys.readouterr().out == (
        "working: 25%, about 18 s left\nworking: 50%, about 12 s left\nworking: 75%, about 6 s left\n"
    )
    assert work(100, verbose=True) == 100
    assert "working: 1%, about 10 min left" in capsys.readouterr().out
    work(4)
    assert capsys.readouterr().out == ""


def test_what_takes_less_than_five_seconds_says_nothing(monkeypatch, capsys):
    monkeypatch.setattr(progress.time, "monotonic", Clock(0.5))
    work(8, verbose=True)
    assert capsys.readouterr().out == ""


def test_verbose_must_be_a_truth_value():
    with pytest.raises((TypeError, ValueError), match="verbose"):
        work(1, verbose="yes")


@pytest.mark.parametrize("verbose", [False, True])
def test_a_report_tells_its_progress_only_if_asked(slow, capsys, verbose):
    p = 1 / (1 + np.exp(-X[:, 0]))
    group_report(Predictions(probability=p), y=Y, groups=GROUPS, metrics="roc_auc", n_bootstrap=50, verbose=verbose)
    lines = LINE.findall(capsys.readouterr().out)
    assert bool(lines) == verbose
    assert all(line[0] == "50 resamples of 3 groups" for line in lines)
    shares = [int(line[1]) for line in lines]
    assert shares == sorted(shares)


def test_a_search_tells_its_progress(slow, capsys):
    p = 1 / (1 + np.exp(-X[:, 0]))
    find_groups(Predictions(probability=p), y=Y, columns=X, n_bootstrap=50, verbose=True)
    out = capsys.readouterr().out
    assert "conditions on 2 columns" in out
    assert any(line[0] == "searching" for line in LINE.findall(out))


def test_a_comparison_tells_its_progress(slow, capsys):
    compare(X, Y, GROUPS, cv=2, n_bootstrap=50, verbose=True)
    out = capsys.readouterr().out
    assert "ERM: fitted in" in out
    fits = [int(line[1]) for line in LINE.findall(out) if line[0] == "fitting"]
    assert fits == sorted(fits)
    assert fits[0] < 20  # the search takes longer than each of the others
    compare(X, Y, GROUPS, cv=2, n_bootstrap=50)
    assert capsys.readouterr().out == ""
