"""
A robust ensemble of hospitals' models
======================================

Four hospitals each have models of their own for heart disease. Patients' data cannot
leave a hospital, but models can. How should their predictions be weighted, so that the
hospital that is worst off is served as well as possible? The weights lie on the
simplex, one for each model, so this example uses :func:`groupdro.solve`, the function
beneath the estimators, with a domain of its own.
"""

# %%
# The models
# ----------
# Each hospital fits a logistic regression and a random forest on its own patients. The
# share of ill patients differs widely, and each hospital left out other tests.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from groupdro import GroupedData, GroupStratifiedKFold, Problem, solve
from groupdro.datasets import fetch_heart_disease
from groupdro.domains import SimplexDomain
from groupdro.losses import Squared

X, y, site = fetch_heart_disease(return_X_y_groups=True)
fill = SimpleImputer(keep_empty_features=True)
forest = RandomForestClassifier(30, min_samples_leaf=5, random_state=0)
KINDS = {
    "logistic": make_pipeline(fill, StandardScaler(), LogisticRegression(C=0.1)),
    "forest": make_pipeline(fill, forest),
}
print(y.groupby(site).agg(patients="size", ill="mean").round(2).to_string())


def predictions(train, test):
    """Fit every hospital's models on its rows, and predict the test rows."""
    columns = {}
    for name in sorted(site.unique()):
        own = train[(site.iloc[train] == name).to_numpy()]
        for kind, model in KINDS.items():
            model.fit(X.iloc[own], y.iloc[own])
            columns[f"{name}, {kind}"] = model.predict_proba(X.iloc[test])[:, 1]
    return pd.DataFrame(columns, index=X.index[test])


def folds(rows, n_splits):
    """Split rows so that every part has its share of every hospital and of the ill."""
    splitter = GroupStratifiedKFold(n_splits, random_state=0)
    split = splitter.split(X.iloc[rows], y.iloc[rows], site.iloc[rows])
    return [(rows[train], rows[test]) for train, test in split]


# %%
# The weights
# -----------
# The columns are predictions for patients whom the models did not see, the loss is
# squared, and w lies on the simplex. With hospitals as groups the worst one decides;
# with a single group it is ordinary stacking.
def weigh(predicted, groups):
    target = y[predicted.index].astype(float)
    data = GroupedData.from_arrays(predicted, target, groups)
    problem = Problem(data, Squared(), SimplexDomain())
    return solve(problem, tol=5e-3, max_passes=5000)


everyone = np.arange(len(X))
unseen = [predictions(train, test) for train, test in folds(everyone, 5)]
unseen = pd.concat(unseen).loc[X.index]
robust, stacked = weigh(unseen, site), weigh(unseen, None)
low, high = robust.lower_bound, robust.upper_bound
print(f"{low:.4f} <= least possible worst risk <= {high:.4f}")
weights = pd.DataFrame({"robust": robust.w, "stacked": stacked.w}, index=unseen.columns)
print(weights.round(2).to_string())

# %%
# Held-out patients
# -----------------
# The weights were chosen on these very predictions. To judge them, all of the above is
# repeated within four folds, so that each patient is predicted by models and weights
# that never saw them. The mean squared error of a probability is known as the Brier
# score.
parts = []
for train, test in folds(everyone, 4):
    inner = pd.concat([predictions(*inside) for inside in folds(train, 4)])
    outer = predictions(train, test)
    pooled = KINDS["forest"].fit(X.iloc[train], y.iloc[train])
    ways = {
        "robust weights": outer @ weigh(inner, site[inner.index]).w,
        "stacking": outer @ weigh(inner, None).w,
        "equal weights": outer.mean(axis=1),
        "one forest on all data": pooled.predict_proba(X.iloc[test])[:, 1],
    }
    parts.append(outer.assign(**ways))
errors = pd.concat(parts).sub(y, axis=0) ** 2
brier = errors.groupby(site).mean().T.assign(average=errors.mean())
worst = brier.drop(columns="average").max(axis=1).sort_values()
print(brier.assign(worst=worst).loc[worst.index].round(3).to_string())

# %%
# How certain are the differences? Confidence intervals of the worst score minus that of
# the robust weights, by resampling the patients of each hospital:
drawn = []
for seed in range(300):
    again = errors.groupby(site).sample(frac=1, replace=True, random_state=seed)
    drawn.append(again.groupby(site).mean().max())
drawn = pd.DataFrame(drawn)
single = worst.index[worst.index.isin(unseen.columns)][0]
others = ["one forest on all data", "equal weights", single, "stacking"]
difference = drawn[others].sub(drawn["robust weights"], axis=0)
print(difference.quantile([0.025, 0.975]).T.round(3).to_string())

INK, ORANGE, BLUE = "#555555", "#D55E00", "#0072B2"
figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 3.8), layout="constrained", width_ratios=(3, 2)
)
shown = [
    "one forest on all data",
    "robust weights",
    "equal weights",
    single,
    "stacking",
]
for place, way in enumerate(shown[::-1]):
    by_site = brier.loc[way].drop("average")
    colour = ORANGE if way == "robust weights" else INK
    left.plot(by_site, [place] * 4, "o", ms=5, color=colour, alpha=0.4)
    left.plot(by_site.max(), place, "D", ms=8, color=colour)
    text = f"{by_site.max():.3f} {by_site.idxmax()}"
    look = {"textcoords": "offset points", "color": INK}
    left.annotate(text, (by_site.max(), place), (8, -4), **look)
left.set_yticks(range(5), shown[::-1])
left.set_xlabel("held-out Brier score of each hospital; diamond: the worst")
left.set(xlim=(0.05, 0.28), ylim=(-0.5, 4.5), xticks=[0.05, 0.1, 0.15, 0.2, 0.25])
place = np.arange(len(weights))[::-1]
right.barh(place + 0.2, weights["robust"], height=0.36, color=ORANGE, label="robust")
look = {"color": "white", "edgecolor": BLUE, "hatch": "////"}
right.barh(place - 0.2, weights["stacked"], height=0.34, label="stacking", **look)
right.set_yticks(place, weights.index)
right.set_xlabel("weight in the ensemble")
right.legend(loc="center right", bbox_to_anchor=(1, 0.46), frameon=False)
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)

# %%
# Conclusion
# ----------
# Stacking serves the average and neglects Switzerland, where nearly everyone is ill:
# its two models get no weight. The robust weights keep all four hospitals close
# together. They are significantly better than stacking, and than the best single model,
# though barely. Against equal weights the interval includes zero: they are hard to
# beat.
#
# If the data *could* be brought together, one forest on all of it would be as good in
# the worst hospital and far better in the others. Weighting models is for those who
# cannot share their data.
