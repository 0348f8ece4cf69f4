"""
How much average for how much worst group?
==========================================

Plain training minimises the average risk, group DRO the worst group's. This example
computes every compromise between the two for linear models of bicycle rentals, together
with a proof that no linear model does better. You then choose the compromise by what it
costs, and check the choice on held-out days.
"""

# %%
# The data
# --------
# The target is the number of bicycles rented in an hour, in hundreds, and the groups
# are the 24 hours of the day. The hour is not a feature. The days from the 20th of each
# month on are held out.
import textwrap

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.preprocessing import StandardScaler

from groupdro import GroupDRORegressor, group_report, robustness_frontier
from groupdro.datasets import fetch_bike_sharing
from groupdro.plots import FrontierDisplay

bike = fetch_bike_sharing()
y, hour = bike.target / 100, bike.groups
late = pd.to_datetime(bike.frame["dteday"]).dt.day >= 20
scaler = StandardScaler().fit(bike.data[~late])
X, X_late = scaler.transform(bike.data[~late]), scaler.transform(bike.data[late])
print(f"{len(X):,} hours for training, {len(X_late):,} held out")

# %%
# The frontier
# ------------
# ``robustness_frontier`` fits models until the gap between what they attain and what is
# proved impossible is within the tolerance, by default 0.1%. Risk is half the mean
# squared error, plus the penalty.
frontier = robustness_frontier(
    X, y[~late], hour[~late], estimator=GroupDRORegressor(alpha=1e-3)
)
print(
    f"{frontier.n_fits} fits; the frontier is enclosed within {frontier.enclosure:.2%}"
)

# %%
# What does a budget buy?
# -----------------------
# Suppose the average risk may rise by 1%, 5%, 10% or 20% above its minimum. The table
# shows the worst hour's risk that each budget buys, and a lower bound that no linear
# model within the budget can beat.
budgets = {
    f"{share:.0%}": frontier.least_worst(share) for share in (0, 0.01, 0.05, 0.1, 0.2)
}
columns = {
    "average risk": [model.mean for model in budgets.values()],
    "worst hour's risk": [model.worst for model in budgets.values()],
    "no model below": [model.worst_lower for model in budgets.values()],
}
print(pd.DataFrame(columns, index=budgets).round(3).to_string())

# %%
# The first percent buys the most per percent. The bounds nearly meet the models, except
# where the average may not rise at all: there the worst risk is not quite determined. A
# target that no linear model can meet is refuted:
answer = frontier.attainable(mean=1.0, worst=2.0)
print(textwrap.fill(f"{answer.verdict} - {answer.message}", 88))

# %%
# On held-out days
# ----------------
# The proof holds for the training data only. On the right the same models are shown on
# the held-out days: here the compromises keep their order.
held_out = X_late, y[late], hour[late]
alone = frontier.least_mean(0.0)
names = {"plain": budgets["0%"], "5%": budgets["5%"], "worst hour alone": alone}
worst = []
for name, choice in names.items():
    risk = group_report(choice.model, *held_out).columns["risk"][0]
    worst.append(f"{name} {risk:.3f}")
print("worst hour on held-out days:", ", ".join(worst))

chosen = {"5% of the average": budgets["5%"]}
figure, axes = plt.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained")
FrontierDisplay.from_frontier(frontier, chosen=chosen, ax=axes[0])
FrontierDisplay.from_frontier(frontier, chosen=chosen, held_out=held_out, ax=axes[1])
for ax, title in zip(axes, ("training days", "held-out days"), strict=True):
    ax.set_title(title, loc="left", fontsize="medium")
    ax.set_xlabel("average risk, (100 bicycles)²")
    ax.set_ylabel("worst hour's risk, (100 bicycles)²")
