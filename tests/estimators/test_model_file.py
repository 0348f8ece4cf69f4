import contextlib
import copy
import datetime
import functools
import hashlib
import io
import json
import os
import pickle
import stat
import struct
import tempfile
import tracemalloc
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from groupdro import GroupDROClassifier, GroupDRORegressor, GroupSQP, ModelFileError, load

N, D = 90, 3
MANIFEST = "manifest.json"
ARRAYS = ["coef_", "intercept_", "group_risks_", "group_weights_", "reference_risks_", "trace_"]
FITTED = [
    "gap_", "group_risks_", "group_weights_", "groups_", "intercept_", "coef_", "lower_bound_", "merged_groups_",
    "message_", "n_features_in_", "n_passes_", "solver_", "status_", "trace_", "upper_bound_", "worst_group_",
]  # fmt: skip
LABELS = {
    "text": ["no", "yes"],
    "int": [3, 7],
    "bool": [False, True],
    "float": [-1.0, 1.0],
    "text of three": ["high", "lów", "middle"],
    "int of three": [-5, 0, 10**12],
}
NAMES = {
    "text": ["a", "b", "ünï"],
    "int": [-1, 2, 10**15],
    "bool": [False, True],
    "float": [0.1, 2.5, 1e300],
    "tuple": [("a", 1), ("a", 2), ("b", 1)],
    "nested tuple": [("a", (1, None)), ("b", (2.5, True))],
    "date": [datetime.date(2020, 2, 29), datetime.date(2021, 1, 1)],
    "datetime": [datetime.datetime(2020, 2, 29, 12, 30, 15, 5), datetime.datetime(2021, 1, 1)],
    "aware datetime": [datetime.datetime(2020 + k, 1, 1, tzinfo=datetime.UTC) for k in range(2)],
    "tuple of dates": [(datetime.date(2020, 1, 1), "x"), (datetime.date(2021, 1, 1), "y")],
    "mixed": ["one", 1, 2.5, (1, "x")],
}


