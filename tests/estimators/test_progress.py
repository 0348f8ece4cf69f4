import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.fixes import parse_version

from groupdro import GroupDROClassifier, GroupDRORegressor, worst_group_scorer
from groupdro.estimators import progress as progress_module
from groupdro.estimators.progress import seconds_left
from groupdro.problem import GroupMinima
from groupdro.run.result import TraceRow
from tests.timing import HUNG

CALLBACKS = parse_version(sklearn.__version__) >= parse_version("1.9")
needs_callbacks = pytest.mark.skipif(not CALLBACKS, reason="scikit-learn has callbacks from 1.9 on")

RNG = np.random.default_rng(0)
N_ROWS = 300
GROUPS = RNG.choice(["east", "north", "west"], N_ROWS, p=[0.2, 0.3, 0.5])
RULES = {"east": (1.5, -0.5, 0.0), "north": (1.0, 1.0, 0.5), "west": (-0.3, 1.0, 1.0)}
X = RNG.standard_normal((N_ROWS, 3))
SCORES = np.array([row @ RULES[name] for row, name in zip(X, GROUPS, strict=True)]) + RNG.standard_normal(N_ROWS)
Y = np.where(SCORES > 0, "yes", "no")
CLASSES = np.digitize(SCORES, [-1.0, 1.0])


def make_model(**params):
    return GroupDROClassifier(**{"solver": "aleg", "tol": 1e-6, "random_state": 0, **params})


def fit(model, y=Y, rows=X):
    return model.fit(rows, y, groups=GROUPS)


def row(seconds, gap, upper=1.0):
    return TraceRow(
        epoch=0, passes=0.0, grad_evals=0, grad_evals_paper=0, seconds=seconds, upper=upper, lower=upper - gap
    )


# ---------------------------------------------------------------------- time left


@pytest.mark.parametrize("n_epochs", [2, 3, 8, 30])
@pytest.mark.parametrize("rate", [0.05, 2.0])
@pytest.mark.parametrize("uneven", [False, True], ids=["even", "uneven"])
def test_the_time_left_of_a_geometric_gap_is_exact(n_epochs, rate, uneven):
    times = np.cumsum(RNG.uniform(0.1, 0.4, n_epochs)) if uneven else 0.25 * np.arange(n_epochs)
    trace = [row(time, 0.5 * np.exp(-rate * time), upper=0.0) for time in times]
    end = np.log(0.5 / 1e-9) / rate
    assert seconds_left(trace, 1e-9) == pytest.approx(end - times[-1], rel=1e-9)


def test_only_the_latest_epochs_tell_the_time_left():
    slow = [row(time, np.exp(-0.001 * time), upper=0.0) for time in range(20)]
    fast = [row(20.0 + time, 0.5 * np.exp(-time), upper=0.0) for time in range(8)]
    assert seconds_left(slow + fast, 1e-6) == pytest.approx(np.log(0.5 / 1e-6) - 7.0)


def test_no_time_is_left_once_the_gap_is_reached():
    assert seconds_left([row(0.0, 1.0), row(1.0, 0.1), row(2.0, 0.01)], 0.1) == 0.0


@pytest.mark.parametrize(
    ("trace", "target"),
    [
        ([], 0.1),
        ([row(0.0, 1.0)], 0.1),
        ([row(0.0, 1.0), row(1.0, 1.0)], 0.1),
        ([row(0.0, 1.0), row(1.0, 2.0)], 0.1),
        ([row(1.0, 1.0), row(1.0, 0.5)], 0.1),
        ([row(0.0, np.inf), row(1.0, 0.5)], 0.1),
        ([row(0.0, np.nan), row(1.0, 0.5)], 0.1),
        ([row(0.0, 1.0), row(1.0, 0.0)], 0.1),
        ([row(0.0, 1.0), row(1.0, 0.5)], 0.0),
    ],
    ids=["empty", "one", "level", "rising", "no-time", "infinite", "nan", "zero", "no-target"],
)
def test_the_time_left_is_unknown_where_the_gap_tells_nothing(trace, target):
    assert np.isnan(seconds_left(trace, target))


def test_a_gap_that_falls_by_rounding_alone_tells_no_time():
    assert np.isnan(seconds_left([row(0.0, 1.0), row(0.01, np.nextafter(1.0, 0.0))], 1e-4))


