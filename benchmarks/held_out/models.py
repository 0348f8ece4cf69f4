"""The models that are compared, all linear ones with the penalty that cross-validation finds for plain training."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning

import groupdro as gd
from groupdro.estimators.fitting import SmallGroupWarning
from groupdro.evaluation.outputs import row_losses

PLAIN, BALANCED, GDRO, MERO, BLEND, CHOSEN, TREES = (
    "plain", "balanced", "GDRO", "MERO", "blend 0.5", "CV choice", "boosted trees",
)  # fmt: skip
MODELS = PLAIN, BALANCED, GDRO, MERO, BLEND, CHOSEN, TREES


class Part(NamedTuple):
    """Rows to fit or to judge on; `units` belong together, None where rows stand alone."""

    X: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    classes: bool
    units: np.ndarray | None = None

    def take(self, rows: np.ndarray) -> "Part":
        units = None if self.units is None else self.units[rows]
        return Part(self.X[rows], self.y[rows], self.groups[rows], self.classes, units)


def search(train: Part, **options: Any) -> Any:
    """Return the fitted choice of penalty and robustness."""
    kind = gd.GroupDROClassifierCV if train.classes else gd.GroupDRORegressorCV
    return _quietly(kind(**options), train, cluster=train.units)


def linear(train: Part, alpha: float, **options: Any) -> Any:
    """Return a fitted model of our own."""
    kind = gd.GroupDROClassifier if train.classes else gd.GroupDRORegressor
    return _quietly(kind(alpha=alpha, **options), train)


def balanced(train: Part, alpha: float) -> Any:
    """Return plain training with weights that give all groups the same total."""
    _, group, sizes = np.unique(train.groups, return_inverse=True, return_counts=True)
    kind = gd.GroupDROClassifier if train.classes else gd.GroupDRORegressor
    return _quietly(kind(alpha=alpha, robustness=0.0), train, sample_weight=1.0 / sizes[group])


def trees(train: Part, seed: int) -> Any:
    kind = HistGradientBoostingClassifier if train.classes else HistGradientBoostingRegressor
    return kind(random_state=seed).fit(train.X, train.y)


def fit_all(train: Part, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return the search, and every model by name."""
    chosen = search(train)
    alpha = chosen.plain_alpha_
    return chosen, {
        PLAIN: linear(train, alpha, robustness=0.0),
        BALANCED: balanced(train, alpha),
        GDRO: linear(train, alpha),
        MERO: linear(train, alpha, objective="excess_risk"),
        BLEND: linear(train, alpha, robustness=0.5),
        CHOSEN: chosen,
        TREES: trees(train, seed),
    }


def losses_of(model: Any, part: Part) -> np.ndarray:
    """Return the log loss, or the squared residual, of each row."""
    fitted = getattr(model, "best_estimator_", model)
    return row_losses(fitted, part.X, part.y, "log") if part.classes else np.square(fitted.predict(part.X) - part.y)


def _quietly(model: Any, train: Part, **options: Any) -> Any:
    """Fit without a word about small groups, which tables have, or about penalties too small to converge in time."""
    with warnings.catch_warnings():
        for category in (SmallGroupWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", category=category)
        return model.fit(train.X, train.y, groups=train.groups, **options)
