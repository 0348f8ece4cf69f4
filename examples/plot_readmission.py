"""
Readmission to hospital: small groups
=====================================

Of 70,434 patients with diabetes, who comes back to hospital? We look at ten groups by age, which are large, and at 71
groups by medical specialty, of which half have fewer than 40 patients and some a single one. What can the rows of a
tiny group show, and what should a robust fit do with it?
"""

# %%
# Large groups
# ------------
# A quarter of the patients is held out. The columns are encoded once, and the matrix serves all fits.
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tables

from groupdro import (
    GroupDROClassifier,
    GroupStratifiedKFold,
    GroupWeightsDisplay,
    SmallGroupWarning,
    compare,
    group_report,
)

X, y, groups = tables.first_admissions()
train, test = next(GroupStratifiedKFold(4, random_state=0).split(X, y, groups["medical_specialty"]))
encode = tables.encoder().fit(X.iloc[train])
features, held_out = encode.transform(X.iloc[train]), encode.transform(X.iloc[test])
labels, held_labels = y.iloc[train], y.iloc[test]
age, held_age = (groups["age"].iloc[rows] for rows in (train, test))
robust = GroupDROClassifier(alpha=1e-3, random_state=0)
print(compare(features, labels, age, estimator=robust, held_out=(held_out, held_labels, held_age)))

# %%
# The worst age under the plain model is a little better off under the robust one. The confidence interval of the
# improvement contains zero, and the average patient pays for it.
#
# Many small groups
# -----------------
# Now the specialties, under the plain model first. The band holds 99% of the means of n losses drawn at random from all
# held-out patients: groups inside it differ from the average by no more than luck explains.
specialty, held_specialty = (groups["medical_specialty"].iloc[rows] for rows in (train, test))
plain = GroupDROClassifier(alpha=1e-3, random_state=0).fit(features, labels, groups=np.zeros(len(labels)))
report = group_report(plain, held_out, held_labels, held_specialty)
table = report.to_pandas().set_index("group")
probability = plain.predict_proba(held_out)[:, 1]
losses = -np.log(np.where(held_labels, probability, 1 - probability))
rng, n = np.random.default_rng(0), np.unique(np.geomspace(1, 1e4, 30).astype(int))
low, high = np.array([np.quantile(rng.choice(losses, (2000, k)).mean(axis=1), [0.005, 0.995]) for k in n]).T
outside = (table["risk"] < np.interp(table["n"], n, low)) | (table["risk"] > np.interp(table["n"], n, high))

figure, ax = plt.subplots(figsize=(8, 4.6), layout="constrained")
ax.fill_between(n, low, high, color="#8A8A8A", alpha=0.2, lw=0)
ax.plot([0.9, 1e4], [losses.mean()] * 2, color="#555555", lw=1)
ax.plot(table["n"], table["risk"], "o", ms=5, color="#8A8A8A")
ax.plot(table["n"][outside], table["risk"][outside], "o", ms=5, color="#D55E00")
beside = {
    "Otolaryngology": (-7, -3, "right"),
    "Pediatrics-Endocrinology": (0, -15, "center"),
    "Surgery-Neuro": (0, -15, "center"),
    "Surgery-Cardiovascular/Thoracic": (7, 1, "left"),
}
for name, row in table[outside].iterrows():
    *shift, side = beside.get(name, (7, -5, "left"))
    ax.annotate(name, (row["n"], row["risk"]), shift, textcoords="offset points", ha=side, color="#D55E00", fontsize=9)
ax.annotate("all patients", (1e4, losses.mean()), (4, -3), textcoords="offset points", color="#555555")
ax.set(xscale="log", xlim=(0.9, 4e4), ylim=(0, 1.5), ylabel="held-out risk (log loss)")
ax.set_xticks([1, 10, 100, 1000, 10000], ["1", "10", "100", "1,000", "10,000"])
ax.set_xlabel("held-out patients of the specialty")
ax.set_title("Each specialty under the plain model; band: what luck explains", loc="left", fontsize=11)
ax.spines[["top", "right"]].set_visible(False)

# %%
# The specialties with the largest risk have one or two patients, too few to tell anything. The report gives no interval
# below ten rows, where a bootstrap would promise too much. It notes groups of fewer than 30 rows as "small", and
# ``worst_group`` passes over them.
print(table[["n", "risk", "risk_low", "risk_high", "note"]].head(6).to_string())
print(f"worst group that can be judged: {report.worst_group}")

# %%
# The few specialties outside the band are all *easier* than the average. None is shown to be worse off, so there is
# little that a robust model could improve.
#
# What the fit makes of them
# --------------------------
# The worst training risk is easily that of a group with three rows, by chance. ``min_group_size=100`` with
# ``small_groups="merge"`` joins all groups of fewer than a hundred rows. ``small_group_adjustment=C`` instead *adds*
# weight: it takes the risk of n rows to be C / sqrt(n) larger than it is, and warns where tiny groups decide by it.
warnings.simplefilter("ignore", SmallGroupWarning)  # which is the point here
merge = {"min_group_size": 100, "small_groups": "merge"}
ways = {
    "every specialty": {},
    "merged below 100": merge,
    "every specialty, C = 0.2": {"small_group_adjustment": 0.2},
    "merged below 100, C = 0.2": {**merge, "small_group_adjustment": 0.2},
}
size, fitted, results = specialty.value_counts(), {"plain": plain}, {}
for name, options in ways.items():
    fitted[name] = GroupDROClassifier(alpha=1e-3, random_state=0, **options).fit(features, labels, groups=specialty)
for name, model in fitted.items():
    report = group_report(model, held_out, held_labels, held_specialty, n_bootstrap=0)
    risk = report.to_pandas().set_index("group")["risk"]
    weight = pd.Series(model.group_weights_, model.groups_)
    results[name] = {
        "average risk": report.overall["risk"],
        "worst of 30 rows or more": risk[report.worst_group],
        "weight on groups below 30": weight[size.reindex(weight.index) < 30].sum(),
    }
print(pd.DataFrame(results).T.round(3).to_string())

# %%
# Without any care 39% of the weight rests on groups that together are less than one patient in a hundred. Merging
# takes it from them, at no loss to the groups that can be judged. The allowance of 0.2 does harm unless tiny groups are
# merged first. It makes a single patient count as if the loss were 0.2 larger, so that nearly all weight goes to groups
# below 30 rows, and the average risk rises above that of a constant prediction, 0.675. For groups of a hundred rows and
# more it is 0.02 at most, and changes little.
figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained", sharex=True)
figure.supxlabel("In brackets: training patients. The heaviest twelve are shown.", fontsize="small", color="#555555")
for ax, name in zip(axes, ("every specialty", "merged below 100"), strict=True):
    shown = GroupWeightsDisplay.from_estimator(fitted[name], max_groups=12, ax=ax)
    ax.set_yticks(ax.get_yticks(), [f"{group} ({size.get(group, 0):,})" for group in shown.groups], fontsize="small")
    ax.set_title(name, loc="left", fontsize=11)
    ax.set_xlim(0, 0.46)

# %%
# The verdict on the merged groups: the robust model's worst group is better off than the plain one's by an amount that
# 30 patients cannot tell from luck.
merged = fitted["merged below 100"]
found = compare(features, labels, specialty, estimator=merged, held_out=(held_out, held_labels, held_specialty))
print(found.verdict)
