"""
Readmission to hospital: small groups
=====================================

Of 70,434 patients with diabetes, who comes back to hospital? The patients form ten
groups by age, which are large, and 71 groups by medical specialty, of which 38 have
fewer than 40 patients and some a single one. This example shows what the rows of a tiny
group can tell, and what a robust fit should do with it.
"""

# %%
# The data
# --------
# One row per patient, the first stay, so that rows are independent. Patients who died
# in hospital cannot come back and are left out. Kinds of admission and discharge are
# coded by numbers, but are categories. A quarter of the patients is held out.
import textwrap
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from groupdro import (
    GroupDROClassifier,
    GroupStratifiedKFold,
    SmallGroupWarning,
    compare,
    group_report,
)
from groupdro.datasets import fetch_diabetes130
from groupdro.plots import GroupWeightsDisplay

stays = fetch_diabetes130().frame.drop_duplicates("patient_nbr")
died = stays["discharge_disposition_id"].isin([11, 19, 20, 21])
stays = stays[~died].reset_index(drop=True)
kinds = ["admission_type_id", "discharge_disposition_id", "admission_source_id"]
counts = [name for name in stays if name.startswith(("num_", "number_"))]
tests = ["max_glu_serum", "A1Cresult", "metformin", "insulin", "change", "diabetesMed"]
X = stays[["race", "gender", "time_in_hospital", *kinds, *counts, *tests]]
X = X.astype(dict.fromkeys(kinds, str))
y, age = stays["readmitted"] != "NO", stays["age"]
specialty = stays["medical_specialty"].replace("?", "not recorded")

train, test = next(GroupStratifiedKFold(4, random_state=0).split(X, y, specialty))
indicators = OneHotEncoder(handle_unknown="ignore", min_frequency=20)
encode = make_column_transformer(
    (StandardScaler(), make_column_selector(dtype_include="number")),
    (indicators, make_column_selector(dtype_exclude="number")),
).fit(X.iloc[train])
training = encode.transform(X.iloc[train]), y.iloc[train]
held_out = encode.transform(X.iloc[test]), y.iloc[test]
sizes = specialty.value_counts()
print(
    f"{len(stays):,} patients, {age.nunique()} ages, {len(sizes)} specialties, ", end=""
)
print(f"{(sizes < 40).sum()} of them with fewer than 40 patients")

# %%
# Large groups
# ------------
# Is a robust model better for the worst age?
robust = GroupDROClassifier(alpha=1e-3, random_state=0)
found = compare(
    *training,
    age.iloc[train],
    estimator=robust,
    held_out=(*held_out, age.iloc[test]),
    cv=None,
)
columns = ["model", "mean_risk", "worst_risk", "worst_group", "gain_low", "gain_high"]
print(found.to_frame()[columns].to_string(index=False, float_format="%.4f"))

# %%
# The worst age has a slightly lower risk under GDRO than under the plain model (ERM).
# But the 95% confidence interval of the gain includes zero, and the average risk rises.
#
# Many small groups
# -----------------
# Now the specialties, under the plain model first. The band contains 99% of the means
# of n losses drawn at random from all held-out patients: groups inside it differ from
# the average by no more than chance explains.
specialties, held_specialties = specialty.iloc[train], specialty.iloc[test]
plain = GroupDROClassifier(alpha=1e-3, random_state=0)
plain.fit(*training, groups=np.zeros(len(train)))
report = group_report(plain, *held_out, held_specialties)
table = report.to_frame().set_index("group")
p = plain.predict_proba(held_out[0])[:, 1]
losses = -np.log(np.where(held_out[1], p, 1 - p))
rng, n = np.random.default_rng(0), np.unique(np.geomspace(1, 1e4, 30).astype(int))
draws = [rng.choice(losses, (2000, k)).mean(axis=1) for k in n]
low, high = np.quantile(draws, [0.005, 0.995], axis=1)
below = table["risk"] < np.interp(table["n"], n, low)
above = table["risk"] > np.interp(table["n"], n, high)
print(f"specialties below the band: {below.sum()}, above: {above.sum()}")

figure, ax = plt.subplots(figsize=(8, 4.6), layout="constrained")
ax.fill_between(n, low, high, color="#8A8A8A", alpha=0.2, lw=0)
ax.plot([0.9, 1e4], [losses.mean()] * 2, color="#555555", lw=1)
ax.plot(table["n"], table["risk"], "o", ms=5, color="#8A8A8A")
ax.plot(table["n"][below], table["risk"][below], "s", ms=6, color="#B04A00")
beside = {
    "Otolaryngology": (-7, -3, "right"),
    "Pediatrics-Endocrinology": (0, -15, "center"),
    "Surgery-Neuro": (0, -15, "center"),
    "Surgery-Cardiovascular/Thoracic": (7, 1, "left"),
}
for name, row in table[below].iterrows():
    *shift, side = beside.get(name, (7, -5, "left"))
    look = {"color": "#B04A00", "fontsize": 9, "textcoords": "offset points"}
    ax.annotate(name, (row["n"], row["risk"]), shift, ha=side, **look)