def test_an_infinite_gap_at_the_start_is_left_out():
    trace = [row(0.0, np.inf), row(1.0, 0.1, upper=0.0), row(2.0, 0.01, upper=0.0)]
    assert seconds_left(trace, 1e-4) == pytest.approx(2.0)


# ---------------------------------------------------------------------- the line

LINE = re.compile(
    r"epoch (?P<epoch>\d+), gap (?P<gap>\S+) of (?P<tol>\S+)(?:, lowering the average|, about (?P<left>\d+) s left)?, "
    r"worst (?P<what>risk|excess risk) (?P<worst>\S+) \((?P<group>.+?)\), "
    r"(?P<active>\d+) of (?P<groups>\d+) groups active, "
    r"(?P<passes>[\d.]+) passes, (?P<seconds>[\d.]+) s"
)


def lines_of(capsys):
    out, err = capsys.readouterr()
    assert err == ""
    lines = [LINE.fullmatch(line) for line in out.splitlines()]
    assert None not in lines, out
    return lines


def progress_of(names, seconds, gap, risks, q, *, upper=0.5, group_minima=None):
    baseline = GroupMinima.exact(np.zeros(len(names))) if group_minima is None else group_minima
    problem = SimpleNamespace(data=SimpleNamespace(names=names), group_minima=group_minima, baseline=baseline)
    return SimpleNamespace(
        latest=TraceRow(7, 12.34, 0, 0, seconds, upper, upper - gap),
        certificate=SimpleNamespace(problem=problem, group_risks=np.array(risks)),
        state=SimpleNamespace(evaluation=SimpleNamespace(q=np.array(q))),
    )


def test_the_line_is_made_of_risks_gap_weights_and_time():
    lines, names = [], ("east", ("north", 2), 3)
    line = progress_module.ProgressLine(tol=1e-4, write=lines.append)
    line(progress_of(names, 10.0, 0.05, [0.1, 0.5, 0.2], [0.2, 0.8, 0.0]))
    line(progress_of(names, 30.0, 0.0005, [0.1, 0.4, 0.45678912], [0.0005, 0.4995, 0.5]))
    assert lines == [
        "epoch 7, gap 1.0e-01 of 1e-04, worst risk 0.5 (north & 2), 2 of 3 groups active, 12.3 passes, 10.0 s",
        "epoch 7, gap 1.0e-03 of 1e-04, about 10 s left, worst risk 0.4568 (3), 2 of 3 groups active, 12.3 passes, "
        "30.0 s",
    ]


def test_the_worst_excess_risk_is_the_risk_less_the_minimum():
    lines = []
    line = progress_module.ProgressLine(tol=1e-2, write=lines.append)
    minima = GroupMinima.exact(np.array([0.8, 0.25]))
    line(progress_of(("a", "b"), 1.0, 0.05, [0.9, 0.5], [0.0, 1.0], group_minima=minima))
    assert "gap 1.0e-01 of 1e-02, worst excess risk 0.25 (b), 1 of 2 groups active" in lines[0]


def test_a_line_an_epoch_tells_how_the_fit_stands(capsys):
    risks, weights = [], []

    def remember(progress):
        risks.append(progress.certificate.group_risks.copy())
        weights.append(progress.state.evaluation.q.copy())

    model = fit(make_model(verbose=2, callbacks=[remember]))
    lines = lines_of(capsys)
    assert len(lines) > 3
    for line, risk, q in zip(lines, risks, weights, strict=True):
        at = model.trace_[int(line["epoch"])]
        assert float(line["passes"]) == pytest.approx(at.passes, abs=0.06)
        assert line["what"] == "risk"
        assert float(line["worst"]) == pytest.approx(risk.max(), rel=1e-3)
        assert line["group"] == str(model.groups_.tolist()[risk.argmax()])
        assert float(line["gap"]) == pytest.approx(at.gap / at.upper, rel=0.06)
        assert line["tol"] == "1e-06"
        assert int(line["active"]) == (q > 1e-3).sum()
        assert line["groups"] == "3"
        assert float(line["seconds"]) == pytest.approx(at.seconds, abs=0.06)
        left = seconds_left(list(model.trace_[: at.epoch + 1]), 1e-6 * at.upper)
        if at.gap > 1e-6 * at.upper:
            assert np.isnan(left) if line["left"] is None else float(line["left"]) == pytest.approx(left, abs=0.51)
    assert lines[0]["left"] is None
    assert any(line["left"] is not None for line in lines)


