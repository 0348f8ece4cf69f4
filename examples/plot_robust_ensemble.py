"""
A robust ensemble of hospitals' models
======================================

Four hospitals each have models of their own for heart disease. Rows cannot leave a hospital, but models can: how should
their predictions be weighted, so that the worst-off hospital is served as well as can be? The weights lie on the
simplex, one for each model. This is the problem underneath the estimators, with another domain.
"""

# %%
# The models
# ----------
# Each hospital fits a logistic regression and a random forest on its own patients. In Cleveland 46% of them are ill, in
# Switzerland 93%, and each hospital left out other tests.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tables
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from groupdro import GroupedData, GroupRisk, GroupStratifiedKFold, SimplexDomain, Squared, solve

X, y, site = tables.heart()
fill = SimpleImputer(keep_empty_features=True)
KINDS = {
    "logistic": make_pipeline(fill, StandardScaler(), LogisticRegression(C=0.1)),
    "forest": make_pipeline(fill, RandomForestClassifier(30, min_samples_leaf=5, random_state=0)),
}


def predictions(train, test):
    """Fit every hospital's models on its training rows, and let them all predict the test rows."""
    columns = {}
    for name in sorted(site.unique()):
        own = train[(site.iloc[train] == name).to_numpy()]
        for kind, model in KINDS.items():
            columns[f"{name}, {kind}"] = model.fit(X.iloc[own], y.iloc[own]).predict_proba(X.iloc[test])[:, 1]
    return pd.DataFrame(columns, index=X.index[test])


def folds(rows, n_splits):
    """Divide rows so that every part has its share of every hospital and of the ill there."""
    split = GroupStratifiedKFold(n_splits, random_state=0).split(X.iloc[rows], y.iloc[rows], site.iloc[rows])
    return [(rows[train], rows[test]) for train, test in split]


# %%
# The weights
# -----------
# Columns are predictions for patients whom the models did not see, the loss is squared, and w lies on the simplex. With
# hospitals as groups the worst one decides; with a single group it is ordinary stacking.
def weigh(predicted, groups):
    data = GroupedData.from_arrays(predicted, y[predicted.index].astype(float), groups)
    return solve(GroupRisk(data, Squared(), SimplexDomain()), tol=5e-3, max_passes=5000)


everyone = np.arange(len(X))
unseen = pd.concat([predictions(train, test) for train, test in folds(everyone, 5)]).loc[X.index]
robust, stacked = weigh(unseen, site), weigh(unseen, None)
print(f"{robust.lower_bound:.5f} <= best possible worst risk <= {robust.upper_bound:.5f} ({robust.solver})")
print("weights of the hospitals in this proof:", dict(zip(robust.group_names, robust.q.round(2).tolist(), strict=True)))
weights = pd.DataFrame({"robust": robust.w, "stacked": stacked.w}, index=unseen.columns)
print(weights.round(2).to_string())

# %%
# Held-out patients
# -----------------
# The weights were chosen on these very predictions. To judge them, all of the above is repeated within four folds, so
# that each patient is predicted by models and weights that never saw them. The mean squared error of a probability is
# known as the Brier score.
parts = []
for train, test in folds(everyone, 4):
    inner, outer = pd.concat([predictions(*inside) for inside in folds(train, 4)]), predictions(train, test)
    pooled = KINDS["forest"].fit(X.iloc[train], y.iloc[train]).predict_proba(X.iloc[test])[:, 1]
    weighted = {"robust weights": outer @ weigh(inner, site[inner.index]).w, "stacking": outer @ weigh(inner, None).w}
    simple = {"plain average": outer.mean(axis=1), "one forest on all rows": pooled}
    parts.append(outer.assign(**weighted, **simple))
errors = pd.concat(parts).sub(y, axis=0) ** 2
brier = errors.groupby(site).mean().T.assign(average=errors.mean())
worst = brier.drop(columns="average").max(axis=1).sort_values()
print(brier.assign(worst=worst).loc[worst.index].round(3).to_string())

# %%
# Intervals of the difference to the robust weights, by resampling the patients of each hospital:
drawn = [errors.groupby(site).sample(frac=1, replace=True, random_state=k) for k in range(300)]
drawn = pd.DataFrame([sample.groupby(site).mean().max() for sample in drawn])
best_single = worst.index[worst.index.isin(unseen.columns)][0]
shown = ["one forest on all rows", "robust weights", "plain average", best_single, "stacking"]
difference = drawn[shown].sub(drawn["robust weights"], axis=0).quantile([0.025, 0.975]).T
print(difference.drop(index="robust weights").round(3).to_string())

ORANGE, BLUE, GREY = "#D55E00", "#0072B2", "#8A8A8A"
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", width_ratios=(3, 2))
for place, way in enumerate(shown[::-1]):
    by_site, colour = brier.loc[way].drop("average"), ORANGE if way == "robust weights" else GREY
    left.plot(by_site, [place] * 4, "o", ms=5, color=colour, alpha=0.4)
    left.plot(by_site.max(), place, "o", ms=8, color=colour)
    worst_of = f"{by_site.max():.3f} {by_site.idxmax()}"
    left.annotate(worst_of, (by_site.max(), place), (8, -4), textcoords="offset points", color="#555555")
left.set_yticks(range(5), shown[::-1])
left.set(xlabel="held-out Brier score of each hospital; large: the worst", xlim=(0.05, 0.27), ylim=(-0.5, 4.5))
left.set_xticks([0.05, 0.1, 0.15, 0.2, 0.25])
place = np.arange(len(weights))[::-1]
right.barh(place + 0.2, weights["robust"], height=0.36, color=ORANGE)
right.barh(place - 0.2, weights["stacked"], height=0.36, color=BLUE)
right.set_yticks(place, weights.index)
right.set_xlabel("weight in the ensemble")
right.text(0.97, 0.35, "robust", color=ORANGE, weight="bold", ha="right", transform=right.transAxes)
right.text(0.97, 0.27, "stacking", color=BLUE, weight="bold", ha="right", transform=right.transAxes)
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)

# %%
# What it shows
# -------------
# Stacking serves the average, and pays with Switzerland, where nearly everyone is ill: its two models get no weight.
# The robust weights keep all four hospitals close together. They beat stacking beyond chance, and the best single model
# too, though by a hair's breadth. Against the plain average the interval contains zero: equal weights are hard to beat.
#
# And if the rows *could* be brought together, one forest on all of them would be as good in the worst hospital and far
# better in the others. Weighing models is for those who cannot share their rows.