def objects(values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


@functools.cache
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    return X, X @ [1.0, -0.5, 0.2] + rng.logistic(size=N)


def labels(kind="text"):
    values = np.array(LABELS[kind])
    return values[np.searchsorted(np.quantile(rows()[1], np.arange(1, len(values)) / len(values)), rows()[1])]


def groups(kind="text"):
    return objects([NAMES[kind][k % len(NAMES[kind])] for k in range(N)])


def fit(model, y="text", names="text", X=None):
    target = rows()[1] if isinstance(model, GroupDRORegressor) else labels(y)
    return model.fit(rows()[0] if X is None else X, target, groups=groups(names))


@functools.cache
def fitted(kind="classifier"):
    model = {
        "classifier": lambda: GroupDROClassifier(),
        "multi-class": lambda: GroupDROClassifier(),
        "squared_hinge": lambda: GroupDROClassifier(loss="squared_hinge"),
        "no intercept": lambda: GroupDROClassifier(fit_intercept=False),
        "regrets": lambda: GroupDROClassifier("excess_risk"),
        "regressor": lambda: GroupDRORegressor(),
        "huber regrets": lambda: GroupDRORegressor("excess_risk", loss="huber", delta=0.5),
    }[kind]()
    return fit(model, "text of three" if kind == "multi-class" else "text")


every_kind = pytest.mark.parametrize(
    "kind", ["classifier", "multi-class", "squared_hinge", "no intercept", "regrets", "regressor", "huber regrets"]
)


def round_trip(model, folder):
    model.save(folder / "model.groupdro")
    return load(folder / "model.groupdro")


def assert_same_value(found, expected, name):
    assert type(found) is type(expected) or (isinstance(found, float) and isinstance(expected, float)), name
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype, name
        assert found.shape == expected.shape, name
        np.testing.assert_array_equal(found, expected, err_msg=name)
        assert [type(value) for value in found.tolist()] == [type(value) for value in expected.tolist()], name
    else:
        assert found == expected, name


def public_state(model):
    return {name: value for name, value in vars(model).items() if name.endswith("_") and not name.startswith("_")}


def assert_same_model(found, expected):
    assert type(found) is type(expected)
    assert set(public_state(found)) == set(public_state(expected))
    for name, value in public_state(expected).items():
        assert_same_value(found=getattr(found, name), expected=value, name=name)
    assert found.get_params() == expected.get_params()
    np.testing.assert_array_equal(found.predict(rows()[0]), expected.predict(rows()[0]))


# ---------------------------------------------------------------------- there and back


@every_kind
def test_every_fitted_attribute_and_parameter_comes_back(kind, tmp_path):
    model = fitted(kind)
    assert set(FITTED) <= set(public_state(model))
    assert ("reference_risks_" in public_state(model)) == ("regrets" in kind)
    assert_same_model(round_trip(model, tmp_path), model)


@pytest.mark.parametrize("kind", LABELS)
def test_class_labels_come_back(kind, tmp_path):
    model = fit(GroupDROClassifier(), y=kind)
    found = round_trip(model, tmp_path)
    assert_same_model(found, model)
    assert found.classes_.tolist() == LABELS[kind]
    np.testing.assert_array_equal(found.predict_proba(rows()[0]), model.predict_proba(rows()[0]))


@pytest.mark.parametrize(
    "y",
    [
        np.array([3, 7], np.int32),
        np.array([3, 7], np.uint8),
        np.array([-1, 1], np.float32),
        np.array(["no", "yes"], object),
    ],
    ids=["int32", "uint8", "float32", "object"],
)
def test_predictions_keep_the_type_of_the_labels(y, tmp_path):
    model = GroupDROClassifier().fit(rows()[0], y[(rows()[1] > 0).astype(int)], groups=groups())
    predicted = round_trip(model, tmp_path).predict(rows()[0])
    np.testing.assert_array_equal(predicted, model.predict(rows()[0]))
    assert predicted.dtype == model.predict(rows()[0]).dtype


@pytest.mark.parametrize("model", [GroupDROClassifier(), GroupDRORegressor()], ids=["classifier", "regressor"])
@pytest.mark.parametrize("kind", NAMES)
def test_group_names_come_back(kind, model, tmp_path):
    model = fit(clone(model), names=kind)
    found = round_trip(model, tmp_path)
    assert_same_model(found, model)
    assert set(found.groups_.tolist()) == set(NAMES[kind])
    assert found.worst_group_ in NAMES[kind]


def test_the_names_of_merged_groups_come_back(tmp_path):
    names = objects([("many", k % 2) if k < 80 else ("few", k % 3) for k in range(N)])
    model = GroupDROClassifier(min_group_size=10, small_groups="merge").fit(rows()[0], labels(), groups=names)
    assert model.merged_groups_ == (("few", 0), ("few", 1), ("few", 2))
    assert_same_model(round_trip(model, tmp_path), model)


def test_the_name_of_missing_labels_comes_back(tmp_path):
    holes = np.where(np.arange(N) % 3 == 0, None, groups())
    model = GroupDROClassifier(missing_group="own").fit(rows()[0], labels(), groups=holes)
    assert "(missing)" in model.groups_
    assert_same_model(round_trip(model, tmp_path), model)


@pytest.mark.parametrize("model", [GroupDROClassifier(), GroupDRORegressor()], ids=["classifier", "regressor"])
def test_the_names_of_features_come_back(model, tmp_path):
    frame = pd.DataFrame(rows()[0], columns=["age", "größe", "a b"])
    model = fit(clone(model), X=frame)
    found = round_trip(model, tmp_path)
    assert_same_value(found.feature_names_in_, model.feature_names_in_, "feature_names_in_")
    np.testing.assert_array_equal(found.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        found.predict(frame[frame.columns[::-1]])


def test_a_model_that_did_not_converge_comes_back(tmp_path):
    with pytest.warns(UserWarning, match="pass limit"):
        model = fit(GroupDROClassifier(max_passes=1, tol=1e-12))
    found = round_trip(model, tmp_path)
    assert found.status_ == "pass_limit"
    assert_same_model(found, model)


def test_a_fit_of_all_rows_as_one_group_comes_back(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GroupDROClassifier().fit(rows()[0], labels())
    assert_same_model(round_trip(model, tmp_path), model)


@pytest.mark.parametrize(
    "params",
    [
        {"alpha": 0.5, "radius": 3.0, "tol": 1e-6, "max_passes": 77},
        {"alpha": 0, "radius": 2},
        {"max_passes": np.inf, "max_time": np.inf},
        {"max_time": 12.5},
        {"fit_intercept": False, "precondition": False, "warm_start": True},
        {"solver": "sqp", "random_state": 7, "verbose": 0},
        {"min_group_size": 40, "small_groups": "merge", "missing_group": "own", "small_group_adjustment": 0.3},
        {"alpha": np.float64(0.25), "min_group_size": np.int64(2), "fit_intercept": np.True_},
    ],
    ids=lambda params: " ".join(params),
)
@pytest.mark.parametrize("cls", [GroupDROClassifier, GroupDRORegressor])
def test_parameters_come_back(cls, params, tmp_path):
    model = fit(cls(**params))
    assert_same_model(round_trip(model, tmp_path), model)


@pytest.mark.parametrize(
    "references",
    [
        {"a": 0.1, "b": 0.2, "ünï": 0.3},
        {"a": 0, "b": np.float32(0.5), "ünï": 0.3},
        [0.1, 0.2, 0.3],
        (0.1, 0.2, 0.3),
        np.array([0.1, 0.2, 0.3]),
        pd.Series([0.1, 0.2, 0.3]),
    ],
    ids=["mapping", "mapping of other numbers", "list", "tuple", "ndarray", "series"],
)
def test_references_of_the_user_come_back(references, tmp_path):
    model = fit(GroupDROClassifier("excess_risk", reference_risks=references))
    found = round_trip(model, tmp_path)
    if isinstance(references, dict):
        assert found.reference_risks == references
    else:
        assert list(found.reference_risks) == list(references)
    np.testing.assert_array_equal(found.reference_risks_, model.reference_risks_)
    assert_same_model(found.set_params(reference_risks=None), clone_fitted(model).set_params(reference_risks=None))


def clone_fitted(model):
    twin = clone(model)
    for name, value in public_state(model).items():
        setattr(twin, name, value)
    return twin


def test_references_by_groups_of_other_kinds_come_back(tmp_path):
    references = {name: 0.1 * k for k, name in enumerate(NAMES["tuple"])}
    model = fit(GroupDRORegressor("excess_risk", reference_risks=references), names="tuple")
    assert round_trip(model, tmp_path).reference_risks == references


def test_solver_objects_callbacks_and_random_states_are_left_out(tmp_path):
    calls = []
    model = GroupDROClassifier(
        solver=GroupSQP("lbfgs"), callbacks=[lambda progress: calls.append(1)], random_state=np.random.RandomState(0)
    )
    fit(model)
    assert calls
    found = round_trip(model, tmp_path)
    assert found.solver == "sqp"
    assert found.callbacks is None
    assert found.random_state is None
    assert found.solver_ == model.solver_
    np.testing.assert_array_equal(found.coef_, model.coef_)


# ---------------------------------------------------------------------- a loaded model is a model


@every_kind
def test_a_loaded_model_predicts_reports_and_exports_the_same(kind, tmp_path):
    model, X = fitted(kind), np.random.default_rng(1).normal(size=(50, D))
    found = round_trip(model, tmp_path)
    for method in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        if hasattr(model, method):
            np.testing.assert_array_equal(getattr(found, method)(X), getattr(model, method)(X))
        else:
            assert not hasattr(found, method)
    y = rows()[1] if "regressor" in kind or "huber" in kind else labels("text of three" if "multi" in kind else "text")
    assert repr(found.report(rows()[0], y, groups())) == repr(model.report(rows()[0], y, groups()))
    np.testing.assert_array_equal(found.to_sklearn().predict(X), model.to_sklearn().predict(X))
    assert found.score(rows()[0], y) == model.score(rows()[0], y)


@every_kind
def test_a_loaded_model_can_be_fitted_again(kind, tmp_path):
    model, y = fitted(kind), "text of three" if kind == "multi-class" else "text"
    again = fit(round_trip(model, tmp_path), y)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    np.testing.assert_array_equal(fit(clone(round_trip(model, tmp_path)), y).coef_, model.coef_)


def test_a_loaded_model_is_where_a_warm_start_begins(tmp_path):
    model = fit(GroupDROClassifier(warm_start=True, tol=1e-8))
    again = fit(round_trip(model, tmp_path))
    assert again.n_passes_ < model.n_passes_
    np.testing.assert_allclose(again.coef_, model.coef_, atol=1e-3)


def test_a_loaded_model_can_be_pickled_and_saved_again(tmp_path):
    found = round_trip(fitted(), tmp_path)
    assert_same_model(pickle.loads(pickle.dumps(found)), fitted())
    assert_same_model(round_trip(found, tmp_path), fitted())


class Subclass(GroupDROClassifier):
    """A model of one's own, which a file would not bring back."""


UNREADABLE = {
    "objective": (lambda model: model.set_params(objective="excess_risk"), "objective is 'excess_risk'"),
    "tolerance": (lambda model: model.set_params(tol=np.nan), "tol"),
    "finer tolerance": (lambda model: model.set_params(tol=1e-15), "above its tolerance"),
    "loss": (lambda model: model.set_params(loss="squared"), "loss"),
    "class": (lambda model: setattr(model, "__class__", Subclass), "'Subclass' is unknown"),
    "status": (lambda model: setattr(model, "status_", "fine"), "'fine', which is unknown"),
    "coefficients": (lambda model: setattr(model, "coef_", model.coef_ * np.nan), "not finite"),
    "features": (lambda model: setattr(model, "n_features_in_", 7), "shapes"),
    "classes": (lambda model: setattr(model, "classes_", model.classes_[::-1]), "in ascending order"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_could_not_be_loaded_is_not_saved(what, tmp_path):
    model = fit(GroupDROClassifier())
    model.save(tmp_path / "model")
    before = (tmp_path / "model").read_bytes()
    change, why = UNREADABLE[what]
    change(model)
    for name in ("model", "new"):
        with pytest.raises(ModelFileError, match=f"cannot be saved.*{why}"):
            model.save(tmp_path / name)
    assert_as_before(tmp_path, before)


def test_many_classes_of_very_different_lengths_come_back(tmp_path):
    n = 3000  # as an array of text 36 MB, of which almost all is padding
    model = copy.deepcopy(fitted("multi-class"))
    model.classes_ = np.array(sorted([f"{k:04d}" for k in range(n - 1)] + ["x" * n]))
    rng = np.random.default_rng(0)
    model.coef_, model.intercept_ = rng.normal(size=(n, D)), rng.normal(size=n)
    found = round_trip(model, tmp_path)
    assert found.classes_.tolist() == model.classes_.tolist()
    assert found.predict(rows()[0]).tolist() == model.predict(rows()[0]).tolist()
    assert round_trip(found, tmp_path).classes_.tolist() == model.classes_.tolist()


@pytest.mark.parametrize("path", ["plain", "with space.zip", "ünï.model", ".hidden"])
def test_any_name_of_a_file_will_do(path, tmp_path):
    fitted().save(str(tmp_path / path))
    assert [entry.name for entry in tmp_path.iterdir()] == [path]
    assert_same_model(load(str(tmp_path / path)), fitted())


def test_a_model_that_is_not_fitted_is_refused(tmp_path):
    for model in (GroupDROClassifier(), GroupDRORegressor()):
        with pytest.raises(NotFittedError):
            model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("label", [datetime.time(12), frozenset([1]), b"bytes", 1j], ids=repr)
def test_labels_that_a_file_cannot_hold_are_refused_by_name(label, tmp_path):
    model = GroupDROClassifier().fit(rows()[0], labels(), groups=objects([("a", label), "b"] * (N // 2)))
    (tmp_path / "model").write_bytes(b"before")
    with pytest.raises(ValueError, match=r"^(groups_|worst_group_) has a label that cannot be written to a file"):
        model.save(tmp_path / "model")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model").read_bytes() == b"before"


# ---------------------------------------------------------------------- no code in the file


def read_members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@every_kind
def test_the_file_is_json_and_plain_arrays_that_are_stored_as_they_are(kind, tmp_path):
    fitted(kind).save(tmp_path / "model")
    members = read_members(tmp_path / "model")
    expected = {f"{name}.npy" for name in ARRAYS if name == "trace_" or hasattr(fitted(kind), name)}
    assert set(members) == {MANIFEST, *expected}
    json.loads(members.pop(MANIFEST).decode("utf-8"))
    for blob in members.values():
        assert np.load(io.BytesIO(blob), allow_pickle=False).dtype == np.float64
    with zipfile.ZipFile(tmp_path / "model") as archive:
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
        assert archive.testzip() is None


def test_reading_uses_no_pickle(tmp_path, monkeypatch):
    fitted().save(tmp_path / "model")

    def refuse(*args, **kwargs):
        raise AssertionError("pickle was asked")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    assert_same_model(load(tmp_path / "model"), fitted())


# ---------------------------------------------------------------------- damaged files


def refused(path, content=None, match=None):
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelFileError, match=match) as caught:
        load(path)
    assert str(path) in str(caught.value)


@pytest.fixture
def original(tmp_path):
    fitted("regrets").save(tmp_path / "original")
    return (tmp_path / "original").read_bytes()


@pytest.mark.parametrize("content", [b"", b"PK", b"not a model" * 100, b"\x00" * 5000, b"PK\x05\x06" + b"\x00" * 18])
def test_a_file_that_is_no_zip_of_a_model_is_refused(content, tmp_path):
    refused(tmp_path / "model", content)


def test_an_error_is_of_the_kind_that_callers_expect():
    assert issubclass(ModelFileError, ValueError)


def test_a_truncated_file_is_refused_wherever_it_ends(original, tmp_path):
    for length in np.linspace(0, len(original) - 1, 50).astype(int):
        refused(tmp_path / "model", original[:length])


def refused_or_the_same(path, content):
    path.write_bytes(content)
    try:
        found = load(path)
    except ModelFileError:
        return True
    assert_same_model(found, fitted("regrets"))
    return False


def flipped(content, position):
    changed = bytearray(content)
    changed[position // 8] ^= 1 << position % 8
    return bytes(changed)


def test_a_flipped_bit_is_noticed_or_changes_nothing(original, tmp_path):
    positions = np.random.default_rng(0).choice(8 * len(original), 300, replace=False)
    noticed = [refused_or_the_same(tmp_path / "model", flipped(original, int(position))) for position in positions]
    assert np.mean(noticed) > 0.5


def test_a_flipped_bit_of_the_end_record_is_noticed_or_changes_nothing(original, tmp_path):
    for position in range(8 * (len(original) - 22), 8 * len(original)):
        refused_or_the_same(tmp_path / "model", flipped(original, position))


def test_a_flipped_bit_of_a_directory_entry_is_noticed_or_changes_nothing(original, tmp_path):
    start = original.index(b"PK\x01\x02")
    for position in range(8 * start, 8 * (start + 46)):
        refused_or_the_same(tmp_path / "model", flipped(original, position))


def test_bytes_before_or_after_the_model_are_noticed_or_change_nothing(original, tmp_path):
    for content in (b"x" * 100 + original, original + b"x" * 100, original + original, original[100:]):
        refused_or_the_same(tmp_path / "model", content)


def test_a_missing_file_is_missing_and_not_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "no folder" / "model")


def test_a_folder_is_no_damaged_file(tmp_path):
    with pytest.raises(OSError, match="irectory"):
        load(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_plain_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        refused(tmp_path / name, match="not a regular file")


# ---------------------------------------------------------------------- files that were written by others


def to_npy(array, **options):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), **options)
    return buffer.getvalue()


def npy_header(text, version=(1, 0)):
    text = text.encode("latin1")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    size = struct.pack("<H", len(text)) if version == (1, 0) else struct.pack("<I", len(text))
    return b"\x93NUMPY" + bytes(version) + size + text


def digest(blob):
    return hashlib.sha256(blob).hexdigest()


def write_members(path, members, **options):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", **options) as archive:
        warnings.filterwarnings("ignore", "Duplicate name", UserWarning)
        for name, blob in members:
            archive.writestr(name, blob)


def forge(folder, change, kind="regrets"):
    path = folder / "model"
    fitted(kind).save(path)
    members = read_members(path)
    manifest = json.loads(members.pop(MANIFEST))
    del manifest["sha256"]
    change(manifest, members)
    manifest.setdefault("sha256", {name: digest(blob) for name, blob in members.items()})
    write_members(path, [(MANIFEST, json.dumps(manifest)), *members.items()])
    return path


def test_a_file_that_is_put_together_again_without_a_change_is_read(tmp_path):
    for kind in ("regrets", "regressor", "multi-class"):
        assert_same_model(load(forge(tmp_path, lambda manifest, members: None, kind)), fitted(kind))


def test_an_unknown_member_is_refused(original, tmp_path):
    for name in ("evil.pkl", "../coef_.npy", "coef_.npy/", "folder/coef_.npy", "w.npy"):
        write_members(tmp_path / "model", [*read_members(tmp_path / "original").items(), (name, b"x")])
        refused(tmp_path / "model", match=r"unknown member|do not match the manifest")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compressed_member_is_refused(method, original, tmp_path):
    write_members(tmp_path / "model", read_members(tmp_path / "original").items(), compression=method)
    refused(tmp_path / "model", match="compressed")


@pytest.mark.parametrize("name", [MANIFEST, "coef_.npy"])
def test_a_duplicate_member_is_refused(name, original, tmp_path):
    members = read_members(tmp_path / "original")
    write_members(tmp_path / "model", [*members.items(), (name, members[name])])
    refused(tmp_path / "model", match="same name")


def test_a_file_without_a_manifest_is_refused(original, tmp_path):
    members = read_members(tmp_path / "original")
    del members[MANIFEST]
    write_members(tmp_path / "model", members.items())
    refused(tmp_path / "model", match="no manifest")


@pytest.mark.parametrize(
    "manifest",
    [b"", b"{", b"[]", b"null", b"3", b'"text"', b"\xff\xfe{}", b"{}", b"[" * 200_000, b'{"a":' * 100_000],
    ids=["empty", "open", "list", "null", "number", "text", "utf-16", "bare", "deep lists", "deep objects"],
)
def test_a_manifest_that_is_no_manifest_is_refused(manifest, original, tmp_path):
    members = {**read_members(tmp_path / "original"), MANIFEST: manifest}
    write_members(tmp_path / "model", members.items())
    refused(tmp_path / "model")


@pytest.mark.parametrize("depth", [50, 700, 5000])
def test_a_deeply_nested_label_is_refused_or_read(depth, original, tmp_path):
    deep = '{"tuple": [' * depth + "1" + "]}" * depth
    text = read_members(tmp_path / "original")[MANIFEST].decode()
    at = text.index('"worst_group_": ') + len('"worst_group_": ')
    text = text[:at] + deep + text[text.index(",", at) :]
    write_members(tmp_path / "model", {**read_members(tmp_path / "original"), MANIFEST: text}.items())
    with contextlib.suppress(ModelFileError):
        assert isinstance(load(tmp_path / "model").worst_group_, tuple)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 2),
        ("version", 0),
        ("version", "1"),
        ("version", None),
        ("format", "other"),
        ("format", None),
        ("class", "LogisticRegression"),
        ("class", "GroupBy"),
        ("class", "dict"),
        ("class", None),
        ("class", ["GroupDROClassifier"]),
        ("class", "GroupDRORegressor"),
        ("params", {}),
        ("params", []),
        ("params", None),
        ("fitted", {}),
        ("fitted", []),
        ("fitted", None),
        ("sha256", {}),
        ("sha256", []),
        ("sha256", 7),
        ("more", 1),
    ],
)
def test_another_entry_of_the_manifest_is_refused(key, value, tmp_path):
    refused(forge(tmp_path, lambda manifest, members: manifest.update({key: value})))


@pytest.mark.parametrize("key", ["format", "version", "class", "params", "fitted"])
def test_a_missing_entry_of_the_manifest_is_refused(key, tmp_path):
    refused(forge(tmp_path, lambda manifest, members: manifest.pop(key)))


def test_missing_checksums_are_refused(original, tmp_path):
    members = read_members(tmp_path / "original")
    manifest = json.loads(members[MANIFEST])
    del manifest["sha256"]
    write_members(tmp_path / "model", {**members, MANIFEST: json.dumps(manifest)}.items())
    refused(tmp_path / "model")


@pytest.mark.parametrize("name", ["coef_", "intercept_", "group_weights_", "trace_"])
def test_an_array_that_differs_from_its_checksum_is_refused(name, original, tmp_path):
    members = read_members(tmp_path / "original")
    changed = np.load(io.BytesIO(members[f"{name}.npy"])) * 1.5
    write_members(tmp_path / "model", {**members, f"{name}.npy": to_npy(changed)}.items())
    refused(tmp_path / "model", match="damaged")


def test_an_unknown_or_missing_parameter_is_refused(tmp_path):
    refused(forge(tmp_path, lambda manifest, members: manifest["params"].update(evil=1)), match="parameters")
    for name in GroupDROClassifier().get_params():
        refused(forge(tmp_path, lambda manifest, members, name=name: manifest["params"].pop(name)), match="parameters")
    with_delta = forge(tmp_path, lambda manifest, members: manifest["params"].update(delta=1.0))
    refused(with_delta, match="parameters")


ELASTIC_NET = ("l1_ratio", "positive", "lower_bounds", "upper_bounds")


def test_a_file_from_before_the_elastic_net_has_an_l2_penalty(tmp_path):
    def age(manifest, members):
        for name in ELASTIC_NET:
            manifest["params"].pop(name)

    assert load(forge(tmp_path, age)).l1_ratio == 0.0


def test_a_file_from_before_robustness_is_one_of_the_worst_group(tmp_path):
    def age(manifest, members):
        for name in ("robustness", "average", "n_worst", "worst_share", *ELASTIC_NET):
            manifest["params"].pop(name)
        for name in ("mean_risk_", "worst_risk_", "mean_lower_bound_", "worst_lower_bound_"):
            manifest["fitted"].pop(name)

    model = load(forge(tmp_path, age))
    assert model.robustness == 1.0
    assert np.isnan(model.mean_risk_)
    assert (model.worst_risk_, model.worst_lower_bound_) == (model.upper_bound_, model.lower_bound_)
    assert model.mean_lower_bound_ == -np.inf


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", "1"),
        ("alpha", -1.0),
        ("alpha", None),
        ("alpha", np.nan),
        ("alpha", [1.0]),
        ("objective", "other"),
        ("loss", "squared"),
        ("fit_intercept", 1),
        ("radius", 0.0),
        ("solver", 3),
        ("solver", None),
        ("callbacks", [1.0]),
        ("callbacks", "ab"),
        ("callbacks", []),
        ("random_state", "ab"),
        ("random_state", 1.5),
        ("min_group_size", 1.5),
        ("tol", {"mapping": []}),
        ("tol", {"date": "2020-01-01"}),
        ("reference_risks", {"other": []}),
        ("reference_risks", {"mapping": 3}),
        ("reference_risks", {"mapping": [["a"]]}),
        ("reference_risks", ["x"]),
    ],
)
def test_a_parameter_of_another_kind_is_refused(name, value, tmp_path):
    refused(forge(tmp_path, lambda manifest, members: manifest["params"].update({name: value})))


def test_a_missing_or_unknown_fitted_value_is_refused(tmp_path):
    path = tmp_path / "model"
    fitted("regrets").save(path)
    later = {"training_digest_"}  # which models without rows to digest lack
    must = set(json.loads(read_members(path)[MANIFEST])["fitted"]) - later
    for name in must:
        refused(forge(tmp_path, lambda manifest, members, name=name: manifest["fitted"].pop(name)))
    refused(forge(tmp_path, lambda manifest, members: manifest["fitted"].update(evil_=1)))
    refused(forge(tmp_path, lambda manifest, members: manifest["fitted"].update(classes_=["a", "b"]), "regressor"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("upper_bound_", "1"),
        ("upper_bound_", None),
        ("gap_", [1.0]),
        ("n_passes_", True),
        ("training_digest_", 1),
        ("status_", 1),
        ("message_", None),
        ("solver_", ["sqp"]),
        ("n_features_in_", 0),
        ("n_features_in_", -3),
        ("n_features_in_", 4),
        ("n_features_in_", 3.0),
        ("n_features_in_", True),
        ("n_features_in_", "3"),
        ("n_features_in_", 10**30),
        ("groups_", "abc"),
        ("groups_", {"a": 1, "b": 2, "c": 3}),
        ("groups_", ["a", "b"]),
        ("groups_", [["a"], ["b"], ["c"]]),
        ("groups_", [{"pickle": "gA=="}, "b", "c"]),
        ("groups_", [{"tuple": 3}, "b", "c"]),
        ("groups_", [{"tuple": [1], "date": "2020-01-01"}, "b", "c"]),
        ("groups_", [{"date": "2020-13-41"}, "b", "c"]),
        ("groups_", [{"date": 7}, "b", "c"]),
        ("groups_", [{}, "b", "c"]),
        ("classes_", ["a", "b", "c"]),
        ("classes_", ["a"]),
        ("classes_", []),
        ("classes_", ["yes", "no"]),
        ("classes_", ["no", "no"]),
        ("classes_", "ny"),
        ("merged_groups_", "abc"),
        ("merged_groups_", [[1]]),
        ("worst_group_", ["a"]),
        ("feature_names_in_", ["a"]),
        ("feature_names_in_", [1, 2, 3]),
        ("feature_names_in_", "abc"),
    ],
    ids=repr,
)
def test_a_fitted_value_that_does_not_fit_is_refused(name, value, tmp_path):
    refused(forge(tmp_path, lambda manifest, members: manifest["fitted"].update({name: value})))


# ---------------------------------------------------------------------- arrays that were written by others


def with_array(name, blob):
    return lambda manifest, members: members.update({f"{name}.npy": blob})


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i8", "<c16", "<U8", "|S8", "|b1", "<M8[s]", "<f8,<f8"])
def test_an_array_of_another_type_is_refused(dtype, tmp_path):
    refused(forge(tmp_path, with_array("coef_", to_npy(np.zeros((1, D), dtype)))))


def test_an_array_of_objects_is_refused_without_being_unpickled(tmp_path):
    touched = tmp_path / "touched"

    class Evil:
        def __reduce__(self):
            return Path.touch, (touched,)

    array = np.empty((1, D), object)
    array[:] = Evil()
    refused(forge(tmp_path, with_array("coef_", to_npy(array, allow_pickle=True))))
    refused(forge(tmp_path, with_array("coef_", pickle.dumps(Evil()))))
    assert not touched.exists()
    pickle.loads(pickle.dumps(Evil()))
    assert touched.exists()


@pytest.mark.parametrize(
    "shape",
    ["(1000000000000,)", "(1, 1000000000000)", "(4294967296, 4294967296)", "(-1, -3)", "(-1,)", "(0,)", "(1, 4)", "()"],
)
def test_an_array_of_a_hostile_shape_is_refused(shape, tmp_path):
    header = npy_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}")
    refused(forge(tmp_path, with_array("coef_", header + bytes(8 * D))))


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': True, 'shape': (1, 3), }",
        "{'descr': '<f8', 'fortran_order': False, }",
        "{'descr': '<f8', 'fortran_order': 0, 'shape': (1, 3), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': 3, }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 3), 'more': 1, }",
        "__import__('os').getcwd()",
        "[" * 5000,
        "",
    ],
    ids=["fortran", "no shape", "number", "shape", "more", "code", "deep", "empty"],
)
def test_an_array_with_another_header_is_refused(header, tmp_path):
    refused(forge(tmp_path, with_array("coef_", npy_header(header) + bytes(8 * D))))


