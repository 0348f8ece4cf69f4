"""
Bike rentals when the hour is a feature
=======================================

The bike part of ``price_of_robustness.py`` takes the hour of the day as the group and
leaves it out of the features. This script puts it back, as one column per hour, and
adds boosted trees. It prints the table that ``bike_with_hour.txt`` records:

    python examples/bike_with_hour.py

Risk is half the mean squared error on the rows that ``price_of_robustness.py`` holds
out; rentals are counted in hundreds.
"""

import numpy as np
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from groupdro import GroupDRORegressor, GroupStratifiedKFold, compare, group_report
from groupdro.datasets import fetch_bike_sharing

bike = fetch_bike_sharing()
X, y, hour = bike.data, bike.target / 100, bike.groups
train, test = next(GroupStratifiedKFold(4, random_state=0).split(X, y, hour))
held_out = y.iloc[test], hour.iloc[test]
model = make_pipeline(
    make_column_transformer(
        (StandardScaler(), make_column_selector(dtype_include="number")),
        (OneHotEncoder(), make_column_selector(dtype_exclude="number")),
    ),
    GroupDRORegressor(alpha=1e-3, random_state=0),
)
features = {"without the hour": X, "with the hour": X.assign(hour=hour.astype(str))}
reports = {}
for name, columns in features.items():
    found = compare(
        columns.iloc[train],
        y.iloc[train],
        hour.iloc[train],
        estimator=model,
        held_out=(columns.iloc[test], *held_out),
    )
    reports[f"ridge, {name}"] = found.reports["ERM"]
    reports[f"GDRO, {name}"] = found.reports["GDRO"]
columns = X.assign(hour=hour)
trees = HistGradientBoostingRegressor(random_state=0)
trees.fit(columns.iloc[train], y.iloc[train])
reports["boosted trees, with the hour"] = group_report(
    trees, columns.iloc[test], *held_out
)
print(f"{'':<28}  mean risk  worst risk  worst RMSE  worst hour")
for label, report in reports.items():
    mean, group = report.overall["risk"], report.worst_group
    worst = report.by_group[group]["risk"]
    print(f"{label:<28}  {mean:9.3f}  {worst:10.3f}", end="  ")
    print(f"{np.sqrt(2 * worst):10.3f}  {group:10}")
