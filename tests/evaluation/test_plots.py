import copy
import functools
import itertools
import sys

import matplotlib
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

matplotlib.use("agg")

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.cbook import is_math_text

import groupdro as gd
from groupdro import GroupDROClassifier, GroupDRORegressor, group_report
from groupdro.plots import (
    ChangeDisplay,
    ConvergenceDisplay,
    FrontierDisplay,
    GroupMetricDisplay,
    GroupWeightsDisplay,
)

N = 240


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    assert plt.get_fignums() == []
    yield
    plt.close("all")


@functools.cache
def arrays(n_groups=4):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(N, 3)), rng.permutation(np.arange(N) % n_groups)
    shift = np.linspace(-1.0, 1.0, n_groups)[groups]
    return X, (X[:, 0] * shift + X[:, 1] + rng.logistic(size=N) > 0).astype(int), groups


@functools.cache
def fitted(n_groups=4, objective="risk"):
    X, y, groups = arrays(n_groups)
    return GroupDROClassifier(objective, tol=1e-8).fit(X, y, groups=groups)


@functools.cache
def plain(n_groups=4):
    X, y, _ = arrays(n_groups)
    return LogisticRegression().fit(X, y)


def both(n_groups=4):
    return {"plain": plain(n_groups), "robust": fitted(n_groups)}


@functools.cache
def frontier(average="rows", objective="risk"):
    X, y, groups = arrays()
    estimator = GroupDROClassifier(objective, alpha=1e-2, average=average)
    return gd.robustness_frontier(X, y, groups, estimator=estimator, tol=5e-3)


DISPLAYS = {
    "convergence": lambda ax=None: ConvergenceDisplay.from_estimator(fitted(), ax=ax),
    "groups": lambda ax=None: GroupMetricDisplay.from_estimators(both(), *arrays(), ax=ax),
    "weights": lambda ax=None: GroupWeightsDisplay.from_estimator(fitted(), ax=ax),
    "frontier": lambda ax=None: FrontierDisplay.from_frontier(frontier(), ax=ax),
}
every_display = pytest.mark.parametrize("draw", DISPLAYS.values(), ids=DISPLAYS.keys())


@every_display
def test_a_display_draws_on_the_axes_that_are_given(draw):
    figure, (left, right) = plt.subplots(1, 2)
    display = draw(ax=right)
    assert display.ax_ is right
    assert display.figure_ is figure
    assert right.has_data()
    assert not left.has_data()
    assert plt.get_fignums() == [figure.number]
    figure.canvas.draw()


@every_display
def test_a_display_draws_on_a_new_figure_where_no_axes_are_given(draw):
    before, _ = plt.subplots()
    display = draw()
    assert display.figure_ is not before
    assert display.ax_.figure is display.figure_
    assert plt.get_fignums() == [before.number, display.figure_.number]
    display.figure_.canvas.draw()


@every_display
def test_a_display_can_be_drawn_again(draw):
    display = draw()
    figure, ax = plt.subplots()
    assert display.plot(ax=ax) is display
    assert display.ax_ is ax
    figure.canvas.draw()


@every_display
def test_a_display_can_be_saved(draw, tmp_path):
    draw().figure_.savefig(tmp_path / "display.svg")
    assert (tmp_path / "display.svg").stat().st_size > 1000


def tick_labels(ax):
    return dict(zip(ax.get_yticks(), [label.get_text() for label in ax.get_yticklabels()], strict=True))


# ---------------------------------------------------------------------- convergence


@pytest.mark.parametrize("x", ["passes", "seconds"])
def test_both_bounds_are_drawn_over_passes_or_seconds(x):
    model = fitted()
    display = ConvergenceDisplay.from_estimator(model, x=x)
    assert len(model.trace_) > 1
    along = [getattr(row, x) for row in model.trace_]
    for line, bound in ((display.upper_line_, "upper"), (display.lower_line_, "lower")):
        np.testing.assert_array_equal(line.get_xdata(), along)
        np.testing.assert_array_equal(line.get_ydata(), [getattr(row, bound) for row in model.trace_])
    np.testing.assert_array_equal(display.gap_line_.get_xdata(), along)
    np.testing.assert_allclose(display.gap_line_.get_ydata(), [row.gap for row in model.trace_], atol=1e-15)
    assert display.gap_ax_.get_yscale() == "log"
    label = {"passes": "passes over the data", "seconds": "seconds"}[x]
    assert display.gap_ax_.get_xlabel() == label
    _, ax = plt.subplots()
    assert display.plot(x=x, ax=ax).ax_.get_xlabel() == label
    assert display.gap_ax_ is None
    assert display.gap_line_ is None