def test_the_header_of_these_tests_is_otherwise_right(tmp_path):
    header = npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (1, 3), }")
    found = load(forge(tmp_path, with_array("coef_", header + np.array([1.0, 2.0, 3.0]).tobytes())))
    np.testing.assert_array_equal(found.coef_, [[1.0, 2.0, 3.0]])


@pytest.mark.parametrize("version", [(2, 0), (3, 0), (9, 9)])
def test_an_array_of_another_version_is_refused(version, tmp_path):
    header = npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (1, 3), }", version)
    refused(forge(tmp_path, with_array("coef_", header + bytes(8 * D))))


@pytest.mark.parametrize("blob", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff", b"junk" * 100])
def test_an_array_that_is_none_is_refused(blob, tmp_path):
    refused(forge(tmp_path, with_array("coef_", blob)))


@pytest.mark.parametrize("more", [b"\x00", b"\x00" * 8])
def test_an_array_with_more_or_fewer_bytes_than_it_says_is_refused(more, tmp_path):
    blob = to_npy(fitted("regrets").coef_)
    refused(forge(tmp_path, with_array("coef_", blob + more)))
    refused(forge(tmp_path, with_array("coef_", blob[: -len(more)])))


@pytest.mark.parametrize("shape", [(2, 5), (7,), (3, 3, 3), (0,)], ids=str)
@pytest.mark.parametrize("kind", ["regrets", "regressor", "multi-class"])
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_of_another_shape_is_refused(name, kind, shape, tmp_path):
    refused(forge(tmp_path, with_array(name, to_npy(np.ones(shape))), kind))


@pytest.mark.parametrize("name", ARRAYS)
def test_a_missing_array_is_refused(name, tmp_path):
    refused(forge(tmp_path, lambda manifest, members: members.pop(f"{name}.npy")))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["coef_", "intercept_"])
