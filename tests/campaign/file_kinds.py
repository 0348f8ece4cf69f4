"""The files that the package reads: originals of each kind, and what it means to have read one."""

import dataclasses
import json
import os
import random
import shutil
import socket
import tempfile
import warnings
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator

import groupdro as gd
from groupdro.oracle import Oracle
from groupdro.run.checkpoint import CheckpointWarning
from groupdro.store import GroupedStore, StoreError
from groupdro.store.manifest import BLOCK, MANIFEST

__all__ = [
    "RUNS",
    "STORES",
    "RefusedError",
    "content",
    "open_store",
    "put_in_place",
    "read_store",
    "resume",
    "run_answer",
    "run_file",
    "seal_store",
    "store_content",
    "store_files",
    "use_run",
    "use_store",
    "verify_store",
    "write_folder",
]

Files = dict[str, bytes]


class RefusedError(Exception):
    """The package said, with the error that it documents, that a file cannot be used."""

    kind = ""


def content(value: Any) -> Any:
    """Return a value to the last bit, as something that can be compared."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, repr(value.tolist()) if value.dtype == object else value.tobytes()
    if isinstance(value, BaseEstimator):
        return type(value).__name__, content(vars(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: content(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: content(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [content(part) for part in value]
    return repr(value)


def _rows(n: int = 60, d: int = 3) -> Any:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    scores = X[:, 0] + rng.logistic(size=n)
    return X, scores, np.repeat(["north", "south", "west"], n // 3)


# ---------------------------------------------------------------------- checkpoints

RUNS = ("aleg", "sqp", "l-bfgs", "regret")


@cache
def _data(n_classes: int) -> gd.GroupedData:
    X, scores, groups = _rows()
    y = np.digitize(scores, [-0.5, 0.5]) if n_classes == 3 else np.where(scores > 0, 1.0, -1.0)
    return gd.GroupedData.from_arrays(X, y, groups)


def _problem(name: str) -> gd.Problem:
    n_classes = 3 if name == "regret" else 2
    loss = gd.losses.Softmax(3) if n_classes == 3 else gd.losses.Logistic()
    return gd.Problem(_data(n_classes), loss, gd.domains.L2Domain(radius=2.0, penalty=1e-2))


def _run(name: str, folder: Path | None, *, epochs: float = np.inf) -> Any:
    solver = {
        "aleg": gd.solvers.ALEG,
        "sqp": gd.solvers.Auto,
        "l-bfgs": lambda: gd.solvers.GroupSQP("lbfgs"),
        "regret": lambda: gd.solvers.ALEM(gd.solvers.GroupSQP("newton"), gd.solvers.ALEG()),
    }[name]()
    return gd.solve(
        _problem(name),
        solver,
        tol=1e-12,
        max_passes=12.0,
        callbacks=[lambda progress: progress.latest.epoch >= epochs],
        checkpoint_dir=folder,
    )


@cache
def run_file(name: str) -> tuple[str, bytes]:
    """Return the name and the content of the checkpoint of a run that was interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        _run(name, Path(folder), epochs=2)
        (path,) = Path(folder).iterdir()
        return path.name, path.read_bytes()


@cache
def run_answer(name: str) -> Any:
    """Return the result of a run that was not interrupted."""
    return _run(name, None)


