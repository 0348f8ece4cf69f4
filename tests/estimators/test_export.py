import functools

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import groupdro as gd
from groupdro import GroupDROClassifier, GroupDRORegressor

N, D = 150, 4
COLUMNS = ["age", "income", "height", "weight"]
LABELS = {
    "binary": [0, 1],
    "signs": [-1.0, 1.0],
    "booleans": [False, True],
    "text": ["no", "yes"],
    "multi-class": [3, 5, 9],
    "multi-class text": ["high", "low", "middle"],
    "squared_hinge": [0, 1],
    "squared_hinge text": ["no", "yes"],
}
REGRESSIONS = ["squared", "huber"]
KINDS = [*LABELS, *REGRESSIONS]
PROBABLE = [kind for kind in LABELS if "hinge" not in kind]
every_kind = pytest.mark.parametrize("kind", KINDS)
with_or_without_intercept = pytest.mark.parametrize("fit_intercept", [True, False], ids=["intercept", "no intercept"])


@functools.cache
def arrays(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    score = X @ [1.0, -0.5, 0.0, 0.3] + 0.5 + rng.logistic(size=N)
    groups = np.array(["a", "b", "c"])[rng.integers(0, 3, N)]
    if kind in REGRESSIONS:
        return X, score, groups
    labels = np.array(LABELS[kind])
    cuts = np.quantile(score, np.arange(1, len(labels)) / len(labels))
    return X, labels[np.searchsorted(cuts, score)], groups


@functools.cache
def fitted(kind, fit_intercept=True, objective="risk"):
    X, y, groups = arrays(kind)
    if kind in REGRESSIONS:
        loss = gd.losses.Huber(0.5) if kind == "huber" else kind
        model = GroupDRORegressor(objective, loss=loss, fit_intercept=fit_intercept)
    else:
        loss = "squared_hinge" if "hinge" in kind else "logistic"
        model = GroupDROClassifier(objective, loss=loss, fit_intercept=fit_intercept)
    return model.fit(X, y, groups=groups)


def new_rows(n=300):
    rng = np.random.default_rng(1)
    return rng.normal(size=(n, D)) * rng.choice([0.1, 1.0, 3.0], size=(n, 1))


# ---------------------------------------------------------------------- scikit-learn


@every_kind
@with_or_without_intercept
def test_the_plain_model_predicts_the_same(kind, fit_intercept):
    model, X = fitted(kind, fit_intercept), new_rows()
    plain = model.to_sklearn()
    if kind in REGRESSIONS:
        assert abs(plain.predict(X) - model.predict(X)).max() < 1e-14
        return
    np.testing.assert_array_equal(plain.predict(X), model.predict(X))
    assert plain.predict(X).dtype == model.predict(X).dtype
    np.testing.assert_array_equal(plain.classes_, model.classes_)
    assert plain.decision_function(X).shape == model.decision_function(X).shape
    assert abs(plain.decision_function(X) - model.decision_function(X)).max() < 1e-14
    if kind in PROBABLE:
        assert abs(plain.predict_proba(X) - model.predict_proba(X)).max() < 1e-14


@pytest.mark.parametrize("kind", PROBABLE)
def test_the_plain_model_has_the_same_logarithms_of_probabilities(kind):
    model, X = fitted(kind), new_rows()
    np.testing.assert_allclose(model.to_sklearn().predict_log_proba(X), model.predict_log_proba(X), rtol=1e-10)


@every_kind
@pytest.mark.parametrize("container", [sp.csr_array, sp.csr_matrix, sp.csc_array, np.float32], ids=lambda c: c.__name__)
def test_the_plain_model_predicts_the_same_from_sparse_and_single_precision_rows(kind, container):
    model, X = fitted(kind), container(new_rows())
    plain, outputs = model.to_sklearn(), "predict" if kind in REGRESSIONS else "decision_function"
    assert abs(getattr(plain, outputs)(X) - getattr(model, outputs)(X)).max() < 1e-14
    if kind not in REGRESSIONS:
        np.testing.assert_array_equal(plain.predict(X), model.predict(X))


@every_kind
@with_or_without_intercept
def test_the_plain_model_is_one_of_scikit_learn_and_knows_nothing_of_this_package(kind, fit_intercept):
    plain = fitted(kind, fit_intercept).to_sklearn()
    expected = Ridge if kind in REGRESSIONS else LinearSVC if "hinge" in kind else LogisticRegression
    assert type(plain) is expected
    assert is_classifier(plain) == (kind not in REGRESSIONS)
    assert plain.fit_intercept is fit_intercept
    assert plain.n_features_in_ == D
    assert not any("groupdro" in type(value).__module__ for value in vars(plain).values())
    if not fit_intercept:
        np.testing.assert_array_equal(plain.intercept_, np.zeros_like(plain.intercept_))


def test_the_plain_model_has_attributes_of_the_shapes_that_its_own_fit_gives():
    for kind in KINDS:
        X, y, _ = arrays(kind)
        plain = fitted(kind).to_sklearn()
        own = type(plain)().fit(X, y)
        assert plain.coef_.shape == own.coef_.shape
        assert np.shape(plain.intercept_) == np.shape(own.intercept_)
        assert set(vars(own)) - {"solver_"} <= set(vars(plain))


def test_the_plain_model_does_not_share_its_coefficients():
    model = GroupDROClassifier().fit(*arrays("binary")[:2], groups=arrays("binary")[2])
    plain, before = model.to_sklearn(), model.coef_.copy()
    plain.coef_[:] = 0.0
    plain.intercept_[:] = 0.0
    np.testing.assert_array_equal(model.coef_, before)
    assert model.intercept_ != 0.0


def test_the_plain_model_can_be_fitted_again():
    X, y, _ = arrays("text")
    plain = fitted("text").to_sklearn().fit(X, y)
    np.testing.assert_array_equal(plain.coef_, LogisticRegression().fit(X, y).coef_)


@every_kind
def test_the_plain_model_keeps_the_names_of_features(kind):
    X, y, groups = arrays(kind)
    model = GroupDRORegressor() if kind in REGRESSIONS else GroupDROClassifier()
    plain = model.fit(pd.DataFrame(X, columns=COLUMNS), y, groups=groups).to_sklearn()
    np.testing.assert_array_equal(plain.feature_names_in_, COLUMNS)
    plain.predict(pd.DataFrame(new_rows(), columns=COLUMNS))
    with pytest.raises(ValueError, match="feature names"):
        plain.predict(pd.DataFrame(new_rows(), columns=COLUMNS[::-1]))
    assert not hasattr(fitted(kind).to_sklearn(), "feature_names_in_")


@pytest.mark.parametrize("objective", ["risk", "excess_risk"])
def test_models_of_either_objective_are_exported(objective):
    model, X = fitted("binary", objective=objective), new_rows()
    assert abs(model.to_sklearn().predict_proba(X) - model.predict_proba(X)).max() < 1e-14


def test_the_plain_model_works_in_pipelines_and_calibration():
    X, y, _ = arrays("text")
    plain = fitted("text").to_sklearn()
    calibrated = CalibratedClassifierCV(FrozenEstimator(plain)).fit(X, y)
    assert calibrated.predict_proba(X).shape == (N, 2)
    scaler = StandardScaler(with_mean=False, with_std=False).fit(X)
    np.testing.assert_array_equal(make_pipeline(scaler, plain).predict(X), fitted("text").predict(X))


# ---------------------------------------------------------------------- ONNX


def run_onnx(plain, X):
    skl2onnx = pytest.importorskip("skl2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    options = {id(plain): {"zipmap": False}} if hasattr(plain, "predict_proba") else None
    kind = skl2onnx.common.data_types.FloatTensorType([None, D])
    graph = skl2onnx.convert_sklearn(plain, initial_types=[("X", kind)], options=options)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"X": X.astype(np.float32)})


