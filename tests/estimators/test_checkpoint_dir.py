"""Fits that are broken off and go on."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

import groupdro as gd


def _data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 300))
    return X, (X[:, 0] + rng.logistic(size=600) > 0).astype(int), rng.integers(0, 3, size=600)


@pytest.mark.parametrize("objective", ["risk", "excess_risk"])
def test_a_fit_goes_on_where_it_was_broken_off(tmp_path, objective):
    X, y, groups = _data()
    options = {
        "alpha": 1e-2,
        "solver": "aleg",
        "tol": 1e-5,
        "random_state": 0,
        "objective": objective,
        "checkpoint_dir": tmp_path,
    }
    with pytest.warns(ConvergenceWarning):
        broken = gd.GroupDROClassifier(**options, callbacks=[lambda p: p.latest.epoch >= 2]).fit(X, y, groups=groups)
    begun = len(broken.trace_)
    resumed = gd.GroupDROClassifier(**options).fit(X, y, groups=groups)
    assert [row.upper for row in resumed.trace_[:begun]] == [row.upper for row in broken.trace_]
    whole = gd.GroupDROClassifier(**options | {"checkpoint_dir": None}).fit(X, y, groups=groups)
    assert resumed.status_ == whole.status_ == "converged"
    assert resumed.lower_bound_ <= whole.upper_bound_
    assert whole.lower_bound_ <= resumed.upper_bound_
    np.testing.assert_allclose(resumed.coef_, whole.coef_, atol=1e-3)


def test_fits_of_a_search_do_not_meet(tmp_path):
    X, y, _groups = _data()
    X = X[:, :4]
    search = GridSearchCV(
        gd.GroupDROClassifier(checkpoint_dir=tmp_path), {"alpha": [1e-2, 1e-1]}, cv=2, error_score="raise"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # groups do not reach the fits without routing
        search.fit(X, y)
    assert len(list(tmp_path.iterdir())) == 5
