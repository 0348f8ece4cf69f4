"""The tables of the examples: features, target and groups of each.

All are from the UCI Machine Learning Repository. They are read from ``tabular/NAME.csv.gz`` in the folder that the
variable GROUPDRO_DATA names, under UCI's names of columns. Identifiers, dates, the groups themselves and columns that
give the target away are no features.
"""

import os
from pathlib import Path

import pandas as pd
from sklearn.compose import ColumnTransformer, make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

Table = tuple[pd.DataFrame, pd.Series, pd.Series]


def read(name: str) -> pd.DataFrame:
    folder = os.environ.get("GROUPDRO_DATA")
    if not folder:
        raise SystemExit("Set GROUPDRO_DATA to the folder that holds tabular/.")
    return pd.read_csv(Path(folder) / "tabular" / f"{name}.csv.gz", low_memory=False)


def encoder() -> ColumnTransformer:
    """Standardise numbers, and turn text into a column for each value that at least 20 rows have."""
    return make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore", min_frequency=20), make_column_selector(dtype_exclude="number")),
    )


def adult() -> Table:
    """More than 50,000 dollars a year, by sex and race."""
    table = read("adult")
    X = table.drop(columns=["income", "split", "sex", "race", "education"])
    return X, table["income"].str.contains(">50K"), table["sex"] + ", " + table["race"]


def diabetes() -> Table:
    """Readmission to hospital after each patient's first stay, by age."""
    table = read("diabetes130").drop_duplicates("patient_nbr", ignore_index=True)
    codes = ["diag_1", "diag_2", "diag_3", "medical_specialty", "weight", "payer_code"]
    return table.drop(columns=["readmitted", "patient_nbr", "age", *codes]), table["readmitted"] != "NO", table["age"]


def first_admissions() -> tuple[pd.DataFrame, pd.Series, pd.DataFrame]:
    """Readmission after each patient's first stay, with age and medical specialty as groups.

    One row a patient, so that rows are independent. Patients who died in hospital cannot come back and are left out.
    Kinds of admission and discharge are numbered in the table, but are no numbers. Medicines that few take are dropped.
    """
    table = read("diabetes130").drop_duplicates("patient_nbr")
    table = table[~table["discharge_disposition_id"].isin([11, 19, 20, 21])].reset_index(drop=True)
    kinds = ["admission_type_id", "discharge_disposition_id", "admission_source_id"]
    counts = [name for name in table if name.startswith(("num_", "number_"))]
    tests = ["max_glu_serum", "A1Cresult", "metformin", "insulin", "change", "diabetesMed"]
    X = table[["race", "gender", "time_in_hospital", *kinds, *counts, *tests]].astype(dict.fromkeys(kinds, str))
    groups = table[["age", "medical_specialty"]].replace({"medical_specialty": {"?": "not recorded"}})
    return X, table["readmitted"] != "NO", groups


def bank() -> Table:
    """Whether a customer accepts a deposit, by job."""
    table = read("bank_marketing")
    return table.drop(columns=["y", "job"]), table["y"] == "yes", table["job"]


def wine() -> Table:
    """Whether tasters give six points or more, by colour."""
    table = read("wine_quality").drop_duplicates(ignore_index=True)  # many wines are there twice
    return table.drop(columns=["quality", "colour"]), table["quality"] >= 6, table["colour"]


def communities() -> Table:
    """Violent crimes per inhabitant, scaled to 0 to 1, by state."""
    table = read("communities_crime")
    known = table.drop(columns=["state", "county", "community", "communityname string", "fold", "ViolentCrimesPerPop"])
    return known, table["ViolentCrimesPerPop"], table["state"]


def bike() -> Table:
    """Bicycles rented in an hour, in hundreds, by hour of the day."""
    table = read("bike_sharing")
    X = table.drop(columns=["instant", "dteday", "casual", "registered", "cnt", "hr"])
    return X, table["cnt"] / 100, table["hr"]


def german() -> Table:
    """Whether a credit goes bad, by sex."""
    table = read("german_credit")
    return table.drop(columns=["credit_risk", "sex", "personal_status_sex"]), table["credit_risk"] == 2, table["sex"]


def heart() -> Table:
    """Heart disease, by hospital."""
    table = read("heart_disease")
    return table.drop(columns=["num", "site"]), table["num"] > 0, table["site"]
