"""Training of whole networks: plainly, by Sagawa's online group DRO, and with `GroupDROLoss`.

All have the same network, optimiser, batches and number of steps. Group DRO follows the published code (Sagawa, Koh,
Hashimoto and Liang, ICLR 2020): batches draw all groups alike, group weights take exponentiated steps of 0.01, a group
that a batch lacks counts as a loss of zero, and the epoch with the best held-out worst-group accuracy is kept.
`GroupDROLoss` has ordinary shuffled batches, as on its page, and the same choice of an epoch. The plain network is
that of the last epoch.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.last_layers.problems import Problem, Rows
from groupdro.torch import GroupDROLoss

BATCH = 128
WIDTH = 64
STEP = 0.01

Criterion = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Normalised(nn.Module):
    """Images less the mean of the training rows, over their standard deviation."""

    def __init__(self, X: np.ndarray):
        super().__init__()
        self.register_buffer("mean", torch.tensor(X.mean()))
        self.register_buffer("scale", torch.tensor(X.std()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (images - self.mean) / self.scale


class OnlineGroupDRO:
    """The published loss: weights of groups that grow by the exponential of their losses in the batch."""

    def __init__(self, n_groups: int):
        self.weights = torch.ones(n_groups) / n_groups

    def __call__(self, outputs: torch.Tensor, y: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        losses = nn.functional.cross_entropy(outputs, y, reduction="none")
        members = nn.functional.one_hot(groups, len(self.weights)).to(losses.dtype)
        means = losses @ members / members.sum(dim=0).clamp(min=1.0)
        self.weights = self.weights * torch.exp(STEP * means.detach())
        self.weights = self.weights / self.weights.sum()
        return means @ self.weights


def make_network(rows: Rows) -> nn.Sequential:
    """Return a small network whose last layer has one output per label; convolutional if the rows are images."""
    if rows.X.ndim == 2:
        return nn.Sequential(nn.Linear(rows.X.shape[1], WIDTH), nn.ReLU(), nn.Linear(WIDTH, int(rows.y.max()) + 1))
    channels, size = rows.X.shape[1:3]
    return nn.Sequential(
        Normalised(rows.X),
        nn.Conv2d(channels, 16, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * (size // 4) ** 2, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, int(rows.y.max()) + 1),
    )  # fmt: skip


def shuffled(groups: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield an epoch of batches, each row once."""
    yield from torch.randperm(len(groups)).split(BATCH)


def groups_alike(groups: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield as many rows, drawn with replacement such that all groups are as likely."""
    weights = (1.0 / torch.bincount(groups))[groups]
    yield from torch.multinomial(weights, len(groups), replacement=True).split(BATCH)


def train(
    problem: Problem,
    seed: int,
    criterion: Criterion,
    batches: Callable[[torch.Tensor], Iterator[torch.Tensor]],
    stop_early: bool,
) -> nn.Sequential:
    """Return a trained network: of the last epoch, or of that with the best held-out worst-group accuracy."""
    torch.manual_seed(seed)
    network = make_network(problem.train)
    optimizer = torch.optim.Adam(network.parameters(), weight_decay=1e-4)
    X, y, groups = (torch.from_numpy(part) for part in problem.train)
    best, kept = -1.0, network
    for _ in range(problem.epochs):
        for rows in batches(groups):
            optimizer.zero_grad()
            criterion(network(X[rows]), y[rows], groups[rows]).backward()
            optimizer.step()
        if stop_early:
            predicted = outputs_of(network, problem.held_out.X).argmax(axis=1)
            worst = float(group_accuracies(predicted, problem.held_out).min())
            if worst > best:
                best, kept = worst, copy.deepcopy(network)
    return kept


def plain(problem: Problem, seed: int) -> nn.Sequential:
    def criterion(outputs: torch.Tensor, y: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, y)

    return train(problem, seed, criterion, shuffled, stop_early=False)


def online_group_dro(problem: Problem, seed: int) -> nn.Sequential:
    return train(problem, seed, OnlineGroupDRO(problem.n_groups), groups_alike, stop_early=True)


def group_dro_loss(problem: Problem, seed: int) -> nn.Sequential:
    return train(problem, seed, GroupDROLoss(problem.n_groups, step_size=STEP), shuffled, stop_early=True)


@torch.no_grad()
def outputs_of(module: Any, X: np.ndarray) -> np.ndarray:
    """Return what a module makes of images or features."""
    return np.concatenate([module(part).numpy() for part in torch.from_numpy(X).split(1000)])


def group_accuracies(predicted: np.ndarray, rows: Rows) -> np.ndarray:
    """Return the accuracy of every group that has rows."""
    sizes = np.bincount(rows.groups)
    return np.bincount(rows.groups, predicted == rows.y, len(sizes))[sizes > 0] / sizes[sizes > 0]


def accuracies(predicted: np.ndarray, rows: Rows) -> dict[str, Any]:
    """Return what is stored of predictions: the accuracy of the worst group, of all rows, and of each of few groups."""
    by_group = group_accuracies(predicted, rows)
    found = {"worst": float(by_group.min()), "average": float((predicted == rows.y).mean())}
    return found | ({"groups": by_group.round(4).tolist()} if len(by_group) <= 4 else {})
