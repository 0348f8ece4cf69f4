"""
Excess risk or risk: a group that nobody can predict
====================================================

If one group is far noisier than the others, its risk is the largest whatever the model
does. Minimising the worst risk (GDRO) then serves that group alone. Minimising the
worst *excess risk* (MERO) counts only what a better model could improve. This example
shows the difference with three lines that you can see.
"""

# %%
# Three sites, one of them noisy
# ------------------------------
# Generated data with one feature, so that the models can be drawn: each site has its
# own slope, and the noise of the third and smallest site is eight times as strong.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from groupdro import GroupDRORegressor

sites = pd.DataFrame(
    {"rows": [4000, 1500, 500], "slope": [1.0, 0.6, -0.8], "noise": [0.5, 0.5, 4.0]},
    index=["north", "south", "noisy"],
)
rng = np.random.default_rng(0)
rows = sites.loc[np.repeat(sites.index, sites["rows"])]
site, x = rows.index.to_numpy(), rng.uniform(-3, 3, len(rows))
noise = rows["noise"].to_numpy() * rng.normal(size=len(rows))
y = rows["slope"].to_numpy() * x + noise
X = x[:, None]

models = {
    "plain": GroupDRORegressor().fit(X, y, groups=np.zeros(len(y))),
    "worst risk": GroupDRORegressor().fit(X, y, groups=site),
    "worst excess risk": GroupDRORegressor(objective="excess_risk").fit(
        X, y, groups=site
    ),
}
for name, model in models.items():
    print(f"{name}: slope {model.coef_[0]:+.2f}", end="")
    if name != "plain":
        names, weights = model.groups_.tolist(), model.group_weights_.round(2).tolist()
        print(f", weights {dict(zip(names, weights, strict=True))}", end="")
    print()

# %%
# Under every line the noisy site has by far the largest risk. GDRO gives it all the
# weight and takes its slope, which is the opposite of what the others need. MERO turns
# the line only until the excess risk of north equals that of the noisy site.
INK, ORANGE, BLUE = "#333333", "#D55E00", "#0072B2"
looks = {
    "plain": (INK, "-"),
    "worst risk": (ORANGE, "--"),
    "worst excess risk": (BLUE, "-."),
}
figure, axes = plt.subplots(
    1, 3, figsize=(9.5, 3.4), sharex=True, sharey=True, layout="constrained"
)
ends = np.array([-3.0, 3.0])
for ax, name in zip(axes, sites.index, strict=True):
    some = np.flatnonzero(site == name)[:400]
    ax.plot(x[some], y[some], ".", ms=3, color="#BBBBBB", zorder=0)
    for way, (colour, style) in looks.items():
        ax.plot(ends, models[way].predict(ends[:, None]), style, color=colour, lw=2)
    ax.plot(ends, sites["slope"][name] * ends, ":", color="black", lw=1.5)
    ax.set_title(f"{name}, {sites['rows'][name]:,} rows", loc="left", fontsize=11)
    ax.set(xlabel="x", ylim=(-8, 8))
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("y")
axes[0].text(-2.8, -7.4, "dotted: the site's own rule", fontsize="small")
for way, (colour, _) in looks.items():
    place = {"xytext": (5, -3), "textcoords": "offset points"}
    end = models[way].predict([[3.0]])[0]
    axes[2].annotate(way, (3, end), color=colour, weight="bold", **place)

# %%
# Risks and excess risks
# ----------------------
# Excess risk is a site's risk minus the lowest risk that any line reaches there. That
# lowest risk is part of the fit, and certified too.
by_excess = models["worst excess risk"]
least = pd.Series(by_excess.group_minima_, by_excess.groups_)[sites.index]
risks = pd.DataFrame(index=sites.index)
for way, model in models.items():
    risks[way] = pd.Series(0.5 * (model.predict(X) - y) ** 2).groupby(site).mean()
excess = risks.sub(least, axis=0)
print("risks\n" + risks.assign(least=least).round(2).to_string())
print("excess risks\n" + excess.round(2).to_string())
low, high = by_excess.lower_bound_, by_excess.upper_bound_
print(f"least possible worst excess risk: {low:.5f} to {high:.5f}")

figure, axes = plt.subplots(1, 2, figsize=(9.5, 2.8), sharey=True, layout="constrained")
markers = {"plain": "o", "worst risk": "s", "worst excess risk": "^"}
titles = "risk", "excess risk"
for ax, values, title in zip(axes, (risks, excess), titles, strict=True):
    for k, (way, (colour, style)) in enumerate(looks.items()):
        place = np.array([2, 1, 0]) + 0.2 * (1 - k)
        ax.plot(values[way], place, markers[way], ms=7, color=colour)
        ax.axvline(values[way].max(), color=colour, lw=1, ls=style, zorder=0)
    ax.set_title(title, loc="left", fontsize=11)
    ax.set(
        ylim=(-0.5, 2.7), xlabel="half the mean squared error; lines: the worst site"
    )
    ax.set_yticks([2, 1, 0], sites.index)
    ax.spines[["top", "right"]].set_visible(False)
for way, (colour, _) in looks.items():
    side, shift = ("left", 4) if way == "worst excess risk" else ("right", -4)
    place = {"xytext": (shift, 0), "textcoords": "offset points"}
    axes[1].annotate(way, (excess[way].max(), 2.4), ha=side, color=colour, **place)

# %%
# Judged by the worst risk, GDRO is right: 8.46 is less than 12.28. Judged by the worst
# excess risk, it is the worst of the three. Neither view is true in itself. Choose
# excess risk where groups differ in how predictable they are and you do not want the
# least predictable one to decide; choose risk where the size of the loss itself is what
# hurts. One caution: excess risk needs enough rows in every group, because the lowest
# risk is computed on the training data, and few rows can be fitted too well.
