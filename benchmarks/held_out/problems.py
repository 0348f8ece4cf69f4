"""Twelve real tables with their groups, and their columns as models get them.

The columns that define the groups are among the features. Numbers are standardised by the mean and the spread of the
training rows; where values are missing they take that mean, and a column says so. Text and codes are one-hot encoded,
missing values as a category of their own. There is no column of ones: estimators fit their own intercept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from benchmarks.real_data import data_folder, read_table

MOST_ROWS = 40_000  # of the census and the diabetes table, for the time that they take


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers (NaN where missing), one-hot columns, target and groups of every row.

    `frame` has the features as they are in the file.
    `units` numbers what is held out as a whole, such as days: rows of one are too alike to test each other. None where
    every row stands alone. `note` says how rows were left out.
    """

    name: str
    numbers: np.ndarray
    codes: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    classes: bool
    frame: pd.DataFrame
    units: np.ndarray | None = None
    note: str = ""

    @property
    def n_rows(self) -> int:
        return len(self.y)

    @property
    def n_features(self) -> int:
        return self.numbers.shape[1] + _missing(self.numbers).shape[1] + self.codes.shape[1]

    def take(self, rows: np.ndarray) -> "Table":
        return replace(
            self,
            numbers=self.numbers[rows],
            codes=self.codes[rows],
            y=self.y[rows],
            groups=self.groups[rows],
            frame=self.frame.iloc[rows].reset_index(drop=True),
            units=None if self.units is None else self.units[rows],
        )


def design(table: Table, train: np.ndarray) -> np.ndarray:
    """Return the columns of all rows, scaled and filled by the mean and the spread of the training rows."""
    known = table.numbers[train]
    empty = np.isnan(known).all(axis=0)
    mean, spread = np.zeros(known.shape[1]), np.ones(known.shape[1])
    mean[~empty], spread[~empty] = np.nanmean(known[:, ~empty], axis=0), np.nanstd(known[:, ~empty], axis=0)
    scaled = (table.numbers - mean) / np.where(spread > 0, spread, 1.0)
    return np.ascontiguousarray(np.hstack([np.nan_to_num(scaled), _missing(table.numbers), table.codes]))


def _missing(numbers: np.ndarray) -> np.ndarray:
    """Return columns that say where numbers are missing, each pattern once."""
    missing = np.isnan(numbers)
    return np.unique(missing[:, missing.any(axis=0)].astype(np.float64), axis=1)


def _table(
    name: str,
    frame: pd.DataFrame,
    target: pd.Series,
    groups: Sequence[str] | pd.Series,
    *,
    drop: Sequence[str],
    codes: Sequence[str] = (),
    classes: bool = True,
    units: pd.Series | None = None,
    note: str = "",
) -> Table:
    """Return a table whose groups are the combinations of some columns, or as given; `codes` are numbers that name."""
    if not isinstance(groups, pd.Series):
        groups = frame[list(groups)].astype(str).agg(" ".join, axis=1)
    features = frame.drop(columns=list(drop))
    numbers = features.drop(columns=list(codes)).select_dtypes("number").astype(np.float64)
    names = features.drop(columns=numbers.columns).astype(object)
    y = target.to_numpy()
    return Table(
        name,
        numbers.to_numpy(),
        pd.get_dummies(names.where(names.notna(), "missing").astype(str)).to_numpy(np.float64),
        np.where(y, 1, 0) if classes else (y - y.mean()) / y.std(),
        groups.astype(str).to_numpy(),
        classes,
        features,
        None if units is None else np.unique(units.to_numpy(), return_inverse=True)[1],
        note,
    )


def _at_most(table: Table, n_rows: int, note: str = "") -> Table:
    """Return a random part of the rows where there are more."""
    if table.n_rows <= n_rows:
        return table
    rows = np.random.default_rng(0).choice(table.n_rows, n_rows, replace=False)
    said = f"{n_rows:,} of {table.n_rows:,} rows{note}"
    return replace(table.take(np.sort(rows)), note=said)


def adult() -> Table:
    t = read_table("adult")
    drop = ["income", "split", "education", "fnlwgt"]  # education-num has the same; the weights of the survey
    return _table("adult: sex x race", t, t["income"].str.contains(">50K"), ["sex", "race"], drop=drop)


def census() -> Table:
    """Return the census by race and sex, without codes whose coarser form is among the columns, and without weights."""
    with np.load(data_folder() / "tabular" / "kdd_census.npz", allow_pickle=False) as stored:
        columns = {name: stored[name] for name in stored}
    names = {column: columns.pop(f"{column}__names") for column in [*columns] if f"{column}__names" in columns}
    rows = np.random.default_rng(0).choice(len(columns["income"]), MOST_ROWS, replace=False)
    note = f"{MOST_ROWS:,} of {len(columns['income']):,} rows"
    drop = ["income", "split", "instance_weight_x100", "industry_code", "occupation_code", "country_father",
            "country_mother", "prev_state", "household_family_stat"]  # fmt: skip
    frame = pd.DataFrame(
        {name: names[name][column[rows]] if name in names else column[rows] for name, column in columns.items()}
    )
    target = pd.Series(columns["income"][rows] == 1)
    return _table("census: race x sex", frame, target, ["race", "sex"], drop=drop, note=note)


