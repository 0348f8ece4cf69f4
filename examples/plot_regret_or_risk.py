"""
Regret or risk: a group that nobody can predict
===============================================

If one group is far noisier than the others, its risk is the largest whatever the model does. Minimising the worst risk
(GDRO) then serves that group alone. Minimising the worst *regret* (MERO) counts only what a better model could mend.
"""

# %%
# Three sites, one of them noisy
# ------------------------------
# Generated data with one feature, so that the models can be drawn: each site has a slope of its own, and the noise of
# the third and smallest is eight times as strong.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from groupdro import GroupDRORegressor

sites = pd.DataFrame(
    {"rows": [4000, 1500, 500], "slope": [1.0, 0.6, -0.8], "noise": [0.5, 0.5, 4.0]}, index=["north", "south", "noisy"]
)
rng = np.random.default_rng(0)
rows = sites.loc[np.repeat(sites.index, sites["rows"])]
site, x = rows.index.to_numpy(), rng.uniform(-3, 3, len(rows))
y = rows["slope"].to_numpy() * x + rows["noise"].to_numpy() * rng.normal(size=len(rows))
X = x[:, None]

models = {
    "plain": GroupDRORegressor().fit(X, y, groups=np.zeros(len(y))),
    "worst risk": GroupDRORegressor().fit(X, y, groups=site),
    "worst regret": GroupDRORegressor(objective="excess_risk").fit(X, y, groups=site),
}

# %%
# Under every line the noisy site has by far the largest risk. GDRO gives it all the weight and takes its slope, which
# is the opposite of what the others need. MERO turns the line only until north loses as much as the noisy site still
# could gain.
COLOURS = {"plain": "#8A8A8A", "worst risk": "#D55E00", "worst regret": "#0072B2"}
figure, axes = plt.subplots(1, 3, figsize=(9.5, 3.4), sharex=True, sharey=True, layout="constrained")
ends = np.array([-3.0, 3.0])
for ax, name in zip(axes, sites.index, strict=True):
    some = np.flatnonzero(site == name)[:400]
    ax.plot(x[some], y[some], ".", ms=3, color="#BBBBBB", zorder=0)
    for way, model in models.items():
        ax.plot(ends, model.predict(ends[:, None]), color=COLOURS[way], lw=2)
    ax.plot(ends, sites["slope"][name] * ends, color="black", lw=1, ls=":")
    ax.set_title(f"{name}, {sites['rows'][name]:,} rows", loc="left", fontsize=11)
    ax.set(xlabel="x", ylim=(-8, 8))
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("y")
axes[0].annotate("dotted: the site's own rule", (0.03, 0.04), xycoords="axes fraction", fontsize="small")
for way, model in models.items():
    axes[2].annotate(
        way, (3, model.predict([[3.0]])[0]), (5, -3), textcoords="offset points", color=COLOURS[way], weight="bold"
    )

# %%
# Risks and regrets
# -----------------
# Regret is a site's risk less the least that any line reaches there. That least is part of the fit and certified too.
regret = models["worst regret"]
best = pd.Series(regret.reference_risks_, regret.groups_)[sites.index]
risks = pd.DataFrame(
    {
        way: pd.Series(0.5 * (model.predict(X) - y) ** 2).groupby(site).mean()[sites.index]
        for way, model in models.items()
    }
)
print(risks.assign(best=best).round(2).to_string())
print(f"best possible worst regret: {regret.lower_bound_:.5f} to {regret.upper_bound_:.5f}")

figure, axes = plt.subplots(1, 2, figsize=(9.5, 2.8), sharey=True, layout="constrained")
for ax, values, title in zip(axes, (risks, risks.sub(best, axis=0)), ("risk", "regret"), strict=True):
    for k, way in enumerate(models):
        ax.plot(values[way], np.array([2, 1, 0]) + 0.2 * (1 - k), "o", ms=7, color=COLOURS[way])
        ax.axvline(values[way].max(), color=COLOURS[way], lw=1, ls="--", zorder=0)
    ax.set_title(title, loc="left", fontsize=11)
    ax.set(ylim=(-0.5, 2.7), xlabel="half the mean squared error; dashed: the worst site")
    ax.set_yticks([2, 1, 0], sites.index)
    ax.spines[["top", "right"]].set_visible(False)
for way, shift in {"plain": (-4, "right"), "worst risk": (-4, "right"), "worst regret": (4, "left")}.items():
    worst = risks[way].sub(best).max()
    axes[1].annotate(way, (worst, 2.4), (shift[0], 0), textcoords="offset points", ha=shift[1], color=COLOURS[way])

# %%
# Judged by risk, GDRO is right: 8.5 is less than 12.3. Judged by what could be mended, it is the worst of the three.
# Neither is true in itself. Choose regret where groups differ in how predictable they are and you would not want the
# least predictable to decide; choose risk where the size of the loss itself is what hurts. One caution: regret needs
# enough rows in every group, because the least risk is taken on the rows at hand, and few rows can be fitted too well.
