"""Domains and sets of group weights: two symmetric players, each held against an independent solver."""

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import rel_entr

import groupdro as gd
from groupdro.geometry import Geometry
from groupdro.oracle import Counters
from groupdro.problem import Domain, WeightSet
from groupdro.solvers import Solver, State
from tests.distributed.thread_comm import run_workers
from tests.pairs import every_pair
from tests.reference.convex import group_minima, worst_value

DOMAINS = {
    "ball": gd.domains.L2Domain(radius=1.0),
    "penalty": gd.domains.L2Domain(penalty=0.05),
    "box": gd.domains.ElasticNetDomain(low=-0.3, high=0.2),
    "positive": gd.domains.ElasticNetDomain(low=0.0, high=0.5),
    "simplex": gd.domains.SimplexDomain(),
}
WEIGHT_SETS = {
    "simplex": gd.weight_sets.Simplex(),
    "floor": gd.weight_sets.Floor(0.5),
    "floor of the rows": gd.weight_sets.Floor(0.3, (0.5, 0.3, 0.2)),
    "whole floor": gd.weight_sets.Floor(1.0),
    "plain average": gd.weight_sets.Floor(0.0, (0.5, 0.3, 0.2)),
    "two worst": gd.weight_sets.Cap(0.5),
    "caps": gd.weight_sets.Cap((0.7, 0.4, 0.2)),
    "box": gd.weight_sets.Box((0.1, 0.2, 0.05), (0.5, 0.6, 0.3)),
}


def make_data(storage=np.asarray, seed=0, loss="logistic"):
    rng = np.random.default_rng(seed)
    X, groups = rng.normal(size=(120, 4)), np.repeat(np.arange(3), (60, 36, 24))
    score = X @ rng.normal(size=4) + (groups - 1) * X[:, 0] + rng.logistic(size=120)
    y = score if loss == "squared" else rng.integers(0, 3, 120) if loss == "softmax" else np.where(score > 0, 1.0, -1.0)
    return gd.GroupedData.from_arrays(storage(X), y, groups)


def assert_certified(problem, result, tol):
    optimum = worst_value(problem).value
    assert result.converged
    assert result.gap <= tol * result.upper_bound
    assert result.lower_bound - 1e-7 <= optimum <= result.upper_bound + 1e-7
    assert problem.weight_set.contains(result.q)
    assert problem.domain.contains(problem.coef(result.w))


@every_pair(
    domain=[*DOMAINS],
    weight_set=[*WEIGHT_SETS],
    storage={"float64": np.asarray, "float32": np.float32, "sparse": sp.csr_array},
)
def test_auto_certifies_every_pair_of_players(domain, weight_set, storage):
    problem = gd.Problem(make_data(storage), gd.losses.Logistic(), DOMAINS[domain], WEIGHT_SETS[weight_set])
    assert_certified(problem, gd.solve(problem, "auto", tol=1e-3), 1e-3)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    "loss",
    [gd.losses.Squared(), gd.losses.Huber(), gd.losses.SquaredHinge(), gd.losses.Softmax(3)],
    ids=lambda loss: loss.name,
)
def test_every_loss_is_certified_in_a_box_under_a_floor(loss, intercept):
    data = make_data(loss="softmax" if loss.name == "softmax" else "squared" if loss.of_residual else "logistic")
    problem = gd.Problem(data, loss, DOMAINS["box"], WEIGHT_SETS["floor"], fit_intercept=intercept)
    assert_certified(problem, gd.solve(problem, "aleg", tol=1e-3), 1e-3)


def test_bounds_of_another_solver_hold_too():
    problem = gd.Problem(make_data(), gd.losses.Logistic(), DOMAINS["box"], WEIGHT_SETS["floor of the rows"])
    result, optimum = gd.solve(problem, "aleg-theory", max_passes=60), worst_value(problem).value
    assert result.lower_bound - 1e-7 <= optimum <= result.upper_bound + 1e-7
    assert result.gap < gd.solve(problem, "aleg-theory", max_passes=1).gap


@pytest.mark.parametrize("weight_set", WEIGHT_SETS)
def test_excess_risks_are_certified_under_every_set(weight_set):
    problem = gd.Problem(make_data(), gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.05), WEIGHT_SETS[weight_set])
    result = gd.solve(problem, "alem", tol=1e-2)
    minima, _ = group_minima(problem)
    optimum = worst_value(problem, minima).value
    assert result.converged
    assert result.lower_bound - 1e-6 <= optimum <= result.upper_bound + 1e-6


