"""Random rows from files of several formats, as a solver that samples rows reads them.

    python -m benchmarks.row_formats

Writes results/row_formats.json: thousands of rows per CPU second of batches of 1,024 random rows, and of batches of 16
runs of 64 consecutive rows, the best of several batches, with the file in the system's cache. CPU seconds are those of
all threads of the process, so that other work on the machine does not count. Needs zarr, safetensors and pyarrow.
"""

import json
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

RECORD = Path(__file__).parent / "results" / "row_formats.json"
ROWS, FEATURES, BATCH, RUN = 200_000, 64, 1024, 64
SECONDS = 1.0  # for each way
Read = Callable[[np.ndarray], object]


def mapped(X: np.ndarray, folder: Path) -> Read:
    X.tofile(folder / "X.bin")
    stored = np.memmap(folder / "X.bin", X.dtype, "r", shape=X.shape)
    return lambda rows: stored[rows]


def safetensors(X: np.ndarray, folder: Path) -> Read:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    save_file({"X": X}, folder / "X.safetensors")
    stored = safe_open(folder / "X.safetensors", "np").__enter__().get_slice("X")
    return lambda rows: [stored[int(first) : int(last) + 1] for first, last in spans(rows)]


def zarr(X: np.ndarray, folder: Path) -> Read:
    import zarr

    stored = zarr.create_array(folder / "X.zarr", shape=X.shape, dtype=X.dtype, chunks=(BATCH, FEATURES))
    stored[:] = X
    return lambda rows: stored.oindex[rows]


def parquet(X: np.ndarray, folder: Path) -> Read:
    import pyarrow as pa
    from pyarrow import dataset, parquet

    columns = {f"x{k}": X[:, k] for k in range(FEATURES)}
    parquet.write_table(pa.table(columns), folder / "X.parquet", row_group_size=16 * BATCH)
    stored = dataset.dataset(folder / "X.parquet")
    return lambda rows: stored.take(rows)


def spans(rows: np.ndarray) -> np.ndarray:
    """Return first and last of each run of consecutive rows."""
    breaks = np.flatnonzero(np.diff(rows) != 1)
    return np.stack([rows[np.append(0, breaks + 1)], rows[np.append(breaks, len(rows) - 1)]], axis=1)


def batches(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    starts = np.sort(rng.choice(n // RUN, BATCH // RUN, replace=False)) * RUN
    return {
        "single rows": np.sort(rng.choice(n, BATCH, replace=False)),
        f"runs of {RUN}": (starts[:, None] + np.arange(RUN)).ravel(),
    }


def rate(read: Read, kind: str, n: int) -> float:
    rng, best, end = np.random.default_rng(0), 0.0, time.process_time() + SECONDS
    while best == 0.0 or time.process_time() < end:
        rows = batches(n, rng)[kind]
        begun = time.process_time()
        read(rows)
        best = max(best, BATCH / (time.process_time() - begun))
    return best


def main() -> None:
    X = np.random.default_rng(0).standard_normal((ROWS, FEATURES), dtype=np.float32)
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for make in (mapped, safetensors, zarr, parquet):
            read = make(X, Path(name))
            kinds = batches(ROWS, np.random.default_rng(0))
            found[make.__name__] = {kind: float(f"{rate(read, kind, ROWS) / 1e3:.2g}") for kind in kinds}
    versions = {package: version(package) for package in ("numpy", "zarr", "safetensors", "pyarrow")}
    stored = {"rows": ROWS, "features": FEATURES, "thousand rows per CPU second": found, "versions": versions}
    RECORD.write_text(json.dumps(stored, indent=1) + "\n")
    print(RECORD.read_text())


if __name__ == "__main__":
    main()
