"""Files that earlier releases wrote are read, or refused with a message that says what to do.

The folders `written_by_X_Y_Z` are made by `python -m tests.packaging.written`, committed with a release, and not
changed afterwards. Before 0.1.0 is released, write its folder again if a test of this file fails for a good reason.
"""

import json
import shutil
import zipfile

import numpy as np
import pytest

import groupdro as gd
from groupdro.run.checkpoint import BOUNDS_VERSION, CheckpointError
from groupdro.utils.bundle import dump_bundle, read_bundle
from tests.packaging.first_time import ROOT
from tests.packaging.written import HERE, NAMES, problem, rows

FOLDERS = sorted(HERE.glob("written_by_*"))
X, Y, GROUPS = rows()

every_release = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def expected(folder):
    return json.loads((folder / "expected.json").read_text())


def test_the_first_release_is_there():
    assert FOLDERS[0].name == "written_by_0_1_0"
    assert sum(path.stat().st_size for path in FOLDERS[0].rglob("*")) < 200_000


@every_release
def test_models_predict_the_stored_numbers(folder):
    then = expected(folder)
    classifier, regressor, table = (
        gd.load(folder / f"{name}.groupdro") for name in ("classifier", "regressor", "table")
    )
    np.testing.assert_allclose(classifier.predict_proba(X[:4]), then["classifier"], rtol=1e-12)
    np.testing.assert_allclose(regressor.predict(X[:4]), then["regressor"], rtol=1e-12)
    np.testing.assert_allclose(table.model.predict_proba(X[:4]), then["table"], rtol=1e-12)
    for model, name in ((classifier, "classifier"), (regressor, "regressor"), (table.model, "table")):
        assert [model.lower_bound_, model.upper_bound_] == then["bounds"][name]
        assert model.status_ == "converged"
    assert set(classifier.groups_) == set(NAMES)
    assert (table.target, table.groups, table.facts) == ("sick", ("site",), {"rows": len(Y)})


@every_release
def test_bounds_of_a_model_hold_for_a_fit_of_today(folder):
    lower, upper = expected(folder)["bounds"]["table"]
    now = gd.GroupDROClassifier(alpha=0.01, tol=1e-6).fit(X, Y > 0, groups=GROUPS)
    assert lower <= now.upper_bound_ + 1e-12
    assert now.lower_bound_ <= upper + 1e-12


@every_release
@pytest.mark.parametrize("name", ["dense", "sparse"])
def test_stores_open_and_fit(folder, name):
    store = gd.GroupedStore.open(folder / f"{name}.store", verify="full")
    assert store.n_rows == len(Y)
    np.testing.assert_array_equal(np.sort(store.source), np.arange(len(Y)))
    stored = store.X.toarray() if name == "sparse" else np.asarray(store.X)
    np.testing.assert_array_equal(stored, X[store.source])
    model = gd.GroupDROClassifier(alpha=0.01, random_state=0).fit(store)
    assert model.upper_bound_ == pytest.approx(expected(folder)["store"], rel=2 * model.tol)


@every_release
def test_a_checkpoint_resumes_or_says_what_to_do(folder, tmp_path):
    then = expected(folder)
    place = shutil.copytree(folder / "checkpoint", tmp_path / "checkpoint")
    if [then["version"], then["bounds_version"]] == [gd.__version__, BOUNDS_VERSION]:
        result = gd.solve(problem(), gd.ALEG(), tol=1e-5, seed=0, checkpoint_dir=place)
        assert result.converged
        assert result.trace[0].upper >= then["checkpoint"]["upper"] >= result.lower_bound
        assert result.lower_bound >= then["checkpoint"]["lower"]  # what was proved is kept
        assert result.passes > then["checkpoint"]["passes"]
        assert len(result.trace) > 5
    else:
        with pytest.raises(CheckpointError, match="Use another directory, or delete this one to start over") as refused:
            gd.solve(problem(), gd.ALEG(), tol=1e-9, seed=0, checkpoint_dir=place)
        assert then["version"] in str(refused.value)


# ---------------------------------------------------------------------- files of later releases


def test_a_model_file_of_a_newer_format_says_to_update(tmp_path):
    manifest, arrays = read_bundle(FOLDERS[0] / "classifier.groupdro")
    for changes, message in (
        ({"version": 2}, "its version is 2, and this reads 1; a newer groupdro wrote it: update groupdro to read it"),
        ({"version": "x"}, "no release wrote such a file"),
        ({"params": {**manifest["params"], "hope": 1}}, r"not known here, \['hope'\]; if a newer .* update groupdro"),
    ):
        (tmp_path / "m").write_bytes(dump_bundle(manifest | changes, arrays))
        with pytest.raises(gd.ModelFileError, match=message):
            gd.load(tmp_path / "m")


def test_a_store_of_a_newer_format_says_to_update(tmp_path):
    place = shutil.copytree(FOLDERS[0] / "dense.store", tmp_path / "store")
    manifest = json.loads((place / "manifest.json").read_text())
    (place / "manifest.json").write_text(json.dumps(manifest | {"version": 3}))
    with pytest.raises(gd.StoreError, match=r"its version is 3, and this reads 1 and 2; .* update groupdro"):
        gd.GroupedStore.open(place)


def test_a_checkpoint_of_a_newer_format_says_to_update(tmp_path):
    place = shutil.copytree(FOLDERS[0] / "checkpoint", tmp_path / "checkpoint")
    for path in place.glob("*.zip"):
        manifest, arrays = read_bundle(path)
        path.write_bytes(dump_bundle(manifest | {"version": 99}, arrays))
    with pytest.raises(CheckpointError, match=r"its version is 99, .* update groupdro"):
        gd.solve(problem(), gd.ALEG(), seed=0, checkpoint_dir=place)


def test_nothing_in_the_files_is_code():
    for path in FOLDERS[0].rglob("*"):
        if path.suffix in (".groupdro", ".zip"):
            with zipfile.ZipFile(path) as archive:
                assert {name.rpartition(".")[2] for name in archive.namelist()} == {"json", "npy"}


def test_the_policy_names_every_kind_of_file():
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert all(f"written_by_{word}" in page for word in ("0_1_0",))
    assert all(word in page for word in ("Model files", "Stores", "Checkpoints"))
