"""The checks of odd shapes fail where the package is broken on purpose."""

import numpy as np
import pytest

from groupdro.certificate import Certificate
from groupdro.run import ending
from tests.campaign.broken import believe_every_gap
from tests.campaign.part_shapes import ODD, SEPARABLE, draw_separable, judge, judge_separable, run_odd, run_separable

SMALL = [name for name in ODD if name not in ("a million rows to one", "a hundred thousand groups")]


@pytest.mark.parametrize("number", range(len(SEPARABLE)), ids=SEPARABLE)
def test_separable_groups_that_are_not_named_are_found(number, monkeypatch):
    assert judge_separable(number).wrong == []
    monkeypatch.setattr(ending, "has_separating_direction", lambda problem, q: False)
    monkeypatch.setattr("groupdro.run.run.is_separated", lambda problem, w, outputs: False)
    assert "not named" in " ".join(judge_separable(number).wrong)


def test_a_lower_bound_that_the_direction_refutes_is_found(monkeypatch):
    monkeypatch.setattr(Certificate, "_raise", lambda self, lower, q: setattr(self, "lower", 0.5))
    monkeypatch.setattr(Certificate, "withdraw", lambda self: None)
    tally = run_separable(1, 0, 1)
    found = " ".join(tally.failures)
    assert "lower bound 0.5 is above" in found or "numerical_failure" in found  # bounds that contradict each other


def test_what_is_raised_is_a_failure(monkeypatch):
    monkeypatch.setattr(Certificate, "observe", lambda self, at: 1 / 0)
    assert "ZeroDivisionError" in judge_separable(0).wrong[0]


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_a_false_converged_is_found_in_every_shape(name, monkeypatch):
    believe_every_gap(monkeypatch)
    found = [judge((name, k)).wrong for k in range(4)]
    assert any("converged" in " ".join(wrong) for wrong in found)


@pytest.mark.parametrize("name", ["a million rows to one", "a hundred thousand groups"])
def test_a_lower_bound_that_is_too_high_is_found_in_large_shapes(name, monkeypatch):
    raise_to = Certificate._raise
    monkeypatch.setattr(Certificate, "_raise", lambda self, lower, q: raise_to(self, lower * 1.05, q))
    assert "lower bound" in " ".join(judge((name, 0), share=0.005).wrong)


def test_shapes_are_what_they_say():
    def draw(name, **more):
        return ODD[name](np.random.default_rng(0), **more)

    assert len(set(draw("one class in a group").y[draw("one class in a group").groups == 0])) == 1
    assert 1 in np.bincount(draw("groups of one row").groups)
    assert len(np.unique(draw("every row a group").groups)) == len(draw("every row a group").y)
    inside = draw("a group in another").groups
    assert (inside[:, 0] <= inside[:, 1]).all()
    assert (np.ptp(draw("identical rows").X, axis=0) == 0).all()
    assert draw("a single row").X.shape[0] == 1
    assert np.ptp(draw("a constant feature").X) == 0
    assert np.bincount(draw("a million rows to one").groups).tolist() == [1_000_000, 1]
    assert draw("a hundred thousand groups").groups.max() == 99_999


@pytest.mark.parametrize("number", range(0, 60, 7))
def test_the_direction_of_separable_groups_helps_every_group(number):
    X, y, groups, direction, _ = draw_separable(number)
    X = np.asarray(X.todense() if hasattr(X, "todense") else X, dtype=np.float64)
    outputs = X @ direction[: X.shape[1]] + (direction[-1] if len(direction) > X.shape[1] else 0.0)
    if direction.ndim == 1:
        margins = (2 * y - 1) * outputs
    else:
        own = outputs[np.arange(len(y)), y]
        margins = own - np.where(np.arange(3) == y[:, None], -np.inf, outputs).max(axis=1)
    assert margins.min() >= -1e-6  # of rows in float32
    assert all(margins[groups == i].max() > 0.01 for i in np.unique(groups))


def test_a_check_counts_what_it_tried():
    tally = run_odd(2, 0, 1, name="a single row")
    assert tally.tried == 2
    assert tally.failures == []