def test_the_band_lies_between_the_bounds():
    display = ConvergenceDisplay.from_estimator(fitted())
    vertices = display.band_.get_paths()[0].vertices
    corners = {tuple(corner) for corner in vertices}
    assert set(zip(display.passes, display.upper, strict=True)) <= corners
    assert set(zip(display.passes, display.lower, strict=True)) <= corners
    assert vertices[:, 1].max() == display.upper.max()


def test_the_view_holds_the_final_bounds_and_the_first_upper_bound():
    model = fitted()
    low, high = ConvergenceDisplay.from_estimator(model).ax_.get_ylim()
    assert low < model.trace_[-1].lower <= model.trace_[-1].upper < high
    assert model.trace_[0].upper < high


@pytest.mark.parametrize("worst_share", [None, 0.123])
def test_a_long_name_of_the_objective_is_not_cut(worst_share):
    X, y, groups = arrays()
    display = ConvergenceDisplay.from_estimator(
        GroupDROClassifier("excess_risk", worst_share=worst_share, robustness=0.75).fit(X, y, groups=groups)
    )
    assert inside_figure(display)
    label, axes = display.ax_.yaxis.label.get_window_extent(), display.ax_.get_window_extent()
    assert axes.y0 - 8 < label.y0 < label.y1 < axes.y1 + 8


def test_the_title_gives_the_gap_of_the_axis_and_its_share_of_the_upper_bound():
    display, last = ConvergenceDisplay.from_estimator(fitted()), fitted().trace_[-1]
    title = display.ax_.get_title(loc="left")
    assert title == f"certified gap {last.gap:.1e}, {last.gap / last.upper:.1e} of the upper bound"
    assert display.gap_ax_.get_ylabel() == "certified gap"
    assert display.gap_line_.get_ydata()[-1] == pytest.approx(last.gap, abs=1e-15)


@pytest.mark.parametrize(("objective", "label"), [("risk", "worst risk"), ("excess_risk", "worst excess risk")])
def test_the_vertical_axis_tells_risk_from_regret(objective, label):
    display = ConvergenceDisplay.from_estimator(fitted(objective=objective))
    assert display.ax_.get_ylabel() == f"{label}, with penalty"
    assert [text.get_text() for text in display.ax_.get_legend().get_texts()] == [
        display.upper_line_.get_label(),
        display.lower_line_.get_label(),
        display.band_.get_label(),
    ]


def test_convergence_takes_a_pipeline_and_a_regressor():
    X, y, groups = arrays()
    pipeline = make_pipeline(StandardScaler(), GroupDRORegressor()).fit(X, y, groupdroregressor__groups=groups)
    display = ConvergenceDisplay.from_estimator(pipeline)
    np.testing.assert_array_equal(display.upper, [row.upper for row in pipeline[-1].trace_])
    display.figure_.canvas.draw()


@pytest.mark.parametrize(
    ("upper", "lower"),
    [([1.0], [1.0]), ([0.0], [0.0]), ([2.0, 1.0], [-np.inf, 0.5]), ([1.0, 1.0], [1.0, 1.0])],
    ids=["one epoch", "zero", "no first bound", "no progress"],
)
def test_convergence_of_any_run_can_be_drawn(upper, lower):
    along = np.arange(len(upper), dtype=float)
    bounds = {"upper": np.array(upper), "lower": np.array(lower)}
    display = ConvergenceDisplay(passes=along, seconds=along, **bounds).plot()
    display.figure_.canvas.draw()
    low, high = display.ax_.get_ylim()
    assert np.isfinite([low, high]).all()
    assert low < high


@pytest.mark.parametrize("x", ["epochs", None])
def test_another_horizontal_axis_is_refused_by_name(x):
    with pytest.raises(ValueError, match=r"^x must be 'passes' or 'seconds'"):
        ConvergenceDisplay.from_estimator(fitted(), x=x)
    assert plt.get_fignums() == []


