import gzip
import struct

import numpy as np
import pytest

from groupdro.datasets import fetch_fashion_mnist, make_gdro, make_mero


def agreement(X, y, groups):
    """Share of labels that the best linear rule of each group explains, from its least-squares direction."""
    out = []
    for i in np.unique(groups):
        rows, labels = X[groups == i], y[groups == i]
        direction = np.linalg.lstsq(rows, labels, rcond=None)[0]
        out.append(np.mean(np.sign(rows @ direction) == labels))
    return np.array(out)


def test_gdro_labels_follow_their_groups_rule_at_the_given_rate():
    X, y, groups = make_gdro(4, 20_000, 5, seed=0)
    assert X.shape == (80_000, 5)
    assert set(y) == {-1.0, 1.0}
    assert np.bincount(groups).tolist() == [20_000] * 4
    np.testing.assert_allclose(agreement(X, y, groups), 0.9, atol=0.01)
    np.testing.assert_allclose(X.std(), 1.0, atol=0.01)


def test_mero_noise_grows_from_group_to_group_as_in_the_paper():
    X, y, groups = make_mero(25, 8_000, 3, seed=0)
    np.testing.assert_allclose(agreement(X, y, groups), 0.95 - np.arange(25) / 160, atol=0.02)


def test_the_default_sizes_are_the_papers():
    X, _, groups = make_gdro(n_per_group=2)
    assert X.shape[1] == 1024
    assert len(np.unique(groups)) == 25


@pytest.mark.parametrize("make", [make_gdro, make_mero])
def test_a_seed_fixes_the_data(make):
    first, again, other = (make(3, 10, 4, seed=seed) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert a.tobytes() == b.tobytes()
    assert not np.array_equal(first[0], other[0])


def idx(values):
    """The bytes of an IDX file."""
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


@pytest.fixture
def fashion(tmp_path, monkeypatch):
    """A local folder of small official files, compressed for training and plain for testing, and their arrays."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, stem, n_images in (("train", "train", 7), ("test", "t10k", 3)):
        images = rng.integers(256, size=(n_images, 4, 5), dtype=np.uint8)
        labels = rng.integers(10, size=n_images, dtype=np.uint8)
        arrays[part] = images, labels
        for name, values in ((f"{stem}-images-idx3-ubyte", images), (f"{stem}-labels-idx1-ubyte", labels)):
            if part == "train":
                (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(values)))
            else:
                (tmp_path / name).write_bytes(idx(values))
    monkeypatch.setenv("GROUPDRO_FASHION_MNIST", str(tmp_path))
    return tmp_path, arrays


@pytest.mark.parametrize("part", ["train", "test"])
def test_fashion_mnist_is_read_compressed_or_not(fashion, part):
    _, arrays = fashion
    for read, written in zip(fetch_fashion_mnist(part), arrays[part], strict=True):
        assert read.dtype == np.uint8
        np.testing.assert_array_equal(read, written)
        read += 1  # the arrays are the caller's own


def test_fashion_mnist_says_which_file_is_missing_or_damaged(fashion):
    folder, arrays = fashion
    labels = folder / "t10k-labels-idx1-ubyte"
    for content, complaint in (
        (idx(arrays["test"][1])[:-1], r"has 2 values, its shape \(3,\) needs 3"),
        (idx(arrays["test"][1][:2]), "3 images and 2 labels"),
        (idx(arrays["test"][0]), "not an IDX file of bytes with 1 dimension"),
        (b"", "not an IDX file"),
    ):
        labels.write_bytes(content)
        with pytest.raises(ValueError, match=complaint):
            fetch_fashion_mnist("test")
    labels.unlink()
    with pytest.raises(FileNotFoundError, match="neither t10k-labels-idx1-ubyte"):
        fetch_fashion_mnist("test")
    with pytest.raises(ValueError, match="part must be"):
        fetch_fashion_mnist("validation")
