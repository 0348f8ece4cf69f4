"""
Boosted trees, and a robust model on top
========================================

Are boosted trees better on the worst group than any linear model could be? And does a
robust linear model on top of the trees help further? This example answers the first
question for bicycle rentals by hour (yes), and the second for incomes by sex and race
(no).
"""

# %%
# Trees against every linear model
# --------------------------------
# All models know the hour. As a categorical column it serves both kinds: the encoder
# makes one column per hour for the linear models, and the trees take it as it is. The
# days from the 20th of each month on are held out.
import textwrap

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from groupdro import (
    GroupDROClassifier,
    GroupDRORegressor,
    GroupStratifiedKFold,
    group_report,
)
from groupdro.datasets import fetch_adult, fetch_bike_sharing


def encoder():
    indicators = OneHotEncoder(handle_unknown="ignore", min_frequency=20)
    return make_column_transformer(
        (StandardScaler(), make_column_selector(dtype_include="number")),
        (indicators, make_column_selector(dtype_exclude="number")),
        sparse_threshold=0,
    )


bike = fetch_bike_sharing()
y, hour = bike.target / 100, bike.groups
X = bike.data.assign(hour=hour.astype("category"))
late = pd.to_datetime(bike.frame["dteday"]).dt.day >= 20
held_out = X[late], y[late], hour[late]
reports = {}
for name, robustness in {"plain linear": 0.0, "robust linear": 1.0}.items():
    model = GroupDRORegressor(alpha=1e-3, robustness=robustness)
    linear = make_pipeline(encoder(), model)
    linear.fit(X[~late], y[~late], groupdroregressor__groups=hour[~late])
    reports[name] = group_report(linear, *held_out)
trees = HistGradientBoostingRegressor(random_state=0).fit(X[~late], y[~late])
reports["boosted trees"] = group_report(trees, *held_out, linear=linear)
for name, report in reports.items():
    print(
        f"{name}: worst hour {report.worst_group}, risk {report.columns['risk'][0]:.3f}"
    )
room = reports["boosted trees"].headroom
print(textwrap.fill(room.message, 88))

# %%
# ``linear=`` takes the pipeline that makes the columns of the linear models. The dashed
# bound is proved for all of them, even for one that is fitted on the held-out data
# itself. The trees are far below it in every hour.
INK, ORANGE, BLUE = "#333333", "#D55E00", "#0072B2"
looks = (INK, "o-"), (ORANGE, "s--"), (BLUE, "^-.")
figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
for (name, report), (colour, style) in zip(reports.items(), looks, strict=True):
    table = report.to_frame().sort_values("group")
    band = table["risk_low"], table["risk_high"]
    ax.fill_between(table["group"], *band, color=colour, alpha=0.15, lw=0)
    ax.plot(table["group"], table["risk"], style, ms=4, color=colour, label=name)
ax.axhline(room.least, color="black", lw=1, ls=":", zorder=0)
arrow = {"arrowstyle": "->", "color": "black", "shrinkB": 0}
text = "no linear model's worst hour\nis below this"
ax.annotate(text, (9.6, room.least), (12.5, 2.1), ha="center", arrowprops=arrow)
ax.set(xlim=(-0.5, 23.5), ylim=(0, None), xlabel="hour of the day")
ax.set_ylabel("held-out risk, (100 bicycles)²")
ax.set_xticks(range(0, 24, 3), [f"{k}:00" for k in range(0, 24, 3)])
ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
ax.spines[["top", "right"]].set_visible(False)

# %%
# The recipe: out-of-fold scores and columns
# ------------------------------------------
# Five folds give every training row a score by trees that did not see it. This is one
# more column for the linear model. For held-out rows the score is that of trees fitted
# on all training data.
X, y, groups = fetch_adult(return_X_y_groups=True)
X = X.astype(dict.fromkeys(X.select_dtypes(exclude="number"), "category"))
train, test = next(GroupStratifiedKFold(4, random_state=0).split(X, y, groups))
trees = HistGradientBoostingClassifier(random_state=0)
out_of_fold = cross_val_predict(
    trees, X.iloc[train], y.iloc[train], cv=5, method="decision_function"
)
trees.fit(X.iloc[train], y.iloc[train])
encode = encoder().fit(X.iloc[train])
known = np.column_stack([encode.transform(X.iloc[train]), out_of_fold])
new = np.column_stack(
    [encode.transform(X.iloc[test]), trees.decision_function(X.iloc[test])]
)


def losses(model, rows):
    p = model.predict_proba(rows)[:, 1]
    return -np.log(np.where(y.iloc[test], p, 1 - p))


by_row = {"trees": losses(trees, X.iloc[test])}
for robustness in (0.0, 0.5, 1.0):
    model = GroupDROClassifier(alpha=1e-3, robustness=robustness)
    model.fit(known, y.iloc[train], groups=groups.iloc[train])
    by_row[f"robustness {robustness:g}"] = losses(model, new)
by_row = pd.DataFrame(by_row, index=X.index[test])
risks = by_row.groupby(groups.iloc[test]).mean()
columns = {"average": by_row.mean(), "worst": risks.max(), "group": risks.idxmax()}
print(pd.DataFrame(columns).round(4).to_string())

# %%
# Is it the robustness?
# ---------------------
# ``robustness=0`` has the same columns and is the control: what it gains is due to
# stacking. The figure shows changes from the trees, person by person, with intervals of
# 2.8 standard errors, which hold for all ten groups together with 95% confidence.
change = by_row.sub(by_row["trees"], axis=0).drop(columns="trees")
change = change.groupby(groups.iloc[test])
order, sizes = risks["trees"].sort_values().index, groups.iloc[test].value_counts()
mean, error = change.mean().loc[order], 2.8 * change.sem().loc[order]
worst = order[-1]
for name in mean:
    low, high = mean[name] - error[name], mean[name] + error[name]
    for group in (worst, "Male, White"):
        print(f"{name}, {group}: {low[group]:+.4f} to {high[group]:+.4f}")
place = np.arange(len(order))
figure, ax = plt.subplots(figsize=(8, 4.6), layout="constrained")
for k, (name, (colour, style)) in enumerate(zip(mean, looks, strict=True)):
    spot = place + 0.22 * (1 - k)
    bars = {"fmt": style[0], "ms": 5, "color": colour, "label": name}
    ax.errorbar(mean[name], spot, xerr=error[name], **bars)
ax.axvline(0, color="#8A8A8A", lw=1, zorder=0)
ax.set_yticks(place, [f"{name} ({sizes[name]:,})" for name in order])
ax.set_ylim(-0.6, len(order) - 0.4)
ax.set_xlabel("change of the held-out risk (log loss) from the trees; left is better")
ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
ax.spines[["top", "right"]].set_visible(False)
for k in place[::2]:
    ax.axhspan(k - 0.5, k + 0.5, color="#8A8A8A", alpha=0.1, lw=0, zorder=-1)

# %%
# In brackets: held-out people. Groups are ordered by their risk under the trees, worst
# at the top. The control changes hardly anything, because the trees have used these
# columns already. Robustness raises the risk of white men, the largest group. The worst
# group seems to gain, but its interval includes zero, and over five folds that hold
# every row out once nothing of the gain is left. So keep the trees as they are on this
# table. :doc:`/boosted_trees` has others, one of them with a gain, and shows when a
# linear model is the better choice.
