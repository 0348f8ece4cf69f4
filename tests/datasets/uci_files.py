"""The files of the UCI archive, written back from the tables that were read from them.

A test that downloads needs the archive's own files. Their form is simple enough to be restored from a table byte for
byte: the sizes of `adult.data`, `adult.test`, `bank-full.csv` and `german.data` are the archive's.
"""

import csv
import io
import zipfile

import pandas as pd

from groupdro.datasets import tables


def _text(table: pd.DataFrame, **options: object) -> bytes:
    return table.to_csv(index=False, **options).encode()


def _adult(table: pd.DataFrame) -> dict[str, bytes]:
    halves = {}
    for name, split, first, end in (
        ("adult.data", "train", "", ""),
        ("adult.test", "test", "|1x3 Cross validator", "."),
    ):
        rows = table[table["split"] == split].drop(columns="split").astype(str)
        lines = [first] * bool(first) + [", ".join(row) + end for row in rows.itertuples(index=False)]
        halves[name] = ("\n".join(lines) + "\n\n").encode()
    return halves


def _bank_marketing(table: pd.DataFrame) -> dict[str, bytes]:
    inner = zipped({"bank-full.csv": _text(table, sep=";", quoting=csv.QUOTE_NONNUMERIC), "bank.csv": b""})
    return {"bank-additional.zip": zipped({"bank-additional/bank-additional-full.csv": b""}), "bank.zip": inner}


def _communities_crime(table: pd.DataFrame) -> dict[str, bytes]:
    kinds = ["@attribute " + (name if name.endswith(" string") else f"{name} numeric") for name in table]
    names = "\n".join(["Title: Communities and Crime", *kinds, "@data"])
    return {"communities.names": names.encode(), "communities.data": _text(table, header=False, na_rep="?")}


def _diabetes130(table: pd.DataFrame) -> dict[str, bytes]:
    stays = table.assign(patient_nbr=8222157 + 7 * table["patient_nbr"])
    stays.insert(0, "encounter_id", range(len(stays)))
    return {"diabetic_data.csv": _text(stays), "IDS_mapping.csv": b"admission_type_id,description\n"}


def _heart_disease(table: pd.DataFrame) -> dict[str, bytes]:
    parts = {site: rows.drop(columns="site") for site, rows in table.groupby("site")}
    return {f"processed.{site}.data": _text(rows, header=False, na_rep="?") for site, rows in parts.items()}


def _wine_quality(table: pd.DataFrame) -> dict[str, bytes]:
    parts = {colour: rows.drop(columns="colour") for colour, rows in table.groupby("colour")}
    return {f"winequality-{colour}.csv": _text(rows, sep=";") for colour, rows in parts.items()}


#: How the files of each table are written, and the function that fetches it.
ARCHIVE = {
    "adult": (_adult, tables.fetch_adult),
    "bank_marketing": (_bank_marketing, tables.fetch_bank_marketing),
    "bike_sharing": (lambda table: {"hour.csv": _text(table), "day.csv": b""}, tables.fetch_bike_sharing),
    "communities_crime": (_communities_crime, tables.fetch_communities_crime),
    "diabetes130": (_diabetes130, tables.fetch_diabetes130),
    "german_credit": (
        lambda table: {"german.data": _text(table.drop(columns="sex"), sep=" ", header=False)},
        tables.fetch_german_credit,
    ),
    "heart_disease": (_heart_disease, tables.fetch_heart_disease),
    "wine_quality": (_wine_quality, tables.fetch_wine_quality),
}


def zipped(files: dict[str, bytes]) -> bytes:
    """Return a zip file."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return written.getvalue()