def test_a_floor_lies_between_the_average_and_the_worst():
    data = make_data()
    values = [
        gd.solve(
            gd.Problem(data, gd.losses.Logistic(), DOMAINS["penalty"], gd.weight_sets.Floor(t)), tol=1e-4
        ).upper_bound
        for t in (1e-6, 0.3, 0.7, 1.0)
    ]
    average = gd.solve(gd.Problem(data, gd.losses.Logistic(), DOMAINS["penalty"]).pooled(), "sqp", tol=1e-6).upper_bound
    worst = gd.solve(gd.Problem(data, gd.losses.Logistic(), DOMAINS["penalty"]), "sqp", tol=1e-6).upper_bound
    assert values == sorted(values)
    assert values[0] == pytest.approx(average, rel=1e-3)
    assert values[-1] == pytest.approx(worst, rel=1e-3)


def test_a_set_that_a_solver_cannot_handle_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(Counters, "add", lambda *_, **__: pytest.fail("a row was read"))
    problem = gd.Problem(make_data(loss="squared"), gd.losses.Squared(), DOMAINS["simplex"], WEIGHT_SETS["simplex"])
    with pytest.raises(ValueError, match=r"'sqp' requires .*SimplexDomain"):
        gd.solve(problem, "sqp")


def test_a_run_with_other_players_resumes(tmp_path):
    problem = gd.Problem(make_data(), gd.losses.Logistic(), DOMAINS["box"], WEIGHT_SETS["floor"])
    broken = gd.solve(problem, "aleg", tol=1e-6, max_passes=20, checkpoint_dir=tmp_path)
    resumed = gd.solve(problem, "aleg", tol=1e-6, max_passes=80, checkpoint_dir=tmp_path)
    whole = gd.solve(problem, "aleg", tol=1e-6, max_passes=80)
    assert broken.epochs < resumed.epochs
    assert resumed.lower_bound <= whole.upper_bound
    assert whole.lower_bound <= resumed.upper_bound
    other = gd.Problem(make_data(), gd.losses.Logistic(), DOMAINS["box"], gd.weight_sets.Floor(0.5, (0.5, 0.3, 0.2)))
    assert "resumed" not in gd.solve(other, "aleg", tol=1e-6, checkpoint_dir=tmp_path).solver


def test_two_workers_find_the_same():
    data = make_data()

    def solved(comm):
        part = gd.distributed.shard(data, comm)
        return gd.solve(gd.Problem(part, gd.losses.Logistic(), DOMAINS["box"], WEIGHT_SETS["floor"]), "aleg", tol=1e-3)

    alone = gd.solve(gd.Problem(data, gd.losses.Logistic(), DOMAINS["box"], WEIGHT_SETS["floor"]), "aleg", tol=1e-3)
    for result in run_workers(2, solved):
        assert result.converged
        assert result.lower_bound <= alone.upper_bound
        assert alone.lower_bound <= result.upper_bound


# ---------------------------------------------------------------------- sets


@pytest.mark.parametrize("weight_set", WEIGHT_SETS.values(), ids=WEIGHT_SETS)
def test_support_is_the_largest_value_over_the_set(weight_set):
    rng, moving = np.random.default_rng(0), weight_set.moving(3)
    corners = np.array([moving.mixed(moving.fill(rng.normal(size=3))) for _ in range(50)])
    for _ in range(20):
        values, q = rng.normal(size=3), rng.dirichlet(np.ones(len(corners))) @ corners
        best = weight_set.maximiser(values)
        assert weight_set.contains(q)
        assert weight_set.contains(best)
        assert weight_set.support(values) >= q @ values - 1e-12
        assert weight_set.support(values) == pytest.approx(best @ values)
        geometry = weight_set.geometry(3)
        inner = geometry.interior(q)
        np.testing.assert_allclose(geometry.point(geometry.mirror(inner)), inner, atol=1e-12)
        assert weight_set.contains(geometry.point(geometry.step(geometry.mirror(inner), 3.0, values)))


@pytest.mark.parametrize("name", [name for name in WEIGHT_SETS if name != "plain average"])
def test_a_step_is_the_minimiser_of_its_proximal_problem(name):
    weight_set, rng = WEIGHT_SETS[name], np.random.default_rng(1)
    geometry, moving, q = weight_set.geometry(3), weight_set.moving(3), weight_set.start(3)
    corners = np.array([moving.mixed(moving.fill(rng.normal(size=3))) for _ in range(50)])
    for gradient in rng.normal(size=(10, 3)):

        def value(z, gradient=gradient):
            s, s0 = moving.moved(z), moving.moved(q)
            return 0.7 * (gradient @ z) + rel_entr(s, s0).sum()

        best = geometry.point(geometry.step(geometry.mirror(q), 0.7, gradient))
        assert weight_set.contains(best)
        for _ in range(50):
            other = rng.dirichlet(np.ones(len(corners))) @ corners
            assert value(best) <= value(0.99 * best + 0.01 * other) + 1e-12


