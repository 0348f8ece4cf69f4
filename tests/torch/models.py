"""Networks, and data with a shortcut, for the tests of last layers."""

import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

_OPERATORS = []


def import_models(name):
    """Import torchvision or transformers, or skip where it is not installed.

    Wheels of torchvision on PyPI are built for CUDA and define no operators under a CPU build of torch; importing it,
    as transformers does too, then fails at two that only detection models use. They are defined here, without code.
    """
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    if importlib.util.find_spec("torchvision") is not None and not _OPERATORS:
        extension = importlib.util.find_spec("torchvision").submodule_search_locations[0]
        try:
            torch.ops.load_library(f"{extension}/_C.so")
        except OSError:
            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _OPERATORS.append(library)  # which lasts as long as this
    return importlib.import_module(name)


class ConvNet(nn.Module):
    """Convolutions, batch norm and dropout before the last layer."""

    def __init__(self, n_outputs=2, *, bias=True):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
            nn.Linear(16, 6), nn.ReLU(), nn.Dropout(0.5),
        )  # fmt: skip
        self.head = nn.Linear(6, n_outputs, bias=bias)

    def forward(self, x):
        return self.head(self.body(x))


def make_rows(n=400, n_classes=2, seed=0):
    """Return images of 8 x 8 whose brightness says the class, and whose left half says the group."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    agrees = rng.random(n) < 0.9
    images = 0.5 * rng.normal(size=(n, 1, 8, 8)) + 0.15 * y[:, None, None, None]
    images[..., :4] += 0.3 * np.where(agrees, y, (y + 1) % n_classes)[:, None, None, None]
    return torch.tensor(images, dtype=torch.float32), torch.tensor(y), torch.tensor(n_classes * y + agrees)


def make_loader(rows, batch_size=64, **options):
    return DataLoader(TensorDataset(*rows), batch_size=batch_size, **options)


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def changed(model, before):
    """Return the names of parameters and buffers that are not the same to the last bit."""
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
