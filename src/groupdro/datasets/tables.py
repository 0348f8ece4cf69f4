"""Public tables with groups, downloaded once from the UCI Machine Learning Repository."""

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

from sklearn.utils import Bunch

from groupdro.datasets.uci import read_table
from groupdro.utils.arguments import check_flag

__all__ = [
    "fetch_adult",
    "fetch_bank_marketing",
    "fetch_bike_sharing",
    "fetch_communities_crime",
    "fetch_diabetes130",
    "fetch_german_credit",
    "fetch_heart_disease",
    "fetch_wine_quality",
]

Folder = str | os.PathLike[str] | None


def fetch_adult(*, data_home: Folder = None, download_if_missing: bool = True, return_X_y_groups: bool = False) -> Any:
    """Fetch the Adult census table: who earns more than 50,000 dollars a year, by sex and race.

    48,842 people of the United States census of 1994 in ten groups. The features leave out sex, race, and the text
    column `education`, which `education-num` repeats; all of them are in `frame`, and so is `split`, which marks the
    archive's halves "train" and "test".

    Needs pandas: ``pip install "groupdro[datasets]"``. The table is downloaded at the first call and kept in
    scikit-learn's data home. If the variable GROUPDRO_DATA names a folder with ``tabular/adult.csv.gz``, that file is
    read instead.

    Parameters
    ----------
    data_home : str or path-like, optional
        Folder for downloaded files; by default scikit-learn's data home.
    download_if_missing : bool, default=True
        Whether to download the table if it is not there; otherwise an OSError is raised.
    return_X_y_groups : bool, default=False
        Whether to return ``(data, target, groups)`` instead of a Bunch.

    Returns
    -------
    data : sklearn.utils.Bunch
        With these attributes:

        data : DataFrame of shape (48842, 11)
            The features.
        target : Series of bool
            Whether a person earns more than 50,000 dollars a year.
        groups : Series of str
            Sex and race, such as "Female, White".
        frame : DataFrame of shape (48842, 16)
            The whole table, with the archive's names of columns.
        feature_names, target_name, group_names : list of str, str, list of str
            Names of the columns of `frame` that are features, target and groups.
        DESCR : str
            This description.

        Or ``(data, target, groups)`` if `return_X_y_groups` is True.

    Notes
    -----
    Source: B. Becker and R. Kohavi (1996), Adult, UCI Machine Learning Repository,
    https://doi.org/10.24432/C5XW20. Licence: CC BY 4.0.

    Examples
    --------
    >>> from groupdro.datasets import fetch_adult
    >>> X, y, groups = fetch_adult(return_X_y_groups=True)  # doctest: +SKIP
    """
    frame = read_table("adult", data_home, download_if_missing)
    groups = frame["sex"] + ", " + frame["race"]
    unused = ["split", "education"]
    return _parts(
        return_X_y_groups, fetch_adult, frame, frame["income"] == ">50K", groups, "income", ["sex", "race"], unused
    )


def fetch_bank_marketing(
    *, data_home: Folder = None, download_if_missing: bool = True, return_X_y_groups: bool = False
) -> Any:
    """Fetch the Bank Marketing table: who accepts a term deposit that is offered by telephone, by job.

    45,211 customers of a Portuguese bank, from 2008 to 2010, with 12 jobs. The features leave out the job. They include
    `duration`, the length of the call in seconds, which is known only after the call: drop it if your model must
    predict beforehand.

    Parameters
    ----------
    data_home, download_if_missing, return_X_y_groups
        As for `fetch_adult`.

    Returns
    -------
    data : sklearn.utils.Bunch
        As for `fetch_adult`. `target` says whether the customer accepted, `groups` is the job.

    Notes
    -----
    Source: S. Moro, P. Rita and P. Cortez (2014), Bank Marketing, UCI Machine Learning Repository, file
    ``bank-full.csv``, https://doi.org/10.24432/C5K306. Licence: CC BY 4.0.
    """
    frame = read_table("bank_marketing", data_home, download_if_missing)
    return _parts(return_X_y_groups, fetch_bank_marketing, frame, frame["y"] == "yes", frame["job"], "y", ["job"])


