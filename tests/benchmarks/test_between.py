"""The stored results between average and worst keep what is promised of them."""

import functools

import pytest

import groupdro as gd
from tests.benchmarks import stored
from tests.benchmarks.stored import RESULTS


def tables(name):
    """Return the tables of a file of results, each as a list of its rows by column."""
    return stored.tables((RESULTS / f"between_{name}.md").read_text())


def test_frontiers_take_few_fits_and_little_time():
    costs, _ = tables("frontiers")
    assert len(costs) == 7
    for row in costs:
        assert int(row["fits"]) <= 16
        assert float(row["enclosure"]) <= 1e-3
        assert float(row["times a fit"]) <= 6.0


def test_picks_lie_within_their_budgets_and_above_their_bounds():
    costs, models = tables("frontiers")
    for problem in [row["problem"] for row in costs]:
        of = {row["model"]: row for row in models if row["problem"] == problem}
        plain, worst = of["plain"], of["worst group alone"]
        near_mean, near_worst = of["mean within 1%"], of["worst within 1%"]
        assert float(near_mean["average"]) <= 1.01 * float(plain["average"]) + 1e-5
        assert float(near_worst["worst"]) <= 1.01 * float(worst["worst"]) + 1e-5
        for one in (plain, near_mean, near_worst, worst):
            assert float(one["at least"]) <= float(one["average"])
            assert float(one["at least 1"]) <= float(one["worst"])
        # Of all models of least worst value, the last has the least average.
        assert float(worst["average"]) <= (1.0 + 1e-4) * float(worst["at least"])


def test_the_answer_at_robustness_one_depends_on_nothing_but_the_problem():
    spreads, checked = tables("undetermined")
    everything = spreads[-1]
    assert everything["solver"] == "all"
    assert int(everything["runs"]) >= 100
    assert float(everything["spread of accuracy"]) <= 0.3
    assert float(everything["spread of log loss"]) <= 0.003
    assert all(row["hold it"] == row["runs"] for row in checked)


def test_the_programs_for_cvxpy_have_the_worst_value_and_the_average_of_the_problem():
    convex = pytest.importorskip("benchmarks.between.convex", reason="needs cvxpy")
    X, y, groups = gd.datasets.make_mero(n_groups=3, n_per_group=20, n_features=2)
    data = gd.GroupedData.from_arrays(X, y, groups)
    make = functools.partial(
        gd.Problem, data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.1), fit_intercept=True
    )
    program = convex.BetweenProgram(make())
    for objective, robustness in ((program.mean, 0.0), (program.worst, 1.0)):
        found = gd.solve(make(weight_set=gd.weight_sets.Floor(robustness)), tol=1e-8)
        assert program.least(objective) == pytest.approx(found.upper_bound, rel=1e-6)


def test_a_little_robustness_may_help_on_held_out_rows_where_all_of_it_does_harm():
    _, models = tables("frontiers")
    held_out = {(row["problem"].split(":")[0], row["model"]): float(row["worst held out"]) for row in models}
    robust = ("mean within 1%", "worst within 1%", "worst group alone")
    assert min(held_out["heart", name] for name in robust) > held_out["heart", "plain"]
    assert held_out["bank", "mean within 1%"] < held_out["bank", "plain"] < held_out["bank", "worst group alone"]
    assert held_out["bank", "boosted trees"] < min(held_out["bank", name] for name in ("plain", *robust))
