"""Random rows from files of several formats, as a solver that samples rows reads them.

    python -m benchmarks.row_formats [ROWS]      200,000 unless told, of 64 float32 numbers

Prints rows per second of batches of 1,024 random rows, and of batches of 16 runs of 64 consecutive rows, the best of
several batches, with the file in the system's cache. Ways take turns in one run. zarr, safetensors and pyarrow are
optional: a way whose package is not installed is left out.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

FEATURES, BATCH, RUN = 64, 1024, 64
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
    rng, best, end = np.random.default_rng(0), 0.0, time.perf_counter() + SECONDS
    while best == 0.0 or time.perf_counter() < end:
        rows = batches(n, rng)[kind]
        begun = time.perf_counter()
        read(rows)
        best = max(best, BATCH / (time.perf_counter() - begun))
    return best


def main(n: int = 200_000) -> None:
    X = np.random.default_rng(0).standard_normal((n, FEATURES), dtype=np.float32)
    with tempfile.TemporaryDirectory() as name:
        ways = {}
        for make in (mapped, safetensors, zarr, parquet):
            try:
                ways[make.__name__] = make(X, Path(name))
            except ImportError:
                continue
        print("| format | " + " | ".join(batches(n, np.random.default_rng(0))) + " |\n|---|---|---|")
        for way, read in ways.items():
            rates = (rate(read, kind, n) for kind in batches(n, np.random.default_rng(0)))
            print(f"| {way} | " + " | ".join(f"{value / 1e3:,.1f} k" for value in rates) + " |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