@pytest.mark.parametrize("kind", ["regrets", "regressor"])
def test_coefficients_that_are_not_finite_are_refused(kind, name, value, tmp_path):
    array = np.array(getattr(fitted(kind), name), dtype=float)
    array[...] = value
    refused(forge(tmp_path, with_array(name, to_npy(array)), kind), match="not finite")


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 0.5, 1e300, -1e300])
@pytest.mark.parametrize("column", range(7))
def test_a_trace_with_a_number_that_no_run_has_is_refused(column, value, tmp_path):
    trace = np.zeros((2, 7))
    trace[1, column] = value
    path = forge(tmp_path, with_array("trace_", to_npy(trace)))
    bounds, times = column > 4, column in (1, 4)
    if (bounds and value in (np.inf, -1.0, 0.5)) or (times and value == 0.5):
        assert len(load(path).trace_) == 2
    else:
        refused(path, match="trace")


CLAIMS = {
    "unknown status": ("status_", "proved"),
    "status in capitals": ("status_", "CONVERGED"),
    "no status": ("status_", ""),
    "lower above upper": ("lower_bound_", 1e3),
    "infinite lower": ("lower_bound_", np.inf),
    "no upper": ("upper_bound_", np.nan),
    "infinite upper": ("upper_bound_", np.inf),
    "no lower": ("lower_bound_", np.nan),
    "converged far from the optimum": ("lower_bound_", -0.5),
    "gap above the tolerance": ("gap_", 1.0),
    "gap below that of the bounds": ("lower_bound_", -1e9),
    "negative gap": ("gap_", -1e-3),
    "no gap": ("gap_", np.nan),
    "negative passes": ("n_passes_", -1.0),
    "infinite passes": ("n_passes_", np.inf),
    "negative tolerance": ("_atol", -1.0),
    "infinite tolerance": ("_atol", np.inf),
}


