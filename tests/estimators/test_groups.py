import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import groupdro as gd
from tests.reference.convex import group_minima, worst_value

N = 240
ALPHA = 0.05
rng = np.random.default_rng(7)
X = rng.normal(size=(N, 3)) * [1.0, 2.0, 0.5]
SITE = rng.permutation(np.repeat(["east", "north", "south", "west"], [120, 70, 40, 10]))
SLOPE = {"east": [1.0, 0.5, 0.0], "north": [0.5, -0.5, 1.0], "south": [-1.0, 0.5, 2.0], "west": [0.0, -1.0, -1.0]}
SCORE = np.array([X[i] @ SLOPE[SITE[i]] for i in range(N)]) + rng.logistic(size=N)
ANSWERS = {"binary": (SCORE > 0).astype(int), "classes": np.digitize(SCORE, [-1.0, 1.0]), "numbers": SCORE}
LOSSES = {"binary": gd.losses.Logistic(), "classes": gd.losses.Softmax(3), "numbers": gd.losses.Squared()}
TASKS = list(ANSWERS)
NAMES = ["east", "north", "south", "west"]
SIZES = np.array([120, 70, 40, 10])
MEMBER = np.column_stack([SITE == "east", SITE == "west", SITE != "west", X[:, 0] > 1.0, np.ones(N, bool)])
PARITY = np.where(np.arange(N) % 2, "odd", "even")


def fit(task="binary", groups=SITE, *, start=None, **parameters):
    kind = gd.GroupDRORegressor if task == "numbers" else gd.GroupDROClassifier
    model = kind(**{"alpha": ALPHA, "tol": 1e-9, **parameters})
    return model.fit(X, ANSWERS[task], groups=groups, **(start or {}))


def outputs(model, task):
    return model.predict(X) if task == "numbers" else model.decision_function(X)


def assert_same_fit(one, other, task="binary"):
    assert one.status_ == other.status_ == "converged"
    np.testing.assert_allclose(outputs(one, task), outputs(other, task), atol=1e-8)
    np.testing.assert_allclose(one.group_risks_, other.group_risks_, atol=1e-8)
    assert one.upper_bound_ == pytest.approx(other.upper_bound_, rel=1e-8)


def losses_by_hand(model, task):
    u, y = outputs(model, task), ANSWERS[task]
    if task == "numbers":
        return 0.5 * (u - y) ** 2
    if task == "binary":
        return np.logaddexp(0.0, -(2 * y - 1) * u)
    return logsumexp(u, axis=1) - u[np.arange(N), y]


def risks_by_hand(model, task, member):
    return np.array([losses_by_hand(model, task)[column].mean() for column in member.T])


def penalty(model):
    return 0.5 * ALPHA * float(np.sum(model.coef_**2))


def stated(task, member):
    """The problem as CVXPY gets it: of the groups only the matrix of who belongs where."""
    data = gd.GroupedData.from_arrays(X, ANSWERS[task], member)
    return gd.Problem(data, LOSSES[task], gd.domains.L2Domain(penalty=ALPHA), fit_intercept=True)


def one_column_each(labels):
    return labels[:, None] == np.unique(labels)


def assert_optimal(model, task, member, shift=0.0):
    """The bounds hold the optimum of max_i (R_i - shift_i) + penalty, and the upper one is its value at the model."""
    shift = np.broadcast_to(np.asarray(shift, dtype=float), member.shape[1])
    by_hand = (risks_by_hand(model, task, member) - shift).max() + penalty(model)
    assert model.upper_bound_ == pytest.approx(by_hand, rel=1e-9, abs=1e-9)
    reference = worst_value(stated(task, member), shift)
    assert reference.accurate
    assert reference.value - 1e-6 <= model.upper_bound_ <= (1.0 + model.tol) * reference.value + 1e-6
    assert model.lower_bound_ <= reference.value + 1e-6


# ---------------------------------------------------------------------- no groups