@pytest.mark.parametrize("robustness", [-0.1, 1.1, np.nan, "1"])
def test_a_robustness_that_is_not_a_share_is_refused(robustness):
    with pytest.raises((ValueError, TypeError), match="robustness"):
        gd.weight_sets.Floor(robustness)


@pytest.mark.parametrize("base", [(0.5, 0.6), (-0.1, 1.1), "abc", ((0.5,), (0.5,))])
def test_a_base_that_is_not_a_distribution_is_refused(base):
    with pytest.raises((ValueError, TypeError), match="base"):
        gd.weight_sets.Floor(0.5, base)


def test_a_base_of_another_number_of_groups_is_refused():
    with pytest.raises(ValueError, match="2 entries, but there are 3 groups"):
        gd.Problem(make_data(), gd.losses.Logistic(), gd.domains.L2Domain(1.0), gd.weight_sets.Floor(0.5, (0.5, 0.5)))


def test_a_start_outside_of_the_set_is_refused():
    problem = gd.Problem(make_data(), gd.losses.Logistic(), gd.domains.L2Domain(1.0), gd.weight_sets.Floor(0.5))
    with pytest.raises(ValueError, match="outside Floor"):
        gd.solve(problem, q=np.array([1.0, 0, 0]))


@pytest.mark.parametrize("ends", [(1.0, 1.0), (1.0, -1.0), (-np.inf, 1.0), (0.0, np.nan), ("a", 1.0)])
def test_ends_of_a_box_that_are_none_are_refused(ends):
    with pytest.raises((ValueError, TypeError), match=r"low|high"):
        gd.domains.ElasticNetDomain(low=ends[0], high=ends[1])


# ---------------------------------------------------------------------- sets of your own


@dataclass(frozen=True)
class Interval(Domain):
    """|coef| <= 1 for every entry, of which single parts can be broken."""

    fault: str = ""

    def support(self, gradient):
        return -(0.5 if self.fault == "support" else 1.0) * float(np.abs(gradient).sum())

    def reach(self, gradient):
        return float(np.sqrt(gradient.size))

    def contains(self, coef):
        return self.fault == "contains" or bool((np.abs(coef) <= 1.0).all())

    def within(self, value):
        return gd.domains.ElasticNetDomain(low=-0.5, high=0.5) if self.fault == "within" else self

    def feasible(self, coef):
        return coef if self.fault == "feasible" else np.clip(coef, -1.0, 1.0)

    def start(self, shape):
        return np.full(shape, 2.0 if self.fault == "start" else 0.0)

    def penalty_at(self, coef):
        return -1.0 if self.fault == "penalty" else 0.0

    def geometry(self, n_features) -> Geometry:
        moves = gd.domains.L2Domain(1e6) if self.fault == "step" else gd.domains.ElasticNetDomain(low=-1.0, high=1.0)
        return moves.geometry(n_features)


@pytest.mark.parametrize("fault", ["support", "feasible", "start", "penalty", "step", "contains", "within"])
def test_a_domain_whose_parts_contradict_each_other_is_refused(fault):
    data = make_data()
    gd.Problem(data, gd.losses.Logistic(), Interval())
    with pytest.raises(ValueError, match="domain Interval cannot be certified"):
        gd.Problem(data, gd.losses.Logistic(), Interval(fault))


class Halved(gd.domains.L2Domain):
    """A ball that takes the minimum over half of itself for its own."""

    def support(self, gradient):
        return 0.5 * super().support(gradient)


class Centred(gd.weight_sets.Simplex):
    """A simplex whose maximiser is its centre."""

    def maximiser(self, values):
        return self.start(len(values))


def test_subclasses_of_the_packages_own_sets_are_checked_too():
    with pytest.raises(ValueError, match="domain Halved cannot be certified"):
        gd.Problem(make_data(), gd.losses.Logistic(), Halved(1.0))
    with pytest.raises(ValueError, match="weight_set Centred cannot be certified"):
        gd.Problem(make_data(), gd.losses.Logistic(), gd.domains.L2Domain(1.0), Centred())


@dataclass(frozen=True)
class Everywhere(WeightSet):
    """The whole simplex once more, of which single parts can be broken."""

    fault: str = ""

    def support(self, values):
        return float(values.mean() if self.fault == "support" else values.max())

    def maximiser(self, values):
        best = np.argmin(values) if self.fault == "maximiser" else np.argmax(values)
        return np.where(np.arange(len(values)) == best, 1.0, 0.0)

    def contains(self, q):
        return self.fault == "contains" or gd.weight_sets.Simplex().contains(q)

    def start(self, n_groups):
        return np.full(n_groups, (2.0 if self.fault == "start" else 1.0) / n_groups)

    def geometry(self, n_groups) -> Geometry:
        return (
            gd.domains.L2Domain(1e6).geometry(n_groups)
            if self.fault == "step"
            else gd.weight_sets.Simplex().geometry(n_groups)
        )


