import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression

import groupdro as gd
from groupdro.data.grouping import read_groups
from groupdro.discovery.conditions import Columns
from tests.discovery.tables import describing_columns, overlap, planted_losses


@pytest.fixture(scope="module")
def planted():
    """Return columns, a planted group, losses, and what was found."""
    frame = describing_columns(4000, seed=0)
    inside = ((frame["region"] == "north") & (frame["age"] > 50)).to_numpy()
    losses = planted_losses(inside, seed=0)
    return frame, inside, losses, gd.find_groups(losses=losses, columns=frame)


def failing_classifier(n=4000, seed=0):
    """Return a table in which one feature misleads in one region, labels, and the region's rows."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n, 3)), columns=["a", "b", "c"])
    region = rng.choice(["north", "south", "east", "west"], n)
    inside = region == "north"
    y = np.where(inside, -frame["a"], frame["a"]) + 0.5 * frame["b"] + 0.3 * rng.logistic(size=n) > 0
    return frame, y.to_numpy(), pd.DataFrame({"region": region, "b": frame["b"], "noise": rng.normal(size=n)}), inside


def test_a_planted_group_is_found_and_described(planted):
    frame, inside, _, found = planted
    member = found.groups(frame)
    assert list(member.columns) == [*found.columns["group"], "(other rows)"]
    assert overlap(member.iloc[:, 0].to_numpy(), inside) > 0.8
    assert (member.iloc[:, -1] == ~member.iloc[:, :-1].any(axis=1)).all()
    row = found.to_frame().iloc[0]
    assert row["at_least"] < row["difference"] == pytest.approx(row["inside"] - row["outside"])
    assert "region = north" in row["group"]
    assert row["group"] in found.message
    assert row["group"] in repr(found)
    assert found.n_rows == (2000, 2000)
    rule = row["group"].replace(" = ", " == ").replace("north", "'north'")
    np.testing.assert_array_equal(frame.eval(rule).to_numpy(dtype=bool), member.iloc[:, 0])


def test_figures_are_those_of_the_half_that_was_not_searched(planted):
    frame, _, losses, found = planted
    split_seed = np.random.SeedSequence(0).generate_state(2)[0]
    judged = np.random.default_rng(split_seed).permutation(4000)[2000:]
    inside = found.groups(frame).iloc[:, 0].to_numpy()[judged]
    assert found.columns["rows"][0] == inside.sum()
    assert found.columns["share"][0] == pytest.approx(inside.mean())
    assert found.columns["inside"][0] == pytest.approx(losses[judged][inside].mean())
    assert found.columns["outside"][0] == pytest.approx(losses[judged][~inside].mean())


def test_the_partition_gives_each_row_its_worst_group(planted):
    frame, _, _, found = planted
    member, labels = found.groups(frame), found.partition(frame)
    for name in reversed(found.columns["group"]):
        assert member[name].to_numpy()[labels == name].all()
    first = found.columns["group"][0]
    np.testing.assert_array_equal(labels == first, member[first])
    assert set(labels) <= set(member.columns)


@pytest.mark.parametrize("kind", ["polars", "arrow", "array"])
def test_other_tables_give_the_same_groups(planted, kind):
    frame, _, losses, found = planted
    if kind == "array":
        frame = frame[["age", "visits"]].to_numpy()
        losses = planted_losses(frame[:, 0] > 50, seed=0)
        again = gd.find_groups(losses=losses, columns=frame)
        assert again.groups(frame).dtype == bool
        assert again.groups(frame).shape == (4000, len(again) + 1)
        assert again.columns["group"][0].startswith("x0 > ")
        return
    table = pl.from_pandas(frame)
    again = gd.find_groups(losses=losses, columns=table if kind == "polars" else table.to_arrow())
    assert again.columns == found.columns
    assert isinstance(again.groups(table), pl.DataFrame)
    assert again.groups(table).equals(pl.from_pandas(found.groups(frame)))


def test_nothing_is_found_in_noise_and_the_message_says_what_would_have_been():
    frame = describing_columns(2000, seed=1)
    found = gd.find_groups(losses=np.random.default_rng(1).exponential(size=2000), columns=frame)
    assert len(found) == 0
    assert found.groups(frame).shape == (2000, 0)
    assert found.groups(pl.from_pandas(frame)).width == 0
    assert set(found.partition(frame)) == {"(other rows)"}
    share, difference = found.detectable
    assert f"{share:.0%} of these rows" in found.message
    assert f"{difference:.2g}" in found.message
    assert found.grouping(frame).names == ("all",)
    with pytest.raises(ValueError, match="nothing to plot"):
        found.plot()


@pytest.mark.parametrize("columns", [np.ones((2000, 1)), np.arange(2000.0)[:, None] % 2])
def test_columns_that_tell_nothing_give_no_candidate(columns):
    losses = np.repeat([1.0, 2.0, 3.0, 4.0], 500)  # as large where the column is 0 as where it is 1
    found = gd.find_groups(losses=losses, columns=columns)
    assert len(found) == 0
    assert np.isfinite(found.detectable[1])
    few = gd.find_groups(losses=losses[:100], columns=columns[:100])
    assert "too few rows" in few.message


def test_what_would_have_been_found_is_found_about_four_times_out_of_five():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(2000, 4)), columns=list("abcd"))
    inside = frame["a"].to_numpy() > np.quantile(frame["a"], 0.9)
    noise = [np.random.default_rng(k).normal(size=2000) for k in range(25)]
    _, difference = gd.find_groups(losses=noise[0], columns=frame, n_bootstrap=200).detectable
    hits = 0
    for k, losses in enumerate(noise):
        found = gd.find_groups(losses=losses + difference * inside, columns=frame, n_bootstrap=200, random_state=k)
        hits += bool(found) and max(overlap(mask, inside) for mask in found.groups(frame).to_numpy().T[:-1]) > 0.5
    assert 14 <= hits <= 25


def test_few_of_many_data_sets_without_groups_report_any():
    reports = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(1000, 5))
        reports += bool(
            gd.find_groups(losses=rng.exponential(size=1000), columns=X, random_state=seed, n_bootstrap=200)
        )
    assert reports <= 8  # more happens in 0.3% of runs if 5% report something


def test_clusters_are_not_divided_and_their_shared_losses_are_no_group():
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, 100, 4000)
    X = rng.normal(size=(100, 3))[cluster] + 0.1 * rng.normal(size=(4000, 3))
    losses = rng.exponential(size=100)[cluster] + rng.exponential(size=4000)
    assert len(gd.find_groups(losses=losses, columns=X))  # rows that are not independent look like a finding
    found = gd.find_groups(losses=losses, columns=X, cluster=cluster, min_rows=20)
    assert len(found) == 0


def test_a_group_inside_another_must_be_worse_than_that_one_explains():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"large": rng.random(8000) < 0.4, "small": rng.random(8000) < 0.15})
    large, inside = frame["large"].to_numpy(), (frame["large"] & frame["small"]).to_numpy()
    nested = gd.find_groups(losses=planted_losses(large, 0) * np.where(inside, 4.0, 1.0), columns=frame)
    assert set(nested.columns["group"]) == {"large = True", "large = True & small = True"}
    alone = gd.find_groups(losses=planted_losses(large, 0), columns=frame, n_groups=10)
    assert alone.columns["group"] == ["large = True"]


def test_rows_without_weight_do_not_count():
    frame = describing_columns(3000, seed=3)
    inside = (frame["visits"] > 3).to_numpy()
    losses, kept = planted_losses(inside, seed=3), np.arange(3000) % 3 > 0
    other = np.where(kept, losses, 1e4)
    first, second = (
        gd.find_groups(losses=each, columns=frame, sample_weight=kept.astype(float)) for each in (losses, other)
    )
    assert first.columns == second.columns
    assert len(first)
    assert sum(first.n_rows) == 2000


def test_a_model_on_columns_that_it_does_not_know():
    X, y, described, inside = failing_classifier()
    model = LogisticRegression().fit(X[:1000], y[:1000])
    found = gd.find_groups(model, X[1000:], y[1000:], columns=described[1000:])
    assert found.rules[0].conditions[0].column == "region"
    member = found.groups(described)
    assert overlap(member.iloc[:, 0].to_numpy(), inside) > 0.7
    report = gd.group_report(model, X[1000:], y[1000:], groups=found.groups(described[1000:]))
    assert "region = north" in report.worst_group
    assert found.in_sample is None


def test_out_of_fold_losses_are_those_of_models_without_the_fold():
    X, y, described, _ = failing_classifier(1500)
    memory = HistGradientBoostingClassifier(max_iter=30, min_samples_leaf=1, max_leaf_nodes=200, random_state=0)
    held_out = gd.find_groups(memory, X, y, columns=described, cv=3)
    fitted = gd.find_groups(memory.fit(X, y), X, y, columns=described)
    assert "region = north" in held_out.columns["group"][0]
    # On its own training rows it has next to no loss.
    assert held_out.columns["inside"][0] > 10.0 * max(fitted.columns["inside"])
    assert gd.find_groups(gd.GroupDROClassifier(robustness=0.0).fit(X, y, groups=np.zeros(1500)), X, y).in_sample


def test_recall_finds_missed_positives():
    rng = np.random.default_rng(0)
    n = 6000
    frame = pd.DataFrame({"a": rng.normal(size=n), "site": rng.choice(list("uvw"), n), "noise": rng.normal(size=n)})
    y = rng.random(n) < 0.5
    score = np.where(y & (frame["site"] == "u"), -1.0, 2.0 * y - 1.0) + 0.8 * rng.normal(size=n)
    X = np.column_stack([score, frame["a"]])
    model = LogisticRegression().fit(X, y)
    found = gd.find_groups(model, X, y, columns=frame, metrics=["recall", "false_positive_rate"])
    row = found.to_frame().iloc[0]
    assert (row["metric"], row["group"]) == ("recall", "site = u")
    assert row["inside"] < row["outside"]
    assert row["difference"] == pytest.approx(row["outside"] - row["inside"])
    assert set(found.columns["metric"]) == {"recall"}


def test_a_metric_that_is_no_average_is_refused():
    X, y, *_ = failing_classifier(500)
    model = LogisticRegression().fit(X, y)
    with pytest.raises(ValueError, match="metric 'roc_auc' is not an average over rows"):
        gd.find_groups(model, X, y, metrics="roc_auc")


def test_hard_groups_are_told_from_neglected_ones():
    rng = np.random.default_rng(0)
    n = 6000
    site = rng.choice(["hard", "neglected", "fine", "good"], n)
    X = pd.DataFrame(rng.normal(size=(n, 2)), columns=["a", "b"])
    slope = np.where(site == "neglected", -2.0, 2.0)
    y = slope * X["a"] + np.where(site == "hard", 4.0, 0.3) * rng.normal(size=n)
    fine = (site == "fine") | (site == "good")
    model = LinearRegression().fit(X[fine], y[fine])
    found = gd.find_groups(model, X, y, columns=pd.DataFrame({"site": site}), linear=True)
    by_group = found.to_frame().set_index("group")
    assert by_group.loc["site = neglected", "headroom"] > 0.9
    assert by_group.loc["site = neglected", "note"] == ""
    assert 0.0 <= by_group.loc["site = hard", "headroom"] < 0.05
    assert by_group.loc["site = hard", "note"] == "hard"
    assert "One is hard" in found.message


def test_the_result_goes_where_groups_go(planted):
    X, y, described, _ = failing_classifier()
    table = pd.concat([X, described[["region"]].astype("category")], axis=1)
    model = LogisticRegression().fit(X, y)
    found = gd.find_groups(model, X, y, columns=table)
    member = found.groups(table)
    own, given = found.grouping(table), read_groups(member, len(table))
    assert own.names == given.names
    np.testing.assert_array_equal(own.members, given.members)
    for groups in (member, found.partition(table)):
        fitted = gd.GroupDROClassifier(alpha=1e-2).fit(X, y, groups=groups)
        assert set(fitted.groups_.tolist()) == set(member.columns)
    assert "region = north" in gd.headroom(model, X, y, groups=member).worst_group


def test_rules_assign_rows_of_x_inside_a_fit_and_a_report():
    X, y, _, _ = failing_classifier()
    losses = planted_losses(X["b"].to_numpy() > 0.5, seed=0)
    found = gd.find_groups(losses=losses, columns=X)
    direct = gd.GroupDROClassifier(alpha=1e-2).fit(X, y, groups=found)
    same = gd.GroupDROClassifier(alpha=1e-2).fit(X, y, groups=found.groups(X))
    assert direct.groups_.tolist() == same.groups_.tolist()
    np.testing.assert_array_equal(direct.coef_, same.coef_)
    assert (
        gd.group_report(direct, X, y, groups=found).columns["group"]
        == same.report(X, y, found.groups(X)).columns["group"]
    )


def test_stores_and_worst_shares_divide_the_rows_among_overlapping_groups(tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(4000, 3)), columns=list("abc"))
    y = X["a"] + rng.normal(size=4000)
    factor = np.where(X["b"] > 0.5, 3.0, 1.0) * np.where(X["c"] > 0.2, 2.0, 1.0)
    found = gd.find_groups(losses=rng.exponential(size=4000) * factor, columns=X)
    assert found.grouping(X).overlapping
    labels, sizes = np.unique(found.partition(X), return_counts=True)
    store = gd.GroupedStore.write_arrays(tmp_path / "store", X, y, found)
    assert [*zip(store.names, store.group_sizes, strict=True)] == [*zip(labels, sizes, strict=True)]
    share = gd.GroupDRORegressor(worst_share=0.3, alpha=1e-2)
    direct, same = share.fit(X, y, groups=found).coef_, share.fit(X, y, groups=found.partition(X)).coef_
    np.testing.assert_array_equal(direct, same)


def test_frontiers_and_searches_take_the_result_too(planted):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(1000, 2)), columns=["a", "b"])
    y = np.where(X["b"] > 0.7, -1.0, 1.0) * X["a"] + 0.5 * rng.normal(size=1000)
    found = gd.find_groups(losses=planted_losses(X["b"].to_numpy() > 0.7, seed=0), columns=X)
    names = [*found.columns["group"], "(other rows)"]
    frontier = gd.robustness_frontier(X, y, found, estimator=gd.GroupDRORegressor(alpha=1e-2), tol=0.5)
    same = gd.robustness_frontier(X, y, found.groups(X), estimator=gd.GroupDRORegressor(alpha=1e-2), tol=0.5)
    assert repr(frontier) == repr(same)
    chosen = gd.GroupDRORegressorCV(gd.GroupDRORegressor(), alphas=[1e-2], cv=2).fit(X, y, groups=found)
    assert chosen.best_estimator_.groups_.tolist() == names


def test_folds_are_stratified_by_found_groups(planted):
    frame, *_, found = planted
    folds = gd.GroupStratifiedKFold(3, random_state=0)
    for a, b in zip(folds.split(frame, None, found), folds.split(frame, None, found.groups(frame)), strict=True):
        np.testing.assert_array_equal(a[1], b[1])


def test_groups_keep_the_index_of_pandas(planted):
    frame, *_, found = planted
    shuffled = frame.sample(frac=0.5, random_state=0)
    member = found.groups(shuffled)
    assert member.index.equals(shuffled.index)
    pd.testing.assert_frame_equal(member, found.groups(frame).loc[shuffled.index])


def test_the_rows_of_the_search_are_recognised(planted):
    frame, _, _, found = planted
    order = np.random.default_rng(0).permutation(6000)
    more = pd.concat([frame, describing_columns(2000, seed=9)], ignore_index=True).iloc[order]
    # Where age is missing, rows may be alike in all columns.
    keys = Columns(more).keys(list(more.columns))
    np.testing.assert_array_equal(np.sort(keys[found.seen(more)]), np.sort(keys[order < 4000]))
    assert len(found.seen(frame.iloc[1:])) == 3999
    assert len(found.seen(frame.iloc[::3])) == len(frame.iloc[::3])
    assert len(found.seen(frame.astype({"age": np.float32}))) == 4000
    assert not len(found.seen(describing_columns(5000, seed=9)))
    assert not len(found.seen(frame[["age"]]))


@pytest.mark.parametrize("levels", [4, 40, 400])
def test_new_rows_that_are_alike_by_chance_are_not_taken_for_those_of_the_search(levels):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.integers(0, levels, size=(6000, 2)), columns=["a", "b"])
    losses = rng.exponential(size=6000) * np.where(table["a"] < levels / 4, 3.0, 1.0)
    found = gd.find_groups(losses=losses[:3000], columns=table[:3000])
    assert not len(found.seen(table[3000:]))
    assert len(found.seen(table[:3000])) == 3000


def test_plot_shows_the_bounds(planted):
    pytest.importorskip("matplotlib")
    *_, found = planted
    display = found.plot()
    np.testing.assert_allclose(display.points_.get_xdata(), found.columns["difference"])
    np.testing.assert_allclose([line[0, 0] for line in display.bounds_.get_segments()], found.columns["at_least"])


def test_a_comparison_judges_only_on_rows_that_the_search_has_not_seen():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(3000, 3)), columns=["a", "b", "c"])
    y = pd.Series(np.where(X["b"] > 0.7, -2.0, 1.0) * X["a"] + 0.5 * rng.normal(size=3000))
    model = gd.GroupDRORegressor(robustness=0.0).fit(X[:1000], y[:1000], groups=np.zeros(1000))
    found = gd.find_groups(model, X[1000:], y[1000:])
    judged = []

    def metric(y_true, y_pred):
        judged.extend(y_true)
        return -np.mean(np.square(y_true - y_pred))

    result = gd.compare(X, y, groups=found, cv=None, metrics=["risk", metric], n_bootstrap=20)
    assert set(judged) <= set(y[:1000])
    assert result.reports["ERM"].overall["n"] == 250
    assert result.changes["GDRO"].gain[0] > 0
    with pytest.raises(ValueError, match="groups were found on all rows of X"):
        gd.compare(X[1000:], y[1000:], groups=found)
    with pytest.raises(ValueError, match="held_out: groups were found on 2000 of these rows"):
        gd.compare(X[:1000], y[:1000], groups=found, held_out=(X[1000:], y[1000:], found))
    some = np.r_[0:500, 600:1500]
    part = gd.compare(X.iloc[some], y.iloc[some], groups=found, cv=None, n_bootstrap=20)
    assert part.reports["ERM"].overall["n"] == 225  # a fourth of the 900 that the search has not seen
    with pytest.raises(TypeError, match=r"groups\.partition"):
        read_groups(found, 1000)


def test_tables_in_another_order_are_refused():
    X, y, described, _ = failing_classifier(500)
    model, other = LogisticRegression().fit(X, y), described.sample(frac=1.0, random_state=0)
    with pytest.raises(ValueError, match="columns has the index of X in another order"):
        gd.find_groups(model, X, y, columns=other)
    with pytest.raises(ValueError, match="losses has the index of columns in another order"):
        gd.find_groups(losses=pd.Series(np.ones(500), index=other.index), columns=described)


@pytest.mark.parametrize(("n", "cluster"), [(0, None), (1, None), (300, np.zeros(300))])
def test_with_hardly_any_rows_nothing_can_be_found(n, cluster):
    found = gd.find_groups(losses=np.arange(n, dtype=float), columns=np.ones((n, 2)), cluster=cluster)
    assert len(found) == 0
    assert np.isnan(found.detectable[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"losses": np.ones(5)}, "columns must be given with losses"),
        ({"losses": np.ones(5), "columns": np.ones((4, 1))}, "columns has 4 rows, but there are 5"),
        ({"losses": [1.0, np.nan], "columns": np.ones((2, 1))}, "losses has NaN"),
        ({"losses": np.ones(5), "columns": np.ones((5, 1)), "metrics": "recall"}, "metrics must not be given together"),
        ({}, "model, X and y must be given"),
        ({"losses": np.ones(5), "columns": np.ones((5, 1)), "level": 1.0}, "level must be below 1"),
        ({"losses": np.ones(5), "columns": np.ones((5, 1)), "max_conditions": 0}, "max_conditions"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        gd.find_groups(**options)


def test_a_group_in_which_all_rows_fail_and_no_others_is_found():
    region = np.random.default_rng(0).choice(["north", "south", "east"], 3000)
    described = pd.DataFrame({"region": region, "size": np.random.default_rng(1).normal(size=3000)})
    for extra in (0, 1):  # rows outside that fail too
        losses = (region == "east").astype(float)
        losses[np.flatnonzero(region == "south")[:extra]] = 1.0
        found = gd.find_groups(losses=losses, columns=described)
        assert found.columns["group"][0] == "region = east"
        assert 0.9 < found.columns["at_least"][0] <= 1.0
    nothing = gd.find_groups(losses=np.ones(3000), columns=described)
    assert len(nothing) == 0
    assert "the same in all rows" in nothing.message


@pytest.mark.parametrize("scale", [1e-200, 1e160])
def test_losses_of_any_scale_are_searched(scale):
    described = pd.DataFrame({"a": np.random.default_rng(0).normal(size=2000)})
    losses = np.random.default_rng(1).exponential(size=2000) * np.where(described["a"] > 1, 3.0, 1.0)
    plain, scaled = (gd.find_groups(losses=losses * unit, columns=described) for unit in (1.0, scale))
    assert scaled.columns["group"] == plain.columns["group"] != []
    np.testing.assert_allclose(np.array(scaled.columns["at_least"]) / scale, plain.columns["at_least"], rtol=1e-9)