@pytest.mark.parametrize("task", TASKS)
def test_without_groups_all_rows_are_one_group_and_a_warning_says_what_to_do(task):
    with pytest.warns(
        gd.MissingGroupsWarning, match=r"(?s)set_config\(enable_metadata_routing=True\).*GroupBy"
    ) as told:
        without = fit(task, groups=None)
    assert len(told) == 1
    assert without.groups_.tolist() == ["all"]
    assert without.worst_group_ == "all"
    assert without.group_weights_.tolist() == [1.0]
    assert_same_fit(without, fit(task, groups=np.zeros(N)), task)
    assert_optimal(without, task, np.ones((N, 1), bool))


@pytest.mark.parametrize(
    ("groups", "parameters", "category"),
    [
        (None, {}, gd.MissingGroupsWarning),
        (SITE, {"min_group_size": 50}, gd.SmallGroupWarning),
        (SITE, {"max_passes": 1e-9}, ConvergenceWarning),
    ],
    ids=["missing-groups", "small-groups", "unfinished"],
)
def test_a_warning_points_at_the_line_that_called_fit(groups, parameters, category):
    with pytest.warns(category) as told:
        gd.GroupDROClassifier(**parameters).fit(X, ANSWERS["binary"], groups=groups)
    assert told[0].filename == __file__


def test_groups_that_are_given_warn_of_nothing(recwarn):
    fit()
    assert not [w for w in recwarn.list if w.category is not gd.UselessModelWarning]


# ---------------------------------------------------------------------- missing labels


def with_gaps(missing):
    labels = SITE.astype(object)
    labels[5::9] = missing
    return labels


NAMED = with_gaps("~")
GAPS = {
    "none": with_gaps(None),
    "nan": with_gaps(np.nan),
    "NA": pd.Series(with_gaps(pd.NA), dtype="string"),
    "category": pd.Series(pd.Categorical(with_gaps(None))),
    "polars": pl.Series(with_gaps(None).tolist()),
    "masked": np.ma.array(SITE, mask=NAMED == "~"),
}


@pytest.mark.parametrize("groups", GAPS.values(), ids=GAPS)
def test_missing_labels_are_refused_with_the_remedy(groups):
    with pytest.raises(ValueError, match=r"groups has missing values .*first in row 5.*drop .*fillna\('unknown'\)"):
        fit(groups=groups)


def test_the_remedy_for_missing_labels_works():
    frame = pd.DataFrame({"site": with_gaps(None), "parity": PARITY})
    with pytest.raises(ValueError, match=r"groups has missing values .*column 'site'"):
        fit(groups=frame)
    model = fit(groups=frame.fillna("unknown"))
    assert set(model.groups_.tolist()) == set(zip(with_gaps("unknown"), PARITY, strict=True))
    assert_same_fit(fit(groups=pd.Series(with_gaps(None)).fillna("~")), fit(groups=NAMED))


# ---------------------------------------------------------------------- small groups


def fit_merged(least, *merged, **more):
    """Fit, and hold the warning to the names of the groups that must be merged."""
    pattern = rf"{len(merged)} groups of fewer than min_group_size={least}.*'\(merged\)'"
    with pytest.warns(gd.SmallGroupWarning, match=pattern) as caught:
        model = fit(min_group_size=least, **more)
    assert model.merged_groups_ == tuple(merged)
    assert all(repr(name) in str(caught[0].message) for name in merged[:5])
    return model


def test_a_group_of_just_the_least_size_is_not_small(recwarn):
    model = fit(min_group_size=10)
    assert not [w for w in recwarn.list if w.category is not gd.UselessModelWarning]
    assert model.merged_groups_ == ()
    assert_same_fit(model, fit())


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("least", "merged"), [(11, ["west"]), (50, ["south", "west"]), (1000, NAMES)])
def test_merged_groups_equal_labels_merged_by_hand(task, least, merged):
    model = fit_merged(least, *merged, task=task)
    by_hand = np.where(np.isin(SITE, merged), "~", SITE)
    assert model.groups_.tolist() == [*(name for name in NAMES if name not in merged), "(merged)"]
    assert_same_fit(model, fit(task, groups=by_hand), task)
    assert_optimal(model, task, one_column_each(by_hand))