@pytest.mark.parametrize("kind", ["classifier", "regressor", "regrets"])
@pytest.mark.parametrize("what", CLAIMS)
def test_claims_that_contradict_each_other_are_refused(what, kind, tmp_path):
    name, value = CLAIMS[what]
    assert fitted(kind).status_ == "converged"
    refused(forge(tmp_path, lambda manifest, members: manifest["fitted"].update({name: value}), kind))


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_a_gap_is_judged_by_the_tolerance_of_the_file(kind, tmp_path):
    upper = fitted(kind).upper_bound_

    def with_gap(relative, **params):
        def change(manifest, members):
            manifest["fitted"] |= {"lower_bound_": upper - relative * upper, "gap_": relative * upper}
            manifest["params"] |= params

        return forge(tmp_path, change, kind)

    assert load(with_gap(0.99e-4)).status_ == "converged"
    refused(with_gap(1.01e-4), match="'converged', but its gap")
    assert load(with_gap(1.01e-4, tol=1e-3)).status_ == "converged"


def test_bounds_that_contradict_each_other_are_a_failure_that_comes_back(tmp_path):
    claims = {"status_": "numerical_failure", "lower_bound_": 10.0, "upper_bound_": 1.0}
    claims |= {"gap_": np.inf, "criterion_": None}
    found = load(forge(tmp_path, lambda manifest, members: manifest["fitted"].update(claims)))
    assert (found.lower_bound_, found.upper_bound_, found.gap_) == (10.0, 1.0, np.inf)