def test_every_epoch_has_its_line(capsys):
    model = fit(make_model(verbose=2))
    assert [int(line["epoch"]) for line in lines_of(capsys)] == [at.epoch for at in model.trace_]


def test_the_worst_group_of_the_line_is_the_one_with_the_largest_risk(capsys):
    rows, y = np.zeros((6, 1)), [0, 1, 0, 1, 1, 1]
    groups = ["even", "even", "even", "even", "sure", "sure"]
    rows[-2:] = 1.0
    GroupDROClassifier(verbose=2).fit(rows, y, groups=groups)
    last = lines_of(capsys)[-1]
    assert last["group"] == "even"
    assert float(last["worst"]) == pytest.approx(np.log(2), rel=1e-3)


def test_a_line_of_an_excess_risk_tells_the_regret(capsys):
    fit(make_model(objective="excess_risk", verbose=2, tol=1e-3))
    assert {line["what"] for line in lines_of(capsys)} == {"excess risk"}


def test_verbose_one_prints_a_line_a_second(capsys, monkeypatch):
    clock = [0.0]

    def tick(progress):
        clock[0] = 0.25 * progress.latest.epoch

    monkeypatch.setattr(progress_module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    model = fit(make_model(verbose=1, callbacks=[tick]))
    assert len(model.trace_) > 10
    epochs = [int(line["epoch"]) for line in lines_of(capsys)]
    assert epochs[:3] == [0, 4, 8]
    assert len(epochs) <= len(model.trace_) // 4 + 2


@pytest.mark.parametrize("y", [Y, CLASSES], ids=["two-classes", "three-classes"])
def test_without_verbose_a_fit_is_silent(capfd, y):
    fit(make_model(tol=1e-3), y)
    GroupDRORegressor().fit(X, SCORES, groups=GROUPS)
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------------- callbacks of this package


@pytest.mark.parametrize("solver", ["aleg", "sqp", "auto"])
def test_callbacks_are_called_after_every_epoch(solver):
    seen, too = [], []
    model = fit(make_model(solver=solver, callbacks=[lambda at: seen.append(at.latest), too.append]))
    assert model.status_ == "converged"
    assert tuple(seen) == model.trace_
    assert len(too) == len(seen)


@pytest.mark.parametrize("stop", [True, np.True_], ids=["bool", "numpy"])
def test_a_callback_that_returns_true_stops_the_fit(stop):
    seen = []

    def callback(progress):
        seen.append(progress.latest.epoch)
        return stop if progress.latest.epoch == 3 else None

    model = make_model(callbacks=[callback])
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        fit(model)
    assert model.status_ == "interrupted"
    assert seen == [0, 1, 2, 3]
    assert len(model.trace_) == 4
    assert model.gap_ > 1e-6 * model.upper_bound_
    assert model.lower_bound_ <= fit(make_model()).upper_bound_ <= model.upper_bound_
    assert set(model.predict(X)) == {"no", "yes"}


def test_the_warning_of_a_stopped_fit_points_at_the_call():
    with pytest.warns(ConvergenceWarning) as caught:
        make_model(callbacks=[lambda progress: True]).fit(X, Y, groups=GROUPS)
    assert [warning.filename for warning in caught] == [__file__]


def test_every_callback_is_called_even_where_the_first_stops():
    seen = []
    with pytest.warns(ConvergenceWarning):
        fit(make_model(callbacks=[lambda progress: True, lambda progress: seen.append(progress)]))
    assert len(seen) == 1


def test_an_interrupt_inside_a_fit_keeps_the_best_model():
    def callback(progress):
        if progress.latest.epoch == 2:
            raise KeyboardInterrupt

    model = make_model(callbacks=[callback])
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        fit(model)
    assert model.status_ == "interrupted"
    assert len(model.trace_) == 3


def test_an_error_in_a_callback_reaches_the_caller():
    def callback(progress):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        fit(make_model(callbacks=[callback]))


# ---------------------------------------------------------------------- callbacks of scikit-learn


class Recorder:
    def __init__(self, stop_after=None, raise_after=None):
        self.stop_after, self.raise_after = stop_after, raise_after
        self.events, self.fitted, self.at_end, self.data = [], [], [], []

    def setup(self, estimator, context):
        self.events.append(("setup", context.task_name))

    def teardown(self, estimator, context):
        self.events.append(("teardown", context.task_name))

    def on_fit_task_begin(self, estimator, context, *, X=None, y=None):
        self.events.append(("begin", context.task_name))
        self.data.append((X, y))

    def on_fit_task_end(self, estimator, context, *, X=None, y=None, fitted_estimator=None):
        self.events.append(("end", context.task_name))
        self.data.append((X, y))
        if context.task_name != "epoch":
            self.at_end.append(fitted_estimator)
            return False
        self.fitted.append(fitted_estimator)
        if context.task_id == self.raise_after:
            raise ZeroDivisionError("mine")
        return context.task_id == self.stop_after


FIT = [("setup", "fit"), ("begin", "fit")]
EPOCH = [("begin", "epoch"), ("end", "epoch")]
END = [("end", "fit"), ("teardown", "fit")]


@needs_callbacks
@pytest.mark.parametrize("solver", ["aleg", "sqp", "auto"])
def test_a_callback_sees_the_fit_and_its_epochs_begin_and_end(solver):
    recorder = Recorder()
    fit(make_model(solver=solver).set_callbacks(recorder))
    assert recorder.fitted
    assert recorder.events == FIT + len(recorder.fitted) * EPOCH + END


@needs_callbacks
@pytest.mark.parametrize("solver", ["aleg", "sqp"])
def test_a_callback_sees_as_many_epochs_as_the_trace_has(solver):
    recorder = Recorder()
    model = fit(make_model(solver=solver).set_callbacks(recorder))
    # One more where the slack of the tolerance was spent on another model than that of the last epoch.
    assert recorder.events.count(("end", "epoch")) - len(model.trace_) in (0, 1)


@needs_callbacks
def test_a_callback_gets_the_training_data():
    recorder = Recorder()
    fit(make_model().set_callbacks(recorder))
    for rows, y in recorder.data:
        np.testing.assert_array_equal(rows, X)
        np.testing.assert_array_equal(y, Y)


@needs_callbacks
@pytest.mark.parametrize("alpha", [1e-2, 0.0], ids=["penalty", "no-penalty"])
@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_a_callback_gets_the_best_model_so_far_in_the_units_of_x(loss, alpha):
    recorder = Recorder()
    rows = X * (1.0, 50.0, 0.02) + (0.0, 10.0, 0.0)
    model = fit(make_model(loss=loss, alpha=alpha, tol=1e-3).set_callbacks(recorder), rows=rows)
    assert len(recorder.fitted) > 2
    scorer = worst_group_scorer("risk")
    for fitted, at in zip(recorder.fitted, model.trace_, strict=False):
        assert fitted is not model
        assert set(fitted.predict(rows)) <= {"no", "yes"}
        objective = -scorer(fitted, rows, Y, groups=GROUPS) + 0.5 * alpha * (fitted.coef_**2).sum()
        assert objective == pytest.approx(at.upper, rel=1e-6)


@needs_callbacks
@pytest.mark.parametrize(
    ("model", "y"),
    [(make_model(tol=1e-3), CLASSES), (GroupDRORegressor(solver="aleg", random_state=0), SCORES)],
    ids=["softmax", "squared"],
)
def test_a_callback_gets_models_of_several_classes_and_of_regressions(model, y):
    recorder = Recorder()
    fit(model.set_callbacks(recorder), y)
    scorer = worst_group_scorer("risk")
    for fitted, at in zip(recorder.fitted, model.trace_, strict=False):
        assert fitted.predict(X).shape == (N_ROWS,)
        objective = -scorer(fitted, X, y, groups=GROUPS) + 0.5 * model.alpha * (fitted.coef_**2).sum()
        assert objective == pytest.approx(at.upper, rel=1e-6)


@needs_callbacks
def test_a_callback_gets_the_final_model_at_the_end_of_the_fit():
    recorder = Recorder()
    model = fit(make_model().set_callbacks(recorder))
    assert len(recorder.at_end) == 1
    assert recorder.at_end[0] is not None
    np.testing.assert_array_equal(recorder.at_end[0].predict_proba(X), model.predict_proba(X))


@needs_callbacks
def test_the_monitor_of_scores_records_the_final_model():
    from sklearn.callback import ScoringMonitor

    monitor = ScoringMonitor(scoring="neg_log_loss")
    model = fit(make_model().set_callbacks(monitor))
    own = model.predict_proba(X)[np.arange(N_ROWS), (Y == "yes").astype(int)]
    recorded = [entry["neg_log_loss"] for entry in monitor.get_logs().data]
    assert len(recorded) > 3
    assert recorded[-1] == pytest.approx(np.log(own).mean(), rel=1e-12)


@needs_callbacks
def test_a_callback_may_stop_the_fit():
    recorder = Recorder(stop_after=2)
    model = make_model().set_callbacks(recorder)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        fit(model)
    assert model.status_ == "interrupted"
    assert recorder.events == FIT + 3 * EPOCH + END
    assert len(model.trace_) == 3
    np.testing.assert_array_equal(model.predict_proba(X), recorder.fitted[-1].predict_proba(X))


@needs_callbacks
def test_both_kinds_of_callbacks_are_served():
    recorder, seen = Recorder(), []
    fit(make_model(callbacks=[seen.append]).set_callbacks(recorder))
    assert len(seen) > 0
    assert len(recorder.fitted) - len(seen) in (0, 1)


@needs_callbacks
def test_a_callback_serves_every_fit_anew():
    recorder = Recorder()
    model = make_model().set_callbacks(recorder)
    fit(model)
    once = list(recorder.events)
    fit(model)
    assert recorder.events == 2 * once
    fit(model.set_callbacks())
    assert recorder.events == 2 * once


@needs_callbacks
def test_a_fit_that_raises_in_a_callback_is_torn_down():
    recorder = Recorder(raise_after=1)
    with pytest.raises(ZeroDivisionError, match="mine"):
        fit(make_model().set_callbacks(recorder))
    assert recorder.events == [*FIT, *EPOCH, *EPOCH, ("teardown", "fit")]


@needs_callbacks
def test_a_fit_that_raises_while_it_solves_is_torn_down():
    def fail(progress):
        raise ZeroDivisionError("mine")

    recorder = Recorder()
    with pytest.raises(ZeroDivisionError, match="mine"):
        fit(make_model(callbacks=[fail]).set_callbacks(recorder))
    assert recorder.events[:2] == FIT
    assert recorder.events[-1] == ("teardown", "fit")


@needs_callbacks
@pytest.mark.parametrize("params", [{"alpha": -1.0}, {"solver": "no-such"}], ids=["parameter", "solver"])
def test_a_fit_that_is_refused_leaves_no_callback_set_up(params):
    recorder = Recorder()
    with pytest.raises(ValueError, match=r"alpha|solver"):
        fit(make_model(**params).set_callbacks(recorder))
    tasks = [event for event, _ in recorder.events]
    assert tasks.count("setup") == tasks.count("teardown")
    fit(make_model().set_callbacks(recorder))
    assert recorder.events[-2:] == END


@needs_callbacks
def test_a_fit_without_callbacks_leaves_nothing_behind():
    model = fit(make_model())
    assert not [name for name in vars(model) if "callback" in name and name != "callbacks"]


SEARCH = """
import sys
import sklearn
from sklearn.callback import ProgressBar
from sklearn.model_selection import GridSearchCV

from groupdro import GroupDROClassifier, GroupStratifiedKFold, datasets, worst_group_scorer

if __name__ == "__main__":
    sklearn.set_config(enable_metadata_routing=True)
    X, y, groups = datasets.make_mero(n_groups=3, n_per_group=60, n_features=4)
    search = GridSearchCV(
        GroupDROClassifier(),
        {"alpha": [1e-3, 1e-1]},
        scoring=worst_group_scorer("accuracy"),
        cv=GroupStratifiedKFold(3, random_state=0),
        n_jobs=int(sys.argv[1]),
    )
    search.set_callbacks(ProgressBar())
    search.fit(X, y, groups=groups)
    print("groups:", search.best_estimator_.groups_.tolist())
"""


@needs_callbacks
@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_progress_bars_of_a_search_are_shown(tmp_path, jobs):
    pytest.importorskip("rich")
    script = tmp_path / "search.py"
    script.write_text(SEARCH)
    done = subprocess.run(
        [sys.executable, "-W", "error", script, jobs],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=HUNG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "groups: [0, 1, 2]" in done.stdout
    assert "GridSearchCV - fit" in done.stdout
    assert len(re.findall(r"GroupDROClassifier - fit.*100%", done.stdout)) == 7


@needs_callbacks
def test_a_progress_bar_of_a_fit_is_shown(capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "200")
    from sklearn.callback import ProgressBar

    fit(make_model().set_callbacks(ProgressBar()))
    out, err = capsys.readouterr()
    assert re.search(r"GroupDROClassifier - fit.*100%", out)
    assert err == ""