def test_overlapping_groups_merge_to_their_union():
    small = MEMBER.sum(axis=0) < 100
    model = fit_merged(100, *np.flatnonzero(small).tolist(), groups=MEMBER)
    by_hand = np.column_stack([MEMBER[:, ~small], MEMBER[:, small].any(axis=1)])
    assert_same_fit(model, fit(groups=by_hand))


def test_intersections_merge_too():
    frame = pd.DataFrame({"site": SITE, "parity": PARITY})
    sizes = frame.value_counts()
    model = fit_merged(30, *sorted(sizes.index[sizes < 30]), groups=frame)
    assert model.groups_.tolist()[-1] == "(merged)"


# ---------------------------------------------------------------------- the bonus of small groups


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("C", [0.3, 2.0])
def test_the_bonus_is_added_to_each_groups_risk(task, C):
    model = fit(task, small_group_bonus=C)
    assert model.status_ == "converged"
    risks = risks_by_hand(model, task, one_column_each(SITE))
    np.testing.assert_allclose(model.group_risks_, risks, rtol=1e-12)
    assert model.upper_bound_ == pytest.approx((risks + C / np.sqrt(SIZES)).max() + penalty(model), rel=1e-12)
    values = dict(zip(NAMES, risks + C / np.sqrt(SIZES), strict=True))
    assert values[model.worst_group_] == pytest.approx(max(values.values()), rel=1e-12)  # several may tie
    assert_optimal(model, task, one_column_each(SITE), shift=-C / np.sqrt(SIZES))


def test_a_large_bonus_leaves_only_the_smallest_group_to_decide():
    model = fit(small_group_bonus=1e3)
    assert model.worst_group_ == "west"
    np.testing.assert_allclose(model.group_weights_, [0.0, 0.0, 0.0, 1.0], atol=1e-6)


@pytest.mark.parametrize("objective", ["risk", "excess_risk"])
def test_a_bonus_that_lets_very_small_groups_decide_warns(objective):
    groups = SITE.astype(object)
    groups[:3] = ["first", "second", "third"]
    model = gd.GroupDROClassifier(objective, alpha=ALPHA, small_group_bonus=1.0)
    with pytest.warns(gd.SmallGroupWarning, match="determined by about .*min_group_size=30") as caught:
        model.fit(X, ANSWERS["binary"], groups=groups)
    few = np.isin(model.groups_.astype(str), ["first", "second", "third"])
    assert f"{model.group_weights_[few].sum():.1%} of the weight" in str(caught[0].message)
    # With the remedy that it names, only the merging is mentioned.
    with pytest.warns(gd.SmallGroupWarning) as caught:
        merged = clone(model).set_params(min_group_size=30).fit(X, ANSWERS["binary"], groups=groups)
    assert ["merged" in str(warning.message) for warning in caught] == [True]
    assert {"first", "second", "third"} <= set(merged.merged_groups_)


def test_a_few_rows_that_decide_the_fit_are_named():
    """Two rows that contradict each other, each a group of its own: the best model for both predicts nothing."""
    groups = np.append(SITE.astype(object), ["row 1", "row 2"])
    labels = np.append(ANSWERS["binary"] == ANSWERS["binary"].max(), [False, True])
    model = gd.GroupDROClassifier(alpha=0.1, tol=1e-6)
    told = rf"determined by about 2 of {N + 2} rows.*'row .'.*min_group_size=30"
    with pytest.warns(gd.SmallGroupWarning, match=told):
        model.fit(np.vstack([X, X[:1], X[:1]]), labels, groups=groups)
    assert model.status_ == "converged"
    assert abs(model.coef_).max() < 1e-2


