"""Files of every kind as this version writes them, kept for later versions to read.

    python -m tests.packaging.written

writes a folder `written_by_X_Y_Z` next to this file, which is committed with the release of X.Y.Z and never changed
afterwards. `test_written.py` reads the folders of all releases.
"""

import json
import shutil
from pathlib import Path

import numpy as np

import groupdro as gd
from groupdro.run.checkpoint import BOUNDS_VERSION

HERE = Path(__file__).parent
COLUMNS = ["age", "dose"]
NAMES = ["north", "south", ("island", 2)]  # groups may have names of several parts


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features, targets and groups, the same everywhere: no random numbers, and exact in float32."""
    n = np.arange(48)
    X = np.stack([(n * 7 % 16 - 8) / 4, (n * 11 % 32 - 16) / 8], axis=1)
    groups = n % 3
    y = X[:, 0] * np.where(groups == 2, -0.5, 1.0) + X[:, 1] + (n % 5 - 2) / 4
    return X, y, groups


def problem() -> gd.GroupRisk:
    """Return the problem of the checkpoint."""
    X, y, groups = rows()
    return gd.GroupRisk(gd.GroupedData.from_arrays(X, y > 0, groups), gd.Logistic(), gd.L2Domain(penalty=0.01))


def write(folder: Path) -> None:
    """Write one file of each kind, and what each of them must give."""
    X, y, groups = rows()
    named = np.empty(len(y), dtype=object)
    named[:] = [NAMES[k] for k in groups]
    options = {"alpha": 0.01, "random_state": 0}
    expected: dict[str, object] = {"version": gd.__version__, "bounds_version": BOUNDS_VERSION}

    classifier = gd.GroupDROClassifier(**options).fit(X, np.digitize(y, [-1, 1]), groups=named)
    classifier.save(folder / "classifier.groupdro")
    expected["classifier"] = classifier.predict_proba(X[:4]).tolist()
    regressor = gd.GroupDRORegressor(**options, objective="excess_risk", robustness=0.5).fit(X, y, groups=groups)
    regressor.save(folder / "regressor.groupdro")
    expected["regressor"] = regressor.predict(X[:4]).tolist()
    named_columns = gd.GroupDROClassifier(**options).fit(X, y > 0, groups=groups)
    gd.TableModel(named_columns, target="sick", groups=("site",), facts={"rows": len(y)}).save(
        folder / "table.groupdro"
    )
    expected["table"] = named_columns.predict_proba(X[:4]).tolist()
    expected["bounds"] = {
        name: [model.lower_bound_, model.upper_bound_]
        for name, model in (("classifier", classifier), ("regressor", regressor), ("table", named_columns))
    }

    for name, sparse in (("dense", False), ("sparse", True)):
        gd.GroupedStore.write_arrays(
            folder / f"{name}.store", X, y > 0, groups, sample_weight=1.0 + groups, sparse=sparse, seed=1
        )
    expected["store"] = gd.GroupDROClassifier(**options).fit(X, y > 0, groups=groups).upper_bound_

    stopped = gd.solve(problem(), gd.ALEG(), tol=1e-9, max_passes=8, seed=0, checkpoint_dir=folder / "checkpoint")
    expected["checkpoint"] = {"passes": stopped.passes, "upper": stopped.upper_bound, "lower": stopped.lower_bound}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main() -> None:
    folder = HERE / f"written_by_{gd.__version__.replace('.', '_')}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write(folder)
    sizes = {path.relative_to(HERE): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    for path, size in sizes.items():
        print(f"{size:6d} {path}")
    print(f"{sum(sizes.values()):6d} bytes in all")


if __name__ == "__main__":
    main()
