"""Download public files once, check them, and keep them in scikit-learn's data home."""

import hashlib
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

from groupdro.utils.arguments import check_path

__all__ = ["cache_folder", "check_digest", "download"]

_ATTEMPTS = 3
_DELAY = 1.0  # seconds between attempts
_TIMEOUT = 60.0  # seconds without an answer


def cache_folder(data_home: str | os.PathLike[str] | None) -> Path:
    """Return the folder of downloaded files, which is created if it does not exist.

    Parameters
    ----------
    data_home : str, path-like or None
        scikit-learn's data home; None for its default, ``~/scikit_learn_data`` or the variable SCIKIT_LEARN_DATA.

    Returns
    -------
    Path
        The folder ``groupdro`` in the data home.
    """
    from sklearn.datasets import get_data_home  # takes a while to import

    given = None if data_home is None else check_path(data_home, "data_home")
    folder = Path(get_data_home(given)) / "groupdro"
    folder.mkdir(exist_ok=True)
    return folder


def download(url: str) -> bytes:
    """Return the content of a web address. Connections that fail are tried again; refusals are not.

    Parameters
    ----------
    url : str
        The address.

    Returns
    -------
    bytes
        What the server sent.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
                return answer.read()
        except OSError as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or attempt == _ATTEMPTS:
                raise OSError(
                    f"{url} could not be downloaded: {error}. Without a connection, pass data_home with a copy of the "
                    "files, or set GROUPDRO_DATA (tables), GROUPDRO_CIFAR or GROUPDRO_FASHION_MNIST to their folder."
                ) from error
            time.sleep(_DELAY)
    raise AssertionError("the last attempt returns or raises")


def check_digest(content: bytes, sha256: str, what: str) -> None:
    """Raise an error unless content has the expected SHA-256 checksum.

    Parameters
    ----------
    content : bytes
        What was downloaded.
    sha256 : str
        Checksum, in hexadecimal digits.
    what : str
        Name of the content for the error.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise OSError(f"{what} has the SHA-256 checksum {found}, expected {sha256}: damaged, or changed at its source.")