def fetch_bike_sharing(
    *, data_home: Folder = None, download_if_missing: bool = True, return_X_y_groups: bool = False
) -> Any:
    """Fetch the Bike Sharing table: bicycles rented in each hour of two years, by hour of the day.

    17,379 hours of 2011 and 2012 in Washington, D.C. The features leave out the hour, the date, the running number, and
    the counts of casual and registered riders, whose sum is the target.

    Parameters
    ----------
    data_home, download_if_missing, return_X_y_groups
        As for `fetch_adult`.

    Returns
    -------
    data : sklearn.utils.Bunch
        As for `fetch_adult`. `target` is the number of bicycles, `groups` the hour from 0 to 23. The date is
        ``frame["dteday"]``.

    Notes
    -----
    Source: H. Fanaee-T (2013), Bike Sharing, UCI Machine Learning Repository, file ``hour.csv``,
    https://doi.org/10.24432/C5W894. Licence: CC BY 4.0.
    """
    frame = read_table("bike_sharing", data_home, download_if_missing)
    unused = ["instant", "dteday", "casual", "registered"]
    return _parts(return_X_y_groups, fetch_bike_sharing, frame, frame["cnt"], frame["hr"], "cnt", ["hr"], unused)


def fetch_communities_crime(
    *, data_home: Folder = None, download_if_missing: bool = True, return_X_y_groups: bool = False
) -> Any:
    """Fetch the Communities and Crime table: violent crimes per inhabitant of 1,994 communities, by state.

    The 46 states have from 1 to 278 communities. All numbers are scaled to the range from 0 to 1 by the archive; many
    are missing. The features leave out state, county, community and the archive's fold.

    Parameters
    ----------
    data_home, download_if_missing, return_X_y_groups
        As for `fetch_adult`.

    Returns
    -------
    data : sklearn.utils.Bunch
        As for `fetch_adult`. `target` is the scaled rate of violent crimes, `groups` the number of the state.

    Notes
    -----
    Source: M. Redmond (2002), Communities and Crime, UCI Machine Learning Repository,
    https://doi.org/10.24432/C53W3X. Licence: CC BY 4.0.
    """
    frame = read_table("communities_crime", data_home, download_if_missing)
    unused = ["county", "community", "communityname string", "fold"]
    target = "ViolentCrimesPerPop"
    return _parts(
        return_X_y_groups, fetch_communities_crime, frame, frame[target], frame["state"], target, ["state"], unused
    )


def fetch_diabetes130(
    *, data_home: Folder = None, download_if_missing: bool = True, return_X_y_groups: bool = False
) -> Any:
    """Fetch the Diabetes 130-US Hospitals table: readmission after a stay in hospital, by age.

    101,766 stays of patients with diabetes in 130 hospitals of the United States, from 1999 to 2008. Many patients have
    several: ``frame["patient_nbr"]`` tells them apart. The features leave out the patient, the age, the codes of
    diagnoses, the medical specialty, and the weight and payer, which are mostly missing.

    Parameters
    ----------
    data_home, download_if_missing, return_X_y_groups
        As for `fetch_adult`.

    Returns
    -------
    data : sklearn.utils.Bunch
        As for `fetch_adult`. `target` is "NO", ">30" or "<30", the days until the readmission; `groups` has ten
        ages such as "[70-80)". In `frame` the number of the stay is dropped, and patients are numbered from 0 in the
        order in which they first appear.

    Notes
    -----
    Source: J. Clore, K. Cios, J. DeShazo and B. Strack (2014), Diabetes 130-US Hospitals for Years 1999-2008, UCI
    Machine Learning Repository, https://doi.org/10.24432/C5230J. Licence: CC BY 4.0.
    """
    frame = read_table("diabetes130", data_home, download_if_missing)
    unused = ["patient_nbr", "diag_1", "diag_2", "diag_3", "medical_specialty", "weight", "payer_code"]
    return _parts(
        return_X_y_groups, fetch_diabetes130, frame, frame["readmitted"], frame["age"], "readmitted", ["age"], unused
    )