@pytest.mark.parametrize("weights", [[0.0, 0.0, 0.0], [2.0, -0.5, -0.5], [np.nan, 0.5, 0.5], [1.0, 1.0, 1.0]])
def test_group_weights_that_are_no_shares_are_refused(weights, tmp_path):
    refused(forge(tmp_path, with_array("group_weights_", to_npy(np.array(weights)))), match="weights")


def test_a_perfect_fit_comes_back(tmp_path):
    model = GroupDRORegressor(alpha=0.0).fit(rows()[0], rows()[0] @ [1.0, 2.0, 3.0], groups=groups())
    assert model.status_ == "converged"
    assert model.gap_ > model.tol * model.upper_bound_  # the gap is within rounding instead
    assert_same_model(round_trip(model, tmp_path), model)


@pytest.mark.parametrize("size", [10**6, 2**31, 2**32 - 2])
def test_a_member_that_says_to_be_huge_is_refused(size, original, tmp_path):
    content = bytearray(original)
    entry = original.index(b"PK\x01\x02")
    content[entry + 20 : entry + 28] = struct.pack("<II", size, size)
    refused(tmp_path / "model", bytes(content))
    content[22 - 4 : 22 + 4] = struct.pack("<II", size, size)
    refused(tmp_path / "model", bytes(content))