def test_the_bonus_counts_rows_and_not_their_weights():
    weight = rng.uniform(0.5, 2.0, N)
    model = gd.GroupDROClassifier(alpha=ALPHA, tol=1e-9, small_group_bonus=1.0)
    model.fit(X, ANSWERS["binary"], weight, groups=SITE)
    losses = losses_by_hand(model, "binary")
    shares = one_column_each(SITE) * weight[:, None]
    risks = losses @ (shares / shares.sum(axis=0))
    assert model.upper_bound_ == pytest.approx((risks + 1 / np.sqrt(SIZES)).max() + penalty(model), rel=1e-12)


# ---------------------------------------------------------------------- regrets


@pytest.mark.parametrize("task", TASKS)
def test_regrets_against_minima_that_are_given(task):
    given = dict(zip(NAMES, [0.35, 0.5, 0.2, 0.1], strict=True))
    by_name = fit(task, objective="excess_risk", start={"group_minima": dict(reversed(given.items()))})
    by_order = fit(task, objective="excess_risk", start={"group_minima": list(given.values())})
    assert_same_fit(by_name, by_order, task)
    np.testing.assert_array_equal(by_name.group_minima_, list(given.values()))
    regrets = risks_by_hand(by_name, task, one_column_each(SITE)) - list(given.values())
    assert by_name.upper_bound_ == pytest.approx(regrets.max() + penalty(by_name), rel=1e-9)
    assert regrets[NAMES.index(by_name.worst_group_)] == pytest.approx(regrets.max(), rel=1e-9)
    assert_optimal(by_name, task, one_column_each(SITE), shift=list(given.values()))


def test_minima_of_zero_are_the_plain_risks():
    zero = fit(objective="excess_risk", start={"group_minima": np.zeros(4)})
    assert_same_fit(zero, fit())


def test_minima_go_by_the_groups_of_the_fit():
    merged = {"east": 0.3, "north": 0.4, "(merged)": 0.1}
    model = fit_merged(50, "south", "west", objective="excess_risk", start={"group_minima": merged})
    np.testing.assert_array_equal(model.group_minima_, [0.3, 0.4, 0.1])
    with pytest.raises(ValueError, match=r"group_minima has no value for 1 groups, such as '\(merged\)'"):
        fit_merged(50, "south", "west", objective="excess_risk", start={"group_minima": dict.fromkeys(NAMES, 0.1)})


@pytest.mark.parametrize("task", TASKS)
def test_regrets_against_each_groups_own_minimum(task):
    model = fit(task, objective="excess_risk", tol=1e-6)
    member = one_column_each(SITE)
    minima, accurate = group_minima(stated(task, member))
    assert accurate
    np.testing.assert_allclose(model.group_minima_, minima, atol=1e-6)
    assert_regret(model, task, member, minima)


@pytest.mark.parametrize("task", TASKS)
def test_regrets_of_overlapping_groups(task):
    model = fit(task, groups=MEMBER, objective="excess_risk", tol=1e-6)
    minima, accurate = group_minima(stated(task, MEMBER))
    assert accurate
    np.testing.assert_allclose(model.group_minima_, minima, atol=1e-6)
    assert_regret(model, task, MEMBER, minima)


def assert_regret(model, task, member, shift):
    assert model.status_ == "converged"
    by_hand = (risks_by_hand(model, task, member) - shift).max() + penalty(model)
    assert model.upper_bound_ == pytest.approx(by_hand, abs=1e-6)
    reference = worst_value(stated(task, member), shift)
    assert reference.accurate
    assert reference.value - 1e-6 <= model.upper_bound_ <= (1.0 + model.tol) * reference.value + 1e-6
    assert model.lower_bound_ <= reference.value + 1e-6


