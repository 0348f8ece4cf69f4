"""The worst-group loss for whole networks."""

import copy

import numpy as np
import pytest

import groupdro as gd

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from groupdro.torch import GroupDROLoss  # noqa: E402

SIZES = np.array([600, 300, 40])


def table():
    """Return rows of three groups that want different models; the last is in half of all batches of 16 rows."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(3), SIZES)
    X = rng.normal(size=(SIZES.sum(), 4))
    own = np.array([[1.5, 0.0, 0.5, 0.0], [-0.5, 1.0, 0.5, 0.0], [0.3, -1.0, -1.5, 0.0]])
    y = (rng.random(len(X)) < 1 / (1 + np.exp(-(X * own[groups]).sum(axis=1)))).astype(int)
    return X, y, groups


def train(criterion, batch, steps=3000):
    """Return a linear model's parameters, averaged over the second half of an SGD run with falling steps."""
    X, y, groups = table()
    X, y, groups = torch.tensor(X, dtype=torch.float32), torch.tensor(y), torch.tensor(groups)
    torch.manual_seed(0)
    layer, mean, first_step = nn.Linear(4, 1), torch.zeros(5), criterion.step_size
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.3)
    for k in range(steps):
        slower = (1 + k / 200) ** -0.5
        optimizer.param_groups[0]["lr"], criterion.step_size = 0.3 * slower, first_step * slower
        rows = torch.randint(len(y), (batch,))
        optimizer.zero_grad()
        criterion(layer(X[rows]), y[rows], groups[rows]).backward()
        optimizer.step()
        if k >= steps // 2:
            mean += torch.cat([layer.weight.detach()[0], layer.bias.detach()]) / (steps - steps // 2)
    return mean.double().numpy()


@pytest.mark.parametrize(
    ("robustness", "batch", "offsets"),
    [
        pytest.param(1.0, 64, (0.0, 0.0, 0.0), marks=pytest.mark.long),
        pytest.param(1.0, 16, (0.0, 0.0, 0.0), marks=pytest.mark.long),
        pytest.param(0.5, 64, (0.0, 0.0, 0.0), marks=pytest.mark.long),
        pytest.param(1.0, 64, (0.0, 0.02, 0.05), marks=pytest.mark.long),
        (0.5, 64, (0.0, 0.02, 0.05)),
    ],
)
def test_a_linear_model_reaches_the_certified_optimum(robustness, batch, offsets):
    X, y, groups = table()
    data = gd.GroupedData.from_arrays(X, 2.0 * y - 1.0, groups)
    floor = gd.weight_sets.Floor(robustness, base=SIZES / SIZES.sum())
    problem = gd.Problem(
        data,
        gd.losses.Logistic(),
        gd.domains.L2Domain(radius=10.0),
        floor,
        fit_intercept=True,
        offsets=np.array(offsets),
    )
    best = gd.solve(problem, "sqp", tol=1e-6)
    assert best.converged
    w = train(GroupDROLoss(3, step_size=0.05, robustness=robustness, offsets=offsets), batch)
    losses = np.logaddexp(0.0, -(2 * y - 1) * (X @ w[:4] + w[4]))
    values = np.bincount(groups, losses) / SIZES + offsets
    value = (1 - robustness) * SIZES @ values / SIZES.sum() + robustness * values.max()
    assert best.lower_bound - 1e-9 <= value <= 1.01 * best.upper_bound


def test_the_loss_is_the_blend_of_average_and_weighted_groups():
    criterion = GroupDROLoss(3, step_size=0.5, robustness=0.6, offsets=[0.0, 1.0, 0.0])
    losses, groups = torch.tensor([1.0, 3.0, 2.0, 4.0]), torch.tensor([0, 0, 1, 2])
    loss = criterion(losses, groups)
    weights = torch.softmax(0.5 * torch.tensor([2.0, 3.0, 4.0]), 0)
    torch.testing.assert_close(criterion.group_weights, weights)
    expected = 0.4 * (1 + 3 + 3 + 4) / 4 + 0.6 * float(weights @ torch.tensor([2.0, 3.0, 4.0]))
    assert float(loss) == pytest.approx(expected, rel=1e-6)


def test_a_group_that_a_batch_lacks_keeps_its_weight_and_counts_in_full_over_many_batches():
    torch.manual_seed(0)
    criterion = GroupDROLoss(2, step_size=1e-9)  # the weights stay at one half
    values, shares = torch.tensor([1.0, 5.0], requires_grad=True), []
    for k in range(3000):
        groups = torch.tensor([0, 0, 1]) if k % 10 == 0 else torch.tensor([0, 0, 0])
        (gradient,) = torch.autograd.grad(criterion(values[groups], groups), values)
        assert torch.isfinite(gradient).all()
        shares.append(gradient)
    assert torch.stack(shares[1000:]).mean(dim=0).tolist() == pytest.approx([0.5, 0.5], rel=0.02)
    criterion = GroupDROLoss(2, step_size=0.1)
    criterion(torch.tensor([2.0, 2.0]), torch.tensor([0, 1]))
    for _ in range(50):
        criterion(torch.tensor([2.0]), torch.tensor([0]))
    assert criterion.group_weights.tolist() == pytest.approx([0.5, 0.5], rel=1e-5)


def test_a_group_that_was_never_seen_keeps_its_weight():
    criterion = GroupDROLoss(3, step_size=0.1)
    for _ in range(10):
        assert torch.isfinite(criterion(torch.tensor([2.0, 2.0]), torch.tensor([0, 1])))
    assert criterion.group_weights.tolist() == pytest.approx([1 / 3] * 3, rel=1e-5)


@pytest.mark.parametrize("rows", [0, 5])
def test_a_batch_without_rows_or_of_one_group_has_finite_gradients(rows):
    criterion, layer = GroupDROLoss(4), nn.Linear(2, 3)
    loss = criterion(layer(torch.ones(rows, 2)), torch.zeros(rows, dtype=torch.int64), torch.full((rows,), 2))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(layer.weight.grad).all()


def test_losses_that_are_not_finite_are_not_learned_from():
    criterion = GroupDROLoss(2, step_size=1.0)
    criterion(torch.tensor([1.0, 2.0]), torch.tensor([0, 1]))
    before = copy.deepcopy(criterion.state_dict())
    assert not torch.isfinite(criterion(torch.tensor([torch.inf, 2.0]), torch.tensor([0, 1])))
    assert all(torch.equal(value, before[name]) for name, value in criterion.state_dict().items())


def test_evaluation_changes_nothing():
    criterion = GroupDROLoss(2, step_size=1.0)
    criterion(torch.tensor([1.0, 2.0]), torch.tensor([0, 1]))
    before = copy.deepcopy(criterion.state_dict())
    criterion.eval()
    criterion(torch.tensor([9.0, 2.0]), torch.tensor([0, 1]))
    assert all(torch.equal(value, before[name]) for name, value in criterion.state_dict().items())


def test_a_resumed_run_has_the_weights_of_one_that_was_not_interrupted(tmp_path):
    rng = np.random.default_rng(0)
    batches = [
        (torch.tensor(rng.random(6), dtype=torch.float32), torch.tensor(rng.integers(0, 3, 6))) for _ in range(9)
    ]
    whole, first, second = (GroupDROLoss(3, step_size=0.3) for _ in range(3))
    values = [float(whole(*batch)) for batch in batches]
    for batch in batches[:4]:
        first(*batch)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert [float(second(*batch)) for batch in batches[4:]] == values[4:]
    assert torch.equal(second.group_weights, whole.group_weights)
    assert not torch.equal(first.group_weights, whole.group_weights)


def test_half_precision_is_summed_in_single():
    for dtype in (torch.float16, torch.bfloat16):
        criterion = GroupDROLoss(2)
        losses = torch.full((5000,), 20.0, dtype=dtype)  # whose sum a half cannot hold
        assert float(criterion(losses, torch.arange(5000) % 2)) == pytest.approx(20.0)


def test_outputs_of_one_column_and_own_losses_are_taken():
    torch.manual_seed(0)
    outputs, y, groups = torch.randn(6, 1), torch.tensor([0, 1, 1, 0, 1, 0]), torch.tensor([0, 0, 0, 1, 1, 1])
    each = nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.float(), reduction="none")
    two = GroupDROLoss(2)(torch.cat([torch.zeros(6, 1), outputs], dim=1), y, groups)
    squared = GroupDROLoss(2, loss=lambda outputs, targets: (outputs[:, 0] - targets) ** 2)(outputs, y, groups)
    torch.testing.assert_close(GroupDROLoss(2)(outputs, y, groups), GroupDROLoss(2)(each, groups))
    torch.testing.assert_close(two, GroupDROLoss(2)(each, groups))
    torch.testing.assert_close(squared, GroupDROLoss(2)((outputs[:, 0] - y) ** 2, groups))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((torch.tensor(1.0), torch.tensor([0])), 'reduction="none"'),
        ((torch.ones(2), torch.tensor([0, 2])), "groups must be from 0 to 1, got 0 to 2"),
        ((torch.ones(2), torch.tensor([-1, 0])), "groups must be from 0 to 1, got -1 to 0"),
        ((torch.ones(2), torch.tensor([0.0, 1.0])), "groups must be integers"),
        ((torch.ones(2), torch.tensor([0])), "groups must be integers, one per row"),
    ],
)
def test_what_is_not_a_batch_is_refused(batch, message):
    with pytest.raises(ValueError, match=message):
        GroupDROLoss(2)(*batch)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_groups": 0}, "n_groups"),
        ({"step_size": 0.0}, "step_size"),
        ({"robustness": 1.5}, "robustness"),
        ({"offsets": [0.0]}, "offsets"),
        ({"offsets": [0.0, np.nan]}, "offsets"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        GroupDROLoss(**{"n_groups": 2} | parameters)
