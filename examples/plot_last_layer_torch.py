"""
The last layer of a network in one call
=======================================

A network has learned a shortcut. :func:`groupdro.torch.retrain_last_layer` reads the
inputs of its last layer, fits the layer again for the worst group, writes it into the
network and reports each group before and after. The example needs PyTorch.
"""

# %%
# A network with a shortcut
# -------------------------
# The task is to tell T-shirts and pullovers from shirts and coats. A bright square in
# an upper corner is on the left in 95% of the former and on the right in 95% of the
# latter; in the test data it says nothing. The network is trained on 18,000 images, and
# 6,000 are left for the last layer. :doc:`plot_last_layer` shows the images and other
# repairs.
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from groupdro.datasets import fetch_fashion_mnist
from groupdro.torch import retrain_last_layer

GROUPS = ["T-shirt, left", "T-shirt, right", "shirt, left", "shirt, right"]
rng = np.random.default_rng(0)


def read(part, agreement):
    images, classes = fetch_fashion_mnist(part)
    order = rng.permutation(np.flatnonzero(np.isin(classes, [0, 2, 4, 6])))
    y = np.isin(classes[order], [4, 6]).astype(int)
    right = (rng.random(len(y)) < agreement) == y
    images = images[order, None].astype(np.float32) / 255
    images[~right, :, 1:5, 1:5] = 1.0
    images[right, :, 1:5, -5:-1] = 1.0
    groups = np.array(GROUPS)[2 * y + right]
    return torch.from_numpy(images), torch.from_numpy(y), groups


images, y, groups = read("train", agreement=0.95)
test_images, y_test, test_groups = read("test", agreement=0.5)
torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(),
    nn.Conv2d(16, 32, 5, stride=2, padding=2), nn.ReLU(),
    nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 2),
)  # fmt: skip
optimizer = torch.optim.Adam(network.parameters())
for _ in range(4):
    for rows in (6000 + torch.randperm(18000)).split(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images[rows]), y[rows]).backward()
        optimizer.step()


def worst_test_accuracy(model):
    with torch.no_grad():
        right = (model(test_images).argmax(dim=1) == y_test).numpy()
    return min(right[test_groups == name].mean() for name in GROUPS)


print(f"worst group on test images: {worst_test_accuracy(network):.1%}")

# %%
# Retraining
# ----------
# One call. Images and labels come from the loader, groups from an array in the same
# order. Nothing is set by hand: the penalty is chosen on held-out folds.
loader = DataLoader(TensorDataset(images[:6000], y[:6000]), batch_size=500)
result = retrain_last_layer(network, loader, groups=groups[:6000])
print(result)
print(f"worst group on test images: {worst_test_accuracy(network):.1%}")

# %%
# The report judges every row by a fit that had not seen it. It agrees with the test
# images: the worst group rises from worse than chance to more than three quarters.
display = result.plot()
display.ax_.legend(loc="lower center", frameon=False)
display.ax_.set_xlabel(
    "held-out risk (log loss), 95% confidence interval; dashed: worst"
)
plt.show()