# ---------------------------------------------------------------------- metrics of groups


def drawn_values(display, name):
    """Return the places of a model's markers, and which of them are filled."""
    points = display.points_[name]
    faces = points.get_facecolors()
    return np.asarray(points.get_offsets()), (faces[:, 3] > 0) if len(faces) else np.zeros(len(display.groups), bool)


@pytest.mark.parametrize("metric", ["risk", "recall", "roc_auc"])
def test_the_metric_of_each_group_and_model_is_drawn_with_its_interval(metric):
    X, y, groups = arrays()
    reports = {name: group_report(model, X, y, groups, metrics=metric) for name, model in both().items()}
    display = GroupMetricDisplay.from_reports(reports)
    assert display.groups == reports["plain"].columns["group"]
    assert list(display.values) == ["plain", "robust"]
    keys = metric, f"{metric}_low", f"{metric}_high"
    segments = [part for part in display.ax_.collections if hasattr(part, "get_segments")]
    for (name, report), intervals in zip(reports.items(), segments, strict=True):
        expected = np.array([[report.by_group[group][key] for key in keys] for group in display.groups])
        places, filled = drawn_values(display, name)
        np.testing.assert_array_equal(display.values[name], expected)
        np.testing.assert_array_equal(places[:, 0], expected[:, 0])
        assert filled.all()
        ends = np.array(intervals.get_segments())
        np.testing.assert_allclose(ends[:, :, 0], expected[:, 1:], rtol=1e-12)
        np.testing.assert_array_equal(ends[:, 0, 1], places[:, 1])
        np.testing.assert_array_equal(ends[:, 1, 1], places[:, 1])


@pytest.mark.parametrize("n_models", [1, 2, 4])
def test_the_worst_group_of_the_first_model_is_on_top_and_every_group_is_labelled(n_models):
    names = ["plain", "robust", "again", "once more"][:n_models]
    models = {name: fitted() if k % 2 else plain() for k, name in enumerate(names)}
    display = GroupMetricDisplay.from_estimators(models, *arrays())
    labels = tick_labels(display.ax_)
    assert [labels[place] for place in sorted(labels, reverse=True)] == [str(group) for group in display.groups]
    assert (np.diff(display.values["plain"][:, 0]) <= 0).all()
    heights = np.array([drawn_values(display, name)[0][:, 1] for name in names])
    for each in heights:
        assert [labels[round(place)] for place in each] == [str(group) for group in display.groups]
    assert (np.diff(heights, axis=0) < 0).all()  # in the order of the legend


@pytest.mark.parametrize(("metric", "worst"), [("risk", np.max), ("recall", np.min)])
def test_dashed_lines_mark_the_worst_group_of_each_model(metric, worst):
    display = GroupMetricDisplay.from_estimators(both(), *arrays(), metric=metric)
    dashed = [line.get_xdata()[0] for line in display.ax_.lines if line.get_linestyle() == "--"]
    assert dashed == [worst(values[:, 0]) for values in display.values.values()]


def test_another_metric_of_the_reports_is_drawn_in_the_same_order_without_a_worst_group():
    X, y, groups = arrays()
    report = group_report(plain(), X, y, groups, metrics=["recall", "roc_auc"])
    display = GroupMetricDisplay.from_reports(report, metric="roc_auc")
    assert display.groups == report.columns["group"]
    np.testing.assert_array_equal(display.values[""][:, 0], report.columns["roc_auc"])
    assert not [line for line in display.ax_.lines if line.get_linestyle() == "--"]
    assert display.legend_ is None
    with pytest.raises(ValueError, match=r"^metric must be one of \['recall', 'roc_auc'\]"):
        GroupMetricDisplay.from_reports(report, metric="f1")


