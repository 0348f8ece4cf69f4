"""
What robustness buys, and what it costs
=======================================

Six public data sets, four ways to train the same linear model, judged on rows that none of them saw. Run it as

    GROUPDRO_DATA=/path/to/data python examples/price_of_robustness.py results/

where the folder holds ``tabular/adult.csv.gz`` and so on. For each it prints a table and writes three pictures.
"""

# %%
# The data: a table, a target, and the columns that make the groups.
import os
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import groupdro as gd


def read(name: str) -> pd.DataFrame:
    folder = os.environ.get("GROUPDRO_DATA")
    if not folder:
        raise SystemExit("Set GROUPDRO_DATA to the folder that holds tabular/.")
    return pd.read_csv(Path(folder) / "tabular" / f"{name}.csv.gz", low_memory=False)


def adult():
    table = read("adult")
    X = table.drop(columns=["income", "split", "sex", "race", "education"])
    return X, table["income"].str.contains(">50K"), table["sex"] + ", " + table["race"]


def diabetes():
    table = read("diabetes130")
    codes = ["diag_1", "diag_2", "diag_3", "medical_specialty", "weight", "payer_code"]
    return table.drop(columns=["readmitted", "patient_nbr", "age", *codes]), table["readmitted"] != "NO", table["age"]


def bank():
    table = read("bank_marketing")
    return table.drop(columns=["y", "job"]), table["y"] == "yes", table["job"]


def wine():
    table = read("wine_quality")
    return table.drop(columns=["quality", "colour"]), table["quality"] >= 6, table["colour"]


def communities():
    table = read("communities_crime")
    known = table.drop(columns=["state", "county", "community", "communityname string", "fold", "ViolentCrimesPerPop"])
    return known, table["ViolentCrimesPerPop"], table["state"]


def bike():
    table = read("bike_sharing")
    X = table.drop(columns=["instant", "dteday", "casual", "registered", "cnt", "hr"])
    return X, table["cnt"] / 100, table["hr"]


# %%
# The model: any pipeline that ends in one of our estimators. Groups with fewer than 40 rows are taken together, because
# how well a model fits a handful of rows is mostly chance.
def pipeline(y: pd.Series):
    encode = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore", min_frequency=20), make_column_selector(dtype_exclude="number")),
    )
    kind = gd.GroupDROClassifier if y.dtype == bool else gd.GroupDRORegressor
    return make_pipeline(encode, kind(alpha=1e-3, min_group_size=40, small_groups="merge", random_state=0))


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
    for load in (adult, diabetes, bank, wine, communities, bike):
        X, y, groups = load()
        found = gd.compare(X, y, groups, estimator=pipeline(y))
        print(f"\n{load.__name__}: {len(X)} rows, {groups.nunique()} groups\n{found}")
        draw(load.__name__, found, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
