"""Row offsets: the linear model is a correction to a score."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import check_grad

import groupdro as gd
from groupdro.data import GroupedData
from groupdro.distributed.sharding import shard
from groupdro.oracle import Oracle
from groupdro.oracle.duals import dual_value, slopes_at
from groupdro.problem import Problem
from tests.distributed.thread_comm import run_workers
from tests.reference.random_problems import judge

LOSSES = {
    "logistic": gd.losses.Logistic(),
    "squared_hinge": gd.losses.SquaredHinge(),
    "softmax": gd.losses.Softmax(3),
    "squared": gd.losses.Squared(),
    "huber": gd.losses.Huber(0.7),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
two_class_losses = pytest.mark.parametrize(
    "loss", [gd.losses.Logistic(), gd.losses.SquaredHinge()], ids=lambda loss: loss.name
)
with_or_without_intercept = pytest.mark.parametrize("fit_intercept", [False, True], ids=["no intercept", "intercept"])
storages = pytest.mark.parametrize("store", [np.asarray, np.float32, sp.csr_array], ids=["float64", "float32", "csr"])


def arrays(loss, n=120, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X, groups = rng.normal(size=(n, d)), rng.integers(0, 3, n)
    if isinstance(loss, gd.losses.Softmax):
        return X, rng.integers(0, 3, n), groups, 2.0 * rng.normal(size=(n, 3))
    offset = 2.0 * rng.normal(size=n)
    score = X[:, 0] + offset + rng.normal(size=n)
    return X, score if loss.of_residual else np.where(score > 0, 1.0, -1.0), groups, offset


def problem_of(loss, *, store=np.asarray, fit_intercept=False, domain=None, **options):
    X, y, groups, offset = arrays(loss, **options)
    data = GroupedData.from_arrays(store(X), y, groups, offset=offset)
    return Problem(data, loss, domain or gd.domains.L2Domain(penalty=0.01), fit_intercept=fit_intercept)


# ---------------------------------------------------------------------- certificates


@pytest.mark.parametrize("block", [0, *(pytest.param(k, marks=pytest.mark.long) for k in range(1, 6))])
def test_no_bound_of_random_corrections_passes_the_optimum(block):
    # The first 60 that `python -m tests.reference.random_problems 1000 --offsets` judges.
    verdicts = [judge(seed, offsets=True) for seed in range(10 * block, 10 * block + 10)]
    assert not [line for verdict in verdicts for line in verdict.violations]
    assert sum(not verdict.accurate for verdict in verdicts) <= 1
    assert max(verdict.reference_gap for verdict in verdicts if verdict.accurate) < 1e-4


@pytest.mark.parametrize("size", [1e3, 1e8])
@with_or_without_intercept
def test_bounds_hold_for_offsets_that_dwarf_the_correction(size, fit_intercept):
    X, y, groups, offset = arrays(gd.losses.Logistic())
    right = size * y * np.abs(offset)  # so that most losses are zero, and some are as large as their offsets
    right[:10] *= -1.0
    data = GroupedData.from_arrays(X, y, groups, offset=right)
    result = gd.solve(
        Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=1.0), fit_intercept=fit_intercept)
    )
    assert result.converged
    w = np.zeros(3 + fit_intercept)
    assert result.lower_bound <= data.group_means(np.logaddexp(0.0, -data.y * data.row_offsets)).max()
    plain = Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=1.0))
    assert result.upper_bound <= Oracle(plain).risks(w[:3]).max()


# ---------------------------------------------------------------------- what an offset means


@every_loss
def test_the_model_that_is_zero_has_the_risks_of_the_offset(loss):
    _, y, groups, offset = arrays(loss)
    alone = loss.value(offset.copy(), loss.encode(y))
    expected = [alone[groups == i].mean() for i in range(3)]
    problem = problem_of(loss)
    assert problem.risks_of_constant() == pytest.approx(expected)
    assert Oracle(problem).risks(np.zeros(problem.shape)) == pytest.approx(expected)


@every_loss
@storages
@with_or_without_intercept
def test_an_offset_is_a_column_whose_coefficient_is_one(loss, store, fit_intercept):
    X, y, groups, offset = arrays(loss)
    with_offset = problem_of(loss, store=store, fit_intercept=fit_intercept)
    columns = offset.reshape(len(X), -1)
    wide = GroupedData.from_arrays(store(np.column_stack([X, columns])), y, groups)
    fixed = Problem(wide, loss, gd.domains.L2Domain(penalty=0.01), fit_intercept=fit_intercept)
    w = np.random.default_rng(1).normal(size=with_offset.shape)
    one = np.eye(3) if w.ndim == 2 else np.ones(1)
    full, q = np.concatenate([w[:3], one, w[3:]]), np.array([0.2, 0.5, 0.3])
    mine, other = Oracle(with_offset).evaluate(w, q), Oracle(fixed).evaluate(full, q)
    kept = [0, 1, 2] + ([-1] if fit_intercept else [])
    close = 1e-5 if store is np.float32 else 1e-12
    np.testing.assert_allclose(mine.group_risks, other.group_risks, rtol=close)
    np.testing.assert_allclose(mine.gradient, other.gradient[kept], rtol=close, atol=close)
    np.testing.assert_allclose(Oracle(with_offset).risks(w), mine.group_risks, rtol=1e-12)


@every_loss
@with_or_without_intercept
def test_gradients_are_derivatives_of_the_risks(loss, fit_intercept):
    problem, q = problem_of(loss, fit_intercept=fit_intercept), np.array([0.2, 0.5, 0.3])
    w = np.random.default_rng(2).normal(size=problem.shape)

    def value(flat):
        return float(q @ Oracle(problem).risks(flat.reshape(problem.shape)))

    def gradient(flat):
        return Oracle(problem).evaluate(flat.reshape(problem.shape), q).gradient.ravel()

    assert check_grad(value, gradient, w.ravel()) < 1e-5


@every_loss
def test_duals_prove_the_tangent_at_their_outputs_and_no_more_elsewhere(loss):
    problem = problem_of(loss)
    rng, q = np.random.default_rng(3), np.array([0.2, 0.5, 0.3])
    w, others = rng.normal(size=problem.shape), rng.normal(size=problem.shape)
    at, row_weights = Oracle(problem).evaluate(w, q), problem.data.row_weights(q)
    constant = -dual_value(problem, slopes_at(problem, at), row_weights).conjugates
    assert constant + np.vdot(at.gradient, w) == pytest.approx(q @ at.group_risks, rel=1e-9)
    assert constant + np.vdot(at.gradient, others) <= q @ Oracle(problem).risks(others) + 1e-9


@two_class_losses
@pytest.mark.parametrize("store", [np.asarray, sp.csr_array], ids=["dense", "csr"])
@with_or_without_intercept
def test_compiled_steps_are_the_readable_ones(loss, store, fit_intercept, monkeypatch):
    def run():
        problem = problem_of(loss, store=store, fit_intercept=fit_intercept)
        return gd.solve(problem, gd.solvers.ALEG(scale_columns=False), tol=0.0, max_passes=6, seed=1), problem.flat

    compiled, flat = run()
    assert flat is not None
    monkeypatch.setattr(type(loss), "kernel", None)
    readable, flat = run()
    assert flat is None
    np.testing.assert_allclose(compiled.w, readable.w, rtol=1e-7, atol=1e-9)
    assert compiled.upper_bound == pytest.approx(readable.upper_bound, rel=1e-9)


# ---------------------------------------------------------------------- offsets follow their rows


@every_loss
def test_a_group_alone_has_the_offsets_of_its_rows(loss):
    X, y, groups, offset = arrays(loss)
    w = np.random.default_rng(4).normal(size=problem_of(loss).shape)
    own = groups == 1
    alone = GroupedData.from_arrays(X[own], y[own], offset=offset[own])
    expected = Oracle(Problem(alone, loss, gd.domains.L2Domain(penalty=0.01))).risks(w)
    assert Oracle(problem_of(loss).group(1)).risks(w) == pytest.approx(expected)


@two_class_losses
def test_rows_of_overlapping_groups_and_without_weight_keep_their_offsets(loss):
    X, y, groups, offset = arrays(loss)
    member = (groups[:, None] == np.arange(3)) | (np.arange(len(X)) % 5 == 0)[:, None]
    weight = (np.arange(len(X)) % 7 > 0).astype(float)
    data = GroupedData.from_arrays(X, y, member, weight, offset=offset)
    w = np.array([0.5, -0.2, 0.1])
    losses = loss.value(X @ w + offset, y)
    expected = [np.average(losses[held], weights=weight[held]) for held in member.T]
    assert Oracle(Problem(data, loss, gd.domains.L2Domain(penalty=0.01))).risks(w) == pytest.approx(expected)


def test_a_class_that_a_group_lacks_has_no_say_in_its_reference():
    X, y, groups, offset = arrays(gd.losses.Softmax(3))
    y[(groups == 0) & (y == 2)] = 1
    problem = Problem(
        GroupedData.from_arrays(X, y, groups, offset=offset), gd.losses.Softmax(3), gd.domains.L2Domain(penalty=0.1),
        fit_intercept=True,
    )  # fmt: skip
    result = gd.solve(problem, "alem", tol=1e-5)
    own = groups == 0
    present = GroupedData.from_arrays(X[own], y[own], offset=offset[own][:, :2])
    alone = gd.solve(
        Problem(present, gd.losses.Softmax(2), gd.domains.L2Domain(penalty=0.1), fit_intercept=True), tol=1e-7
    )
    assert result.converged
    assert result.group_minima.lower[0] <= alone.upper_bound + 1e-9
    assert result.group_minima.upper[0] >= alone.lower_bound - 1e-9


@pytest.mark.parametrize("loss", [gd.losses.Logistic(), gd.losses.Softmax(3)], ids=lambda loss: loss.name)
def test_separable_rows_have_no_best_correction_whatever_their_offsets(loss):
    X, y, groups, offset = arrays(loss)
    X = X + 50.0 * np.eye(3)[y % 3 if loss.name == "softmax" else (y > 0).astype(int)]
    domain = gd.domains.L2Domain(radius=1e8, proxy_for_unbounded=True)
    data = GroupedData.from_arrays(X, y, groups, offset=offset)
    result = gd.solve(Problem(data, loss, domain), tol=1e-9)
    assert result.status.name == "NO_FINITE_MINIMISER"


@pytest.mark.parametrize(
    "loss", [gd.losses.Logistic(), gd.losses.Softmax(3), gd.losses.Squared()], ids=lambda loss: loss.name
)
@with_or_without_intercept
def test_workers_find_the_same_correction(loss, fit_intercept):
    X, y, groups, offset = arrays(loss)
    data = GroupedData.from_arrays(X, y, groups, offset=offset)

    def fit(part):
        return gd.solve(
            Problem(part, loss, gd.domains.L2Domain(penalty=0.01), fit_intercept=fit_intercept), "sqp", tol=1e-8
        )

    def without_common(w):
        """Subtract what all classes have in common, which changes no probability."""
        return w - w.mean(axis=1, keepdims=True) if w.ndim > 1 else w

    whole = fit(data)
    for result in run_workers(2, lambda comm: fit(shard(data, comm))):
        assert result.converged
        np.testing.assert_allclose(without_common(result.w), without_common(whole.w), atol=1e-6)


def test_the_digest_of_the_data_knows_the_offsets():
    X, y, groups, offset = arrays(gd.losses.Logistic())
    made = [GroupedData.from_arrays(X, y, groups, offset=o).digest for o in (None, offset, offset + 1.0)]
    assert len(set(made)) == 3


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (np.zeros(3), "offset must have one value per row"),
        (np.zeros((3, 2)), "offset must have one row per row"),
        (np.full(120, np.nan), "offset has NaN"),
        (np.full((120, 3), np.inf), "offset has NaN or values beyond"),
        (np.full(120, "a"), "offset must be numeric"),
        (np.full((120, 2), "a"), "offset must be numeric"),
        (np.full(120, 1e200), "offset has NaN or values"),
        (np.ma.masked_greater(np.arange(120.0), 5), "offset has masked"),
    ],
)
def test_offsets_that_are_not_a_finite_number_per_row_are_refused(offset, text):
    X, y, groups, _ = arrays(gd.losses.Logistic())
    with pytest.raises(ValueError, match=text):
        GroupedData.from_arrays(X, y, groups, offset=offset)


@every_loss
def test_offsets_of_another_number_of_outputs_are_refused(loss):
    X, y, groups, _ = arrays(loss)
    data = GroupedData.from_arrays(X, y, groups, offset=np.zeros((len(X), 4)))
    with pytest.raises(ValueError, match="offset must be"):
        Problem(data, loss, gd.domains.L2Domain(penalty=0.01))