def test_regrets_with_a_bonus():
    member, allowance = one_column_each(SITE), 0.5 / np.sqrt(SIZES)
    model = fit(objective="excess_risk", tol=1e-6, small_group_bonus=0.5)
    minima, _ = group_minima(stated("binary", member))
    assert_regret(model, "binary", member, minima - allowance)


def test_a_group_that_nobody_can_predict_does_not_decide_for_all():
    y = np.where(SITE == "west", rng.integers(0, 2, N), (X[:, 0] > 0).astype(int))
    risk, regret = (gd.GroupDROClassifier(kind, alpha=ALPHA).fit(X, y, groups=SITE) for kind in ("risk", "excess_risk"))
    others = SITE != "west"
    assert regret.score(X[others], y[others]) > risk.score(X[others], y[others])


# ---------------------------------------------------------------------- overlapping groups


MEMBERSHIPS = {
    "booleans": MEMBER,
    "lists": MEMBER.tolist(),
    "pandas": pd.DataFrame(MEMBER, columns=list("abcde")),
    "pandas-nullable": pd.DataFrame(MEMBER, columns=list("abcde"), dtype="boolean"),
    "polars": pl.DataFrame(MEMBER, schema=list("abcde")),
    "csr": sp.csr_array(MEMBER),
    "csc-of-numbers": sp.csc_matrix(MEMBER.astype(float)),
    "coo-of-whole-numbers": sp.coo_array(MEMBER.astype(np.int8)),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("groups", MEMBERSHIPS.values(), ids=MEMBERSHIPS)
def test_overlapping_groups_of_any_container_are_the_same_fit(task, groups):
    model, plain = fit(task, groups=groups), fit(task, groups=MEMBER)
    names = list("abcde") if hasattr(groups, "columns") else list(range(5))
    assert model.groups_.tolist() == names
    assert_same_fit(model, plain, task)


@pytest.mark.parametrize("task", TASKS)
def test_overlapping_groups_reach_the_optimum(task):
    model = fit(task, groups=MEMBER)
    np.testing.assert_allclose(model.group_risks_, risks_by_hand(model, task, MEMBER), rtol=1e-12)
    assert_optimal(model, task, MEMBER)


def test_overlapping_groups_without_overlap_equal_labels():
    assert_same_fit(fit(groups=one_column_each(SITE)), fit())


def test_a_group_of_all_rows_changes_nothing_where_another_is_worse():
    everyone = np.column_stack([one_column_each(SITE), np.ones(N, bool)])
    np.testing.assert_allclose(outputs(fit(groups=everyone), "binary"), outputs(fit(), "binary"), atol=1e-6)


# ---------------------------------------------------------------------- groups of several columns


@pytest.mark.parametrize(
    "groups",
    [
        np.column_stack([SITE, PARITY]),
        pd.DataFrame({"site": SITE, "parity": PARITY}),
        pd.DataFrame({"site": pd.Categorical(SITE, categories=["nowhere", *NAMES[::-1]]), "parity": PARITY}),
        pl.DataFrame({"site": SITE, "parity": PARITY}),
    ],
    ids=["ndarray", "pandas", "categories", "polars"],
)
def test_two_columns_are_groups_of_their_combinations(groups):
    model = fit(groups=groups)
    pairs = sorted(set(zip(SITE.tolist(), PARITY.tolist(), strict=True)))
    assert model.groups_.tolist() == pairs
    joined = np.char.add(np.char.add(SITE, "-"), PARITY)
    assert_same_fit(model, fit(groups=joined))
    assert_optimal(model, "binary", one_column_each(joined))
    assert model.worst_group_ in pairs


def test_columns_of_zeros_and_ones_are_intersections_in_a_frame_and_refused_in_an_array():
    codes = np.column_stack([X[:, 0] > 0, X[:, 1] > 0]).astype(int)
    model = fit(groups=pd.DataFrame(codes, columns=["u", "v"]))
    assert model.groups_.tolist() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert_same_fit(model, fit(groups=codes @ [2, 1]))
    with pytest.raises(ValueError, match="groups is a matrix of zeros and ones"):
        fit(groups=codes)


# ---------------------------------------------------------------------- labels of other kinds


DAYS = [datetime.date(2020, 1, 31), datetime.date(2020, 2, 1), datetime.date(2021, 1, 1), datetime.date(2021, 1, 2)]
TIMES = [datetime.datetime(day.year, day.month, day.day, 12) for day in DAYS]


def renamed(names):
    out = np.empty(N, object)
    out[:] = [names[NAMES.index(site)] for site in SITE]
    return out


LABELS = {
    "whole-numbers": ([-3, 0, 7, 10**12], renamed([-3, 0, 7, 10**12]).astype(np.int64)),
    "small-whole-numbers": ([1, 2, 3, 200], renamed([1, 2, 3, 200]).astype(np.uint8)),
    "floats": ([-0.5, 0.0, 0.25, np.inf], renamed([-0.5, 0.0, 0.25, np.inf]).astype(float)),
    "bytes": ([b"e", b"n", b"s", b"w"], renamed([b"e", b"n", b"s", b"w"]).astype(bytes)),
    "bytes-objects": ([b"e", b"n", b"s", b"w"], renamed([b"e", b"n", b"s", b"w"])),
    "tuples": ([("a", 1), ("a", 2), ("b", 1), ("b", 2)], renamed([("a", 1), ("a", 2), ("b", 1), ("b", 2)])),
    "dates": (DAYS, renamed(DAYS)),
    "dates-of-numpy": (DAYS, renamed(DAYS).astype("M8[D]")),
    "dates-of-polars": (DAYS, pl.Series(renamed(DAYS).tolist())),
    "times": (TIMES, renamed(TIMES)),
    "times-to-microseconds": (TIMES, pd.Series(renamed(TIMES).astype("M8[us]"))),
    "times-to-nanoseconds": (TIMES, pd.Series(renamed(TIMES).astype("M8[ns]"))),
    "times-to-nanoseconds-of-numpy": (TIMES, renamed(TIMES).astype("M8[ns]")),
}


@pytest.mark.parametrize(("names", "groups"), LABELS.values(), ids=LABELS)
def test_groups_may_have_labels_of_any_kind(names, groups):
    model = fit(groups=groups)
    assert_same_fit(model, fit())
    assert model.groups_.tolist() == names
    assert model.worst_group_ in names


def test_labels_of_mixed_kinds_are_groups_in_the_order_of_their_appearance():
    names = ["east", 1, ("x", 2), 2.5]
    model, plain = fit(groups=renamed(names)), fit()
    seen = list(dict.fromkeys(renamed(names).tolist()))
    assert model.groups_.tolist() == seen
    np.testing.assert_allclose(outputs(model, "binary"), outputs(plain, "binary"), atol=1e-8)
    np.testing.assert_allclose(model.group_risks_, plain.group_risks_[[names.index(name) for name in seen]], atol=1e-8)


@pytest.mark.parametrize(
    "labels", [LABELS["tuples"], LABELS["dates"], LABELS["bytes"]], ids=["tuples", "dates", "bytes"]
)
def test_starting_weights_and_minima_go_by_such_labels(labels):
    names, groups = labels
    by_name = dict(zip(names, [0.1, 0.2, 0.3, 0.4], strict=True))
    values = list(by_name.values())
    model = fit(groups=groups, objective="excess_risk", start={"group_minima": by_name, "q_init": by_name})
    plain = fit(objective="excess_risk", start={"group_minima": values, "q_init": values})
    assert_same_fit(model, plain)


def test_groups_in_the_place_of_weights_are_told_their_keyword():
    told = pytest.raises(ValueError, match=r"sample_weight must be numeric.* Pass groups by keyword")
    with pytest.warns(gd.MissingGroupsWarning), told:
        gd.GroupDROClassifier().fit(np.eye(4), [0, 1, 0, 1], ["a", "a", "b", "b"])
