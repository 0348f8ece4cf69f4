"""The frontier of average and worst: its geometry, and every one of its statements against CVXPY."""

import functools
import itertools
import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import groupdro as gd
from groupdro import GroupDROClassifier, GroupDRORegressor
from groupdro.estimators.enclosure import Enclosure
from tests.estimators.test_robustness import make_data, overlapping
from tests.reference.blends import Blend

ALPHA = 1e-2
NEAR = 3e-7  # accuracy of CVXPY
ROUNDING = 1e-9

# ---------------------------------------------------------------------- geometry

numbers = st.floats(0.0, 10.0).map(lambda x: round(x, 3))
pairs = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8)


def least(points, t):
    """Return the least blend of some points, and of all that their mixtures attain or beat."""
    return min((1 - t) * a + t * b for a, b in points)


def attains(points, mean, worst, room=0.0):
    """Say whether a mixture of two points is within both limits, by every pair of points."""
    for (a, b), (c, d) in itertools.product(points, repeat=2):
        # The shares s of the second point with (1 - s) a + s c <= mean are an interval, and so for worst.
        low, high = 0.0, 1.0
        for first, second, limit in ((a, c, mean + room), (b, d, worst + room)):
            if first == second:
                low = low if first <= limit else np.inf
            elif second > first:
                high = min(high, (limit - first) / (second - first))
            else:
                low = max(low, (limit - first) / (second - first))
        if low <= high:
            return True
    return False


@st.composite
def frontiers(draw, exact=False):
    """Draw a region by its corners, and what fits to some accuracy would know of it."""
    points = draw(pairs)
    ts = np.array(sorted({0.0, 1.0, *draw(st.lists(st.floats(0.01, 0.99), max_size=5))}))
    slack = 0.0 if exact else draw(st.sampled_from([0.0, 1e-3, 0.5]))
    known = []
    for t in ts:
        a, b = min(points, key=lambda p, t=t: ((1 - t) * p[0] + t * p[1], p))
        above, below = (
            slack * draw(st.floats(0, 1, allow_subnormal=False).map(lambda x: round(x, 9))) for _ in range(2)
        )
        known.append((a + above, b + above, least(points, t) - below))
    mean, worst, lower = np.array(known).T
    return points, Enclosure(ts, mean, worst, lower)


@given(frontiers())
def test_the_edge_falls_and_no_point_is_below_its_chords(drawn):
    _, enclosure = drawn
    edge = enclosure.hull()
    mean, worst = enclosure.mean, enclosure.worst
    assert (np.diff(mean[edge]) > 0).all()
    assert (np.diff(worst[edge]) < 0).all()
    assert mean[edge[0]] == mean.min()
    assert worst[edge[-1]] == worst.min()
    slopes = np.diff(worst[edge]) / np.diff(mean[edge])
    assert (np.diff(slopes) > -1e-6 * np.abs(slopes[1:])).all()
    on_chord = np.interp(mean, mean[edge], worst[edge])
    assert (worst >= on_chord - ROUNDING * max(1.0, np.abs(slopes).max(initial=0.0))).all()


@given(frontiers(), st.floats(0.0, 1.0))
def test_what_is_proved_of_a_blend_holds(drawn, t):
    points, enclosure = drawn
    assert enclosure.least_blend(t) <= least(points, t) + ROUNDING


def test_nothing_is_proved_outside_of_the_directions_that_were_solved():
    enclosure = Enclosure(np.array([0.2, 0.6]), np.array([1.0, 2.0]), np.array([2.0, 1.0]), np.array([1.2, 1.3]))
    assert enclosure.least_blend(0.1) == enclosure.least_blend(0.7) == -np.inf
    assert enclosure.least_blend(0.2) == 1.2
    assert enclosure.least_blend(0.4) == pytest.approx(1.25)
    alone = Enclosure(np.zeros(1), np.ones(1), np.ones(1), np.ones(1))
    assert (alone.least_blend(0.0), alone.least_blend(0.5)) == (1.0, -np.inf)