look = {"color": "#555555", "textcoords": "offset points"}
ax.annotate("all patients", (1e4, losses.mean()), (4, -3), **look)
ax.set(xscale="log", xlim=(0.9, 4e4), ylim=(0, 1.5))
ax.set_xticks([1, 10, 100, 1000, 10000], ["1", "10", "100", "1,000", "10,000"])
ax.set(xlabel="held-out patients of the specialty", ylabel="held-out risk (log loss)")
title = "Each specialty under the plain model; band: what chance explains"
ax.set_title(title, loc="left", fontsize=11)
ax.spines[["top", "right"]].set_visible(False)

# %%
# The three specialties with the largest risk have one or two patients, too few to tell
# anything. The report notes groups of fewer than 30 rows as "small", gives no
# confidence interval for them, and ``worst_group`` passes over them.
shown = table[["n", "risk", "risk_low", "risk_high", "note"]].head(6)
print(shown.to_string(float_format="%.3f"))
print(f"worst group that can be judged: {report.worst_group}")

# %%
# The few specialties outside the band are all *easier* to predict than the average.
# None is shown to be worse off, so there is little that a robust model could improve.
#
# What the fit makes of them
# --------------------------
# The worst training risk is easily that of a group with three rows, by chance.
# ``min_group_size=100`` merges all groups of fewer than a hundred rows.
# ``small_group_bonus=C`` instead *adds* weight: it takes the risk of n rows to be
# C / sqrt(n) larger than it is, and warns where tiny groups determine the fit because
# of it.
warnings.simplefilter("ignore", SmallGroupWarning)  # which is the point here
merge = {"min_group_size": 100}
ways = {
    "every specialty": {},
    "merged below 100": merge,
    "every specialty, C = 0.2": {"small_group_bonus": 0.2},
    "merged below 100, C = 0.2": {**merge, "small_group_bonus": 0.2},
}
fitted, results = {"plain": plain}, {}
for name, options in ways.items():
    model = GroupDROClassifier(alpha=1e-3, random_state=0, **options)
    fitted[name] = model.fit(*training, groups=specialties)
size = specialties.value_counts()
for name, model in fitted.items():
    report = group_report(model, *held_out, held_specialties, n_bootstrap=0)
    weight = pd.Series(model.group_weights_, model.groups_)
    tiny = size.reindex(weight.index) < 30
    results[name] = {
        "average risk": report.overall["risk"],
        "worst judged risk": report.by_group[report.worst_group]["risk"],
        "weight below 30 rows": weight[tiny].sum(),
    }
print(pd.DataFrame(results).T.round(3).to_string())
share, rate = size[size < 30].sum() / len(train), held_out[1].mean()
constant = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
print(f"groups below 30 rows: {share:.1%} of the patients")
print(f"risk of a constant prediction: {constant:.3f}")

# %%
# Without any care 39% of the weight is on groups that together have less than 1% of the
# patients. Merging takes it from them, at no loss to the groups that can be judged. The
# adjustment with C = 0.2 does harm unless tiny groups are merged first: a single
# patient counts as if the loss were 0.2 larger, nearly all weight goes to groups below
# 30 rows, and the average risk rises above that of a constant prediction. For groups of
# a hundred rows and more the adjustment is at most 0.02, and changes little.
figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained", sharex=True)
note = "In brackets: training patients. At most twelve groups are shown."
figure.supxlabel(note, fontsize="small", color="#555555")
for ax, name in zip(axes, ("every specialty", "merged below 100"), strict=True):
    shown = GroupWeightsDisplay.from_estimator(fitted[name], max_groups=12, ax=ax)
    labels = [f"{group} ({size.get(group, 0):,})" for group in shown.groups]
    ax.set_yticks(ax.get_yticks(), labels, fontsize="small")
    ax.set_title(name, loc="left", fontsize=11)
    ax.set_xlim(0, 0.46)

# %%
# The verdict on the merged groups: the robust model's worst group has a lower risk than
# the plain one's, by an amount that 30 patients cannot tell from chance.
found = compare(
    *training,
    specialties,
    estimator=fitted["merged below 100"],
    held_out=(*held_out, held_specialties),
    cv=None,
)
print(textwrap.fill(found.verdict, 88, break_on_hyphens=False))
