"""Fetchers read a local folder, the cache or the network, and refuse what is not the expected file.

The network is a server on this machine. The files that it sends are those of the UCI archive, restored from the tables.
"""

import gzip
import hashlib
import http.server
import io
import os
import pickle
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from groupdro import datasets
from groupdro.datasets import download, images, uci
from tests.datasets.test_datasets import idx
from tests.datasets.uci_files import ARCHIVE, zipped

needs_data = pytest.mark.skipif("GROUPDRO_DATA" not in os.environ, reason="GROUPDRO_DATA is not set")
every_table = pytest.mark.parametrize("name", ARCHIVE)
#: Rows, columns of the features, groups, and what the target holds.
SHAPES = {
    "adult": (48_842, 11, 10, bool),
    "bank_marketing": (45_211, 15, 12, bool),
    "bike_sharing": (17_379, 11, 24, int),
    "communities_crime": (1_994, 122, 46, float),
    "diabetes130": (101_766, 40, 10, str),
    "german_credit": (1_000, 19, 2, bool),
    "heart_disease": (920, 13, 4, bool),
    "wine_quality": (6_497, 11, 2, int),
}


def local_table(name, **options):
    return pd.read_csv(Path(os.environ["GROUPDRO_DATA"], "tabular", f"{name}.csv.gz"), low_memory=False, **options)


# ---------------------------------------------------------------------- a local folder


@needs_data
@pytest.mark.parametrize(
    "name", [name if name == "heart_disease" else pytest.param(name, marks=pytest.mark.long) for name in ARCHIVE]
)
def test_a_table_is_read_from_a_local_folder(name):
    n_rows, n_features, n_groups, kind = SHAPES[name]
    fetch = ARCHIVE[name][1]
    found = fetch(download_if_missing=False)
    assert found.data.shape == (n_rows, n_features)
    assert found.feature_names == list(found.data)
    assert isinstance(found.target.iloc[0].item() if kind is not str else found.target.iloc[0], kind)
    assert found.groups.nunique() == n_groups
    assert found.groups.isna().sum() == 0
    assert {found.target_name, *found.group_names}.isdisjoint(found.feature_names)
    pd.testing.assert_frame_equal(found.frame, local_table(name))
    assert "https://doi.org/10.24432/" in found.DESCR
    assert "CC BY 4.0" in found.DESCR
    for part, again in zip((found.data, found.target, found.groups), fetch(return_X_y_groups=True), strict=True):
        assert part.equals(again)


@needs_data
def test_numbers_of_the_descriptions():
    german, wine = datasets.fetch_german_credit(), datasets.fetch_wine_quality()
    assert german.target.sum() == 300
    assert german.groups.value_counts().to_dict() == {"male": 690, "female": 310}
    assert wine.frame.duplicated().sum() == 1_177
    assert wine.groups.value_counts().to_dict() == {"white": 4_898, "red": 1_599}
    assert sorted(wine.target.unique()) == [3, 4, 5, 6, 7, 8, 9]
    states = datasets.fetch_communities_crime().groups.value_counts()
    assert (states.min(), states.max()) == (1, 278)
    sites = datasets.fetch_heart_disease().groups.value_counts().to_dict()
    assert sites == {"cleveland": 303, "hungarian": 294, "va": 200, "switzerland": 123}
    adult = datasets.fetch_adult().frame
    assert (adult.groupby("education")["education-num"].nunique() == 1).all()
    assert set(datasets.fetch_diabetes130().target) == {"NO", ">30", "<30"}


