"""Skewed and discrete losses, useless contenders, labels of another type, and starts far off.

A failure prints its number, which runs again:

    from tests.campaign.part_judging import skewed
    skewed(17)
"""

import warnings
from functools import cache
from typing import NamedTuple

import numpy as np
from benchmarks.held_out import constants
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LogisticRegression

import groupdro as gd
from tests.campaign.frame import Check, tally_cases
from tests.campaign.plain_losses import GammaLoss, PoissonLoss, TweedieLoss

__all__ = ["CHECKS"]

# ---------------------------------------------------------------------- intervals of skewed and discrete losses

_PART, _GROUPS = 50, 5  # data sets of a case, and their groups
_TARGET, _CHANCE = 0.93, 3.1  # share of intervals that hold; standard errors that one test of a thousand exceeds


def _largest(y_true, y_pred):
    """Return minus the 90% quantile of the absolute errors."""
    return -float(np.quantile(np.abs(y_true - y_pred), 0.9))


def _worst_tenth(y_true, y_pred):
    """Return minus the mean of the largest tenth of the absolute errors."""
    errors = np.sort(np.abs(y_true - y_pred))
    return -float(errors[int(0.9 * len(errors)) :].mean())


NOISES = {
    "exponential": lambda rng, n: rng.exponential(size=n),
    "normal": lambda rng, n: rng.normal(size=n),
    "t with 5 degrees": lambda rng, n: rng.standard_t(5, n),
    "lognormal": lambda rng, n: rng.lognormal(size=n),
    "rare counts": lambda rng, n: rng.poisson(0.2, n).astype(float),
    "steps": lambda rng, n: np.round(2.0 * rng.normal(size=n)) / 2.0,
}
LEVELS = {"quantile 0.95": 0.95, "quantile 0.9": 0.9, "quantile 0.99": 0.99}
OWN = {"90% error": _largest, "worst tenth": _worst_tenth}
METRICS = (*LEVELS, *OWN, "mae", "rmse")
SIZES = (100, 300)


class Setting(NamedTuple):
    """What is drawn, and the metric that is computed of it."""

    metric: str
    noise: str
    size: int


SETTINGS = [Setting(metric, noise, size) for size in SIZES for metric in METRICS for noise in NOISES]


def _report(setting, constant, y, groups, *, n_bootstrap, seed=0):
    """Return the report of a model that predicts a constant, and the name of its metric."""
    X = np.zeros((len(y), 1))
    model = DummyRegressor(strategy="constant", constant=constant).fit(X, y)
    if setting.metric in LEVELS:
        options, name = {"loss": gd.losses.Quantile(LEVELS[setting.metric])}, "risk"
    else:
        name = setting.metric
        options = {"metrics": {name: OWN[name]} if name in OWN else name}
    if name in OWN:
        n_bootstrap = min(n_bootstrap, 200)  # as the page on metrics recommends
    return gd.group_report(model, X, y, groups, n_bootstrap=n_bootstrap, random_state=seed, **options), name


@cache
def _truth(metric, noise):
    """Return the constant that a good model would predict, and the true value of the metric."""
    y = NOISES[noise](np.random.default_rng(99), 2_000_000)
    constant = float(np.quantile(y, LEVELS[metric]) if metric in LEVELS else y.mean())
    report, name = _report(Setting(metric, noise, 0), constant, y, None, n_bootstrap=0)
    return constant, report.overall[name]


def skewed(number):
    """Hold the intervals of one setting against the true value, in the groups that the report judges."""
    setting = SETTINGS[number % len(SETTINGS)]
    constant, true = _truth(setting.metric, setting.noise)
    held = 0
    for part in range(_PART):
        y = NOISES[setting.noise](np.random.default_rng([number, part]), _GROUPS * setting.size)
        report, name = _report(setting, constant, y, np.arange(len(y)) % _GROUPS, n_bootstrap=1000, seed=part)
        low, high = (np.array(report.columns[f"{name}_{end}"], dtype=float) for end in ("low", "high"))
        judged = np.array(report.judged)
        held += bool(((low <= true) & (true <= high))[judged].all())
    least = _TARGET - _CHANCE * np.sqrt(_TARGET * (1.0 - _TARGET) / _PART)
    assert held / _PART >= least, f"{setting}: {held} of {_PART} data sets"


# ---------------------------------------------------------------------- useless contenders


def useless(number):
    """Compare with constant and random classifiers among the models, by each of eight metrics in turn."""
    metric = constants.METRICS[number % len(constants.METRICS)]
    found, baseline = constants.one_comparison(metric, number, n_bootstrap=60)
    chosen = found.recommended
    assert chosen not in constants.CONSTANT, f"{metric}: {found.verdict}"
    # Guesses can be better by F1, beat a coin, or reach a floor or not be significantly worse by the second metric.
    guarded = constants.guard_of(metric, number) not in ("", "alone")
    honest = metric == "f1" or guarded or baseline == "coin"
    assert honest or chosen not in constants.RANDOM, f"{metric}: {found.verdict}"


# ---------------------------------------------------------------------- labels of another type