@pytest.mark.parametrize("kind", ["binary", "signs", "text", "multi-class", "multi-class text"])
@with_or_without_intercept
def test_onnx_runs_the_plain_model_with_the_same_probabilities(kind, fit_intercept):
    model, X = fitted(kind, fit_intercept), new_rows().astype(np.float32)
    labels, probabilities = run_onnx(model.to_sklearn(), X)
    expected = model.predict_proba(X)
    assert abs(probabilities - expected).max() < 1e-5
    certain = np.sort(expected, axis=1)[:, -1] - np.sort(expected, axis=1)[:, -2] > 1e-5
    np.testing.assert_array_equal(labels[certain], model.predict(X)[certain])


@pytest.mark.parametrize("kind", ["squared_hinge", "squared_hinge text"])
@with_or_without_intercept
def test_onnx_runs_a_squared_hinge_model_with_the_same_labels(kind, fit_intercept):
    model, X = fitted(kind, fit_intercept), new_rows().astype(np.float32)
    labels = run_onnx(model.to_sklearn(), X)[0]
    certain = abs(model.decision_function(X)) > 1e-5
    np.testing.assert_array_equal(labels[certain], model.predict(X)[certain])


@pytest.mark.parametrize("kind", REGRESSIONS)
@with_or_without_intercept
def test_onnx_runs_a_regression_with_the_same_predictions(kind, fit_intercept):
    model, X = fitted(kind, fit_intercept), new_rows().astype(np.float32)
    (predicted,) = run_onnx(model.to_sklearn(), X)
    np.testing.assert_allclose(predicted[:, 0], model.predict(X), atol=1e-5)


