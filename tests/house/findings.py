"""What a field test found wrong, tried again: one line per finding.

    python -m tests.house.findings

Exit status 1 if any is wrong. Exceptions are lines as well, so that it also runs on older versions of the package.
"""

import contextlib
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LogisticRegression, QuantileRegressor
from sklearn.tree import DecisionTreeClassifier

import groupdro as gd
from groupdro.losses import Poisson, Quantile
from tests.distributed.thread_comm import run_workers

__all__ = ["FINDINGS", "Finding", "try_again"]

Outcome = tuple[Any, bool]  # what is observed, and whether it is right


class Finding(NamedTuple):
    """What was wrong, and the function that tries it again."""

    id: str
    text: str
    run: Callable[[], Outcome]


def try_again(finding: Finding) -> Outcome:
    """Return what is observed and whether it is right; an exception is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return finding.run()
        except Exception as error:
            return f"{type(error).__name__}: {error}", False


def _refusal(call: Callable[[], Any], *parts: str) -> Outcome:
    """Return whether a call is refused by a message with certain parts."""
    try:
        found = call()
    except (TypeError, ValueError) as error:
        return str(error), all(part in str(error) for part in parts)
    return f"no error, but {getattr(found, 'message', type(found).__name__)}", False


# ---------------------------------------------------------------------- data


class Rows(NamedTuple):
    """Rows, labels and groups; `amounts` are other labels of the same rows."""

    X: Any
    y: Any
    groups: Any
    amounts: Any


@cache
def rows() -> Rows:
    """Return 1,200 rows of three groups."""
    rng = np.random.default_rng(0)
    groups, X = rng.choice(list("abc"), 1200), rng.normal(size=(1200, 3))
    y = (X[:, 0] + rng.logistic(size=1200) > 1).astype(int)
    return Rows(X, y, groups, np.exp(X[:, 0] + rng.normal(size=1200)))


@cache
def halves() -> tuple[Rows, Rows]:
    """Return training and held-out rows."""
    first, second = (Rows(*(column[part] for column in rows())) for part in (slice(600), slice(600, None)))
    return first, second


@cache
def logistic() -> LogisticRegression:
    train, _ = halves()
    return LogisticRegression().fit(train.X, train.y)


@cache
def few_positive() -> Rows:
    """Return held-out rows with few positive ones in group a."""
    _, test = halves()
    kept = (test.groups != "a") | (test.y == 0) | (test.X[:, 0] < -0.3)
    return Rows(*(column[kept] for column in test))


ALWAYS = {"yes": DummyClassifier(strategy="constant", constant=1)}


def compare_with_yes(**options: Any) -> Any:
    X, y, groups, _ = rows()
    return gd.compare(X, y, groups, models=ALWAYS, cv=None, **options)


# ---------------------------------------------------------------------- statistics


def quantile_intervals() -> Outcome:
    level = 0.95
    best, misses, silent = -np.log(1.0 - level), 0, 0
    truth = (1.0 - level) * best  # the pinball loss at the quantile of an exponential distribution
    for seed in range(40):
        y, X = np.random.default_rng(seed).exponential(size=500), np.zeros((500, 1))
        model = DummyRegressor(strategy="constant", constant=best).fit(X, y)
        report = gd.group_report(model, X, y, np.arange(500) % 5, loss=Quantile(level))
        missed, judged = _missed(report, "risk", truth)
        misses, silent = misses + missed, silent + (judged == 0)
    return f"{misses} of 40 data sets miss, {silent} without a judged group", misses <= 4


def _missed(report: Any, name: str, truth: float) -> tuple[bool, int]:
    """Return whether an interval misses, and how many there are."""
    low, high = (np.array(report.columns[f"{name}_{end}"], dtype=float) for end in ("low", "high"))
    judged = np.array(report.judged) & ~np.isnan(low)
    return bool(((truth < low) | (high < truth))[judged].any()), int(judged.sum())


class Zero(RegressorMixin, BaseEstimator):
    """A regressor that knows the centre of all rows, zero."""

    def fit(self, X: Any, y: Any) -> "Zero":
        self.n_features_in_ = 1
        return self

    def predict(self, X: Any) -> Any:
        return np.zeros(len(X))


def large_error(y_true: Any, y_pred: Any) -> float:
    """Return minus the 90% quantile of the absolute errors."""
    return -float(np.quantile(np.abs(y_true - y_pred), 0.9))


def own_metric() -> Outcome:
    truth, held, silent = -2.015048, 0, 0  # minus the 95% quantile of the t distribution with five degrees
    for seed in range(60):
        y, X = np.random.default_rng(seed).standard_t(5, size=500), np.zeros((500, 1))
        model = Zero().fit(X, y)
        report = gd.group_report(
            model, X, y, np.arange(500) % 5, metrics={"tail": large_error}, n_bootstrap=200, random_state=seed
        )
        missed, judged = _missed(report, "tail", truth)
        held, silent = held + (not missed), silent + (judged == 0)
    return f"{held} of 60 data sets hold, {silent} without a judged group", held >= 51


def null_of_left_tails() -> Outcome:
    found = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        hot = rng.random(600) < 0.2
        losses = np.where(hot, 2.0 - rng.lognormal(-0.5, 1.0, 600), 1.0 + 0.1 * rng.normal(size=600))  # all of mean 1
        columns = np.column_stack([hot, rng.normal(size=(600, 3))])
        found += bool(gd.find_groups(losses=losses, columns=columns, n_bootstrap=300, random_state=seed).rules)
    return f"{found} of 60 nulls report something", found <= 6


def scaled_losses(size: float) -> Callable[[], Outcome]:
    def run() -> Outcome:
        rng = np.random.default_rng(0)
        columns = rng.normal(size=(2000, 3))
        losses = rng.exponential(size=2000) * np.where(columns[:, 0] > 1, 3.0, 1.0)
        found = gd.find_groups(losses=losses * size, columns=columns)
        return f"{len(found.rules)} groups: {found.message}", len(found.rules) > 0

    return run


def absurd_checkpoint() -> Outcome:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y, groups = (X[:, 0] + rng.normal(size=200) > 0).astype(int), np.arange(200) % 2
    with tempfile.TemporaryDirectory() as folder:
        model = gd.GroupDROClassifier(alpha=1e-2, tol=1e-9, checkpoint_dir=folder, max_passes=3)
        model.fit(X, y, groups=groups)
        path = os.path.join(folder, os.listdir(folder)[0])
        with np.load(path) as stored:
            parts = dict(stored)
        for name in ("w", "best_w"):
            parts[name] = np.full_like(parts[name], 1e300)
        np.savez(path, **parts)
        model.set_params(max_passes=1000).fit(X, y, groups=groups)
    return model.status_, model.status_ == "converged"


def class_weight(given: Any) -> Callable[[], Outcome]:
    X, y, groups, _ = rows()
    fit = gd.GroupDROClassifier(class_weight=given).fit
    return lambda: _refusal(lambda: fit(X, y, groups=groups), "class_weight must be", repr(given))


def missing_booleans() -> Outcome:
    X, y, groups, _ = rows()
    labels = pd.Series(y == 1).astype("boolean").where(X[:, 0] < 2).array
    return _refusal(lambda: gd.GroupDROClassifier().fit(X, labels, groups=groups), "y has missing values")


def infinite_metric() -> Outcome:
    _, test = halves()
    own = {"own": lambda true, predicted: np.inf}
    return _refusal(lambda: gd.group_report(logistic(), *test[:3], metrics=own, n_bootstrap=20), "own", "infinite")


def lists_as_columns() -> Outcome:
    _, test = halves()
    columns = pd.DataFrame({"a": [["x"]] * len(test.y)})
    outcome = _refusal(lambda: gd.find_groups(logistic(), test.X, test.y, columns=columns), "columns['a']")
    return outcome[0], outcome[1] and "groups has" not in outcome[0]


def many_groups_by_recall() -> Outcome:
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(6000, 3)), rng.permutation(np.repeat(np.arange(48), 125))
    y = (X[:, 0] + rng.logistic(size=6000) > 2 - groups / 48).astype(int)
    y[groups < 4] = 0
    y[np.unique(groups, return_index=True)[1]] = 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gd.compare(X, y, groups, metrics=["recall"], cv=None)
    told = sorted({str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)})
    return told or "no warning of arithmetic", not told


# ---------------------------------------------------------------------- judging models


def useless_by_rates() -> Outcome:
    found = compare_with_yes(metrics=["recall", "false_positive_rate"])
    return found.verdict, found.recommended != "yes"


def useless_by_recall_then_loss() -> Outcome:
    found = compare_with_yes(metrics=["recall", "log_loss"])
    return f"recommended: {found.recommended}", found.recommended != "yes"


def floor_of_another_metric() -> Outcome:
    found = compare_with_yes(metrics="recall", floor={"precision": 0.3})
    return found.verdict, found.recommended != "yes"


def selection_rate_ranks() -> Outcome:
    return _refusal(lambda: compare_with_yes(metrics="selection_rate").verdict, "'selection_rate'")


def price_in_second_metric() -> Outcome:
    X, y, groups, _ = rows()
    found = gd.compare(X, np.where(groups == "a", 1 - y, y), groups, metrics=["risk", "recall"], cv=None)
    return found.verdict, found.recommended != "ERM" and "recall" in found.verdict


def unknown_labels(function: Callable[..., Any], *, groups: bool) -> Callable[[], Outcome]:
    def run() -> Outcome:
        _, test = halves()
        more = (test.groups,) if groups else ()
        y = np.where(test.y == 1, "yes", "no")
        return _refusal(lambda: function(logistic(), test.X, y, *more), "y has the labels", "classes are [0, 1]")

    return run


def worst_of_second_metric() -> Outcome:
    train, _ = halves()
    held_out, found = tuple(few_positive()[:3]), []
    for metrics in (["log_loss", "recall"], ["recall", "log_loss"]):
        compared = gd.compare(*train[:3], held_out=held_out, metrics=metrics, cv=None)
        found.append(compared.columns["worst_recall"][compared.columns["model"].index("ERM")])
    return found, found[0] == found[1] > 0


def judged_groups_first() -> Outcome:
    _, test = halves()
    groups = test.groups.astype(object)
    groups[np.argmax(test.y - logistic().predict_proba(test.X)[:, 1])] = "tiny"
    names = gd.group_report(logistic(), test.X, test.y, groups).to_frame()["group"].tolist()
    return names, names[-1] == "tiny"


def denominators() -> Outcome:
    test = few_positive()
    report = gd.group_report(logistic(), *test[:3], metrics="recall")
    shown = report.by_group["a"].get("n_recall")
    return f"n_recall of group a: {shown}", shown == int(((test.groups == "a") & (test.y == 1)).sum())


def sums_of_ratio() -> Outcome:
    X, _, groups, y = rows()
    model = QuantileRegressor(alpha=0).fit(X, y)
    columns = list(gd.group_report(model, X, y, groups, metrics=["mae", "actual_over_expected"]).columns)
    return [name for name in columns if name in ("actual", "expected")], {"actual", "expected"} <= set(columns)


def target_leak() -> Outcome:
    train, test = halves()
    model = DecisionTreeClassifier().fit(np.c_[train.X, train.y], train.y)
    message = gd.group_report(model, np.c_[test.X, test.y], test.y, test.groups).message
    return message, "leak" in message


def held_out_is_training() -> Outcome:
    X, y, groups, _ = rows()
    verdict = gd.compare(X, y, groups, held_out=(X, y, groups), cv=None).verdict
    return verdict, "training rows" in verdict


def groups_are_the_target() -> Outcome:
    _, test = halves()
    message = gd.group_report(logistic(), test.X, test.y, test.y, metrics="roc_auc").message
    return message, "one class only" in message


def metric_called_risk() -> Outcome:
    _, test = halves()
    report = {"metrics": {"risk": "accuracy"}}
    return _refusal(lambda: gd.group_report(logistic(), *test[:3], **report), "'risk'")


def negative_zero() -> Outcome:
    rng = np.random.default_rng(0)
    Z = np.column_stack([rng.integers(0, 2, 6000), rng.normal(size=6000)])
    y = (rng.random(6000) < np.where(Z[:, 0], 0.05, 1.0 / (1.0 + np.exp(-2.0 * Z[:, 1])))).astype(int)
    W = np.column_stack([Z, Z[:, 0] * Z[:, 1]])
    message = gd.find_groups(LogisticRegression(C=1e4).fit(W, y), W, y, metrics="recall").message
    return message, "recall 0 instead" in message


def foreign_quantile_model() -> Outcome:
    X, _, groups, y = rows()
    model = QuantileRegressor(quantile=0.9, alpha=0).fit(X, y)
    rest = y - model.predict(X)
    pinball = float(np.maximum(0.9 * rest, -0.1 * rest).mean())
    risk = gd.group_report(model, X, y, groups).overall["risk"]
    return f"risk {risk:.4g}, pinball loss {pinball:.4g}", bool(np.isclose(risk, pinball))


# ---------------------------------------------------------------------- code


def start_far_off() -> Outcome:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = rng.poisson(np.exp(12 + 0.3 * X[:, 0])).astype(float)
    data = gd.GroupedData.from_arrays(X, y, np.arange(200) % 2)
    problem = gd.Problem(data, Poisson(), gd.domains.L2Domain(penalty=1e-3), fit_intercept=True)
    given, none = (
        gd.solve(problem, "sqp", w=w, max_passes=1).trace[0].upper for w in (np.array([-0.3, 0.0, 12.0]), None)
    )
    return f"first upper bound {given:.4g}, without a start {none:.4g}", given <= none


def tolerance_of_quantiles() -> Outcome:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 5))
    y = X[:, 0] + rng.standard_t(3, size=600)
    model = gd.GroupDRORegressor(loss="absolute_error", tol=1e-4).fit(X, y, groups=np.arange(600) % 3)
    return model.solver_, "1e-09" not in model.solver_


def d2_of_quantiles() -> Outcome:
    X, _, groups, y = rows()
    model = gd.GroupDRORegressor(loss=Quantile(0.9)).fit(X, y, groups=groups)
    score, reported = model.score(X, y), gd.group_report(model, X, y, groups, metrics="d2").overall["d2"]
    return f"score {score:.4f}, d2 of the report {reported:.4f}", bool(np.isclose(score, reported))


# ---------------------------------------------------------------------- last layers


@cache
def images() -> tuple[Any, Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    X, y = torch.randn(400, 8, generator=generator), torch.arange(400) % 2
    X[:, 0] += y
    return X, y, torch.arange(400) // 2 % 2


def network(kind: str) -> Any:
    """Return a small network: "plain", its output times ten ("scaled"), or a convolution at its end ("conv")."""
    import torch

    torch.manual_seed(0)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Linear(8, 4)
            self.fc = torch.nn.Conv2d(4, 2, 1) if kind == "conv" else torch.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            z = torch.relu(self.body(x))
            if kind == "conv":
                return self.fc(z[:, :, None, None]).flatten(1)
            return self.fc(z) * (10.0 if kind == "scaled" else 1.0)

    return Network()


def retrain(kind: str, **options: Any) -> Any:
    from groupdro.torch import retrain_last_layer

    return retrain_last_layer(network(kind), [images()], alpha=1e-2, **options)


def layer_without_intercept() -> Outcome:
    found = retrain("plain", estimator=gd.GroupDROClassifier(fit_intercept=False))
    intercept = np.ravel(found.classifier.intercept_)
    return f"intercept {intercept}", not intercept.any()


def scaled_network() -> Outcome:
    return _refusal(lambda: retrain("scaled", layer="fc"), "output", "'fc'", "factor")


def convolution_as_head() -> Outcome:
    return _refusal(lambda: retrain("conv"), "'fc'", "Conv2d")


def bfloat16() -> Outcome:
    X, y, groups = images()
    return _refusal(lambda: gd.GroupDROClassifier().fit(X.bfloat16(), y, groups=groups), "X.float()")


def huge_value() -> Outcome:
    from groupdro.torch import retrain_last_layer

    X, y, groups = images()
    X = X.clone()
    X[3, 2] = 1e30
    return _refusal(lambda: retrain_last_layer(network("plain"), [(X, y, groups)], alpha=1e-2), "1e+")


def verbose_once() -> Outcome:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y, told = (X[:, 0] + rng.normal(size=200) > 0).astype(int), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(told):
        store = gd.GroupedStore.write_arrays(os.path.join(folder, "rows"), X, y, np.arange(200) % 4)
        run_workers(2, lambda comm: gd.GroupDROClassifier(verbose=2, alpha=1e-2).fit(store.shard(comm)).n_passes_)
    epochs = [line.split(",")[0] for line in told.getvalue().splitlines() if line.startswith("epoch ")]
    return f"{len(epochs)} lines for {len(set(epochs))} epochs", 0 < len(epochs) == len(set(epochs))


FINDINGS = [
    Finding(*row)
    for row in (
        ("S1", "intervals of quantile models", quantile_intervals),
        ("S2", "intervals of a skewed metric of one's own", own_metric),
        ("S3", "find_groups where groups differ in skewness only", null_of_left_tails),
        ("S4 large", "find_groups with losses of 1e160", scaled_losses(1e160)),
        ("S4 small", "find_groups with losses of 1e-200", scaled_losses(1e-200)),
        ("S4 checkpoint", "a checkpoint with an absurd finite model", absurd_checkpoint),
        ("S4 auto", "class_weight='auto'", class_weight("auto")),
        ("S4 list", "class_weight=[1, 2]", class_weight([1, 2])),
        ("S4 NA", "nullable booleans with NA", missing_booleans),
        ("S4 inf", "a metric that returns inf", infinite_metric),
        ("S4 columns", "columns with lists", lists_as_columns),
        ("S4 overflow", "warnings of compare by recall with 48 groups", many_groups_by_recall),
        ("J1 rates", "always yes by recall, then false positive rate", useless_by_rates),
        ("J1 loss", "always yes by recall, then log loss", useless_by_recall_then_loss),
        ("J1 floor", "always yes by recall with a floor of precision", floor_of_another_metric),
        ("J1 selection", "models ranked by selection rate", selection_rate_ranks),
        ("J1 price", "the second metric in the verdict", price_in_second_metric),
        ("J2 report", "labels unknown to the model in group_report", unknown_labels(gd.group_report, groups=True)),
        ("J2 find", "labels unknown to the model in find_groups", unknown_labels(gd.find_groups, groups=False)),
        ("J2 headroom", "labels unknown to the model in headroom", unknown_labels(gd.headroom, groups=True)),
        ("J3", "worst recall in either order of metrics", worst_of_second_metric),
        ("J5", "order of groups, one of a single row", judged_groups_first),
        ("J6 rows", "the denominator of recall", denominators),
        ("J6 sums", "both sums of actual over expected", sums_of_ratio),
        ("J12a", "a target leak", target_leak),
        ("J12b", "held_out that equals the training rows", held_out_is_training),
        ("J12c", "groups that are the target", groups_are_the_target),
        ("J12d", "metrics={'risk': 'accuracy'}", metric_called_risk),
        ("J12e", "negative zero in messages", negative_zero),
        ("J12f", "the loss of a foreign quantile model", foreign_quantile_model),
        ("C1", "a good start of a Poisson fit of mean e^12", start_far_off),
        ("C2", "the tolerance that a quantile fit prints", tolerance_of_quantiles),
        ("C4", "D2 of quantiles", d2_of_quantiles),
        ("L1", "a last layer without intercept", layer_without_intercept),
        ("L2", "a network that multiplies its layer's output", scaled_network),
        ("L3", "a convolution as the head", convolution_as_head),
        ("L5 bfloat16", "bfloat16 as X", bfloat16),
        ("L5 huge", "a value of 1e30 in a network's input", huge_value),
        ("verbose-once", "lines of progress with two workers", verbose_once),
    )
]


def main() -> int:
    wrong = 0
    for finding in FINDINGS:
        observed, right = try_again(finding)
        wrong += not right
        text = " ".join(str(observed).split())
        print(f"{finding.id:13} | {finding.text} | {text[:160]} | {'right' if right else 'WRONG'}", flush=True)
    print(f"{len(FINDINGS)} findings, {wrong} wrong; groupdro of {os.path.dirname(gd.__file__)}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