@given(frontiers(), numbers, numbers)
def test_wishes_are_refused_or_met_only_where_that_is_so(drawn, mean, worst):
    points, enclosure = drawn
    refuted, found = enclosure.refutes(mean, worst), enclosure.mixture(mean=mean, worst=worst)
    if refuted is not None:
        t = enclosure.t[refuted]
        assert (1 - t) * mean + t * worst < enclosure.lower[refuted]
        assert not attains(points, mean, worst, room=-ROUNDING)
    if found is not None:
        a, b, share = found
        assert 0 <= share <= 1
        assert (1 - share) * enclosure.mean[a] + share * enclosure.mean[b] <= mean + ROUNDING
        assert (1 - share) * enclosure.worst[a] + share * enclosure.worst[b] <= worst + ROUNDING
        assert attains(points, mean, worst, room=ROUNDING)
    elif attains(list(zip(enclosure.mean, enclosure.worst, strict=True)), mean, worst, room=-1e-6):
        pytest.fail("a mixture of the points meets the wishes, and was not found")


@given(frontiers(), numbers)
def test_limits_are_below_what_is_attained(drawn, limit):
    points, enclosure = drawn
    known = list(zip(enclosure.mean, enclosure.worst, strict=True))
    for axis, bound in ((0, enclosure.least_worst(limit)), (1, enclosure.least_mean(limit))):
        found = enclosure.mixture(**{("mean", "worst")[axis]: limit})
        if found is None:
            assert min(point[axis] for point in known) > limit
            continue
        a, b, share = found
        reached = tuple((1 - share) * known[a][k] + share * known[b][k] for k in range(2))
        assert reached[axis] <= limit + ROUNDING
        assert bound <= reached[1 - axis] + ROUNDING * 1e3
        # No mixture of the points has less of the other.
        wishes = {("mean", "worst")[axis]: limit, ("worst", "mean")[axis]: reached[1 - axis] - 1e-5}
        assert not attains(known, **wishes, room=-ROUNDING)
        assert not attains(points, **{**wishes, ("worst", "mean")[axis]: bound - 1e-5}, room=-ROUNDING)


@given(frontiers())
def test_the_widest_place_is_where_chord_and_limit_are_furthest_apart(drawn):
    points, enclosure = drawn
    t, width = enclosure.next_t()
    assert 0 <= t <= 1
    edge = enclosure.hull()
    if len(edge) > 1 and width > 0:
        attained = least(list(zip(enclosure.mean[edge], enclosure.worst[edge], strict=True)), t)
        assert (attained - enclosure.least_blend(t)) / attained == pytest.approx(width, abs=1e-6)
        assert (attained - least(points, t)) / attained <= width + 1e-6


@given(pairs)
def test_a_frontier_that_is_known_in_all_its_directions_is_closed(points):
    edge = Enclosure(*np.column_stack([(0.5, a, b, 0.0) for a, b in points])).hull()
    corners = [points[k] for k in edge]
    ts = {0.0, 1.0}
    for (a, b), (c, d) in itertools.pairwise(corners):
        ts.add((c - a) / ((c - a) + (b - d)))
    ts = np.array(sorted(ts))
    ts = np.unique(np.concatenate([ts, (ts[1:] + ts[:-1]) / 2]))  # in between, each corner alone is the best
    best = np.array([min(corners, key=lambda p, t=t: (1 - t) * p[0] + t * p[1]) for t in ts])
    enclosure = Enclosure(ts, best[:, 0], best[:, 1], np.array([least(corners, t) for t in ts]))
    assert enclosure.next_t()[1] <= 1e-9


# ---------------------------------------------------------------------- frontiers of small problems

PROBLEMS = ("binary", "regression", "three classes", "overlap", "excess risks", "two worst", "groups")


