"""Public images: Fashion-MNIST and CIFAR-100."""

import gzip
import inspect
import io
import math
import os
import tarfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from groupdro.datasets.download import cache_folder, check_digest, download
from groupdro.datasets.pickles import ArraysOnly
from groupdro.utils.arguments import check_choice, check_flag
from groupdro.utils.files import write_content

__all__ = ["fetch_cifar100", "fetch_fashion_mnist"]

_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/b2617bb6d3ffa2e429640350f613e3291e10b141"
_FASHION_SHA256 = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
_CIFAR_SHA256 = "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"


def fetch_cifar100(
    part: str = "train", *, data_home: str | os.PathLike[str] | None = None, download_if_missing: bool = True
) -> Bunch:
    """Fetch CIFAR-100 (Krizhevsky, 2009): small colour photographs of 100 classes in 20 superclasses.

    The archive of 161 MB is downloaded at the first call and unpacked in scikit-learn's data home. If the variable
    GROUPDRO_CIFAR names the official folder ``cifar-100-python``, that is read instead. The official files are pickles;
    nothing but arrays, lists and text is accepted from them.

    Parameters
    ----------
    part : {"train", "test"}, default="train"
        The 50,000 images for training (500 per class) or the 10,000 for testing (100 per class).
    data_home : str or path-like, optional
        Folder for downloaded files; by default scikit-learn's data home.
    download_if_missing : bool, default=True
        Whether to download the images if they are not there; otherwise an OSError is raised.

    Returns
    -------
    data : sklearn.utils.Bunch
        With these attributes:

        images : ndarray of shape (n_images, 3, 32, 32)
            Red, green and blue from 0 to 255.
        target : ndarray of shape (n_images,)
            Superclass, from 0 to 19.
        groups : ndarray of shape (n_images,)
            Class, from 0 to 99.
        target_names, group_names : list of str
            Names of the superclasses and of the classes.
        DESCR : str
            This description.

    Notes
    -----
    Source: A. Krizhevsky (2009), Learning multiple layers of features from tiny images,
    https://www.cs.toronto.edu/~kriz/cifar.html. The authors state no licence.
    """
    check_choice(part, "part", ("train", "test"))
    check_flag(download_if_missing, "download_if_missing")
    given = os.environ.get("GROUPDRO_CIFAR")
    folder = Path(given) if given else cache_folder(data_home) / "cifar-100-python"
    if not given and not all((folder / name).exists() for name in ("train", "test", "meta")):
        if not download_if_missing:
            raise OSError(f"{folder} has no CIFAR-100 and download_if_missing is False.")
        _download_cifar(folder)
    stored, names = (ArraysOnly.read(folder / name) for name in (part, "meta"))
    return Bunch(
        images=stored[b"data"].reshape(-1, 3, 32, 32),
        target=np.asarray(stored[b"coarse_labels"]),
        groups=np.asarray(stored[b"fine_labels"]),
        target_names=[name.decode() for name in names[b"coarse_label_names"]],
        group_names=[name.decode() for name in names[b"fine_label_names"]],
        DESCR=inspect.getdoc(fetch_cifar100) or "",
    )


def _download_cifar(folder: Path) -> None:
    content = download(_CIFAR)
    check_digest(content, _CIFAR_SHA256, _CIFAR)
    folder.mkdir(exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as files:
        for name in ("train", "test", "meta"):
            member = files.extractfile(f"cifar-100-python/{name}")
            assert member is not None  # a folder or a device, which the checksum rules out
            write_content(folder / name, member.read())


def fetch_fashion_mnist(
    part: str = "train", *, data_home: str | os.PathLike[str] | None = None, download_if_missing: bool = True
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Fetch Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): grey images of ten kinds of clothes.

    The files of 30 MB are downloaded at the first call and kept in scikit-learn's data home. If the variable
    GROUPDRO_FASHION_MNIST names a folder with the four official files, compressed or not, or Debian's package
    dataset-fashion-mnist is installed, those are read instead.

    Parameters
    ----------
    part : {"train", "test"}, default="train"
        The 60,000 images for training or the 10,000 for testing.
    data_home : str or path-like, optional
        Folder for downloaded files; by default scikit-learn's data home.
    download_if_missing : bool, default=True
        Whether to download the images if they are not there; otherwise an OSError is raised.

    Returns
    -------
    images : ndarray of shape (n_images, 28, 28)
        Grey values from 0 to 255.
    labels : ndarray of shape (n_images,)
        0 T-shirt, 1 trouser, 2 pullover, 3 dress, 4 coat, 5 sandal, 6 shirt, 7 sneaker, 8 bag, 9 ankle boot.

    Notes
    -----
    Source: H. Xiao, K. Rasul and R. Vollgraf (2017), Fashion-MNIST, https://github.com/zalandoresearch/fashion-mnist.
    Licence: MIT.
    """
    check_choice(part, "part", ("train", "test"))
    check_flag(download_if_missing, "download_if_missing")
    given = os.environ.get("GROUPDRO_FASHION_MNIST") or (_DEBIAN if _DEBIAN.is_dir() else None)
    if given is not None:
        return _read_fashion_mnist(Path(given), part)
    folder = cache_folder(data_home) / "fashion-mnist"
    missing = [name for name in _FASHION_SHA256 if not (folder / name).exists()]
    if missing and not download_if_missing:
        raise OSError(f"{folder} has no {missing[0]} and download_if_missing is False.")
    folder.mkdir(exist_ok=True)
    for name in missing:
        content = download(f"{_FASHION}/data/fashion/{name}")
        check_digest(content, _FASHION_SHA256[name], name)
        write_content(folder / name, content)
    return _read_fashion_mnist(folder, part)


def _read_fashion_mnist(place: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read images and labels from the four official files, compressed or not."""
    stem = "train" if part == "train" else "t10k"
    images = _read_idx(place, f"{stem}-images-idx3-ubyte", 3)
    labels = _read_idx(place, f"{stem}-labels-idx1-ubyte", 1)
    if len(images) != len(labels):
        raise ValueError(f"{place} has {len(images)} images and {len(labels)} labels of part {part!r}.")
    return images, labels


def _read_idx(folder: Path, name: str, n_dimensions: int) -> NDArray[np.uint8]:
    """Read an array of bytes: a magic number that tells type and dimensions, the shape, the values."""
    path = next((path for path in (folder / f"{name}.gz", folder / name) if path.exists()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has neither {name}.gz nor {name}.")
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    header = 4 + 4 * n_dimensions
    unsigned_bytes = 8  # the only type of values that these files have
    if len(content) < header or content[:4] != bytes([0, 0, unsigned_bytes, n_dimensions]):
        raise ValueError(f"{path} is not an IDX file of bytes with {n_dimensions} dimension(s).")
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4))
    if len(content) - header != math.prod(shape):
        raise ValueError(f"{path} has {len(content) - header} values, its shape {shape} needs {math.prod(shape)}.")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()