def test_members_that_share_bytes_are_refused(original, tmp_path):
    # Each member holds all that follow it, so that what is read would grow with the square of the file.
    members = list(read_members(tmp_path / "original").items())
    names, body, entries = [b"manifest.json", *(b"a%d.npy" % k for k in range(50))], members[0][1], []
    for name in reversed(names):
        crc = zlib.crc32(body)
        entries.insert(0, (name, crc, len(body)))
        body = (
            struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 33, crc, len(body), len(body), len(name), 0) + name + body
        )
    directory, offset = b"", 0
    for name, crc, size in entries:
        fields = (b"PK\1\2", 20, 20, 0, 0, 0, 33, crc, size, size, len(name), 0, 0, 0, 0, 0, offset)
        directory += struct.pack("<4s6H3L5H2L", *fields) + name
        offset += 30 + len(name)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(names), len(names), len(directory), len(body), 0)
    refused(tmp_path / "model", body + directory + end, match="members are larger than the file|Overlapped")


@pytest.mark.parametrize("name", ["groups_", "classes_", "feature_names_in_"])
def test_a_long_name_does_not_give_its_room_to_all_others(name, tmp_path):
    n, long = 20_000, "x" * 60_000  # as an array of text 4.8 GB

    def change(manifest, members):
        names = sorted([f"{k:05d}" for k in range(n - 1)] + [long])
        manifest["fitted"][name] = names
        if name == "groups_":
            shapes = {"group_risks_": (n,), "group_weights_": (n,), "reference_risks_": (n,)}
        elif name == "classes_":
            manifest["fitted"]["class_kind"] = "str"
            shapes = {"coef_": (n, 3), "intercept_": (n,)}
        else:
            manifest["fitted"]["n_features_in_"] = n
            shapes = {"coef_": (1, n)}
        members |= {f"{array}.npy": to_npy(np.zeros(shape)) for array, shape in shapes.items()}
        if name == "groups_":
            members["group_weights_.npy"] = to_npy(np.full(n, 1 / n))

    path = forge(tmp_path, change)
    tracemalloc.start()
    try:
        assert long in getattr(load(path), name).tolist()
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------------- writing


