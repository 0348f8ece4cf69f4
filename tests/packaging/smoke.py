"""One fit of each kind, a model file, a store and a checkpoint, with nothing installed but the core.

    python tests/packaging/smoke.py

prints the versions and the certified bounds. It imports nothing of the tests, so that it can judge a wheel alone.
"""

import contextlib
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import joblib
import numba
import numpy as np
import scipy
import sklearn

import groupdro as gd


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    """Make a folder, and remove what can be removed of it: Windows keeps files that are mapped."""
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    versions = (f"{module.__name__} {module.__version__}" for module in (gd, numba, np, scipy, sklearn))
    print(platform.system(), platform.machine(), f"Python {platform.python_version()}", *versions, sep=", ")
    X, y, groups = gd.datasets.make_mero(4, 100, 6)
    with new_folder() as folder:
        for solver in ("auto", "aleg", "sqp"):
            model = gd.GroupDROClassifier(solver=solver, alpha=1e-3, tol=1e-3, random_state=0)
            model.set_params(checkpoint_dir=folder / solver).fit(X, y, groups=groups)
            assert model.status_ == "converged", model.message_
            print(f"{solver}: {model.lower_bound_:.6f} <= best possible <= {model.upper_bound_:.6f}")
        joblib.dump(model, folder / "model.joblib")
        assert np.array_equal(joblib.load(folder / "model.joblib").predict_proba(X), model.predict_proba(X))
        target = X[:, 0] + groups
        regressor = gd.GroupDRORegressor(objective="excess_risk", alpha=1e-3).fit(X, target, groups=groups)
        assert regressor.status_ == "converged", regressor.message_
        store = gd.GroupedStore.write_arrays(folder / "store", X, y, groups, task="classes")
        mapped = gd.GroupDROClassifier(alpha=1e-3, tol=1e-3, random_state=0).fit(store)
        assert mapped.lower_bound_ <= model.upper_bound_ + 1e-6
        assert model.lower_bound_ <= mapped.upper_bound_ + 1e-6  # rows of the store are float32
    print(gd.group_report(model, X, y, groups))


if __name__ == "__main__":
    main()
