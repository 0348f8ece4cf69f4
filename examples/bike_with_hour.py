"""
Bike rentals when the hour is a feature
=======================================

The bike example of ``price_of_robustness.py`` takes the hour of the day as the group and leaves it out of the features.
This script puts it back, as one column for each hour, and adds boosted trees. Run it as

    GROUPDRO_DATA=/path/to/data python examples/bike_with_hour.py

Risk is half the mean squared error, in hundreds of rentals squared, of the rows that ``price_of_robustness.py`` holds
out.
"""

import numpy as np
import tables
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.pipeline import make_pipeline

from groupdro import GroupDRORegressor, GroupStratifiedKFold, compare, group_report

X, y, hour = tables.bike()
train, test = next(GroupStratifiedKFold(4, random_state=0).split(X, y, hour))
held_out = y.iloc[test], hour.iloc[test]
model = make_pipeline(tables.encoder(), GroupDRORegressor(alpha=1e-3, random_state=0))
features = {"without the hour": X, "with the hour": X.assign(hour=hour.astype(str))}
rows = {}
for name, columns in features.items():
    found = compare(
        columns.iloc[train], y.iloc[train], hour.iloc[train], estimator=model, held_out=(columns.iloc[test], *held_out)
    )
    reports = {f"{kind}, {name}": found.reports[which] for kind, which in (("ridge", "ERM"), ("GDRO", "GDRO"))}
    if name == "with the hour":
        columns = X.assign(hour=hour)
        trees = HistGradientBoostingRegressor(random_state=0).fit(columns.iloc[train], y.iloc[train])
        reports[f"boosted trees, {name}"] = group_report(trees, columns.iloc[test], *held_out)
    for label, report in reports.items():
        worst = report.columns["group"].index(report.worst_group)
        risk = report.columns["risk"][worst]
        rows[label] = report.overall["risk"], risk, np.sqrt(2 * risk), report.worst_group
print(f"{'':<28}  mean risk  worst risk  worst RMSE  worst hour")
for label, (mean, worst, rmse, group) in rows.items():
    print(f"{label:<28}  {mean:9.3f}  {worst:10.3f}  {rmse:10.3f}  {group:10}")
