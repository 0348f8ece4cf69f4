"""Fits that are interrupted from outside: a process that makes them one after another, and judges what each returns.

A line of standard input names a fit. The process answers with the seconds that the fit takes, and begins it. When the
fit has come back, it prints a JSON object: when that was, on the clock that all processes share and in its own CPU
seconds, and what is wrong with the result. SIGINT is a KeyboardInterrupt during a fit and ignored otherwise.
"""

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np
import scipy.sparse as sp

import groupdro as gd
from tests.timing import HUNG

__all__ = ["FITS", "TOL", "faults", "main"]

TOL = 1e-12  # out of reach for most of the fits
COMPILING = HUNG  # seconds for a first epoch, in which all kernels are compiled


# ---------------------------------------------------------------------- data


@cache
def dense(n, d, m, loss="logistic"):
    rng = np.random.default_rng(n + d + m)
    X = rng.standard_normal((n, d), dtype=np.float32).astype(np.float64)
    groups = rng.integers(0, m, size=n) if m < n // 8 else np.repeat(np.arange(m), n // m)
    slopes = rng.normal(size=d) / np.sqrt(d) + 0.5 * rng.normal(size=(min(m, 50), d)) / np.sqrt(d)
    scores = np.einsum("nd,nd->n", X[:, :50], slopes[groups % len(slopes), :50])
    X *= np.geomspace(1.0, 0.03, d, dtype=X.dtype)  # columns that no solver gets done with at once
    if loss == "squared":
        y = scores + rng.normal(size=n)
    elif loss == "softmax":
        y = np.digitize(scores + 0.5 * rng.normal(size=n), [-0.8, -0.3, 0.0, 0.3, 0.8])
    else:
        y = np.where(scores + 0.5 * rng.logistic(size=n) > 0, 1.0, -1.0)
    return X, y, groups


@cache
def sparse(n, d, m, entries=30):
    rng = np.random.default_rng(n + d)
    columns = rng.zipf(1.3, size=n * entries) % d
    rows = np.repeat(np.arange(n), entries)
    X = sp.csr_array((rng.random(n * entries), (rows, columns)), shape=(n, d))
    groups = rng.integers(0, m, size=n)
    scores = X @ rng.normal(size=d) + 0.3 * groups * X[:, [1]].toarray().ravel()
    return X, np.where(scores - np.median(scores) + rng.logistic(size=n) > 0, 1.0, -1.0), groups


def table(kind, *shape):
    return sparse(*shape) if kind == "sparse" else dense(*shape)


@cache
def problem(kind, n, d, m, loss="logistic"):
    losses = {"squared": gd.losses.Squared(), "softmax": gd.losses.Softmax(6)}
    data = gd.GroupedData.from_arrays(*table(kind, n, d, m, *([] if kind == "sparse" else [loss])))
    return gd.Problem(data, losses.get(loss, gd.losses.Logistic()), gd.domains.L2Domain(radius=3.0, penalty=1e-4))


# ---------------------------------------------------------------------- fits


class Watch:
    """A callback that remembers the last pair of bounds that was certified, and may end the fit after an epoch."""

    def __init__(self, *, brief=False):
        self.latest, self.brief = None, brief

    def __call__(self, progress):
        self.latest = progress.latest
        return self.brief and progress.latest.epoch > 0


@dataclass(frozen=True)
class Solved:
    """A run of a solver."""

    make: Callable[[], gd.solvers.Solver]
    shape: tuple[object, ...]
    threads: int = 1
    longest: float = 2.0  # seconds after which an interrupt may still come

    def prepare(self):
        problem(*self.shape)

    def start(self, watch):
        return gd.solve(problem(*self.shape), self.make(), tol=TOL, max_passes=1e9, callbacks=[watch])

    def bounds(self, result):
        """Return status, bounds, and the upper bound recomputed from the definition."""
        about, w = problem(*self.shape), result.w
        risks, minima = risks_of(self.shape, w), result.group_minima
        upper = float((risks - (0.0 if minima is None else minima.lower)).max()) + about.domain.penalty_at(w)
        return result.status.name.lower(), result.upper_bound, result.lower_bound, upper, result.q