# ---------------------------------------------------------------------- the network


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A server that sends what a test puts into `files`, and notes in `asked` what it was asked for."""

    class Handler(http.server.BaseHTTPRequestHandler):
        files, asked, failures = {}, [], []

        def do_GET(self):
            self.asked.append(self.path)
            code = self.failures.pop() if self.failures else 200 if self.path in self.files else 404
            self.send_response(code)
            self.end_headers()
            if code == 200:
                self.wfile.write(self.files[self.path])

        def log_message(self, *_):
            pass

    monkeypatch.setattr(download, "_DELAY", 0.0)
    for variable in ("GROUPDRO_DATA", "GROUPDRO_CIFAR", "GROUPDRO_FASHION_MNIST"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "home"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        Handler.address = f"http://127.0.0.1:{served.server_port}"
        monkeypatch.setattr(uci, "_ARCHIVE", Handler.address)
        monkeypatch.setattr(images, "_FASHION", Handler.address)
        monkeypatch.setattr(images, "_CIFAR", f"{Handler.address}/cifar-100-python.tar.gz")
        yield Handler
        served.shutdown()
        thread.join()


@needs_data
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name == "diabetes130" else []) for name in ARCHIVE]
)
def test_a_table_is_downloaded_once_and_is_the_local_one(name, request, tmp_path):
    write, fetch = ARCHIVE[name]
    table = local_table(name, keep_default_na=name in ("communities_crime", "heart_disease"))
    server = request.getfixturevalue("server")  # from here on there is no local folder
    server.files[f"/{uci.SOURCES[name].address}"] = zipped(write(table))
    with pytest.raises(OSError, match="download_if_missing is False"):
        fetch(download_if_missing=False)
    assert server.asked == []
    first = fetch()
    assert list((tmp_path / "home" / "groupdro").iterdir()) == [tmp_path / "home" / "groupdro" / f"{name}.csv.gz"]
    assert fetch(download_if_missing=False).frame.equals(first.frame)
    assert server.asked == [f"/{uci.SOURCES[name].address}"]
    assert first.data.shape == SHAPES[name][:2]
    if name == "wine_quality":
        fetch(data_home=tmp_path / "elsewhere")
        assert (tmp_path / "elsewhere" / "groupdro" / f"{name}.csv.gz").exists()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"<html>moved</html>", "is not the expected zip file"),
        (zipped({"readme.txt": b""}), "winequality-red.csv is not in it"),
        (zipped({"winequality-red.csv": b"a;b\n1;2\n", "winequality-white.csv": b"a;b\n1;3\n"}), "SHA-256 checksum"),
    ],
)
def test_a_file_that_is_not_the_expected_one_is_refused(server, tmp_path, content, complaint):
    server.files["/186/wine+quality.zip"] = content
    with pytest.raises(OSError, match=complaint):
        datasets.fetch_wine_quality()
    assert list((tmp_path / "home" / "groupdro").iterdir()) == []


def test_a_failing_server_is_asked_again_and_a_missing_page_is_not(server):
    server.files["/page"] = b"content"
    server.failures[:] = [503, 500]
    assert download.download(f"{server.address}/page") == b"content"
    assert len(server.asked) == 3
    with pytest.raises(OSError, match=r"/nothing could not be downloaded: .*404"):
        download.download(f"{server.address}/nothing")
    assert len(server.asked) == 4
    server.failures[:] = [503] * 3
    with pytest.raises(OSError, match="503"):
        download.download(f"{server.address}/page")


def test_a_table_needs_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r'pandas cannot be imported .*pip install "groupdro\[datasets\]"'):
        datasets.fetch_adult()


def test_the_data_home_must_be_a_path(server):
    with pytest.raises(TypeError, match="data_home"):
        datasets.fetch_wine_quality(data_home=3)


@pytest.mark.parametrize("option", ["download_if_missing", "return_X_y_groups"])
def test_options_must_be_booleans(option, monkeypatch):
    monkeypatch.setattr("groupdro.datasets.tables.read_table", lambda *_: pd.DataFrame({"quality": [], "colour": []}))
    if option == "download_if_missing":
        monkeypatch.undo()
    with pytest.raises(TypeError, match=option):
        datasets.fetch_wine_quality(**{option: "yes"})


# ---------------------------------------------------------------------- images


def test_fashion_mnist_is_downloaded_once(server, monkeypatch, tmp_path):
    monkeypatch.setattr(images, "_DEBIAN", tmp_path / "nothing")
    labels, pixels = np.arange(3, dtype=np.uint8), np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
    sent = {name: gzip.compress(idx(pixels if "images" in name else labels)) for name in images._FASHION_SHA256}
    monkeypatch.setattr(
        images, "_FASHION_SHA256", {name: hashlib.sha256(content).hexdigest() for name, content in sent.items()}
    )
    server.files.update({f"/data/fashion/{name}": content for name, content in sent.items()})
    with pytest.raises(OSError, match="download_if_missing is False"):
        datasets.fetch_fashion_mnist(download_if_missing=False)
    for part in ("train", "test"):
        found = datasets.fetch_fashion_mnist(part)
        np.testing.assert_array_equal(found[0], pixels)
        np.testing.assert_array_equal(found[1], labels)
    assert len(server.asked) == 4
    folder = tmp_path / "home" / "groupdro" / "fashion-mnist"
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    server.files["/data/fashion/t10k-labels-idx1-ubyte.gz"] = b"other"
    with pytest.raises(OSError, match=r"t10k-labels-idx1-ubyte\.gz has the SHA-256 checksum"):
        datasets.fetch_fashion_mnist()


def test_fashion_mnist_is_read_from_a_local_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("GROUPDRO_FASHION_MNIST", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"neither train-images-idx3-ubyte\.gz"):
        datasets.fetch_fashion_mnist()
    with pytest.raises(ValueError, match="part must be"):
        datasets.fetch_fashion_mnist("validation")


def test_cifar100_is_downloaded_once(server, monkeypatch, tmp_path):
    stored = {b"data": np.arange(2 * 3072).astype(np.uint8).reshape(2, -1), b"coarse_labels": [4, 1]}
    content = {
        "train": {**stored, b"fine_labels": [30, 7]},
        "test": {**stored, b"fine_labels": [31, 8]},
        "meta": {b"coarse_label_names": [b"fish", b"flowers"], b"fine_label_names": [b"apple", b"bear"]},
    }
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, value in content.items():
            raw, member = pickle.dumps(value, 2), tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    server.files["/cifar-100-python.tar.gz"] = written.getvalue()
    with pytest.raises(OSError, match="SHA-256 checksum"):
        datasets.fetch_cifar100()
    monkeypatch.setattr(images, "_CIFAR_SHA256", hashlib.sha256(written.getvalue()).hexdigest())
    with pytest.raises(OSError, match="download_if_missing is False"):
        datasets.fetch_cifar100(download_if_missing=False)
    found, test = datasets.fetch_cifar100(), datasets.fetch_cifar100("test", download_if_missing=False)
    assert len(server.asked) == 2
    assert found.images.shape == (2, 3, 32, 32)
    assert found.images[0, 1, 0, 0] == 1024 % 256
    assert found.target.tolist() == [4, 1]
    assert found.groups.tolist() == [30, 7]
    assert test.groups.tolist() == [31, 8]
    assert found.target_names == ["fish", "flowers"]
    assert found.group_names == ["apple", "bear"]
    monkeypatch.setenv("GROUPDRO_CIFAR", str(tmp_path / "home" / "groupdro" / "cifar-100-python"))
    (tmp_path / "home" / "groupdro" / "cifar-100-python" / "train").write_bytes(pickle.dumps(hashlib.sha256, 2))
    with pytest.raises(pickle.UnpicklingError, match="does not belong in an image file"):
        datasets.fetch_cifar100()