def _diabetes(name: str, fewest: int | None) -> Table:
    """Return each patient's first stay: another stay of the same patient in the test rows would not be new.

    Combinations of age and specialty with fewer than `fewest` rows are one group; None for groups by age alone.
    """
    t = read_table("diabetes130")
    n_stays = len(t)
    t = t.drop_duplicates("patient_nbr").reset_index(drop=True)
    groups = t["age"]
    if fewest is not None:
        groups = t["age"] + " " + t["medical_specialty"].astype(str)
        groups = groups.where(groups.map(groups.value_counts()) >= fewest, "others")
    drop = ["readmitted", "patient_nbr", "diag_1", "diag_2", "diag_3", "weight", "payer_code"]
    codes = ["admission_type_id", "discharge_disposition_id", "admission_source_id"]
    table = _table(name, t, t["readmitted"] != "NO", groups, drop=drop, codes=codes)
    return _at_most(table, MOST_ROWS, f" (first of {n_stays:,} stays per patient)")


def diabetes_age() -> Table:
    return _diabetes("diabetes: age", None)


def diabetes_specialty() -> Table:
    return _diabetes("diabetes: age x specialty", 300)


def bank() -> Table:
    t = read_table("bank_marketing")
    return _table("bank: job", t, t["y"] == "yes", ["job"], drop=["y"])


def credit() -> Table:
    t = read_table("credit_default")
    return _table(
        "credit: sex x education",
        t,
        t["default payment"] == 1,
        ["SEX", "EDUCATION"],
        drop=["default payment"],
        codes=["SEX", "EDUCATION", "MARRIAGE"],
    )


def compas() -> Table:
    t = read_table("compas")
    drop = ["two_year_recid", "is_recid", "c_charge_desc", "decile_score", "score_text"]
    return _table("compas: race", t, t["two_year_recid"] == 1, ["race"], drop=drop)


def german() -> Table:
    t = read_table("german_credit")
    return _table("german: sex", t, t["credit_risk"] == t["credit_risk"].max(), ["sex"], drop=["credit_risk"])


def heart() -> Table:
    t = read_table("heart_disease")
    codes = ["cp", "restecg", "slope", "thal"]
    return _table("heart: hospital", t, t["num"] > 0, ["site"], drop=["num"], codes=codes)


def heart_without_hospital() -> Table:
    t = read_table("heart_disease")
    codes = ["cp", "restecg", "slope", "thal"]
    return _table("heart: hospital", t, t["num"] > 0, ["site"], drop=["num", "site"], codes=codes)


def wine() -> Table:
    t = read_table("wine_quality")
    return _table("wine: colour", t, t["quality"], ["colour"], drop=["quality"], classes=False)


def bike() -> Table:
    t = read_table("bike_sharing")
    drop = ["instant", "dteday", "casual", "registered", "cnt"]
    codes = ["season", "mnth", "hr", "weekday", "weathersit"]
    return _table(
        "bike: hour", t, t["cnt"], ["hr"], drop=drop, codes=codes, classes=False, units=t["dteday"],
        note="whole days held out",
    )  # fmt: skip


def communities() -> Table:
    t = read_table("communities_crime")
    drop = ["county", "community", "communityname string", "fold", "ViolentCrimesPerPop"]
    return _table(
        "communities: state", t, t["ViolentCrimesPerPop"], ["state"], drop=drop, codes=["state"], classes=False
    )


_EVERY = 11  # hours: prime to 24, so that all hours of the day come round


def beijing(with_station: bool = True) -> Table:
    """Return the air of twelve stations, of every eleventh hour.

    Coarser particles (PM10) are left out: they include the finer ones that are to be predicted.
    """
    with np.load(data_folder() / "tabular" / "beijing_air.npz", allow_pickle=False) as stored:
        columns = {name: stored[name] for name in stored}
    stations, winds, n_hours = columns.pop("station__order"), columns.pop("wd__names"), len(columns["year"])
    frame = pd.DataFrame(
        {
            name: np.ravel(column if column.ndim == 2 else np.broadcast_to(column, (len(stations), n_hours)))
            for name, column in columns.items()
        }
    )
    frame["station"] = np.repeat(stations, n_hours)
    frame["wd"] = np.where(frame["wd"] >= 0, winds[frame["wd"].to_numpy()], "missing")
    hour = np.tile(np.arange(n_hours), len(stations))
    frame, hour = frame[hour % _EVERY == 0].reset_index(drop=True), hour[hour % _EVERY == 0]
    known = frame["PM2.5"].notna()
    frame, hour = frame[known].reset_index(drop=True), hour[known]
    drop = ["PM2.5", "PM10", "day", *([] if with_station else ["station"])]
    return _table(
        "beijing: station",
        frame,
        frame["PM2.5"].astype(np.float64),
        ["station"],
        drop=drop,
        codes=["month", "hour"],
        classes=False,
        units=pd.Series(hour // (24 * 7)),
        note=f"every {_EVERY}th hour, whole weeks held out",
    )


TABLES: dict[str, Callable[[], Table]] = {
    "german": german,
    "heart": heart,
    "communities": communities,
    "wine": wine,
    "compas": compas,
    "bike": bike,
    "credit": credit,
    "bank": bank,
    "adult": adult,
    "beijing": beijing,
    "diabetes_age": diabetes_age,
    "census": census,
    "diabetes_specialty": diabetes_specialty,
}