FORMS = {
    "integers": lambda y: y,
    "booleans": lambda y: y == 1,
    "decimals": lambda y: y.astype(float),
    "objects": lambda y: (y == 1).astype(object),
    "text": lambda y: np.where(y == 1, "yes", "no"),
    "digits": lambda y: y.astype(str),
    "German": lambda y: np.where(y == 1, "ja", "nein"),
    "from 5": lambda y: y + 5,
}
NUMBERS = ("integers", "booleans", "decimals", "objects")  # equal to each other


def _judged(model, X, y, groups):
    return gd.group_report(model, X, y, groups, n_bootstrap=20).overall["risk"]


def _judged_in_words(model, X, y, groups):
    return gd.headroom(model, X, y, groups).message


def _searched(model, X, y, groups):
    return gd.find_groups(model, X, y, n_bootstrap=20).message


def _compared(model, X, y, groups):
    labels, held_out = model.classes_[(X[:, 0] > 0).astype(int)], (X, y, groups)
    return gd.compare(X, labels, groups, models={"own": model}, held_out=held_out, cv=None, n_bootstrap=20).verdict


FUNCTIONS = (_judged, _judged_in_words, _searched, _compared)


def other_labels(number):
    """Judge a model by labels of another type: refused, or if they are equal to its own, judged the same."""
    rng = np.random.default_rng(number)
    own, given = (str(rng.choice(list(FORMS))) for _ in range(2))
    own = "booleans" if own == "objects" else own  # scikit-learn does not fit these
    function = FUNCTIONS[number % len(FUNCTIONS)]
    X, groups = rng.normal(size=(300, 3)), rng.integers(0, 3, 300)
    y = (X[:, 0] + rng.logistic(size=300) > 0).astype(int)
    labels = FORMS[own](y)
    if number % 8 < 4:
        model = LogisticRegression().fit(X, labels)
    else:
        model = gd.GroupDROClassifier(alpha=1e-2).fit(X, labels, groups=groups)
    case = f"{type(model).__name__} of {own}, judged by {given}, {function.__name__}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gd.UselessModelWarning)
        if own == given or {own, given} <= set(NUMBERS):
            assert function(model, X, FORMS[given](y), groups) == function(model, X, labels, groups), case
            return
        try:
            found = function(model, X, FORMS[given](y), groups)
        except ValueError as error:
            found = str(error)
            if "label" in found or "class" in found:
                return
    raise AssertionError(f"{case}: {found}")


# ---------------------------------------------------------------------- starts far off

LINKS = (
    (gd.losses.Poisson(), PoissonLoss()),
    (gd.losses.Gamma(), GammaLoss()),
    (gd.losses.Tweedie(1.5), TweedieLoss(1.5)),
)


def far_start(number):
    """Start a fit with a log link far from its optimum: no start is replaced by a worse one."""
    rng = np.random.default_rng(number)
    loss, plain = LINKS[number % len(LINKS)]
    n, d, m = int(rng.integers(20, 200)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    X, groups, size = rng.normal(size=(n, d)), np.arange(n) % m, rng.uniform(-10, 14)
    slopes = 0.5 * rng.normal(size=d)
    means = np.exp(size + X @ slopes)
    y = rng.poisson(means).astype(float) if number % 3 != 1 else means * rng.gamma(2.0, 0.5, n)
    if not y.any():
        y[0] = 1.0
    w = np.append(slopes, size) + rng.normal(size=d + 1) * 10.0 ** rng.uniform(-3, 1.5) * (rng.random(d + 1) < 0.7)
    data = gd.GroupedData.from_arrays(X, y, groups)
    problem = gd.Problem(data, loss, gd.domains.L2Domain(penalty=1e-3), fit_intercept=True)
    with np.errstate(over="ignore", invalid="ignore"):
        losses = plain.value(X @ w[:-1] + w[-1], y)
        given = problem.objective(w, np.bincount(groups, losses) / np.bincount(groups))
    solver = ("sqp", "aleg", "auto")[number // 3 % 3]
    first, usual = (gd.solve(problem, solver, w=start, max_passes=1).trace[0].upper for start in (w, None))
    case = f"{loss!r}, {solver}: {first} after a start of {given}, {usual} without"
    assert not first > given * (1.0 + 1e-9), case
    assert first <= usual * (1.0 + 1e-9), case


def _in_turn(case):
    def run(count, seed, jobs):
        return tally_cases(case, range(10_000 * seed, 10_000 * seed + count), jobs)

    return run


def _run_skewed(count, seed, jobs):
    # A part of the settings takes some from all over them.
    numbers = [(25 * k) % len(SETTINGS) + len(SETTINGS) * seed for k in range(count)]
    tally = tally_cases(skewed, numbers, jobs)
    tally.figures.append(f"{_PART} data sets each")
    return tally


CHECKS = [
    Check(
        "skewed losses",
        "intervals of quantile losses, errors and own metrics hold where losses are skewed or discrete",
        _run_skewed,
        full=len(SETTINGS),
        ci=3,
    ),
    Check(
        "useless contenders",
        "constant and random classifiers among the models of a comparison are not recommended",
        _in_turn(useless),
        full=400,
        ci=8,
    ),
    Check(
        "other labels",
        "labels of another type than the model's are refused, unless they are equal",
        _in_turn(other_labels),
        full=400,
        ci=24,
    ),
    Check(
        "far starts",
        "a start far off under a log link is never replaced by a worse one",
        _in_turn(far_start),
        full=600,
        ci=30,
    ),
]