@functools.cache
def solved(name):
    """Return a frontier, and the same problem for CVXPY."""
    n_classes = {"regression": 1, "three classes": 3}.get(name, 2)
    X, y, groups = make_data(n_classes, n=90, seed=3)
    params = {"alpha": ALPHA}
    stated = {"alpha": ALPHA}
    if name == "overlap":
        groups = overlapping(groups)
    if name == "excess risks":
        references = np.array([0.1, 0.5, 0.2, 0.3])
        params |= {"objective": "excess_risk"}
        stated |= {"references": references}
    if name == "two worst":
        params |= {"worst_share": 0.5, "average": "groups"}
        stated |= {"n_worst": 2, "average": "groups"}
    if name == "groups":
        params |= {"average": "groups"}
        stated |= {"average": "groups"}
    make = GroupDRORegressor if n_classes == 1 else GroupDROClassifier
    frontier = gd.robustness_frontier(
        X, y, groups, estimator=make(**params), group_minima=stated.get("references"), tol=2e-3
    )
    return frontier, Blend(X, y, groups, **stated)


every_problem = pytest.mark.parametrize("name", PROBLEMS)


@every_problem
def test_every_point_is_attained_and_every_half_plane_holds(name):
    frontier, blend = solved(name)
    assert frontier.robustness[0] == 0.0
    assert frontier.robustness[-1] == 1.0
    assert (np.diff(frontier.robustness) > 0).all()
    for k, (t, point) in enumerate(zip(frontier.robustness, frontier.models, strict=True)):
        mean, worst = blend.profile(point.model)
        assert (mean, worst) == pytest.approx((frontier.mean[k], frontier.worst[k]), rel=1e-8)
        assert (point.mean, point.worst) == pytest.approx((mean, worst), rel=1e-8)
        assert point.robustness == t
        best = blend.least_blend(t)
        assert frontier.lower[k] <= best + NEAR
        assert best <= (1 - t) * mean + t * worst + NEAR


@every_problem
def test_the_frontier_is_enclosed_to_the_tolerance(name):
    frontier, blend = solved(name)
    assert frontier.converged
    assert 0 < frontier.enclosure <= 2e-3
    assert 2 <= frontier.n_fits <= 16
    assert frontier.n_passes > 0
    edge = frontier.edge
    assert len(edge) > 2
    for t in (0.15, 0.5, 0.85):  # what is attained is within the tolerance of the best, in any direction
        attained = ((1 - t) * frontier.mean[edge] + t * frontier.worst[edge]).min()
        assert attained - blend.least_blend(t) <= 2e-3 * abs(attained) + NEAR