def test_groups_with_too_few_rows_are_hollow_below_the_others_and_not_the_worst():
    X, y, groups = arrays()
    hard = np.argsort(plain().predict_proba(X)[np.arange(N), y])[:3]  # the largest losses, so the worst group
    groups = groups.copy()
    groups[hard] = 9
    reports = {name: group_report(model, X, y, groups) for name, model in both().items()}
    assert reports["plain"].columns["group"][-1] == 9
    display = GroupMetricDisplay.from_reports(reports)
    assert display.groups[-1] == 9
    for name in reports:
        places, filled = drawn_values(display, name)
        assert filled.tolist() == [True] * 4 + [False]
        assert np.isfinite(places).all()
    dashed = [line.get_xdata()[0] for line in display.ax_.lines if line.get_linestyle() == "--"]
    assert dashed == [report.worst_row["risk"] for report in reports.values()]
    shown = GroupMetricDisplay.from_reports(reports, max_groups=4)
    assert sorted(shown.groups) == [0, 1, 2, 3]


def test_groups_that_another_metric_cannot_judge_are_hollow():
    X, y, groups = arrays()
    labels = np.where((groups == 2) & (np.cumsum((groups == 2) & (y == 1)) > 4), 0, y)
    report = group_report(plain(), X, labels, groups, metrics=["accuracy", "recall"])
    display = GroupMetricDisplay.from_reports(report, metric="recall")
    _, filled = drawn_values(display, "")
    assert [group for group, full in zip(display.groups, filled, strict=True) if not full] == [2]


@pytest.mark.parametrize("n_models", [2, 4])
def test_the_legend_names_the_models_outside_of_the_data(n_models):
    names = [f"model {k} with a name that is far too long" for k in range(n_models)]
    display = GroupMetricDisplay.from_estimators(dict.fromkeys(names, plain()), *arrays())
    assert inside_figure(display)
    assert not overlaps(display)
    texts = [text.get_text() for text in display.legend_.get_texts()]
    assert len(set(texts)) == n_models
    looks = {(line.get_marker(), line.get_color()) for line in display.legend_.get_lines()}
    assert len(looks) == n_models


def inside_figure(display):
    """Return whether all that is drawn, with labels and legend, lies within the figure."""
    figure = display.figure_
    figure.canvas.draw()
    needed, width, height = figure.get_tightbbox(), *figure.get_size_inches()
    return needed.x0 >= -0.01 and needed.y0 >= -0.01 and needed.x1 <= width + 0.01 and needed.y1 <= height + 0.01


def overlaps(display):
    display.figure_.canvas.draw()
    legend = display.legend_.get_window_extent()
    drawn = [display.ax_.get_tightbbox()]
    drawn += [display.figure_._suptitle.get_window_extent()] if display.figure_._suptitle else []
    return any(legend.overlaps(each) for each in drawn)


@pytest.mark.parametrize("n_groups", [2, 10, 40])
def test_nothing_is_cut_and_labels_do_not_meet_with_long_names(n_groups):
    rng = np.random.default_rng(0)
    middle = rng.uniform(size=n_groups)
    values = np.column_stack([middle, middle - 0.1, middle + 0.1])
    names = [f"{'Male & Asian and Pacific Islander' * 2} {k}" for k in range(n_groups)]
    models = {f"a model whose name is rather long, {k}": values + k / 100 for k in range(4)}
    display = GroupMetricDisplay(groups=names, values=models).plot()
    assert inside_figure(display)
    assert not overlaps(display)
    labels = display.ax_.get_yticklabels()
    assert len({label.get_text() for label in labels}) == n_groups
    boxes = sorted((label.get_window_extent().y0, label.get_window_extent().y1) for label in labels)
    assert all(below[1] <= above[0] for below, above in itertools.pairwise(boxes))


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_markers_differ_from_the_background(style):
    with plt.style.context(style):
        display = GroupMetricDisplay.from_estimators(both(), *arrays())
        behind = matplotlib.colors.to_rgb(display.ax_.get_facecolor())
        for points in display.points_.values():
            assert np.abs(points.get_edgecolors()[0, :3] - behind).max() > 0.4


@pytest.mark.parametrize("max_groups", [1, 5, 12, 100])
def test_no_more_than_max_groups_are_drawn_the_worst_under_the_first_model(max_groups):
    X, y, groups = arrays(12)
    display = GroupMetricDisplay.from_estimators(both(12), X, y, groups, max_groups=max_groups)
    report = group_report(plain(12), X, y, groups)
    judged = [g for g, fine in zip(report.columns["group"], report.judged, strict=True) if fine]
    others = [g for g in report.columns["group"] if g not in judged]
    assert display.groups == [*judged, *others][:max_groups]
    assert display.n_groups == 12
    assert all(len(drawn_values(display, name)[0]) == len(display.groups) for name in both())


