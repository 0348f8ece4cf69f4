"""
Retrain the last layer of a network
===================================

A network that has learned a shortcut often has the right features too: only its last
layer relies on the wrong ones. Fitting that layer again on held-out data with known
groups repairs much of the damage. This example compares three ways: a balanced
subsample, deep feature reweighting (Kirichenko, Izmailov and Wilson, *Last layer
re-training is sufficient for robustness to spurious correlations*, ICLR 2023), which
averages fits on balanced subsamples, and :class:`~groupdro.GroupDROClassifier`, which
keeps every row and weighs the groups itself. The example needs PyTorch.
"""

# %%
# Images with a shortcut
# ----------------------
# The task is to tell T-shirts and pullovers from shirts and coats, which is hard at 28
# x 28 pixels. A bright square in an upper corner makes it easy: it is on the left in
# 95% of the former and on the right in 95% of the latter. Label and corner make four
# groups. In the test data the corner says nothing.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from groupdro import GroupDROClassifier
from groupdro.datasets import fetch_fashion_mnist

LABELS = "T-shirt or pullover", "shirt or coat"
CORNERS = "left", "right"
GROUPS = np.array([f"{label}, {corner}" for label in LABELS for corner in CORNERS])
rng = np.random.default_rng(0)


def read(part, agreement):
    images, classes = fetch_fashion_mnist(part)
    order = rng.permutation(np.flatnonzero(np.isin(classes, [0, 2, 4, 6])))
    y = np.isin(classes[order], [4, 6]).astype(int)
    right = (rng.random(len(y)) < agreement) == y
    images = images[order, None].astype(np.float32) / 255
    images[~right, :, 1:5, 1:5] = 1.0
    images[right, :, 1:5, -5:-1] = 1.0
    return torch.from_numpy(images), y, GROUPS[2 * y + right]


images, y, groups = read("train", agreement=0.95)
test_images, y_test, test_groups = read("test", agreement=0.5)
_, axes = plt.subplots(1, 4, figsize=(8, 2.4), layout="constrained")
for ax, name in zip(axes, GROUPS, strict=True):
    ax.imshow(images[groups == name][0, 0].numpy(), cmap="gray")
    ax.set_title(f"{name}\n{np.mean(groups == name):.1%} of rows", fontsize="medium")
    ax.axis("off")

# %%
# The network
# -----------
# Plain training on 18,000 images. The other 6,000 are kept for the last layer; only
# about 5% of them contradict the corner.
torch.manual_seed(0)
body = nn.Sequential(
    nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(),
    nn.Conv2d(16, 32, 5, stride=2, padding=2), nn.ReLU(),
    nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(),
)  # fmt: skip
head = nn.Linear(64, 1)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()])
loss = nn.functional.binary_cross_entropy_with_logits
for _ in range(4):
    for rows in (6000 + torch.randperm(18000)).split(100):
        optimizer.zero_grad()
        outputs = head(body(images[rows]))[:, 0]
        loss(outputs, torch.from_numpy(y[rows]).float()).backward()
        optimizer.step()
with torch.no_grad():
    X, X_test = body(images[:6000]).numpy(), body(test_images).numpy()
    by_network = (head(body(test_images))[:, 0] > 0).numpy()
y, groups = y[:6000], groups[:6000]
print(pd.Series(groups).value_counts()[GROUPS].to_string())


def accuracy_by_group(predicted, y=y_test, groups=test_groups):
    return np.array([np.mean((predicted == y)[groups == name]) for name in GROUPS])


found = {"network as trained": accuracy_by_group(by_network)}


# %%
# Balanced subsamples
# -------------------
# The simplest repair takes as many rows of each group as the smallest has, and fits a
# logistic regression.
def balanced(rows):
    members = [rng.permutation(rows[groups[rows] == name]) for name in GROUPS]
    return np.concatenate([some[: min(map(len, members))] for some in members])


rows = balanced(np.arange(6000))
plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
plain.fit(X[rows], y[rows])
found["balanced subsample"] = accuracy_by_group(plain.predict(X_test))
print(f"{len(rows)} of {len(y)} rows")