@dataclass(frozen=True)
class Fitted:
    """A fit of an estimator."""

    make: Callable[..., object]
    shape: tuple[object, ...]
    options: dict[str, object] = field(default_factory=dict)
    threads: int = 1
    longest: float = 2.0  # seconds after which an interrupt may still come

    def prepare(self):
        table(*self.shape)

    def start(self, watch):
        X, y, groups = table(*self.shape)
        limits = {"tol": TOL, "max_passes": 1e9}
        model = self.make(**{**limits, **self.options}, callbacks=[watch], random_state=0)
        return model.fit(X, y, groups=groups)

    def bounds(self, model):
        """Return the same of an estimator; of excess risks, whose lower minima it does not report, a lower estimate."""
        loss = "huber" if model.loss == "huber" else None
        coef = model.coef_.T if model.coef_.ndim == 2 and len(model.coef_) > 1 else model.coef_.ravel()
        risks = risks_of(self.shape, coef, model.intercept_, loss)
        regret = model.objective == "excess_risk"
        upper = float((risks - (model.group_minima_ if regret else 0.0)).max())
        upper += 0.5 * model.alpha * float((coef**2).sum())
        told = max(upper, model.upper_bound_) if regret else model.upper_bound_
        return model.status_, told, model.lower_bound_, upper if not regret else told, model.group_weights_


USUAL = ("dense", 60_000, 200, 10)
SMALL = ("dense", 20_000, 50, 10)
LARGE = ("dense", 300_000, 300, 10)
SQUARES = ("dense", 60_000, 200, 10, "squared")
LARGE_SQUARES = ("dense", 300_000, 300, 2, "squared")
CLASSES = ("dense", 60_000, 200, 10, "softmax")
TEXT = ("sparse", 60_000, 5_000, 10)
MANY = ("dense", 300_000, 10, 100_000)

newton, lbfgs = partial(gd.solvers.GroupSQP, "newton"), partial(gd.solvers.GroupSQP, "lbfgs")
classifier, regressor = gd.GroupDROClassifier, gd.GroupDRORegressor
FITS = {
    "aleg small": Solved(gd.solvers.ALEG, SMALL, longest=0.6),
    "classifier small": Fitted(classifier, SMALL, {"objective": "excess_risk"}, longest=0.6),
    "aleg": Solved(gd.solvers.ALEG, USUAL),
    "classifier": Fitted(classifier, USUAL),
    "aleg-theory": Solved(gd.solvers.ALEGTheory, USUAL),
    "alem": Solved(gd.solvers.ALEM, USUAL),
    "auto": Solved(gd.solvers.Auto, USUAL),
    "sqp newton": Solved(newton, USUAL),
    "sqp lbfgs": Solved(lbfgs, USUAL),
    "auto squares": Solved(gd.solvers.Auto, SQUARES),
    "aleg softmax": Solved(gd.solvers.ALEG, CLASSES),
    "alem softmax": Solved(gd.solvers.ALEM, CLASSES),
    "sqp newton softmax": Solved(newton, CLASSES),
    "aleg sparse": Solved(gd.solvers.ALEG, TEXT),
    "alem sparse": Solved(gd.solvers.ALEM, TEXT),
    "sqp lbfgs sparse": Solved(lbfgs, TEXT),
    "aleg two threads": Solved(gd.solvers.ALEG, USUAL, threads=2),
    "alem two threads": Solved(gd.solvers.ALEM, USUAL, threads=2),
    "aleg large": Solved(gd.solvers.ALEG, LARGE, longest=8.0),
    "alem large": Solved(gd.solvers.ALEM, LARGE, longest=8.0),
    "sqp newton large": Solved(newton, LARGE, longest=8.0),
    "auto large squares": Solved(gd.solvers.Auto, LARGE_SQUARES, longest=8.0),
    "aleg many groups": Solved(gd.solvers.ALEG, MANY),
    "sqp many groups": Solved(newton, MANY, longest=8.0),
    "alem many groups": Solved(gd.solvers.ALEM, MANY, longest=8.0),
    "sqp newton wide": Solved(newton, ("dense", 6_000, 1_900, 5), longest=8.0),
    "auto wide softmax": Solved(gd.solvers.Auto, ("dense", 10_000, 2_000, 5, "softmax"), longest=8.0),
    "auto wide squares": Solved(gd.solvers.Auto, ("dense", 6_000, 1_900, 1, "squared"), longest=8.0),
    "classifier of regrets": Fitted(classifier, USUAL, {"objective": "excess_risk"}),
    "classifier aleg": Fitted(classifier, USUAL, {"solver": "aleg"}),
    "classifier without bounds": Fitted(classifier, SMALL, {"alpha": 0.0, "max_passes": 3}, longest=8.0),
    "classifier sparse": Fitted(classifier, TEXT),
    "classifier softmax": Fitted(classifier, CLASSES),
    "regressor": Fitted(regressor, SQUARES),
    "regressor huber": Fitted(regressor, SQUARES, {"loss": "huber"}),
}