# ---------------------------------------------------------------------- skops and MLflow


def assert_the_same(found, model):
    X = new_rows()
    np.testing.assert_array_equal(found.predict(X), model.to_sklearn().predict(X))
    if hasattr(model, "predict_proba"):
        assert abs(found.predict_proba(X) - model.predict_proba(X)).max() < 1e-14


@every_kind
def test_skops_writes_and_reads_the_plain_model_without_trusting_anything(kind, tmp_path):
    skops = pytest.importorskip("skops.io")
    skops.dump(fitted(kind).to_sklearn(), tmp_path / "model.skops")
    assert skops.get_untrusted_types(file=tmp_path / "model.skops") == []
    assert_the_same(skops.load(tmp_path / "model.skops"), fitted(kind))


@pytest.mark.filterwarnings("ignore:.*MLflow doesn't validate the data for this type:UserWarning")
@pytest.mark.parametrize("kind", ["binary", "multi-class text", "squared_hinge", "squared"])
def test_mlflow_writes_and_reads_the_plain_model(kind, tmp_path):
    mlflow = pytest.importorskip("mlflow.sklearn")
    mlflow.save_model(fitted(kind).to_sklearn(), tmp_path / "model", pip_requirements=["scikit-learn"])
    assert_the_same(mlflow.load_model(str(tmp_path / "model")), fitted(kind))


# ---------------------------------------------------------------------- torch


@every_kind
@with_or_without_intercept
def test_the_torch_layer_has_the_same_outputs(kind, fit_intercept):
    torch = pytest.importorskip("torch")
    model, X = fitted(kind, fit_intercept), new_rows()
    layer = model.to_torch_linear()
    expected = model.predict(X) if kind in REGRESSIONS else model.decision_function(X)
    with torch.no_grad():
        found = layer(torch.from_numpy(X)).numpy()
    assert found.dtype == np.float64
    assert found.shape == (len(X), 3 if "multi" in kind else 1)
    assert abs(found - expected.reshape(found.shape)).max() < 1e-12
    assert type(layer) is torch.nn.Linear
    assert (layer.bias is not None) == fit_intercept


def test_the_torch_layer_can_be_trained_and_shares_nothing_with_the_model():
    torch = pytest.importorskip("torch")
    model = fitted("multi-class")
    layer, before = model.to_torch_linear(), model.coef_.copy()
    layer(torch.from_numpy(new_rows())).square().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=1.0).step()
    assert abs(layer.weight.detach().numpy() - before).max() > 1.0
    np.testing.assert_array_equal(model.coef_, before)


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize("export", ["to_sklearn", "to_torch_linear"])
@pytest.mark.parametrize("model", [GroupDROClassifier(), GroupDRORegressor()], ids=["classifier", "regressor"])
def test_a_model_that_is_not_fitted_is_refused(model, export):
    with pytest.raises(NotFittedError):
        getattr(model, export)()
