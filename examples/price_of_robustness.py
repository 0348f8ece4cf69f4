"""
What robustness buys, and what it costs
=======================================

Six public tables and several ways to train the same linear model, judged on held-out
data. The script prints what ``price_of_robustness.txt`` records, and writes three
figures per table to a folder:

    python examples/price_of_robustness.py results/
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import groupdro as gd
from groupdro import datasets


def tables():
    """Yield the name of each table, with features, target and groups."""
    yield "adult", *datasets.fetch_adult(return_X_y_groups=True)
    # Whether a patient comes back after the first stay, by age.
    stays = datasets.fetch_diabetes130()
    first = ~stays.frame.duplicated("patient_nbr")
    back = stays.target[first] != "NO"
    yield "diabetes", stays.data[first], back, stays.groups[first]
    yield "bank", *datasets.fetch_bank_marketing(return_X_y_groups=True)
    # Whether tasters give six points or more. Many wines are in the table twice.
    wine = datasets.fetch_wine_quality()
    once = ~wine.frame.duplicated()
    yield "wine", wine.data[once], wine.target[once] >= 6, wine.groups[once]
    yield "communities", *datasets.fetch_communities_crime(return_X_y_groups=True)
    X, rentals, hour = datasets.fetch_bike_sharing(return_X_y_groups=True)
    yield "bike", X, rentals / 100, hour


def pipeline(y):
    """Return a pipeline that ends in one of our estimators.

    Groups with fewer than 40 rows are merged: how well a model fits a handful of rows
    is mostly chance.
    """
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    indicators = OneHotEncoder(handle_unknown="ignore", min_frequency=20)
    encode = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (indicators, make_column_selector(dtype_exclude="number")),
    )
    kind = gd.GroupDROClassifier if y.dtype == bool else gd.GroupDRORegressor
    return make_pipeline(encode, kind(alpha=1e-3, random_state=0, min_group_size=40))


def draw(name, found, folder):
    """Write figures of risks, weights and convergence."""
    robust = found.models["GDRO"]
    reports = {key: found.reports[key] for key in ("ERM", "GDRO")}
    gd.plots.GroupMetricDisplay.from_reports(reports)
    plt.title(f"{name}: held-out rows", loc="left", fontsize="medium")
    plt.savefig(folder / f"{name}_risks.png", dpi=110)
    gd.plots.GroupWeightsDisplay.from_estimator(robust)
    plt.savefig(folder / f"{name}_weights.png", dpi=110)
    gd.plots.ConvergenceDisplay.from_estimator(robust)
    plt.savefig(folder / f"{name}_convergence.png", dpi=110)
    plt.close("all")


def main(folder):
    """Compare on every table."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, X, y, groups in tables():
        found = gd.compare(X, y, groups, estimator=pipeline(y))
        print(f"\n{name}: {len(X)} rows, {groups.nunique()} groups\n{found}")
        draw(name, found, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