def test_groups_without_rows_are_not_drawn():
    X, y, groups = arrays()
    inside = groups != 2
    display = GroupMetricDisplay.from_estimators(fitted(), X[inside], y[inside], groups[inside])
    assert sorted(display.groups) == [0, 1, 3]


def test_only_groups_of_all_reports_are_drawn():
    X, y, groups = arrays()
    reports = {
        "before": group_report(plain(), X, y, groups),
        "after": group_report(plain(), X, y, np.where(groups == 3, 7, groups)),
    }
    assert sorted(GroupMetricDisplay.from_reports(reports).groups) == [0, 1, 2]


def test_reports_without_a_common_group_are_refused_by_name():
    X, y, groups = arrays()
    reports = {str(shift): group_report(plain(), X, y, groups + shift) for shift in (0, 10)}
    with pytest.raises(ValueError, match=r"^reports have no group in common"):
        GroupMetricDisplay.from_reports(reports)


@pytest.mark.parametrize(
    "reports", [None, {}, {"a": plain}, [1], {3: "report"}], ids=["none", "empty", "function", "list", "number"]
)
def test_what_is_no_report_is_refused_by_name(reports):
    with pytest.raises(TypeError, match=r"^reports must be a GroupReport"):
        GroupMetricDisplay.from_reports(reports)
    assert plt.get_fignums() == []


def test_a_group_of_one_row_is_drawn_without_an_interval():
    X, y, groups = arrays()
    display = GroupMetricDisplay.from_estimators(both(), X, y, np.where(np.arange(N) == 0, 9, groups))
    alone = display.groups.index(9)
    assert np.isfinite(display.values["plain"][alone, 0])
    assert np.isnan(display.values["plain"][alone, 1:]).all()
    display.figure_.canvas.draw()


# ---------------------------------------------------------------------- improvements


@pytest.mark.parametrize("n_models", [1, 5])
@pytest.mark.parametrize("metric", ["risk", "false_negative_rate_of_the_second_class_of_all"])
def test_improvements_are_drawn_with_intervals_and_nothing_is_cut(n_models, metric):
    names = [f"boosted trees with a very long name {k}" for k in range(n_models)]
    worst, mean = ([(k + shift, k + shift - 1.0, k + shift + 2.0) for k in range(n_models)] for shift in (0.0, 0.5))
    display = ChangeDisplay(
        models=names, worst=worst, mean=mean, baseline="a baseline with a very long name, in use", confidence=0.95,
        metric=metric,
    ).plot()  # fmt: skip
    np.testing.assert_array_equal(display.worst_points_.get_xdata(), [estimate for estimate, _, _ in worst])
    np.testing.assert_array_equal(display.mean_points_.get_xdata(), [estimate for estimate, _, _ in mean])
    left, right = display.ax_.get_xlim()
    assert left < -1.0
    assert right > n_models + 1.5
    assert inside_figure(display)
    assert not overlaps(display)


# ---------------------------------------------------------------------- weights


def test_bars_are_the_weights_of_the_groups_that_bind_from_the_heaviest_on():
    model = fitted()
    display = GroupWeightsDisplay.from_estimator(model)
    order = [k for k in np.argsort(-model.group_weights_, kind="stable") if model.group_weights_[k] > 0.0]
    assert 1 < len(order) < 4
    assert display.groups == model.groups_[order].tolist()
    assert display.n_groups == 4
    np.testing.assert_array_equal(display.weights, model.group_weights_[order])
    np.testing.assert_array_equal([bar.get_width() for bar in display.bars_], display.weights)
    labels = tick_labels(display.ax_)
    for bar, group in zip(display.bars_, display.groups, strict=True):
        assert labels[round(bar.get_y() + bar.get_height() / 2.0)] == str(group)
    places = [bar.get_y() for bar in display.bars_]
    assert places == sorted(places, reverse=True)
    assert display.ax_.get_title(loc="left") == f"{len(order)} of 4 groups carry all weight"


