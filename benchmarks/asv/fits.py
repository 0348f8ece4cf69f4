"""Default fits of many kinds, for asv: CPU seconds, and passes over the data, which no machine changes.

    asv run -e BEFORE^! && asv run -e AFTER^! && asv compare BEFORE AFTER

A fit is compiled before it is timed. Only what old commits have as well is used, so that they can be measured too.
"""

import time
import warnings

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import groupdro as gd


def dense(n, d, m, classes=2):
    """Return standard normal rows in m groups, each with a model of its own next to a common one."""
    rng = np.random.default_rng(0)
    X, groups = rng.standard_normal((n, d)), rng.integers(0, m, n)
    w = rng.standard_normal((d, classes)) + 0.5 * rng.standard_normal((m, d, classes))
    scores = np.einsum("nd,ndc->nc", X, w[groups]) + rng.gumbel(size=(n, classes)) * np.sqrt(d)
    return X, np.argmax(scores, axis=1), groups


def text(n=20_000, d=50_000, per_row=50, m=10):
    """Return rows of counts, most of them in few columns."""
    rng = np.random.default_rng(0)
    columns = (d * rng.random((n, per_row)) ** 3).astype(np.int32)
    X = sp.csr_array((np.ones(n * per_row), columns.ravel(), np.arange(0, n * per_row + 1, per_row)), (n, d))
    X.sum_duplicates()
    score = X @ rng.standard_normal(d)
    return X, score + score.std() * rng.standard_normal(n) > 0, rng.integers(0, m, n)


def numbers(n, d, m):
    """Return a real target whose noise differs by group."""
    X, _, groups = dense(n, d, m)
    rng = np.random.default_rng(1)
    return X, X @ rng.standard_normal(d) + (1 + groups) * rng.standard_normal(n), groups


CLASSIFIER, REGRESSOR = gd.GroupDROClassifier, gd.GroupDRORegressor
FITS = {
    "4,000 x 5": (CLASSIFIER, {}, dense, (4000, 5, 4)),
    "50,000 x 100": (CLASSIFIER, {}, dense, (50_000, 100, 10)),
    "400 x 1,000": (CLASSIFIER, {"alpha": 1e-2}, dense, (400, 1000, 4)),
    "1,000 groups": (CLASSIFIER, {"alpha": 1e-2, "tol": 1e-2}, dense, (50_000, 20, 1000)),
    "text": (CLASSIFIER, {"alpha": 1e-3}, text, ()),
    "5 classes": (CLASSIFIER, {}, dense, (10_000, 30, 5, 5)),
    "blend": (CLASSIFIER, {"robustness": 0.5}, dense, (20_000, 50, 10)),
    "excess risk": (CLASSIFIER, {"objective": "excess_risk"}, dense, (20_000, 50, 10)),
    "L1": (CLASSIFIER, {"alpha": 1e-2, "l1_ratio": 1.0}, dense, (20_000, 50, 10)),
    "tolerance 1e-8": (CLASSIFIER, {"tol": 1e-8}, dense, (20_000, 50, 10)),
    "squared loss": (REGRESSOR, {}, numbers, (50_000, 50, 10)),
    "Huber loss": (REGRESSOR, {"loss": "huber"}, numbers, (20_000, 50, 10)),
}


class Fits:
    """One fit of each kind."""

    params = tuple(FITS)
    param_names = ("fit",)
    timer = time.process_time
    warmup_time, number, repeat = 0.0, 1, (3, 7, 20.0)
    timeout = 300

    def setup(self, name):
        """Make the data, and fit once, which compiles the kernels."""
        kind, parameters, make, sizes = FITS[name]
        self.data, self.model = make(*sizes), kind(random_state=0, **parameters)
        warnings.simplefilter("ignore", ConvergenceWarning)
        self._fit()

    def _fit(self):
        X, y, groups = self.data
        return self.model.fit(X, y, groups=groups)

    def time_fit(self, _):
        """Measure CPU seconds."""
        self._fit()

    def track_passes(self, _):
        """Count passes over the data to the tolerance; infinitely many if it was not reached."""
        return self.model.n_passes_ if self.model.status_ == "converged" else np.inf

    track_passes.unit = "passes"
