"""The checks of ugly scales fail where the package is broken on purpose."""

import numpy as np
import pytest

import groupdro as gd
from groupdro import GroupDRORegressor
from groupdro.certificate import Certificate
from groupdro.problem import L2Domain
from tests.campaign import part_scales
from tests.campaign.broken import believe_every_gap
from tests.campaign.part_scales import KINDS, Drawn, draw_case, judge_fit, run

HONEST = {
    "objective": "risk",
    "alpha": 1e-2,
    "radius": None,
    "fit_intercept": True,
    "solver": "auto",
    "tol": 1e-4,
    "max_passes": 300.0,
    "max_time": 3.0,
}


def regression(**parameters):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)) * [1e6, 1e-6]
    y = X @ [1e-6, 1e6] + rng.normal(size=60)
    return Drawn(X, y, np.arange(60) % 3, "squared", {**HONEST, **parameters})


def nearly_the_same_columns():
    drawn = regression(alpha=0.0, solver="sqp")  # auto begins with the best model
    x, z = np.random.default_rng(1).normal(size=(2, 60))
    drawn.X, drawn.y = np.column_stack([x, x + 1e-6 * z]), z
    return drawn


def wrong_of(drawn):
    return " ".join(judge_fit(("test", 0), drawn).wrong)


@pytest.mark.parametrize("through_solve", [False, True])
@pytest.mark.parametrize("objective", ["risk", "excess_risk"])
def test_an_honest_fit_passes(objective, through_solve):
    drawn = regression(objective=objective)
    drawn.through_solve = through_solve
    assert wrong_of(drawn) == ""


def test_a_false_converged_is_found(monkeypatch):
    believe_every_gap(monkeypatch)
    drawn = regression()
    drawn.through_solve = True
    assert "from the optimum" in wrong_of(drawn)


def test_a_lower_bound_that_is_too_high_is_found(monkeypatch):
    raise_to = Certificate._raise
    monkeypatch.setattr(Certificate, "_raise", lambda self, lower, q: raise_to(self, lower * 1.001, q))
    assert "lower bound" in wrong_of(regression())


def test_numbers_that_are_not_finite_are_found(monkeypatch):
    honest = GroupDRORegressor._attributes
    monkeypatch.setattr(GroupDRORegressor, "_attributes", lambda self, w: {**honest(self, w), "intercept_": np.nan})
    wrong = wrong_of(regression())
    assert "predictions are not finite" in wrong
    assert "has numbers that are not finite" in wrong


@pytest.mark.parametrize(
    ("error", "handled"),
    [
        (ValueError("X has values that are too large"), True),
        (ValueError("something is too large"), False),
        (FloatingPointError("X is too large"), False),
        (RuntimeWarning("overflow of X"), False),
    ],
)
def test_only_a_value_error_that_names_x_or_y_is_handled(error, handled, monkeypatch):
    def fail(self, at):
        raise error

    monkeypatch.setattr(Certificate, "observe", fail)
    outcome = judge_fit(("test", 0), regression())
    assert (outcome.wrong == []) == handled


def test_a_fit_that_takes_too_long_is_found(monkeypatch):
    monkeypatch.setattr(part_scales, "PATIENCE", -3.0)
    assert "took" in wrong_of(regression())


def test_a_bound_of_which_a_model_far_away_is_below_is_found(monkeypatch):
    assert wrong_of(nearly_the_same_columns()) == ""
    ball = L2Domain(radius=1e2)
    monkeypatch.setattr(gd.Problem, "solution_set", lambda self, upper: ball)
    assert "lower bound" in wrong_of(nearly_the_same_columns())


@pytest.mark.parametrize("name", KINDS)
def test_cases_are_as_ugly_as_they_say(name):
    drawn = [draw_case((name, k)) for k in range(12)]
    sizes = np.concatenate(
        [np.ravel(abs(d.X).max(axis=0).todense() if hasattr(d.X, "todense") else abs(d.X).max(axis=0)) for d in drawn]
    )
    if name.startswith("columns"):
        power = float(name.removeprefix("columns "))
        assert sizes.max() > power
        assert sizes[sizes > 0].min() < 10 / power
    elif name == "rows 1e8":
        assert all(np.linalg.norm(d.X, axis=1).max() == pytest.approx(1e8) for d in drawn)
    elif name == "labels 1e6 apart":
        assert all(np.abs(d.y).max() > 1e5 for d in drawn)
    else:
        assert len({odd for d in drawn for odd in d.parameters["odd"]}) > 5


def test_a_check_counts_its_statuses():
    tally = run(2, 0, 1, name="columns 1e3")
    assert tally.tried == 2
    assert tally.figures[-1].startswith("slowest")
