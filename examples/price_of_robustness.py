"""
What robustness buys, and what it costs
=======================================

Six public data sets, four ways to train the same linear model, judged on rows that none of them saw. Run it as

    GROUPDRO_DATA=/path/to/data python examples/price_of_robustness.py results/

where the folder holds ``tabular/adult.csv.gz`` and so on. For each it prints a table and writes three pictures.
"""

# %%
# Each table is a frame of features, a target and a group for each row; ``tables.py`` says which.
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import pandas as pd
import tables
from sklearn.pipeline import make_pipeline

import groupdro as gd


# %%
# The model: any pipeline that ends in one of our estimators. Groups with fewer than 40 rows are taken together, because
# how well a model fits a handful of rows is mostly chance.
def pipeline(y: pd.Series):
    kind = gd.GroupDROClassifier if y.dtype == bool else gd.GroupDRORegressor
    return make_pipeline(tables.encoder(), kind(alpha=1e-3, min_group_size=40, small_groups="merge", random_state=0))


# %%
# The comparison, and the pictures of what changed.
def draw(name: str, found: gd.Comparison, folder: Path) -> None:
    robust = found.models["GDRO"]
    gd.GroupRiskDisplay.from_reports(found.reports["ERM"], found.reports["GDRO"])
    plt.title(f"{name}: held-out risk of each group", loc="left", fontsize="medium")
    plt.savefig(folder / f"{name}_risks.png", dpi=110)
    gd.GroupWeightsDisplay.from_estimator(robust)
    plt.savefig(folder / f"{name}_weights.png", dpi=110)
    gd.ConvergenceDisplay.from_estimator(robust)
    plt.savefig(folder / f"{name}_convergence.png", dpi=110)
    plt.close("all")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for load in (tables.adult, tables.diabetes, tables.bank, tables.wine, tables.communities, tables.bike):
        X, y, groups = load()
        found = gd.compare(X, y, groups, estimator=pipeline(y))
        print(f"\n{load.__name__}: {len(X)} rows, {groups.nunique()} groups\n{found}")
        draw(load.__name__, found, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