def test_bars_are_labelled_with_their_weights():
    display = GroupWeightsDisplay(groups=["a", "b", "c"], weights=np.array([0.75, 0.246, 0.004]), n_groups=3).plot()
    assert [text.get_text() for text in display.ax_.texts] == ["0.75", "0.25", "0.004"]


@pytest.mark.parametrize("max_groups", [1, 2])
def test_no_more_than_max_groups_are_drawn_and_their_share_is_told(max_groups):
    model = fitted(12)
    heaviest = np.sort(model.group_weights_)[::-1]
    assert heaviest[2] > 0.01
    display = GroupWeightsDisplay.from_estimator(model, max_groups=max_groups)
    assert len(display.bars_) == len(display.groups) == max_groups
    np.testing.assert_array_equal(display.weights, heaviest[:max_groups])
    share = f"{heaviest[:max_groups].sum():.0%}"
    assert display.ax_.get_title(loc="left") == f"{max_groups} of 12 groups carry {share} of the weight"


@pytest.mark.parametrize("max_groups", [12, 50])
def test_groups_without_weight_are_not_drawn(max_groups):
    display = GroupWeightsDisplay.from_estimator(fitted(12), max_groups=max_groups)
    binding = int((fitted(12).group_weights_ > 0.0).sum())
    assert binding < 12
    assert len(display.bars_) == binding
    assert display.ax_.get_title(loc="left") == f"{binding} of 12 groups carry all weight"


def test_weights_that_are_spread_over_very_many_groups_can_be_drawn():
    model = copy.copy(fitted())
    model.groups_, model.group_weights_ = np.arange(2000), np.full(2000, 1.0 / 2000)
    display = GroupWeightsDisplay.from_estimator(model)
    display.figure_.canvas.draw()
    assert "of 2000 groups" in display.ax_.get_title(loc="left")


def test_weights_take_a_pipeline():
    X, y, groups = arrays()
    pipeline = make_pipeline(StandardScaler(), GroupDROClassifier()).fit(X, y, groupdroclassifier__groups=groups)
    display = GroupWeightsDisplay.from_estimator(pipeline)
    weights = np.sort(pipeline[-1].group_weights_)[::-1]
    np.testing.assert_array_equal(display.weights, weights[weights > 0.0])


# ---------------------------------------------------------------------- frontiers


def marks(display):
    """Return what is marked, by its name in the legend."""
    marked = [line for line in display.ax_.lines if line.get_label() in display.models]
    return {line.get_label(): (line.get_xdata()[0], line.get_ydata()[0]) for line in marked}


def profile(model, X, y, groups, average="rows"):
    losses = -np.log(model.predict_proba(X)[np.arange(len(y)), y])
    risks = [losses[groups == g].mean() for g in np.unique(groups)]
    return (losses.mean() if average == "rows" else np.mean(risks)), max(risks)


def test_a_frontier_is_drawn_above_what_no_model_has():
    found = frontier()
    display = FrontierDisplay.from_frontier(found)
    np.testing.assert_array_equal(display.line_.get_xdata(), found.mean[found.edge])
    np.testing.assert_array_equal(display.line_.get_ydata(), found.worst[found.edge])
    limit = np.column_stack([display.limit_.get_xdata(), display.limit_.get_ydata()])
    for mean, worst in limit:
        assert worst == found.worst_limit(mean)
        assert not found.attainable(mean=mean, worst=worst * (1 - 1e-6))
    on_line = np.interp(limit[:, 0], display.mean, display.worst, left=np.inf)
    assert (limit[:, 1] <= on_line + 1e-12).all()
    band = display.band_.get_paths()[0].vertices
    assert band[:, 1].max() <= display.worst.max()
    assert display.ax_.get_xlabel() == "average risk with penalty\n(equal weight per row)"
    assert display.ax_.get_ylabel() == "worst group's risk with penalty"


def test_both_ends_and_chosen_models_are_marked():
    found = frontier()
    pick = found.least_worst(0.01)
    display = FrontierDisplay.from_frontier(found, chosen={"1% of the mean": pick})
    ends = found.models[found.edge[0]], found.models[found.edge[-1]]
    expected = {"plain training": ends[0], "worst group alone": ends[1], "1% of the mean": pick}
    assert marks(display) == {name: (point.mean, point.worst) for name, point in expected.items()}
    told = [text.get_text() for text in display.legend_.get_texts()]
    assert not overlaps(display)
    assert inside_figure(display)
    assert set(told) == {"undecided", "no model is below", "linear models", *expected}