@dataclass(frozen=True)
class Middle(Everywhere):
    """Weights of at most 0.9, which takes others for its own."""

    def support(self, values):
        return float(self.maximiser(values) @ values)

    def maximiser(self, values):
        return 0.9 * np.eye(len(values))[np.argmax(values)] + 0.1 * np.eye(len(values))[np.argsort(values)[-2]]

    def geometry(self, n_groups) -> Geometry:
        return gd.weight_sets.Floor(0.5).geometry(n_groups)


def test_a_weight_set_that_takes_others_for_its_own_is_refused():
    with pytest.raises(ValueError, match="weight_set Middle cannot be certified"):
        gd.Problem(make_data(), gd.losses.Logistic(), gd.domains.L2Domain(1.0), Middle())


@pytest.mark.parametrize("fault", ["support", "maximiser", "contains", "start", "step"])
def test_a_weight_set_whose_parts_contradict_each_other_is_refused(fault):
    data = make_data()
    problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(1.0), Everywhere())
    plain = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(1.0))
    ours, theirs = (gd.solve(one, "aleg", tol=1e-3) for one in (problem, plain))
    assert ours.upper_bound == pytest.approx(theirs.upper_bound, rel=2e-3)
    with pytest.raises(ValueError, match="weight_set Everywhere cannot be certified"):
        gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(1.0), Everywhere(fault))


# ---------------------------------------------------------------------- solvers that break their promises


@dataclass
class WanderingState(State):
    w: np.ndarray


@dataclass(frozen=True)
class Unprojected(Solver):
    """Gradient steps that never look where the domain ends."""

    def init(self, oracle, w, q, seed):
        at = oracle.evaluate(w, q)
        return WanderingState(at, at.w.copy())

    def epoch(self, oracle, state):
        state.w = state.w - 0.1 * state.evaluation.gradient
        state.evaluation = oracle.evaluate(state.w, state.evaluation.q)


@pytest.mark.parametrize("domain", ["box", "positive", "ball", "simplex"])
def test_a_model_outside_of_the_domain_bounds_nothing(domain):
    problem = gd.Problem(make_data(), gd.losses.Logistic(), DOMAINS[domain])
    result, optimum = gd.solve(problem, Unprojected(), tol=1e-3, max_passes=200), worst_value(problem).value
    assert result.upper_bound >= optimum - 1e-7
    assert result.lower_bound <= optimum + 1e-7
    assert problem.domain.contains(problem.domain.feasible(problem.coef(result.w)))


@dataclass(frozen=True)
class Listed(Solver):
    """A solver made of whatever it is given."""

    parts: tuple = ()

    def stages(self, problem, tol):
        return self.parts


@pytest.mark.parametrize("parts", [(), ("sqp",), (None, gd.solvers.ALEG())])
def test_stages_that_are_none_are_refused(parts):
    with pytest.raises(TypeError, match="stages of Listed"):
        gd.solve(gd.Problem(make_data(), gd.losses.Logistic(), gd.domains.L2Domain(1.0)), Listed(parts))


def test_what_a_stage_needs_is_checked():
    problem = gd.Problem(make_data(), gd.losses.Logistic(), gd.domains.SimplexDomain())
    with pytest.raises(ValueError, match=r"'sqp' requires .*SimplexDomain"):
        gd.solve(problem, Listed((gd.solvers.ALEG(), gd.solvers.GroupSQP())))


@dataclass(frozen=True)
class Scaled(Interval):
    """A box whose size a function gives."""

    size: object = None

    def support(self, gradient):
        return -self.size() * float(np.abs(gradient).sum())

    def contains(self, coef):
        return bool((np.abs(coef) <= self.size()).all())

    def feasible(self, coef):
        return np.clip(coef, -self.size(), self.size())

    def geometry(self, n_features):
        return gd.domains.ElasticNetDomain(low=-self.size(), high=self.size()).geometry(n_features)


def test_a_checkpoint_of_another_function_proves_nothing(tmp_path):
    small, large = (
        gd.Problem(make_data(), gd.losses.Logistic(), Scaled(size=size)) for size in (lambda: 0.2, lambda: 0.4)
    )
    gd.solve(small, "aleg", max_passes=9, checkpoint_dir=tmp_path)
    resumed, fresh = gd.solve(large, "aleg", checkpoint_dir=tmp_path), gd.solve(large, "aleg")
    assert len(list(tmp_path.iterdir())) == 1
    assert resumed.converged
    assert resumed.lower_bound <= fresh.upper_bound


def test_a_weight_set_of_your_own_may_have_many_groups():
    X = np.random.default_rng(0).normal(size=(40_000, 1))
    data = gd.GroupedData.from_arrays(X, X[:, 0], np.arange(40_000) % 20_000)
    assert gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(1.0), Everywhere()).n_groups == 20_000
