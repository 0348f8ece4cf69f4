"""A last layer on a million embeddings of 2,048 float16 numbers, streamed to disk with bounded memory.

    python -m benchmarks.last_layer_stream FOLDER [ROWS]

The network passes embeddings through to its last layer, so that what is timed is the library's own work. Two of the
four groups are rare and contradict a shortcut, on which the old layer relies. The process may not have more than 2 GB
of memory of its own (RLIMIT_DATA, which the kernel enforces: heap and private mappings; pages of mapped files can be
dropped at any time and do not count). Figures go to benchmarks/results/last_layer_stream.json.
"""

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import groupdro as gd
from groupdro.torch import extract_features, retrain_last_layer

RESULT = Path(__file__).parent / "results" / "last_layer_stream.json"
N_FEATURES = 2048
BATCH = 2048
LIMIT = 2 * 10**9


class Embeddings:
    """Batches of embeddings that are drawn as they are asked for, the same each time."""

    def __init__(self, n_rows: int):
        self.n_rows = n_rows

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        for start in range(0, self.n_rows, BATCH):
            rng = np.random.default_rng(start)
            n = min(BATCH, self.n_rows - start)
            y, agrees = rng.integers(0, 2, n), rng.random(n) < 0.95
            X = rng.standard_normal((n, N_FEATURES), dtype=np.float32)
            X[:, :64] += 0.25 * (2 * y[:, None] - 1)
            X[:, 64:128] += 0.5 * np.where(agrees, 2 * y - 1, 1 - 2 * y)[:, None]
            yield torch.from_numpy(X).half(), torch.from_numpy(y), torch.from_numpy(2 * y + agrees)


class Peak:
    """The largest resident memory that is the process's own, sampled 20 times per second."""

    def __enter__(self) -> "Peak":
        self.own, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    self.own = max(self.own, 1024 * int(line.split()[1]))


def main(folder: str, n_rows: int = 1_000_000) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Identity(), nn.Linear(N_FEATURES, 2)).half()
    with torch.no_grad():
        network[1].weight.zero_()
        network[1].weight[:, 64:128] = 0.02 * torch.tensor([[-1.0], [1.0]])
    loader, store, found = Embeddings(n_rows), Path(folder), dict[str, Any]()
    with Peak() as peak:
        begun = time.perf_counter()
        for _ in loader:
            pass
        found["seconds_to_draw"] = time.perf_counter() - begun
        begun = time.perf_counter()
        features = extract_features(network, loader, path=store / "features", progress=True)
        found["seconds_to_extract"] = time.perf_counter() - begun
        found["peak_own_bytes_extract"] = peak.own
        size = features.X.nbytes
        begun = time.perf_counter()
        result = retrain_last_layer(network, loader, store=store, estimator=gd.GroupDROClassifier(tol=1e-3))
        found["seconds_to_retrain"] = time.perf_counter() - begun
    print(result)
    fitted = result.classifier
    own = found["seconds_to_extract"] - found["seconds_to_draw"]
    found |= {
        "rows": n_rows,
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "features": N_FEATURES,
        "feature_bytes": size,
        "limit_bytes": LIMIT,
        "peak_own_bytes": peak.own,
        "rows_per_second_extract": n_rows / found["seconds_to_extract"],
        "rows_per_second_extract_without_drawing": n_rows / own,
        "passes": fitted.n_passes_,
        "solver": fitted.solver_,
        "status": fitted.status_,
        "relative_gap": fitted.gap_ / fitted.upper_bound_,
        "alpha": result.alpha,
        "worst_accuracy_before": min(result.before.columns["accuracy"]),
        "worst_accuracy_after": min(result.after.columns["accuracy"]),
    }
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(RESULT.read_text())


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