def resume(name: str, folder: Path) -> Any:
    """Resume from a directory with a checkpoint, to the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        return _run(name, folder)


def use_run(name: str, folder: Path) -> None:
    """Go on from checkpoints that others made. The risks, at least, are those of the model that is returned."""
    result, problem = resume(name, folder), _problem(name)
    assert result.w.shape == problem.shape
    assert result.q.shape == result.group_risks.shape == (problem.n_groups,)
    assert isinstance(result.upper_bound, float)
    assert isinstance(result.lower_bound, float)
    assert isinstance(result.status, gd.solvers.Status)
    np.testing.assert_array_equal(Oracle(problem).risks(result.w), result.group_risks)


# ---------------------------------------------------------------------- stores

STORES = ("dense classes", "sparse numbers", "weighted halves")


@cache
def store_files(name: str) -> Files:
    """Return the directory of a store."""
    X, scores, groups = _rows(30, 4)
    arguments: Any = (X, np.where(scores > 0, "yes", "no"), groups)
    options: Any = {}
    if name == "sparse numbers":
        arguments = (sp.csr_array(np.where(X > 0, X, 0)), scores, list(zip(groups, scores > 0, strict=True)))
        options = {"dtype": "float64"}
    if name == "weighted halves":
        arguments = (X, np.digitize(scores, [-0.5, 0.5]), np.arange(30) % 5)
        offset = np.column_stack([scores, -scores, scores**2])
        options = {"dtype": "float16", "sample_weight": np.arange(30.0) + 1, "offset": offset}
    with tempfile.TemporaryDirectory() as folder:
        GroupedStore.write_arrays(Path(folder, "store"), *arguments, **options)
        return {path.name: path.read_bytes() for path in sorted(Path(folder, "store").iterdir())}


def open_store(folder: Path, verify: Any) -> GroupedStore:
    """Open a store."""
    try:
        return GroupedStore.open(folder, verify=verify)
    except StoreError as error:
        raise RefusedError(str(error)) from None


def verify_store(store: GroupedStore) -> None:
    """Check a store that is open."""
    try:
        store.verify()
    except StoreError as error:
        raise RefusedError(str(error)) from None


def read_store(store: GroupedStore) -> Any:
    """Read everything, as solvers do and as users do."""
    data, X = store.data(), store.X
    entries = (X.data, X.indices, X.indptr) if sp.issparse(X) else (X,)
    parts = (*entries, store.y, store.source, data.y, data.offsets, data.weights, store.group_shares)
    arrays = [np.array(part) for part in parts]
    return content([repr(X.shape), store.names, store.classes, store.feature_names, arrays])


@cache
def store_content(name: str) -> Any:
    """Return what is in a store."""
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder, "store"), store_files(name))
        return read_store(GroupedStore.open(Path(folder, "store")))


def use_store(store: GroupedStore) -> None:
    """Do with a store that others made, and that was checked in full, what solvers do with one."""
    read_store(store)
    assert len(store.names) == store.n_groups
    assert store.group_sizes.sum() == store.n_rows
    assert (store.group_sizes > 0).all()
    assert (np.asarray(store.source) < store.n_rows).all()
    weights = store.data().weights
    if weights.size:
        np.testing.assert_allclose(
            np.add.reduceat(weights, np.r_[0, np.cumsum(store.group_sizes)[:-1]]), 1.0, rtol=1e-5
        )
    if store.n_features <= 10**6:
        assert (store.X @ np.ones(store.n_features)).shape == (store.n_rows,)
    if sp.issparse(store.X):
        copied = sp.csr_array((store.X.data, store.X.indices, store.X.indptr), shape=store.X.shape, copy=True)
        assert copied.has_canonical_format, "its rows are not in the order that is relied on"


def seal_store(files: Files, document: Any = None) -> Files:
    """Return the files of a store with sizes and checksums that fit, and a manifest with whatever else it says."""
    document = json.loads(files[MANIFEST]) if document is None else document
    if not isinstance(document, dict):
        return {**files, MANIFEST: _plain(document)}
    if isinstance(document.get("files"), dict):
        for name, record in document["files"].items():
            if f"{name}.npy" in files and isinstance(record, dict):
                blob = files[f"{name}.npy"]
                blocks = [blob[at : at + BLOCK] for at in range(0, len(blob), BLOCK)]
                record |= {"size": len(blob), "crc32": [zlib.crc32(block) for block in blocks]}
    document.pop("crc32", None)
    return {**files, MANIFEST: _plain({**document, "crc32": zlib.crc32(_plain(document))})}


def _plain(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")


# ---------------------------------------------------------------------- files that are none


def write_folder(folder: Path, files: Files) -> None:
    """Make a directory with such files, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, blob in files.items():
        (folder / name).write_bytes(blob)


def put_in_place(path: Path, rng: random.Random, aside: Path) -> str:
    """Put something that is no file in the place of a file, and say what. A link may lead to the file itself."""
    what = rng.choice(
        ("nothing", "folder", "full folder", "pipe", "zeros", "link", "loop", "nowhere", "socket", "empty")
    )
    blob = path.read_bytes()
    path.unlink()
    if "folder" in what:
        path.mkdir()
    if what == "full folder":
        (path / "x").write_bytes(blob)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        aside.write_bytes(blob)
        path.symlink_to(aside)
    elif what in ("zeros", "loop", "nowhere"):
        path.symlink_to({"zeros": "/dev/zero", "loop": path.name, "nowhere": "../nowhere"}[what])
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(os.path.relpath(path))
    elif what == "empty":
        path.touch()
    return what