@pytest.fixture
def before(tmp_path):
    fitted("regressor").save(tmp_path / "model")
    return (tmp_path / "model").read_bytes()


def assert_as_before(folder, before):
    assert [entry.name for entry in folder.iterdir()] == ["model"]
    assert (folder / "model").read_bytes() == before


def test_a_file_that_exists_is_replaced(before, tmp_path):
    fitted().save(tmp_path / "model")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert_same_model(load(tmp_path / "model"), fitted())


def test_a_missing_folder_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        fitted().save(tmp_path / "nowhere" / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder_is_an_error_of_the_system(before, tmp_path):
    with pytest.raises(NotADirectoryError):
        fitted().save(tmp_path / "model" / "model")
    assert_as_before(tmp_path, before)


def test_a_folder_in_place_of_the_file_is_an_error_of_the_system(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(OSError, match="irectory"):
        fitted().save(tmp_path / "model")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert list((tmp_path / "model").iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_plain_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match=r"not a regular file.*pipe"):
        fitted().save(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


def test_a_full_disk_is_named_with_the_file(tmp_path):
    resource = pytest.importorskip("resource")
    model, before = fitted(), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        with pytest.raises(OSError, match=str(tmp_path / "model")):
            model.save(tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs the permissions of POSIX")
@pytest.mark.parametrize("existing", [False, True])
def test_a_read_only_folder_is_an_error_of_the_system(existing):
    nobody = 65534
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if existing:
            fitted("regressor").save(folder / "model")
            (folder / "model").chmod(0o644)
        content = {entry: entry.read_bytes() for entry in folder.iterdir()}
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
        user = os.geteuid()
        if user == 0:
            os.seteuid(nobody)  # root may write everywhere
        try:
            with pytest.raises(PermissionError):
                fitted().save(folder / "model")
        finally:
            os.seteuid(user)
        assert {entry: entry.read_bytes() for entry in folder.iterdir()} == content
        folder.chmod(0o700)


def failing(error, after=0):
    calls = []

    def fail(*args, **kwargs):
        calls.append(args)
        if len(calls) > after:
            raise error

    return fail


def test_a_failure_to_replace_leaves_the_old_file_and_nothing_else(before, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", failing(OSError(5, "input/output error")))
    with pytest.raises(OSError, match="input/output error"):
        fitted().save(tmp_path / "model")
    assert_as_before(tmp_path, before)


def test_a_failure_to_replace_leaves_nothing_where_there_was_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", failing(OSError(5, "input/output error")))
    with pytest.raises(OSError, match="input/output error"):
        fitted().save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(28, "no space left"), KeyboardInterrupt()], ids=["full disk", "Ctrl-C"])
@pytest.mark.parametrize("after", [0, 2])
def test_a_failure_to_write_leaves_the_old_file_and_nothing_else(error, after, before, tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile.ZipFile, "writestr", failing(error, after))
    with pytest.raises(type(error)):
        fitted().save(tmp_path / "model")
    assert_as_before(tmp_path, before)


def test_a_failure_to_reach_the_disk_leaves_the_old_file_and_nothing_else(before, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing(OSError(5, "input/output error")))
    with pytest.raises(OSError, match="input/output error"):
        fitted().save(tmp_path / "model")
    assert_as_before(tmp_path, before)


def test_the_new_file_is_whole_before_it_takes_the_place_of_the_old(before, tmp_path, monkeypatch):
    replace, seen = os.replace, []

    def watched(source, target):
        assert Path(target).read_bytes() == before
        assert Path(source).parent == Path(target).parent
        seen.append(load(source))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    fitted().save(tmp_path / "model")
    assert_same_model(seen[0], fitted())


def test_what_a_crashed_process_left_behind_does_not_stop_a_save(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        patch.setattr(os, "replace", failing(OSError(5, "crash")))
        with pytest.raises(OSError, match="crash"):
            fitted().save(tmp_path / "model")
    assert len(list(tmp_path.iterdir())) == 1
    fitted().save(tmp_path / "model")
    assert_same_model(load(tmp_path / "model"), fitted())


def test_two_saves_to_the_same_file_at_once_both_succeed(tmp_path, monkeypatch):
    replace, begun = os.replace, []

    def meanwhile(source, target):
        if not begun:
            begun.append(True)
            fitted("regressor").save(tmp_path / "model")
        replace(source, target)

    monkeypatch.setattr(os, "replace", meanwhile)
    fitted().save(tmp_path / "model")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert_same_model(load(tmp_path / "model"), fitted())


def test_names_of_times_that_a_file_would_change_are_refused(tmp_path):
    times = [pd.Timestamp("2020-01-01") + pd.Timedelta(k, "ns") for k in (1, 2)]
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)), np.arange(40) % 2
    model = GroupDROClassifier().fit(X, y, groups=np.array(times, dtype=object)[np.repeat([0, 1], 20)])
    with pytest.raises(ValueError, match="cannot be written to a file"):
        model.save(tmp_path / "model")


def test_a_link_stays_one(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    fitted().save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "file").coef_.shape == fitted().coef_.shape