def test_other_models_are_marked_on_the_training_rows_with_the_penalty_where_they_have_one():
    X, y, groups = arrays()
    own = GroupDROClassifier(alpha=1e-2, robustness=0.5).fit(X, y, groups=groups)
    display = FrontierDisplay.from_frontier(frontier(), models={"own": own, "other": plain()}, training=arrays())
    marked = marks(display)
    assert marked["own"] == pytest.approx((own.mean_risk_, own.worst_risk_), rel=1e-9)
    assert marked["other (no penalty)"] == pytest.approx(profile(plain(), X, y, groups), rel=1e-9)


@pytest.mark.parametrize("average", ["rows", "groups"])
def test_on_held_out_rows_no_limit_is_drawn(average):
    found = frontier(average)
    X, y, groups = (part[:180] for part in arrays())
    pick = found.least_mean(0.02)
    display = FrontierDisplay.from_frontier(
        found, chosen={"pick": pick}, models={"other": plain()}, held_out=(X, y, groups)
    )
    assert display.band_ is None
    assert display.limit_ is None
    expected = np.array([profile(point.model, X, y, groups, average) for point in found.models])
    np.testing.assert_allclose(display.line_.get_xdata(), expected[:, 0], rtol=1e-9)
    np.testing.assert_allclose(display.line_.get_ydata(), expected[:, 1], rtol=1e-9)
    assert marks(display)["pick"] == pytest.approx(profile(pick.model, X, y, groups, average), rel=1e-9)
    assert marks(display)["other"] == pytest.approx(profile(plain(), X, y, groups, average), rel=1e-9)
    assert "held-out" in display.ax_.get_xlabel()
    assert f"equal weight per {average[:-1]}" in display.ax_.get_xlabel()
    assert not overlaps(display)
    assert inside_figure(display)


@pytest.mark.parametrize("average", ["rows", "groups"])
def test_held_out_averages_and_worst_groups_have_intervals_within_the_axes(average):
    X, y, groups = arrays()
    display = FrontierDisplay.from_frontier(frontier(average), models={"other": plain()}, held_out=(X, y, groups))
    report = group_report(plain(), X, y, groups)
    (low, high), worst = display.intervals["other"]
    assert worst == report.worst_value[1:]
    losses = -np.log(plain().predict_proba(X)[np.arange(N), y])
    parts = [losses[groups == g] for g in range(4)] if average == "groups" else [losses]
    error = np.sqrt(np.mean([part.var() / len(part) for part in parts]) / len(parts))
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.15)
    (left, right), (bottom, top) = display.ax_.get_xlim(), display.ax_.get_ylim()
    for name, (mean, worst) in display.models.items():
        means, worsts = display.intervals[name]
        assert left < means[0] < mean < means[1] < right
        assert bottom < worsts[0] < worst < worsts[1] < top


def test_groups_that_cannot_be_judged_are_not_the_worst_on_held_out_rows():
    X, y, groups = arrays()
    hard = np.argsort(plain().predict_proba(X)[np.arange(N), y])[:3]
    groups = groups.copy()
    groups[hard] = 9
    display = FrontierDisplay.from_frontier(frontier(), models={"other": plain()}, held_out=(X, y, groups))
    report = group_report(plain(), X, y, groups)
    assert display.models["other"] == (report.overall["risk"], report.worst_value[0])


def test_models_without_rows_to_show_them_on_are_refused_by_name():
    with pytest.raises(ValueError, match=r"^models requires training or held_out"):
        FrontierDisplay.from_frontier(frontier(), models={"other": plain()})
    assert plt.get_fignums() == []


def test_a_frontier_of_excess_risks_names_its_axes_so():
    display = FrontierDisplay.from_frontier(frontier(objective="excess_risk"))
    assert display.ax_.get_xlabel().startswith("average excess risk with penalty")
    assert display.ax_.get_ylabel() == "worst group's excess risk with penalty"


# ---------------------------------------------------------------------- names and errors