def fetch_german_credit(
    *, data_home: Folder = None, download_if_missing: bool = True, return_X_y_groups: bool = False
) -> Any:
    """Fetch the German Credit table: which of 1,000 loans went bad, by sex.

    690 loans to men and 310 to women, of which 300 went bad. The features leave out the sex and the column
    `personal_status_sex` that it is read from. The archive's file has no names of columns; these follow its
    description. Codes such as "A43" are explained there.

    Parameters
    ----------
    data_home, download_if_missing, return_X_y_groups
        As for `fetch_adult`.

    Returns
    -------
    data : sklearn.utils.Bunch
        As for `fetch_adult`. `target` says whether the loan went bad, `groups` is the sex.

    Notes
    -----
    Source: H. Hofmann (1994), Statlog (German Credit Data), UCI Machine Learning Repository,
    https://doi.org/10.24432/C5NC77. Licence: CC BY 4.0.
    """
    frame = read_table("german_credit", data_home, download_if_missing)
    bad = frame["credit_risk"] == 2
    unused = ["personal_status_sex"]
    return _parts(return_X_y_groups, fetch_german_credit, frame, bad, frame["sex"], "credit_risk", ["sex"], unused)


def fetch_heart_disease(
    *, data_home: Folder = None, download_if_missing: bool = True, return_X_y_groups: bool = False
) -> Any:
    """Fetch the Heart Disease table: 920 patients of four hospitals.

    303 patients of Cleveland, 294 of Budapest ("hungarian"), 123 of Basel and Zurich ("switzerland") and 200 of Long
    Beach ("va"). Many values are missing, and each hospital left out other tests.

    Parameters
    ----------
    data_home, download_if_missing, return_X_y_groups
        As for `fetch_adult`.

    Returns
    -------
    data : sklearn.utils.Bunch
        As for `fetch_adult`. `target` says whether the patient is ill, `groups` is the hospital. The degree of
        the illness, from 0 to 4, is ``frame["num"]``.

    Notes
    -----
    Source: A. Janosi, W. Steinbrunn, M. Pfisterer and R. Detrano (1989), Heart Disease, UCI Machine Learning
    Repository, https://doi.org/10.24432/C52P4X. Licence: CC BY 4.0.
    """
    frame = read_table("heart_disease", data_home, download_if_missing)
    return _parts(return_X_y_groups, fetch_heart_disease, frame, frame["num"] > 0, frame["site"], "num", ["site"])


def fetch_wine_quality(
    *, data_home: Folder = None, download_if_missing: bool = True, return_X_y_groups: bool = False
) -> Any:
    """Fetch the Wine Quality table: tasters' marks of 6,497 Portuguese wines, by colour.

    1,599 red and 4,898 white wines. 1,177 rows repeat an earlier one: drop them with ``~frame.duplicated()`` before you
    split the rows, or the same wine may be in both parts.

    Parameters
    ----------
    data_home, download_if_missing, return_X_y_groups
        As for `fetch_adult`.

    Returns
    -------
    data : sklearn.utils.Bunch
        As for `fetch_adult`. `target` is the mark, from 3 to 9; `groups` is "red" or "white".

    Notes
    -----
    Source: P. Cortez, A. Cerdeira, F. Almeida, T. Matos and J. Reis (2009), Wine Quality, UCI Machine Learning
    Repository, https://doi.org/10.24432/C56S3T. Licence: CC BY 4.0.
    """
    frame = read_table("wine_quality", data_home, download_if_missing)
    return _parts(
        return_X_y_groups, fetch_wine_quality, frame, frame["quality"], frame["colour"], "quality", ["colour"]
    )


def _parts(
    return_X_y_groups: bool,
    fetcher: Callable[..., Any],
    frame: Any,
    target: Any,
    groups: Any,
    target_name: str,
    group_names: Sequence[str],
    unused: Sequence[str] = (),
) -> Any:
    """Return a table in parts; features are the columns of the frame that are nothing else."""
    check_flag(return_X_y_groups, "return_X_y_groups")
    data = frame.drop(columns=[target_name, *group_names, *unused])
    if return_X_y_groups:
        return data, target, groups
    return Bunch(
        data=data,
        target=target,
        groups=groups,
        frame=frame,
        feature_names=list(data.columns),
        target_name=target_name,
        group_names=list(group_names),
        DESCR=inspect.getdoc(fetcher) or "",
    )