@every_problem
def test_models_carry_what_the_frontier_proves_of_them(name):
    frontier, blend = solved(name)
    for point in frontier.models:
        assert point.mean_lower <= point.mean
        assert point.worst_lower <= point.worst
        model = point.model
        assert (model.mean_risk_, model.worst_risk_) == (point.mean, point.worst)
        assert (model.mean_lower_bound_, model.worst_lower_bound_) == (point.mean_lower, point.worst_lower)
        assert model.robustness == point.robustness
        blended = (1 - point.robustness) * point.mean + point.robustness * point.worst
        assert model.upper_bound_ == pytest.approx(blended, rel=1e-9)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).coef_, model.coef_)
    middle = frontier.models[len(frontier.models) // 2]
    assert middle.mean_lower <= blend.least_mean(middle.worst) + NEAR
    assert middle.worst_lower <= blend.least_worst(middle.mean) + NEAR


@every_problem
@pytest.mark.parametrize("budget", [0.0, 0.005, 0.02, 0.5])
def test_picks_keep_their_budget_and_their_intervals_hold(name, budget):
    frontier, blend = solved(name)
    absolute = name == "excess risks"
    for axis, pick in ((0, frontier.least_worst(budget)), (1, frontier.least_mean(budget))):
        best = (frontier.mean, frontier.worst)[axis].min()
        limit = best + budget * (1.0 if absolute else best)
        values = blend.profile(pick.model)
        assert values == pytest.approx((pick.mean, pick.worst), rel=1e-8)
        assert values[axis] <= limit * (1 + 1e-12)
        assert pick.mean_lower <= pick.mean
        assert pick.worst_lower <= pick.worst
        if 0 < budget < 0.5:
            reached, lower = ((pick.worst, pick.worst_lower), (pick.mean, pick.mean_lower))[axis]
            limits = (blend.least_worst, blend.least_mean)[axis]
            assert lower <= limits(values[axis]) + NEAR
            assert limits(limit) <= reached + NEAR
            assert reached - lower <= 0.02 * abs(reached)
    if budget == 0.5 and not absolute:
        assert frontier.least_mean(budget).mean == pytest.approx(frontier.mean.min(), rel=1e-9)


@every_problem
def test_wishes_are_answered_with_a_model_or_with_a_proof(name):
    frontier, blend = solved(name)
    rng, edge = np.random.default_rng(5), frontier.edge
    spans = [(values[edge].min(), np.ptp(values[edge])) for values in (frontier.mean, frontier.worst)]
    verdicts, best = [], {}
    for _ in range(40):
        mean, worst = (low + rng.uniform(-0.05, 1.05) * span for low, span in spans)
        if rng.random() < 0.5:  # near the frontier, where it is hard to say
            worst = np.interp(mean, frontier.mean[edge], frontier.worst[edge]) * (1 + rng.normal() * 3e-3)
        answer = frontier.attainable(mean=mean, worst=worst)
        verdicts.append(answer.verdict)
        assert bool(answer) == (answer.verdict == "yes")
        if answer.verdict == "yes":
            attained = blend.profile(answer.model.model)
            assert attained[0] <= mean * (1 + 1e-9)
            assert attained[1] <= worst * (1 + 1e-9)
        else:
            assert answer.model is None
        if answer.verdict == "no":
            t = answer.robustness
            assert (1 - t) * mean + t * worst < answer.least
            best.setdefault(t, blend.least_blend(t))
            assert answer.least <= best[t] + NEAR  # so that no model has less, and the wishes do
            assert f"{answer.least:.8g}" in answer.message
        else:
            assert np.isnan(answer.robustness)
            assert np.isnan(answer.least)
    assert verdicts.count("open") <= 8
    assert verdicts.count("yes") >= 5
    assert verdicts.count("no") >= 5


@every_problem
def test_wishes_beyond_the_frontier_are_refused_as_cvxpy_finds(name):
    frontier, blend = solved(name)
    for k in (0.25, 0.75):
        mean = (1 - k) * frontier.mean[frontier.edge[0]] + k * frontier.mean[frontier.edge[-1]]
        least_worst = blend.least_worst(mean)
        room = 0.02 * abs(least_worst)
        assert frontier.attainable(mean=mean, worst=least_worst - room).verdict == "no"
        assert frontier.attainable(mean=mean, worst=least_worst + room).verdict == "yes"
        assert frontier.attainable(mean=mean, worst=least_worst - 1e-6).verdict != "yes"
        assert frontier.worst_limit(mean) <= least_worst + NEAR


def test_excess_risks_that_are_not_given_are_found_once():
    X, y, groups = make_data(n=90, seed=3)
    estimator = GroupDROClassifier("excess_risk", alpha=ALPHA)
    frontier = gd.robustness_frontier(X, y, groups, estimator=estimator, tol=5e-3)
    own = [GroupDROClassifier(alpha=ALPHA, tol=1e-10).fit(X[groups == g], y[groups == g], groups=groups[groups == g])
           for g in range(4)]  # fmt: skip
    references = np.array([model.upper_bound_ for model in own])
    blend = Blend(X, y, groups, alpha=ALPHA, references=references)
    assert frontier.converged
    for k, point in enumerate(frontier.models):
        np.testing.assert_allclose(point.model.group_minima_, references, atol=1e-5)
        assert blend.profile(point.model) == pytest.approx((frontier.mean[k], frontier.worst[k]), abs=1e-5)
    for k in (0, len(frontier.lower) // 2, -1):
        assert frontier.lower[k] <= blend.least_blend(frontier.robustness[k]) + 1e-6
    cheap = frontier.least_worst(0.003)  # absolute, because the best may be near zero
    assert cheap.mean <= frontier.mean.min() + 0.003 + 1e-12
    assert cheap.mean >= frontier.mean.min() + 0.002


# ---------------------------------------------------------------------- what is given


def test_the_estimator_is_not_changed_and_fits_follow_its_parameters():
    X, y, groups = make_data(n=90)
    estimator = GroupDROClassifier(alpha=0.3, robustness=0.7, average="groups")
    before = estimator.get_params()
    frontier = gd.robustness_frontier(X, y, groups, estimator=estimator, tol=1e-2)
    assert estimator.get_params() == before
    assert not hasattr(estimator, "coef_")
    assert {point.model.alpha for point in frontier.models} == {0.3}
    assert frontier.average == "groups"
    for k, point in enumerate(frontier.models):
        expected = Blend(X, y, groups, alpha=0.3, average="groups").profile(point.model)
        assert (frontier.mean[k], frontier.worst[k]) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("n_classes", "kind"), [(1, GroupDRORegressor), (2, GroupDROClassifier)])
def test_the_kind_of_model_follows_the_labels(n_classes, kind):
    X, y, groups = make_data(n_classes, n=60)
    frontier = gd.robustness_frontier(X, y, groups, tol=1e-2)
    assert {type(point.model) for point in frontier.models} == {kind}
    np.testing.assert_array_equal(frontier.models[0].model.predict(X).shape, y.shape)


def test_weights_of_rows_count():
    X, y, groups = make_data(n=90)
    weight = np.random.default_rng(1).uniform(0.1, 3.0, len(y))
    estimator = GroupDROClassifier(alpha=ALPHA)
    frontier = gd.robustness_frontier(X, y, groups, estimator=estimator, sample_weight=weight, tol=5e-3)
    blend = Blend(X, y, groups, alpha=ALPHA, weight=weight)
    for k, point in enumerate(frontier.models):
        assert (frontier.mean[k], frontier.worst[k]) == pytest.approx(blend.profile(point.model), rel=1e-8)
        assert frontier.lower[k] <= blend.least_blend(frontier.robustness[k]) + NEAR


def test_one_group_has_a_frontier_of_one_point():
    X, y, _ = make_data(n=60)
    frontier = gd.robustness_frontier(X, y, np.zeros(60), estimator=GroupDROClassifier(alpha=ALPHA))
    assert frontier.converged
    assert frontier.n_fits == 2
    np.testing.assert_allclose(frontier.mean, frontier.worst, rtol=1e-12)
    best = Blend(X, y, np.zeros(60), alpha=ALPHA).least_blend(0.0)
    assert frontier.attainable(mean=best * 1.001, worst=best * 1.001)
    assert frontier.attainable(mean=best * 0.999, worst=best * 2).verdict == "no"
    assert frontier.least_worst(0.01).worst == pytest.approx(best, rel=1e-5)


def test_two_groups_of_the_same_rows_have_a_frontier_of_one_point():
    X, y, _ = make_data(n=60)
    twice, groups = np.concatenate([X, X]), np.repeat([0, 1], 60)
    frontier = gd.robustness_frontier(twice, np.concatenate([y, y]), groups, estimator=GroupDROClassifier(alpha=ALPHA))
    assert frontier.converged
    np.testing.assert_allclose(frontier.mean, frontier.worst, rtol=1e-10)
    best = Blend(X, y, np.zeros(60), alpha=ALPHA).least_blend(0.0)
    np.testing.assert_allclose(frontier.mean, best, rtol=1e-5)


def test_too_few_fits_warn_and_claim_nothing_that_does_not_hold():
    X, y, groups = make_data(n=90, seed=3)
    with pytest.warns(UserWarning, match=r"^The frontier is enclosed to .*, not to tol=1e-05"):
        frontier = gd.robustness_frontier(X, y, groups, estimator=GroupDROClassifier(alpha=ALPHA), tol=1e-5, max_fits=2)
    assert frontier.n_fits == 2
    assert not frontier.converged
    blend = Blend(X, y, groups, alpha=ALPHA)
    mean = 0.5 * (frontier.mean[0] + frontier.mean[-1])
    least_worst = blend.least_worst(mean)
    assert frontier.worst_limit(mean) <= least_worst + NEAR
    answer = frontier.attainable(mean=mean, worst=least_worst * 1.001)
    assert answer.verdict == "open"
    assert "enclosed to" in answer.message


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"tol": 0.0}, ValueError, r"^tol "),
        ({"tol": "a"}, (TypeError, ValueError), r"^tol "),
        ({"max_fits": 1}, ValueError, r"^max_fits "),
        ({"max_fits": 2.5}, (TypeError, ValueError), r"^max_fits "),
        ({"estimator": "sqp"}, TypeError, r"^estimator must be .* got str"),
        ({"estimator": GroupDROClassifier(alpha=-1.0)}, ValueError, r"^alpha "),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused_by_name(change, error, said):
    X, y, groups = make_data(n=60)
    with pytest.raises(error, match=said):
        gd.robustness_frontier(X, y, groups, **change)


