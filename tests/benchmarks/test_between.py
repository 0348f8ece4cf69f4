"""The stored results between average and worst keep what is promised of them."""

import csv
import functools
import re

import numpy as np
import pytest

import groupdro as gd
from tests.benchmarks import stored
from tests.benchmarks.stored import RESULTS


def tables(name):
    """Return the tables of a file of results, each as a list of its rows by column."""
    return stored.tables((RESULTS / f"between_{name}.md").read_text())


def test_a_blend_costs_no_more_than_a_fifth_more_than_the_worst_alone():
    (rows,) = tables("cost")
    *problems, median = rows
    assert len(problems) == 10
    ratios = [float(row["blend / worst"]) for row in problems]
    assert float(median["blend / worst"]) == pytest.approx(np.median(ratios), abs=0.006)
    assert float(median["blend / worst"]) <= 1.2
    assert float(median["blend / solve alone"]) <= 1.2
    assert all(float(row["gap, blend"]) <= 1e-6 for row in problems)


def test_sets_of_group_weights_hardly_slow_an_epoch_down():
    (rows,) = tables("epochs")
    times = {row["set"].strip("`"): row for row in rows}
    assert float(times["Floor(0.5)"]["epoch"]) <= 1.05
    bounded = [name for name in times if name.startswith(("Cap", "Box"))]
    assert len(bounded) == 3
    for name in bounded:
        assert float(times[name]["epoch"]) <= 1.3
        assert int(times[name]["at a cap"]) > 0
    assert {row["taken back"] for row in rows} == {"no"}


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


def test_no_point_of_a_frontier_lies_beyond_a_half_plane_of_another():
    with (RESULTS / "between_frontiers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {row["problem"] for row in rows}
    assert len(names) == 7
    for name in names:
        t, mean, worst, lower = (
            np.array([float(row[key]) for row in rows if row["problem"] == name])
            for key in ("robustness", "mean", "worst", "lower")
        )
        blends = np.outer(1.0 - t, mean) + np.outer(t, worst)
        assert (blends >= lower[:, None] * (1.0 - 1e-12)).all()


def test_every_frontier_has_a_picture_of_modest_size():
    pictures = sorted(RESULTS.glob("frontier_*.svg"))
    assert len(pictures) == 7
    assert all(picture.stat().st_size < 100_000 for picture in pictures)


def test_the_answer_at_robustness_one_depends_on_nothing_but_the_problem():
    spreads, checked = tables("undetermined")
    everything = spreads[-1]
    assert everything["solver"] == "all"
    assert int(everything["runs"]) >= 100
    assert float(everything["spread of accuracy"]) <= 0.3
    assert float(everything["spread of log loss"]) <= 0.003
    assert all(row["hold it"] == row["runs"] for row in checked)


def test_no_bound_of_headroom_is_above_what_cvxpy_attains():
    rows, checked = tables("headroom")
    assert len(rows) == 12
    assert len(checked) == 6
    for row in checked:
        assert row["sound"] == "yes"
        assert float(row["bound"]) <= float(row["CVXPY"]) + 1e-6


def test_no_answer_to_a_wish_is_wrong_and_few_are_left_open():
    (rows,) = tables("wishes")
    *problems, total = rows
    assert len(problems) == 5
    assert total["wrong"] == "0"
    answers = [int(total[key]) for key in ("yes", "no", "open")]
    assert sum(answers) == 1000
    assert answers[2] <= 0.05 * sum(answers)
    text = (RESULTS / "between_wishes.md").read_text()
    assert re.search(r"^Left open: ([\d.]+)%\.$", text, re.MULTILINE)[1] == f"{answers[2] / 10:.1f}"


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