def test_groups_of_several_columns_are_labelled_by_their_parts():
    X, y, groups = arrays()
    pairs = pd.DataFrame({"place": np.array(["n", "s"])[groups % 2], "year": 2020 + groups // 2})
    model = GroupDROClassifier().fit(X, y, groups=pairs)
    expected = {"n & 2020", "n & 2021", "s & 2020", "s & 2021"}
    weights = GroupWeightsDisplay.from_estimator(model)
    shown = [f"{place} & {year}" for place, year in weights.groups]
    assert [label.get_text() for label in weights.ax_.get_yticklabels()] == shown
    assert set(shown) < expected
    risks = GroupMetricDisplay.from_estimators({"plain": plain(), "robust": model}, X, y, pairs)
    assert set(tick_labels(risks.ax_).values()) == expected
    assert set(risks.groups) == {(place, year) for place in "ns" for year in (2020, 2021)}


def test_long_names_are_cut_and_others_are_not():
    long, exact = "a" * 40, "b" * 28
    weights = np.array([0.6, 0.4])
    labels = tick_labels(GroupWeightsDisplay(groups=[long, exact], weights=weights, n_groups=2).plot().ax_)
    assert labels[0] == exact
    assert labels[1] == "a" * 14 + "…" + "a" * 13


@pytest.mark.parametrize(
    "name",
    ["50% & more", "<b>", "naïve\nname", "_hidden", "$50K-$75K", r"$\unknown$", ("$50K", "$75K")],
    ids=["percent", "tag", "line", "underscore", "income", "mathematics", "pair"],
)
def test_names_are_drawn_as_they_are(name):
    weights, risks = np.array([0.6, 0.4]), np.array([[0.5, 0.4, 0.6], [0.3, 0.2, 0.4]])
    for display in (
        GroupWeightsDisplay(groups=[name, "b"], weights=weights, n_groups=2).plot(),
        GroupMetricDisplay(groups=[name, "b"], values={"a": risks, "b": risks}).plot(),
    ):
        display.figure_.canvas.draw()
        label = display.ax_.get_yticklabels()[0]
        text = " & ".join(name) if isinstance(name, tuple) else name
        assert label.get_text().replace("\\$", "$") == text
        assert not (label.get_parse_math() and is_math_text(label.get_text()))


@pytest.mark.parametrize("display", [ConvergenceDisplay, GroupWeightsDisplay])
def test_a_model_that_is_not_fitted_is_refused(display):
    with pytest.raises(NotFittedError):
        display.from_estimator(GroupDROClassifier())
    assert plt.get_fignums() == []


def test_risks_of_a_model_that_is_not_fitted_are_refused():
    with pytest.raises(NotFittedError):
        GroupMetricDisplay.from_estimators({"plain": plain(), "robust": GroupDROClassifier()}, *arrays())
    assert plt.get_fignums() == []


@pytest.mark.parametrize("display", [ConvergenceDisplay, GroupWeightsDisplay])
def test_a_foreign_model_is_refused_by_name(display):
    with pytest.raises((TypeError, ValueError), match="LogisticRegression"):
        display.from_estimator(plain())


@pytest.mark.parametrize(("solver", "value"), [("sqp", "worst risk"), ("alem", "worst excess risk")])
def test_a_run_of_solve_is_drawn_as_that_of_an_estimator(solver, value):
    X, y, groups = gd.datasets.make_mero(n_groups=3, n_per_group=60, n_features=4)
    problem = gd.Problem(
        gd.GroupedData.from_arrays(X, y, groups), gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.1)
    )
    result = gd.solve(problem, solver)
    display = ConvergenceDisplay.from_result(result)
    assert display.value == value
    np.testing.assert_array_equal(display.upper, [row.upper for row in result.trace])
    np.testing.assert_array_equal(display.passes, [row.passes for row in result.trace])


def test_tables_and_figures_name_the_extra_that_is_missing(monkeypatch):
    report = group_report(LogisticRegression().fit([[0.0], [1.0]], [0, 1]), [[0.0], [1.0]], [0, 1], ["a", "b"])
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pandas cannot be imported .*pip install "groupdro\[plot\]"'):
        report.to_frame()
    with pytest.raises(ImportError, match=r'matplotlib cannot be imported .*pip install "groupdro\[plot\]"'):
        GroupMetricDisplay.from_reports(report)
