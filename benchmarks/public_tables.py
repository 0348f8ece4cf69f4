"""Public tables as features, target and groups, for benchmarks that fit pipelines: see `groupdro.datasets`."""

import pandas as pd
from sklearn.compose import ColumnTransformer, make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from groupdro.datasets import fetch_bike_sharing, fetch_diabetes130

Table = tuple[pd.DataFrame, pd.Series, pd.Series]


def encoder() -> ColumnTransformer:
    """Standardise numbers, and turn text into one column per value that at least 20 rows have."""
    return make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore", min_frequency=20), make_column_selector(dtype_exclude="number")),
    )


def bike() -> tuple[Table, pd.Series]:
    """Bicycles rented in an hour, in hundreds, by hour of the day; and the day of each row."""
    bike = fetch_bike_sharing()
    return (bike.data, bike.target / 100, bike.groups), bike.frame["dteday"]


def first_admissions() -> Table:
    """Readmission after each patient's first stay, by age.

    One row per patient, so that rows are independent. Patients who died in hospital cannot come back and are left out.
    Kinds of admission and discharge are coded by numbers, but are categories. Medicines that few take are dropped.
    """
    table = fetch_diabetes130().frame.drop_duplicates("patient_nbr")
    table = table[~table["discharge_disposition_id"].isin([11, 19, 20, 21])].reset_index(drop=True)
    kinds = ["admission_type_id", "discharge_disposition_id", "admission_source_id"]
    counts = [name for name in table if name.startswith(("num_", "number_"))]
    tests = ["max_glu_serum", "A1Cresult", "metformin", "insulin", "change", "diabetesMed"]
    X = table[["race", "gender", "time_in_hospital", *kinds, *counts, *tests]].astype(dict.fromkeys(kinds, str))
    return X, table["readmitted"] != "NO", table["age"]
