"""Two workers train a network as one does."""

import json

import numpy as np
import pytest

from groupdro.distributed import TorchCommunicator
from tests.distributed.test_communicators import check_digests
from tests.distributed.worker import digests
from tests.torch.processes import run_together

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from groupdro.torch import GroupDROLoss  # noqa: E402

# ---------------------------------------------------------------------- a whole network


def train_a_network(network, criterion, part):
    """Train on this worker's part of each batch of 12 rows; return the losses."""
    rng = np.random.default_rng(1)
    optimizer, losses = torch.optim.SGD(network.parameters(), lr=0.1), []
    for _ in range(20):
        X = torch.tensor(rng.normal(size=(12, 4)), dtype=torch.float64)
        y, groups = torch.tensor(rng.integers(0, 3, 12)), torch.tensor(rng.choice(4, 12, p=[0.7, 0.2, 0.06, 0.04]))
        optimizer.zero_grad()
        loss = criterion(network(X[part]), y[part], groups[part])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def make_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def train_as_one_of_two(rank, folder):
    network = nn.parallel.DistributedDataParallel(make_network())
    criterion = GroupDROLoss(4, step_size=0.2, robustness=0.8)
    part = slice(0, 4) if rank == 0 else slice(4, 12)  # parts of different sizes
    losses = train_a_network(network, criterion, part)
    torch.save({"losses": losses, "loss": criterion.state_dict(), "network": network.module.state_dict()},
               folder / f"rank-{rank}.pt")  # fmt: skip


def check_that_one_trains_the_same_network(folder):
    network, criterion = make_network(), GroupDROLoss(4, step_size=0.2, robustness=0.8)
    losses = train_a_network(network, criterion, slice(None))
    for rank in range(2):
        found = torch.load(folder / f"rank-{rank}.pt")
        assert found["losses"] == pytest.approx(losses, rel=1e-5)
        for name, value in criterion.state_dict().items():
            torch.testing.assert_close(found["loss"][name], value)
        for name, value in network.state_dict().items():
            torch.testing.assert_close(found["network"][name], value, rtol=1e-5, atol=1e-7)
    assert len({float(weight) for weight in criterion.group_weights}) == 4


# ---------------------------------------------------------------------- both


def work_as_one_of_two(rank, folder):
    with TorchCommunicator(torch.distributed.new_group()) as comm:
        assert comm.rank == rank
        (folder / f"digests-{rank}.json").write_text(json.dumps(digests(comm)))
    train_as_one_of_two(rank, folder)


def test_two_workers_train_as_one_does(tmp_path):
    run_together("tests.torch.test_two_workers:work_as_one_of_two", tmp_path)
    check_digests([json.loads((tmp_path / f"digests-{rank}.json").read_text()) for rank in range(2)])
    check_that_one_trains_the_same_network(tmp_path)