# %%
# Deep feature reweighting chooses an L1 penalty by the worst group's accuracy on half
# of the rows, and averages ten fits on different balanced subsamples. (``l1_ratio``
# alone asks for L1 from scikit-learn 1.8 on.)
def sparse_logistic(C, rows):
    model = LogisticRegression(C=C, l1_ratio=1.0, solver="liblinear", random_state=0)
    return model.fit(scaled[rows], y[rows])


scaler = StandardScaler().fit(X)
scaled = scaler.transform(X)
fitted, judged = np.array_split(rng.permutation(6000), 2)
fitted = balanced(fitted)
grid, worst = [1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01], []
for C in grid:
    predicted = sparse_logistic(C, fitted).predict(scaled[judged])
    worst.append(accuracy_by_group(predicted, y[judged], groups[judged]).min())
C = grid[np.argmax(worst)]
models = [sparse_logistic(C, balanced(np.arange(6000))) for _ in range(10)]
coef = np.mean([model.coef_[0] for model in models], axis=0)
intercept = np.mean([model.intercept_[0] for model in models])
predicted = scaler.transform(X_test) @ coef + intercept > 0
found["deep feature reweighting"] = accuracy_by_group(predicted)
print(f"chosen: C = {C:g}")

# %%
# The worst group's risk
# ----------------------
# All rows, one fit, nothing to choose. Each group has a single label here, so a model
# of its own would predict it without loss, and the excess risk
# (``objective="excess_risk"``) would be nearly the same as the risk.
model = GroupDROClassifier(random_state=0).fit(X, y, groups=groups)
found["groupdro"] = accuracy_by_group(model.predict(X_test))
low, high = model.lower_bound_, model.upper_bound_
print(f"training: {low:.4f} <= least possible worst risk, with penalty <= {high:.4f}")
table = pd.DataFrame(found, index=GROUPS).T
table = (100 * table.assign(worst=table.min(axis=1))).round(1).T
print(table.to_string(header=["as trained", "balanced", "reweighted", "groupdro"]))

# %%
# The network as trained follows the corner: both groups that contradict it are
# predicted worse than by chance. All three repairs bring them to the level of the other
# groups, which lose accuracy in turn.
#
# The rare groups are rare in training only: each has about 1,000 test images. One
# network is an anecdote. Over five, ``python -m benchmarks.last_layer`` finds 78.4% in
# the worst group for groupdro with its defaults and 75.1% for deep feature reweighting,
# in 0.11 s and 0.50 s on one thread. It also finds the main reason: the published grid
# ends at C = 1, too strong a penalty for these embeddings. With C up to 100, deep
# feature reweighting reaches 77.6% in 4.33 s, which is not significantly below
# groupdro. And groupdro with ``small_group_bonus=1``, which allows for how little
# 150 rows say, reaches 79.4%.
_, axes = plt.subplots(1, 4, figsize=(11, 2.5), sharey=True, layout="constrained")
for ax, (title, accuracies) in zip(axes, found.items(), strict=True):
    texts = [f"{value:.1%}" for value in accuracies]
    texts[accuracies.argmin()] += " worst"
    colours = np.where(accuracies == accuracies.min(), "#D55E00", "#7FB8DA")
    bars = ax.barh(GROUPS, 100 * accuracies, color=colours, height=0.65)
    ax.bar_label(bars, texts, padding=3)
    ax.set_title(title, fontsize="medium", loc="left")
    ax.set(xlim=(0, 145), xticks=[0, 50, 100])
    ax.set_xlabel("test accuracy, %", loc="left")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].invert_yaxis()

# %%
# Back into the network
# ---------------------
# The model is a linear layer. In place of the old one it gives the network the same
# accuracy in every group, up to rounding in single precision.
robust = nn.Sequential(body, model.to_torch_linear().float())
with torch.no_grad():
    by_robust = (robust(test_images)[:, 0] > 0).numpy()
print("network:", accuracy_by_group(by_robust).round(3))
print("model:  ", accuracy_by_group(model.predict(X_test)).round(3))

# sphinx_gallery_thumbnail_number = 2
plt.show()