# ---------------------------------------------------------------------- judgement


def risks_of(shape, coef, intercept=None, loss=None):
    """Return every group's average loss, from the definition."""
    X, y, groups = table(*shape)
    outputs = np.asarray(X @ coef) + (0.0 if intercept is None else intercept)
    size, delta = np.abs(outputs - y) if outputs.ndim == 1 else np.empty(0), 1.35
    losses = {
        "huber": lambda: np.where(size <= delta, 0.5 * size**2, delta * (size - 0.5 * delta)),
        "squared": lambda: 0.5 * size**2,
        "softmax": lambda: np.logaddexp.reduce(outputs, axis=1) - outputs[np.arange(len(y)), y],
        "logistic": lambda: np.logaddexp(0.0, -y * outputs),
    }[loss or ("logistic", *shape[4:5])[-1]]()
    return np.bincount(groups, losses) / np.bincount(groups)


def faults(status, upper, lower, recomputed, q, latest, known):
    """Say what is wrong with bounds that an interrupted fit returned.

    Parameters
    ----------
    status, upper, lower, recomputed, q : str, float, float, float, ndarray
        What it returned, and its upper bound anew.
    latest : TraceRow or None
        The last epoch that a callback saw.
    known : list of float
        The best lower and upper bound of the same problem that any fit found, which are brought up to date.

    Returns
    -------
    list of str
        Sentences.
    """
    wrong, slack = [], 1e-9 * max(1.0, abs(upper))
    if abs(upper - recomputed) > slack:
        wrong.append(f"upper bound {upper!r}, recomputed {recomputed!r}")
    if lower > upper + slack:
        wrong.append(f"lower bound {lower!r} above the upper {upper!r}")
    if status == "converged" and upper - lower > TOL * abs(upper) + slack:
        wrong.append(f"converged at a gap of {upper - lower!r}")
    if status not in ("interrupted", "converged", "stalled", "pass_limit"):
        wrong.append(f"status {status}")
    if abs(q.sum() - 1.0) > 1e-9 or (q < 0).any():
        wrong.append("group weights outside the simplex")
    if latest is not None and (upper > latest.upper + slack or lower < latest.lower - slack):
        wrong.append(f"[{lower}, {upper}] is worse than [{latest.lower}, {latest.upper}], which was certified before")
    known[:] = max(known[0], lower), min(known[1], upper)
    if known[0] > known[1] + slack:
        wrong.append(f"a lower bound of {known[0]!r} and an upper one of {known[1]!r} were both called certified")
    return wrong


class Patience:
    """Turns a signal into KeyboardInterrupt inside a `with` statement, and ignores it outside."""

    def __init__(self, number):
        self.number = number

    def __enter__(self):
        signal.signal(self.number, signal.default_int_handler)

    def __exit__(self, *_):
        signal.signal(self.number, signal.SIG_IGN)


def attempt(fit, number, *, brief=False):
    """Make a fit that a signal may interrupt, and return what came of it: the result or None, and the callback."""
    os.environ["OMP_NUM_THREADS"] = str(fit.threads)
    watch, made = Watch(brief=brief), None
    try:
        with Patience(number):
            made = fit.start(watch)
    except KeyboardInterrupt:
        pass
    return made, watch


def serve():
    """Make the fits that standard input names."""
    known, lengths = {}, {}
    for line in sys.stdin:
        name = line.strip()
        fit = FITS[name]
        if name not in lengths:
            fit.prepare()
            for limit in (COMPILING, fit.longest):
                begun = time.perf_counter()
                signal.setitimer(signal.ITIMER_REAL, limit)
                attempt(fit, signal.SIGALRM, brief=limit == COMPILING)
                signal.setitimer(signal.ITIMER_REAL, 0.0)
                lengths[name] = min(time.perf_counter() - begun, limit)
        print(json.dumps(lengths[name]), flush=True)
        made, watch = attempt(fit, signal.SIGINT)
        ended, spent = time.monotonic(), time.process_time()
        if made is not None:
            answer = fit.bounds(made)
            wrong = faults(*answer, watch.latest, known.setdefault(name, [-np.inf, np.inf]))
        else:
            answer = ("nothing",)
            wrong = [] if watch.latest is None else [f"the pair of epoch {watch.latest.epoch} was certified, and lost"]
        print(json.dumps({"ended": ended, "spent": spent, "status": answer[0], "wrong": wrong}), flush=True)


def main():
    """Begin with both signals ignored."""
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    serve()
