"""Real problems for the benchmarks, from the folder that the variable GROUPDRO_DATA names.

Preprocessing is the same everywhere: numeric columns are standardised (missing values take the mean), text columns are
one-hot encoded (missing values are a category), and a column of ones is appended, so that all methods fit the same
matrix without an intercept of their own. Identifiers, dates and columns that give the label away are dropped.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from groupdro.datasets.pickles import ArraysOnly as _ArraysOnly


@dataclass(frozen=True)
class Problem:
    """A matrix, labels and groups. `task` is "binary", "classes" or "regression"."""

    name: str
    X: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    task: str


def data_folder() -> Path:
    folder = os.environ.get("GROUPDRO_DATA")
    if not folder:
        raise SystemExit("Set GROUPDRO_DATA to the folder that holds tabular/ and cifar100/.")
    return Path(folder)


def read_table(name: str) -> pd.DataFrame:
    return pd.read_csv(data_folder() / "tabular" / f"{name}.csv.gz", low_memory=False)


def design_matrix(frame: pd.DataFrame) -> np.ndarray:
    """Standardise numbers, one-hot encode text, append ones."""
    numbers = frame.select_dtypes("number").astype(np.float64)
    spread = numbers.std(ddof=0)
    numbers = ((numbers - numbers.mean()) / spread.where(spread > 0, 1.0)).fillna(0.0)
    text = frame.drop(columns=numbers.columns).astype(str)
    parts = [numbers.to_numpy()]
    if text.shape[1]:
        parts.append(pd.get_dummies(text).to_numpy(dtype=np.float64))
    return np.ascontiguousarray(np.hstack([*parts, np.ones((len(frame), 1))]))


def _problem(name: str, frame: pd.DataFrame, y: pd.Series, groups: pd.Series, task: str, drop: list[str]) -> Problem:
    labels = y.to_numpy()
    if task == "binary":
        labels = np.where(labels, 1.0, -1.0)
    elif task == "classes":
        labels = np.unique(labels, return_inverse=True)[1]
    else:
        labels = (labels - labels.mean()) / labels.std()
    return Problem(name, design_matrix(frame.drop(columns=drop)), labels, groups.astype(str).to_numpy(), task)


def adult() -> Problem:
    t = read_table("adult")
    groups = t["sex"] + " " + t["race"]
    drop = ["income", "split", "sex", "race", "education", "native-country"]
    return _problem("adult: sex x race", t, t["income"].str.contains(">50K"), groups, "binary", drop)


def bank() -> Problem:
    t = read_table("bank_marketing")
    return _problem("bank: job", t, t["y"] == "yes", t["job"], "binary", ["y", "job"])


def credit() -> Problem:
    t = read_table("credit_default")
    return _problem(
        "credit: education", t, t["default payment"] == 1, t["EDUCATION"], "binary", ["default payment", "EDUCATION"]
    )


def compas() -> Problem:
    t = read_table("compas")
    drop = ["two_year_recid", "is_recid", "race", "c_charge_desc", "decile_score", "score_text"]
    return _problem("compas: race", t, t["two_year_recid"] == 1, t["race"], "binary", drop)


def german() -> Problem:
    t = read_table("german_credit")
    drop = ["credit_risk", "sex", "personal_status_sex"]
    return _problem("german credit: sex", t, t["credit_risk"] == t["credit_risk"].max(), t["sex"], "binary", drop)


def heart() -> Problem:
    t = read_table("heart_disease")
    return _problem("heart: hospital", t, t["num"] > 0, t["site"], "binary", ["num", "site"])


def diabetes() -> Problem:
    t = read_table("diabetes130")
    drop = [
        "readmitted",
        "patient_nbr",
        "age",
        "diag_1",
        "diag_2",
        "diag_3",
        "medical_specialty",
        "weight",
        "payer_code",
    ]
    return _problem("diabetes: age, 3 classes", t, t["readmitted"], t["age"], "classes", drop)


def wine_classes() -> Problem:
    t = read_table("wine_quality")
    quality = t["quality"].clip(4, 8)  # the rarest marks join their neighbours
    return _problem("wine: colour, 5 classes", t, quality, t["colour"], "classes", ["quality", "colour"])


def bike() -> Problem:
    t = read_table("bike_sharing")
    drop = ["instant", "dteday", "casual", "registered", "cnt", "hr"]
    return _problem("bike: hour", t, t["cnt"], t["hr"], "regression", drop)


def communities() -> Problem:
    t = read_table("communities_crime")
    drop = ["state", "county", "community", "communityname string", "fold", "ViolentCrimesPerPop"]
    return _problem("communities: state", t, t["ViolentCrimesPerPop"], t["state"], "regression", drop)


TEN: tuple[Callable[[], Problem], ...] = (
    adult, bank, credit, compas, german, heart, diabetes, wine_classes, bike, communities,
)  # fmt: skip


def cifar(folder: Path, part: str = "train") -> Problem:
    """Read CIFAR-100 with its classes as groups, from the official folder.

    Pixels / 255 less the mean training image, scaled to a mean squared norm of 100 over training rows, float32, with
    a column of ones.
    """
    train, _ = _images(folder / "train")
    mean = train.mean(axis=0)
    train -= mean
    scale = 10 / np.sqrt((train**2).sum(axis=1).mean())
    X, y = _images(folder / part)
    X = (X - mean) * scale
    return Problem("cifar-100: class", np.hstack([X, np.ones((len(X), 1), np.float32)]), y, y, "classes")


def superclasses(folder: Path) -> np.ndarray:
    """Return the superclass, from 0 to 19, of every training image of CIFAR-100."""
    return np.asarray(_ArraysOnly.read(folder / "train")[b"coarse_labels"])


def _images(path: Path) -> tuple[np.ndarray, np.ndarray]:
    stored = _ArraysOnly.read(path)
    return np.asarray(stored[b"data"], dtype=np.float32) / 255, np.asarray(stored[b"fine_labels"])
