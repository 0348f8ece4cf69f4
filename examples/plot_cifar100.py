"""
The worst of a hundred classes
==============================

CIFAR-100 has twenty labels of five classes each: *small mammals* are hamsters, mice,
rabbits, shrews and squirrels. A model that predicts the label may do well on average
and be useless for some of the classes, which no table by label shows. With the hundred
classes as groups, :class:`~groupdro.GroupDROClassifier` finds a linear model whose
worst class is as good as possible, and proves how nearly.

The first run downloads 161 MB.
"""

# %%
# Features
# --------
# An embedding that needs no training, after Coates, Ng and Lee (AISTATS 2011): 64
# patches drawn from the images are whitened and serve as filters. Their responses,
# positive and negative, are averaged over a grid of 3 x 3 cells, and the 64 leading
# principal components are kept. Half of the training images, 250 per class, are enough
# here.
import matplotlib.pyplot as plt
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from groupdro import GroupDROClassifier, group_report
from groupdro.datasets import fetch_cifar100

rng = np.random.default_rng(0)


def patches(images):
    windows = sliding_window_view(images, (6, 6), axis=(2, 3))[:, :, ::3, ::3]
    rows = windows.transpose(0, 2, 3, 1, 4, 5).reshape(len(images), 9, 9, 108)
    rows = rows / np.float32(255)
    rows -= rows.mean(axis=-1, keepdims=True)
    return rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + 1e-3)


def features(images):
    parts = []
    for some in np.array_split(images, len(images) // 500):
        response = patches(some) @ filters
        both = np.concatenate([response, -response], axis=-1)
        cells = np.maximum(both - 1, 0).reshape(len(some), 3, 3, 3, 3, -1)
        parts.append(np.sqrt(cells.mean(axis=(2, 4))).reshape(len(some), -1))
    return np.concatenate(parts)


train, test = fetch_cifar100("train"), fetch_cifar100("test")
half = np.sort(
    np.argsort(train.groups, kind="stable").reshape(100, 500)[:, :250].ravel()
)
names = np.array([name.replace("_", " ") for name in train.group_names])
images, y, groups = train.images[half], train.target[half], names[train.groups[half]]
y_test, test_groups = test.target, names[test.groups]
sample = patches(rng.choice(images, 2000, replace=False)).reshape(-1, 108)
scales, directions = np.linalg.eigh(np.cov(sample.T))
whitening = directions / np.sqrt(scales + 0.1) @ directions.T
filters = whitening @ rng.choice(sample, 64, replace=False).T
filters = whitening @ (filters / np.linalg.norm(filters, axis=0))
filters = filters.astype(np.float32)
embed = make_pipeline(StandardScaler(), PCA(64, svd_solver="covariance_eigh"))
X, X_test = (
    embed.fit_transform(features(images)),
    embed.transform(features(test.images)),
)
X, X_test = X / X.std(), X_test / X.std()
print(X.shape, X_test.shape)

# %%
# Two fits of the same softmax model
# ----------------------------------
# Both have the same penalty. A relative gap of 1% is enough here: 100 test images per
# class do not determine its risk more precisely.
alpha = 1e-3
plain = LogisticRegression(C=1 / (alpha * len(y)), max_iter=300).fit(X, y)
robust = GroupDROClassifier(alpha=alpha, tol=1e-2, random_state=0)
robust.fit(X, y, groups=groups)
models = {"plain": plain, "groupdro": robust}
low, high = robust.lower_bound_, robust.upper_bound_
print(f"{low:.4f} <= least possible worst risk, with penalty <= {high:.4f}")
print(f"{np.sum(robust.group_weights_ > 1e-3)} of 100 classes have weight")

# %%
# Gain and price
# --------------
rows = {"training": (X, y, groups), "test": (X_test, y_test, test_groups)}
reports = {
    (part, name): group_report(model, *rows[part], n_bootstrap=0)
    for part in rows
    for name, model in models.items()
}
print("                    worst     mean     worst     mean   classes worse")
print("                     risk     risk  accuracy accuracy   than a guess")
for (part, name), report in reports.items():
    risk, accuracy = (np.array(report.columns[k]) for k in ("risk", "accuracy"))
    print(f"{part:8} {name:8} {risk.max():8.2f} {risk.mean():8.2f}", end=" ")
    print(f"{accuracy.min():9.2f} {accuracy.mean():8.2f}", end=" ")
    print(f"{np.sum(risk > np.log(20)):8}")
risks = [reports["test", name].by_group for name in models]
n_worse = sum(risks[1][name]["risk"] > risks[0][name]["risk"] for name in names)
print(f"{n_worse} of 100 classes have a larger test risk under groupdro")

# %%
# Guessing the twenty labels with equal probability has risk log 20, which is 3.0. Plain
# training is worse than that on some classes: it gives them up for the others. The
# robust model leaves no class worse than a guess, on training and on test images. The
# price is that most classes have a larger risk, and that the mean accuracy falls.
# Whether that is a good trade depends on what the classes stand for;
# :func:`groupdro.compare` lays it out for your data.
#
# Every class has one label only, so a model of its own would predict it without loss.
# The excess risk of ``objective="excess_risk"`` is then nearly the risk itself.
looks = {"plain": ("#333333", "-"), "groupdro": ("#D55E00", "--")}
_, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
for ax, part in zip(axes, rows, strict=True):
    for name, (colour, style) in looks.items():
        report = reports[part, name]
        risks = report.columns["risk"]
        ax.plot(np.arange(1, 101), risks, style, color=colour, lw=2)
        ax.plot(1, risks[0], "o", color=colour)
        # Beside the upper curve, and below the lower one.
        place = (4, risks[0] + 0.29) if name == "plain" else (2, risks[9] - 0.15)
        text = f"{name}\nworst: {report.worst_group} {risks[0]:.2f}"
        ax.text(*place, text, color=colour, va="top")
    ax.axhline(np.log(20), color="#8A8A8A", ls=":", lw=1)
    ax.text(100, np.log(20) + 0.03, "a guess, log 20", color="#606060", ha="right")
    ax.set(xlabel="classes, the worst first", xticks=[1, 25, 50, 75, 100])
    ax.set_title(f"{part} images", loc="left", fontsize="medium")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("risk of the class (log loss)")
axes[0].set_ylim(0, 3.9)
plt.show()
