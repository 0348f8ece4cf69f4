"""The environment of processes whose results and times are compared."""

import hashlib
import os
import tempfile
from pathlib import Path

__all__ = ["ROOT", "SOURCE", "environment"]

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def environment(source: Path) -> dict[str, str]:
    """Return the variables of a process with one thread that imports groupdro from a source directory.

    Numba's cache does not notice an edited helper in another file, so that every version of the kernels gets a cache of
    its own.
    """
    kernels = hashlib.sha256(str(source.resolve()).encode())
    for path in sorted((source / "groupdro" / "kernels").rglob("*.py")):
        kernels.update(path.read_bytes())
    base = os.environ.get("NUMBA_CACHE_DIR") or os.path.join(tempfile.gettempdir(), "groupdro-house")
    return {
        **os.environ,
        **dict.fromkeys(_THREADS, "1"),
        "PYTHONPATH": os.pathsep.join([str(source.resolve()), str(ROOT)]),
        "PYTHONHASHSEED": "0",
        "NUMBA_CACHE_DIR": os.path.join(base, kernels.hexdigest()[:16]),
    }
