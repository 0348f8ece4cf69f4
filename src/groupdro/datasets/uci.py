"""Tables of the UCI Machine Learning Repository: where they are, how their files are read, and their checksums.

A table is downloaded as the archive's zip file, read into a data frame and written to the cache as a compressed CSV
file with names of columns. The checksum is that of the CSV file before compression, so that it covers every value.
"""

import gzip
import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from groupdro.datasets.download import cache_folder, check_digest, download
from groupdro.utils.arguments import check_flag
from groupdro.utils.files import write_content
from groupdro.utils.optional import import_extra

__all__ = ["SOURCES", "Source", "read_table"]

_ARCHIVE = "https://archive.ics.uci.edu/static/public"
_TEXT: dict[str, Any] = {"dtype": str, "keep_default_na": False}  # cells as they are written

Member = Callable[[str], io.BytesIO]


@dataclass(frozen=True)
class Source:
    """A table of the archive.

    Attributes
    ----------
    address : str
        Number and zip file of the data set in the archive.
    sha256 : str
        Checksum of the table as CSV.
    read : callable
        Returns the table, given pandas and a function that opens a file of the zip file by its name.
    """

    address: str
    sha256: str
    read: Callable[[Any, Member], Any]


def read_table(name: str, data_home: str | os.PathLike[str] | None, download_if_missing: bool) -> Any:
    """Return a table: from the folder that GROUPDRO_DATA names, from the cache, or from the archive, in this order.

    Parameters
    ----------
    name : str
        A key of `SOURCES`.
    data_home : str, path-like or None
        scikit-learn's data home.
    download_if_missing : bool
        Whether to download a table that is neither in the folder nor in the cache.

    Returns
    -------
    pandas.DataFrame
        The table.
    """
    check_flag(download_if_missing, "download_if_missing")
    pd = import_extra("pandas", "datasets")
    folder = os.environ.get("GROUPDRO_DATA")
    path = Path(folder or "", "tabular", f"{name}.csv.gz")
    if not folder or not path.exists():
        path = cache_folder(data_home) / f"{name}.csv.gz"
    if not path.exists():
        if not download_if_missing:
            raise OSError(f"{path} does not exist and download_if_missing is False.")
        write_content(path, gzip.compress(_download_table(pd, SOURCES[name]), compresslevel=6, mtime=0))
    return pd.read_csv(path, low_memory=False)


def _download_table(pd: Any, source: Source) -> bytes:
    url = f"{_ARCHIVE}/{source.address}"
    content = download(url)
    try:
        table = source.read(pd, lambda name: io.BytesIO(_member(content, name)))
    except (zipfile.BadZipFile, ValueError) as error:  # pandas raises subclasses of ValueError
        raise OSError(f"{url} is not the expected zip file of tables: {error}.") from error
    csv: bytes = table.to_csv(index=False, lineterminator="\n").encode()
    check_digest(csv, source.sha256, f"The table of {url}")
    return csv


def _member(archive: bytes, name: str) -> bytes:
    """Return a file of a zip file, whatever folder or inner zip file holds it."""
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        names = files.namelist()
        for found in names:
            if PurePosixPath(found).name == name:
                return files.read(found)
        for found in names:
            if found.endswith(".zip"):
                try:
                    return _member(files.read(found), name)
                except ValueError:
                    continue
    raise ValueError(f"{name} is not in it")


# ---------------------------------------------------------------------- how files are read

_ADULT = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
_GERMAN = (
    "status", "duration", "credit_history", "purpose", "amount", "savings", "employment", "installment_rate",
    "personal_status_sex", "debtors", "residence_since", "property", "age", "other_installment", "housing",
    "existing_credits", "job", "people_liable", "telephone", "foreign_worker", "credit_risk",
)  # fmt: skip
_HEART = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "num",
)  # fmt: skip