def test_questions_that_make_no_sense_are_refused_by_name():
    frontier, _ = solved("binary")
    for ask, name in ((frontier.least_worst, "mean_budget"), (frontier.least_mean, "worst_budget")):
        for value in (-0.1, np.nan, "a"):
            with pytest.raises((TypeError, ValueError), match=f"^{name} "):
                ask(value)
    for wishes, name in (({"mean": np.nan, "worst": 1}, "mean"), ({"mean": 1, "worst": "a"}, "worst")):
        with pytest.raises(ValueError, match=f"^{name} must be a finite number"):
            frontier.attainable(**wishes)


def test_excess_risks_of_groups_that_overlap_need_an_average_of_groups():
    X, y, labels = make_data(n=90)
    member = overlapping(labels)
    with pytest.raises(ValueError, match=r"^excess risks of overlapping groups .* average='groups'"):
        gd.robustness_frontier(X, y, member, estimator=GroupDROClassifier("excess_risk"))
    estimator = GroupDROClassifier("excess_risk", alpha=ALPHA, average="groups")
    assert gd.robustness_frontier(X, y, member, estimator=estimator, tol=1e-2).converged


def test_a_frontier_is_shown_as_a_table():
    frontier, _ = solved("binary")
    lines = repr(frontier).splitlines()
    assert lines[0].startswith("Frontier of average and worst, enclosed to ")
    assert [name for name in ("robustness", "mean", "worst", "least blend") if name in repr(frontier)]
    assert repr(frontier.least_worst(0.01)).startswith("FrontierModel(robustness ")
    assert repr(frontier.attainable(mean=0.0, worst=0.0)).startswith("Attainable(No model has a mean of at most 0 ")


def test_a_mixture_whose_bounds_contradict_each_other_is_not_called_converged(monkeypatch):
    X, y, groups = gd.datasets.make_mero(n_groups=3, n_per_group=100, n_features=3)
    frontier = gd.robustness_frontier(X, y, groups, estimator=gd.GroupDROClassifier(alpha=1e-2))
    monkeypatch.setattr(Enclosure, "least_blend", lambda self, t: 10.0)
    (_, one), (_, other) = frontier._outcomes[0], frontier._outcomes[-1]
    found = frontier._evaluated(one, other, 0.5, 0.5).result
    assert found.gap == np.inf
    assert not found.converged