def _adult(pd: Any, member: Member) -> Any:
    parts = []
    for file, split, skipped in (("adult.data", "train", 0), ("adult.test", "test", 1)):
        part = pd.read_csv(member(file), names=_ADULT, skiprows=skipped, skipinitialspace=True, **_TEXT)
        # Labels of the test half end in a full stop.
        parts.append(part.assign(income=part["income"].str.rstrip("."), split=split))
    return pd.concat(parts)


def _bank_marketing(pd: Any, member: Member) -> Any:
    return pd.read_csv(member("bank-full.csv"), sep=";", **_TEXT)


def _bike_sharing(pd: Any, member: Member) -> Any:
    return pd.read_csv(member("hour.csv"))


def _communities_crime(pd: Any, member: Member) -> Any:
    lines = member("communities.names").read().decode("latin-1").splitlines()
    declared = [line.removeprefix("@attribute ").strip() for line in lines if line.startswith("@attribute ")]
    names = [name.removesuffix(" numeric") for name in declared]
    return pd.read_csv(member("communities.data"), names=names, na_values="?")


def _diabetes130(pd: Any, member: Member) -> Any:
    table = pd.read_csv(member("diabetic_data.csv"), **_TEXT).drop(columns="encounter_id")
    return table.assign(patient_nbr=pd.factorize(table["patient_nbr"])[0])  # numbered as they first appear


def _german_credit(pd: Any, member: Member) -> Any:
    table = pd.read_csv(member("german.data"), sep=" ", names=_GERMAN, **_TEXT)
    female = table["personal_status_sex"].isin(["A92", "A95"])
    return table.assign(sex=female.map({True: "female", False: "male"}))


def _heart_disease(pd: Any, member: Member) -> Any:
    sites = ("cleveland", "hungarian", "switzerland", "va")
    parts = (pd.read_csv(member(f"processed.{site}.data"), names=_HEART, na_values="?") for site in sites)
    return pd.concat([part.assign(site=site) for part, site in zip(parts, sites, strict=True)])


def _wine_quality(pd: Any, member: Member) -> Any:
    colours = ("red", "white")
    parts = (pd.read_csv(member(f"winequality-{colour}.csv"), sep=";") for colour in colours)
    return pd.concat([part.assign(colour=colour) for part, colour in zip(parts, colours, strict=True)])


SOURCES = {
    "adult": Source(
        "2/adult.zip", "d99d5b2c07ff6c7e09b6e0cefe115f6835d5c7b6efebdb9276238f1243c6369b", _adult
    ),
    "bank_marketing": Source(
        "222/bank+marketing.zip", "b44507c26634736d4a0619ec2d7c4b6ff56a2c63cbeb5176d3134e7b25e416f0", _bank_marketing
    ),
    "bike_sharing": Source(
        "275/bike+sharing+dataset.zip", "11e08374c448229649b93e64c7442558b93d516a008804bd70bdb8c82333c434",
        _bike_sharing,
    ),
    "communities_crime": Source(
        "183/communities+and+crime.zip", "ccd211c01d10fd73d53f05183f5827a17d5617075da76691ca2ea99c76942e60",
        _communities_crime,
    ),
    "diabetes130": Source(
        "296/diabetes+130-us+hospitals+for+years+1999-2008.zip",
        "43e2b90fb1acb1826a376bb7821e88f1287ad2683be0ddd22f12d24b5110a0c4", _diabetes130,
    ),
    "german_credit": Source(
        "144/statlog+german+credit+data.zip", "256ba18c4dadee9cd6fdc05a2e16c1d95de6cff1a4de18fbacbe100f4b5932a1",
        _german_credit,
    ),
    "heart_disease": Source(
        "45/heart+disease.zip", "fc9620e33ab1efddd7a4237c0294f65b68feaa477eb917a9e1045805c3fa3948", _heart_disease
    ),
    "wine_quality": Source(
        "186/wine+quality.zip", "299a091744e74e70c540ef1843c5cfc4a40e886a70b6d60a1cde55f93439ab02", _wine_quality
    ),
}  # fmt: skip
