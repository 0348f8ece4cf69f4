"""The machinery of the paper's experiments: equal budgets, one rule of tuning, nothing beyond a run's end."""

import ast
import json
import re
import shutil
import sys
import time
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import groupdro as gd
from groupdro.oracle import Oracle

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
pytest.importorskip("matplotlib")

from benchmarks.paper import (  # noqa: E402
    __main__,
    again,
    analysis,
    claims,
    collect,
    complexity,
    figures,
    optimum,
    radius,
    restore,
    runs,
    setups,
    tables,
    timings,
    tuned,
    tuning,
)
from benchmarks.paper.balanced import AlegOfOneGroup, ALEGOfThePaper, AlSvre, Mpvr, Smd  # noqa: E402
from benchmarks.paper.blocked_descent import GroupModelsInBlocks  # noqa: E402
from benchmarks.paper.constants import step_factor  # noqa: E402
from benchmarks.paper.contenders import METHODS  # noqa: E402
from benchmarks.paper.methods import ALSVRE, MPVR, SMD  # noqa: E402
from benchmarks.paper.methods.tsa import GroupModels  # noqa: E402
from benchmarks.paper.setups import SETUPS, Part, Split  # noqa: E402

from tests.docs.pages import ROOT  # noqa: E402

M, N, D = 4, 60, 6


def imported_from(path, seen):
    """Return the outside packages that a module of the benchmarks imports, also through others of the benchmarks."""
    seen.add(path)
    names, packages = [], set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    for name in names:
        first, *others = name.split(".")
        if first != "benchmarks":
            packages.add(first)
            continue
        stem = ROOT.joinpath(first, *others)
        for file in (stem.with_suffix(".py"), stem / "__init__.py"):
            if file.exists() and file not in seen:
                packages |= imported_from(file, seen)
    return packages


def required_by(extra, project):
    """Return the packages that an extra requires, with those of the extras that it names."""
    found = set()
    for requirement in project["optional-dependencies"][extra] if extra else project["dependencies"]:
        name, others = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", requirement).groups()
        if name == project["name"]:
            found |= {package for other in others.split(",") for package in required_by(other, project)}
        else:
            found.add({"scikit-learn": "sklearn"}.get(name, name))
    return found


def test_the_extra_of_the_benchmarks_has_all_that_the_papers_commands_import():
    seen = set()
    outside = {name for file in (ROOT / "benchmarks" / "paper").rglob("*.py") for name in imported_from(file, seen)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = required_by("", project) | required_by("bench", project) | {"groupdro"} | sys.stdlib_module_names
    assert outside <= known, outside - known
    assert "psutil" in outside


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["forget", "gdro_4000", "--methods", "MPVR"], "run 'restore' first"),
        (["forget", "gdro_4000"], "--methods"),
        (["runs", "gdro_400"], "'gdro_4000'"),
        (["runs", "gdro_4000", "--methods", "mpvr"], "'MPVR'"),
    ],
)
def test_a_command_that_cannot_run_says_why(small, monkeypatch, capsys, given, words):
    monkeypatch.setattr(sys, "argv", ["paper", *given])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert words in f"{ended.value} {capsys.readouterr().err}"


def test_a_radius_that_is_known_is_not_chosen_again_in_silence(capsys):
    __main__.choose_radius()
    assert "paper_radius.parquet" in capsys.readouterr().out


def small_split(seed):
    X, y, groups = gd.datasets.make_gdro(M, 2 * N, D, seed=seed)
    first = np.arange(len(y)) % (2 * N) < N
    return Split(Part(X[first], y[first], groups[first]), Part(X[~first], y[~first], groups[~first]))


def use_small_problem(monkeypatch, tmp_path):
    """Replace every set-up by a small one, with a folder of its own for the runs."""
    for module in (optimum, runs, tuning, collect, complexity, restore, tables, timings):
        for name in ("CACHE", "RESULTS"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, tmp_path / name.lower())
    monkeypatch.setattr(analysis, "RESULTS", tmp_path / "results")
    for name, setup in list(SETUPS.items()):
        monkeypatch.setitem(
            SETUPS, name, replace(setup, make=small_split, task="binary", shape=(M, M * N, D), seeds=2, most_runs=200)
        )
    runs.prepared.cache_clear()


@pytest.fixture
def small(monkeypatch, tmp_path):
    use_small_problem(monkeypatch, tmp_path)
    yield tmp_path
    runs.prepared.cache_clear()


def problem(m=M, n=N, d=D, radius=3.0):
    X, y, groups = gd.datasets.make_gdro(m, n, d, seed=0)
    return gd.Problem(
        gd.GroupedData.from_arrays(X, y, groups), gd.losses.Logistic(), gd.domains.L2Domain(radius=radius)
    )


#: Of which each stands for others: untuned, one loop over epochs, one over single steps.
IN_THE_GATE = ("auto", "ALEG of the paper", "SMD")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_THE_GATE else [pytest.mark.long]) for name in METHODS]
)
def test_every_method_runs_to_the_budget_or_to_its_certificate(small, name):
    method = METHODS[name]
    points = runs.curve_of(f"{method.kind}_synthetic", name, method.start, 0)
    assert set(points["output"]) == set(method.outputs)
    status = points["status"].iloc[0]
    assert status in ("budget", "converged", "stalled")
    assert (np.diff(points[points["output"] == method.outputs[0]]["multiples"]) > 0).all()
    best = runs.prepared(f"{method.kind}_synthetic", 0).best
    assert (points["train"] >= best.lower - 1e-12).all()
    assert (points["gap"] >= 0).all()
    assert (points[["cpu", "seconds", "load_start", "load_end"]] >= 0).all(axis=None)
    if status == "budget":
        last = points[points["output"] == method.outputs[-1]]["multiples"].max()
        assert last >= runs.BUDGET - SETUPS["gdro_synthetic"].spacing - 3.0


@pytest.mark.parametrize(
    "made", [lambda: gd.solvers.GroupSQP("lbfgs"), gd.solvers.ALEG, gd.solvers.ALEM, lambda: SMD(3.0)]
)
def test_rows_read_without_a_gradient_count(made):
    """Rows read are never more than what is counted: line searches and oracles are included."""
    seen = []

    def record(progress):
        seen.append((runs.cost(progress, M * N), progress.latest))
        return len(seen) > 4

    gd.solve(problem(), made(), tol=1e-6, max_passes=50, callbacks=[record])
    assert seen
    for spent, row in seen:
        assert spent >= row.passes - 1e-9
        assert spent >= row.grad_evals_paper / (M * N) - 1e-9


@pytest.mark.long
def test_a_balance_of_one_is_the_method_itself():
    for ours, theirs in (
        (ALEGOfThePaper(multiplier=30, guarantee=False), gd.solvers.ALEGTheory(multiplier=30, guarantee=False)),
        (Mpvr(30.0), MPVR(30.0)),
        (AlSvre(30.0, geometry="kl"), ALSVRE(30.0, geometry="kl")),
    ):
        a, b = (gd.solve(problem(), solver, tol=0.0, max_passes=12) for solver in (ours, theirs))
        assert a.trace[-1].gap == pytest.approx(b.trace[-1].gap, rel=1e-9)
        other = gd.solve(problem(), replace(ours, balance=3.0), tol=0.0, max_passes=12)
        assert other.trace[-1].gap != pytest.approx(b.trace[-1].gap, rel=1e-3)


def test_alterable_steps_grow_by_the_tilt_over_some_epochs():
    solver = ALEGOfThePaper(10, guarantee=False, constant="paper", tilt=4.0, epochs=3.0)
    even = replace(solver, tilt=1.0)
    oracle = Oracle(problem())
    start = oracle.problem.centre(), oracle.problem.central_weights(), 0
    tilted, plain = (one.init(oracle, *start).schedules for one in (solver, even))
    ratios = [tilted.epoch(s).eta / plain.epoch(s).eta for s in range(5)]
    np.testing.assert_allclose(ratios, np.transpose([4.0 ** np.array([-0.5, -1 / 6, 1 / 6, 0.5, 0.5])] * 10))
    a, b = (gd.solve(problem(), one, tol=0.0, max_passes=12) for one in (solver, even))
    assert a.trace[-1].gap != b.trace[-1].gap


def test_the_faster_steps_of_smd_are_its_own(monkeypatch):
    """With one row per group there is nothing to draw, so both must agree exactly."""
    state = {}
    for kind in (Smd, SMD):
        monkeypatch.setattr(kind, "average", lambda self, s: state.update({type(self): (s.w.copy(), s.logits.copy())}))
        gd.solve(problem(n=1), kind(3.0), tol=0.0, max_passes=20)
    for a, b in zip(state[Smd], state[SMD], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.long
def test_aleg_of_one_group_is_that_of_the_package():
    one = problem(m=1, n=200)
    paper = gd.solvers.ALEGTheory(multiplier=30, guarantee=False, constant="paper")
    a, b = (gd.solve(one, solver, tol=0.0, max_passes=20) for solver in (paper, AlegOfOneGroup(30.0)))
    assert a.trace[-1].gap == pytest.approx(b.trace[-1].gap, rel=1e-9)
    assert a.counters == b.counters


@pytest.mark.parametrize("method", ["MPVR", "AL-SVRE", "SMD"])
def test_tight_constants_allow_steps_at_least_as_long(method):
    assert step_factor(method, problem(), 3.0) >= 1.0


@pytest.mark.parametrize(("m", "n"), [(4, 1000), (10, 300)])
def test_the_tight_constant_of_mpvr_bounds_the_sampled_operator(m, n):
    """A mean-square Lipschitz constant, measured over all samples at random pairs of points."""
    from benchmarks.paper.methods.mpvr import sampling_constant

    from groupdro.geometry import Euclidean

    given, rng = problem(m=m, n=n), np.random.default_rng(0)
    L = sampling_constant(given, Euclidean(3.0, 0.0, D), "importance") / step_factor("MPVR", given, 3.0)
    X, y = given.data.rows.X, given.data.y
    groups = np.repeat(np.arange(m), n)
    for _ in range(20):
        w, v = (u / np.linalg.norm(u) * 3.0 * rng.random() for u in rng.normal(size=(2, D)))
        q, p = rng.dirichlet(np.full(m, 0.3), size=2)
        (a, s), (b, t) = (given.loss.value_and_slope(X @ u, y) for u in (w, v))
        by_w = m * ((q[groups] * s - p[groups] * t)[:, None] * X)
        squares = 9.0 * (by_w**2).sum(axis=1) + 2 * np.log(m) * (m * (a - b)) ** 2
        distance = ((w - v) ** 2).sum() / 9.0 + np.abs(q - p).sum() ** 2 / (2 * np.log(m))
        assert squares.mean() <= L**2 * distance * (1 + 1e-9)


@pytest.mark.parametrize("best", [(3, -2, 1), (-5, 0, 0)])
def test_a_search_ends_inside_of_its_grid(best):
    def cost(setting):
        return 1.0 + sum((a - b) ** 2 for a, b in zip(setting, best, strict=True))

    found, tried = tuning.climb(cost, (0, 0, 0), 100)
    assert found == best
    for k in range(3):
        for step in (1, -1):
            assert (*best[:k], best[k] + step, *best[k + 1 :]) in tried
    cut, tried = tuning.climb(cost, (0, 0, 0), 3)
    assert len([value for value in tried.values() if np.isfinite(value)]) == 3
    assert cost(cut) <= cost((0, 0, 0))


def test_a_search_that_starts_with_a_step_that_is_too_long_shortens_it():
    found, _ = tuning.climb(lambda s: np.inf if s[0] > 2 else 10.0 - s[0], (6,), 30)
    assert found == (2,)


def test_a_value_at_a_budget_is_the_latest_by_then():
    points = pd.DataFrame({"output": "last", "multiples": [2.0, 5.0, 9.0], "train": [3.0, 2.0, 1.0]})
    ended, whole = points.assign(status="stalled"), points.assign(status="budget")
    assert np.isnan(tuning.at_budget(ended, "last", 1.0))
    assert tuning.at_budget(ended, "last", 5.0) == 2.0
    assert tuning.at_budget(ended, "last", 8.9) == 2.0
    assert np.isnan(tuning.at_budget(ended, "last", 20.0))  # nothing is carried beyond the end of a run
    assert tuning.at_budget(whole, "last", 20.0) == 1.0  # a run to the budget, whose later points are not stored


def stored_panel(monkeypatch, tmp_path, curves, setup="gdro_census"):
    """Return a panel of points made up here: by method, a list of one run per seed, each a list of training values."""
    points = [{"method": method, "output": output, "seed": seed, "multiples": 10.0 * k, "train": value, "test": value,
               "cpu": 1.0 * k, "status": "budget", "setting": "[]"}
              for (method, output), seeds in curves.items() for seed, run in enumerate(seeds)
              for k, value in enumerate(run) if np.isfinite(value)]  # fmt: skip
    pd.DataFrame(points).to_parquet(tmp_path / f"paper_{setup}.parquet")
    seeds = max(map(len, curves.values()))
    best = [{"setup": setup, "seed": s, "lower": 1.0, "upper": 1.0 + 1e-6, "groups": 4} for s in range(seeds)]
    pd.DataFrame(best).to_parquet(tmp_path / "paper_best.parquet")
    monkeypatch.setattr(analysis, "RESULTS", tmp_path)
    return analysis.Panel(setup)


AUTO, RIVAL = ("auto", "best"), ("MPVR", "average")


def test_comparisons_know_ranges_floors_and_missing_models(monkeypatch, tmp_path):
    nan = np.nan
    few = {AUTO: [[nan, 1.01, 1.0], [nan, 1.01, 1.0]], RIVAL: [[nan, 1.02, 1.3], [nan, 1.005, nan]]}
    own = stored_panel(monkeypatch, tmp_path, few)
    assert analysis.compare(own, AUTO, RIVAL, 5).kind == "neither"
    early = analysis.compare(own, AUTO, RIVAL, 10)
    assert early.kind == "undecided"
    assert (early.found.low, early.found.high) == pytest.approx((0.5, 2.0))  # the range, not a t interval
    late = analysis.compare(own, AUTO, RIVAL, 20)
    assert (late.kind, late.sign) == ("ahead", "≥ ")
    assert late.found.high == pytest.approx(0.3 / 1e-6)
    ahead = stored_panel(monkeypatch, tmp_path, {AUTO: [[nan, 1.01]] * 2, RIVAL: [[nan, 1.02], [nan, nan, 1.0]]})
    assert analysis.compare(ahead, AUTO, RIVAL, 10).kind == "no rival"
    assert analysis.compare(ahead, RIVAL, AUTO, 10).kind == "behind"
    assert analysis.compare(ahead, AUTO, RIVAL, 10).found.n == 1


def test_the_tuning_seeds_are_left_out_and_five_seeds_have_an_interval(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    values = np.r_[[1e-4] * 3, 0.02 * np.exp(0.1 * rng.normal(size=5))]
    runs_of = {AUTO: [[1.01]] * 8, RIVAL: [[1.0 + v] for v in values]}
    own = stored_panel(monkeypatch, tmp_path, runs_of)
    assert analysis.compare(own, AUTO, RIVAL, 40).kind == "undecided"
    found = analysis.compare(own, AUTO, RIVAL, 40, without_tuning=True)
    assert (found.kind, found.found.n) == ("ahead", 5)
    ratios = np.log([(v[0] - 1.0) / 0.01 for v in runs_of[RIVAL][3:]])
    low, high = stats.t.interval(0.95, 4, ratios.mean(), stats.sem(ratios))
    assert (found.found.low, found.found.high) == pytest.approx((np.exp(low), np.exp(high)))


def test_runs_that_do_not_differ_on_fixed_data_count_once(monkeypatch, tmp_path):
    curves = {AUTO: [[1.01], [1.01]], RIVAL: [[1.02], [1.03]]}
    own = stored_panel(monkeypatch, tmp_path, curves, "gdro_cifar")
    assert (len(own.curves[AUTO]), own.repeated[AUTO], len(own.curves[RIVAL])) == (1, 2, 2)
    found = analysis.compare(own, AUTO, RIVAL, 40)
    assert (found.kind, found.found.low, found.found.high) == ("ahead", pytest.approx(2.0), pytest.approx(3.0))


def test_exponents_have_t_intervals_from_four_points_on():
    m = np.array([4, 8, 16, 32, 64])
    noise = np.array([1.0, 1.1, 0.9, 1.05, 0.97])
    rows = pd.DataFrame({"m": m, "n": 100, "eps": 0.04, "seed": 0, "axis": "m", "constants": "paper"})
    aleg, mpvr = (
        rows.assign(method=name, evaluations=m**power * noise) for name, power in (("ALEG", 1), ("MPVR", 1.5))
    )
    slope, half, points = complexity.exponent(aleg, "m")
    assert points == 5
    fitted, covariance = np.polyfit(np.log(m), np.log(aleg["evaluations"]), 1, cov="unscaled")
    residual = np.log(aleg["evaluations"]) - np.polyval(fitted, np.log(m))
    assert slope == pytest.approx(fitted[0])
    assert half == pytest.approx(stats.t.ppf(0.975, 3) * np.sqrt(covariance[0, 0] * (residual @ residual) / 3))
    assert np.isnan(complexity.exponent(aleg[:3], "m")[1])
    # The noise is that of the problems, and cancels in the ratio.
    slope, half, _ = complexity.exponent(complexity.ratios(pd.concat([aleg, mpvr]), "paper"), "m")
    assert (slope, half) == pytest.approx((0.5, 0.0), abs=1e-9)


def test_verdicts_follow_the_rules_of_the_page():
    assert claims.ordering_verdict(0, 0, 0) == "not judged"
    assert claims.ordering_verdict(1, 0, 0) == "ahead in the only comparison"
    assert claims.ordering_verdict(3, 0, 0) == "reproduced"
    assert claims.ordering_verdict(3, 1, 2) == "reproduced in part"
    assert claims.ordering_verdict(2, 4, 2) == "undecided"
    assert claims.ordering_verdict(0, 4, 0) == "undecided"
    assert claims.ordering_verdict(1, 4, 2) == "not reproduced"


def tried_as(monkeypatch, tmp_path, setup, tried):
    """Store which settings were tried: by method and output, then setting, the seeds."""
    rows = [
        {"setup": setup, "method": method, "output": output, "setting": json.dumps(setting), "seed": seed, "train": 1.0}
        for (method, output), settings in tried.items()
        for setting, seeds in settings.items()
        for seed in seeds
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "paper_tuning.parquet")
    monkeypatch.setattr(tables, "RESULTS", tmp_path)


def test_comparisons_of_searches_that_did_not_end_decide_nothing(monkeypatch, tmp_path):
    mine, rival = ("ALEG of the paper", "average"), ("MPVR", "average")
    own = stored_panel(monkeypatch, tmp_path, {mine: [[np.nan, 1.01]] * 10, rival: [[np.nan, 1.02]] * 10}, "gdro_4000")
    for curve in own.curves:
        for run in own.curves[curve].values():
            run["setting"] = "[4, 0, 0]"
    whole = {setting: [0, 1] for setting in ((4, 0, 0), (3.5, 0, 0), (4.5, 0, 0))}
    words = "ALEG is ahead of MPVR on training rows"

    def judged(of_mine, of_rival):
        tried_as(monkeypatch, tmp_path, "gdro_4000", {mine: of_mine, rival: of_rival})
        found = [one for one in claims.comparisons([own]) if one.claim == words]
        assert [one.kind(0) for one in found] == ["ahead"]
        return claims.votes(found, words, 0), found[0].unlike

    assert judged(whole, whole) == ((1, 0, 0), "")
    votes, why = judged(whole, whole | {(4.5, 0, 0): [0]})
    assert votes == (0, 0, 0)
    assert "MPVR" in why


def test_without_its_folder_cifar_is_skipped_with_a_line(monkeypatch, capsys):
    monkeypatch.delenv("GROUPDRO_CIFAR", raising=False)
    assert setups.available([]) == [name for name in SETUPS if "cifar" not in name]
    assert setups.available(["gdro_cifar"]) == []
    assert "gdro_cifar: skipped" in capsys.readouterr().out


@pytest.mark.long
def test_tuning_and_repeating_resume_and_are_collected(small):
    names = ["auto", "MPVR"]
    tuning.tune("gdro_synthetic", names)
    tuning.repeat("gdro_synthetic", names, 2)
    files = {path: path.stat().st_mtime_ns for path in small.rglob("*__*.parquet")}
    tuning.tune("gdro_synthetic", names)
    tuning.repeat("gdro_synthetic", names, 2)
    assert files == {path: path.stat().st_mtime_ns for path in small.rglob("*__*.parquet")}
    collect.collect()
    analysis.panel.cache_clear()
    own = analysis.Panel("gdro_synthetic")
    assert own.seeds == 2
    assert set(own.curves) == {("auto", "best"), ("MPVR", "average"), ("MPVR", "snapshot")}
    for curve in own.curves:
        assert not own.at(curve, runs.BUDGET + 1, "above") or own.solved(curve) is not None
        assert all(value > 0 for value in own.at(curve, runs.BUDGET, "above").values())
    found = analysis.compare(own, ("auto", "best"), ("MPVR", "average"), runs.BUDGET)
    assert found.kind in ("ahead", "undecided")
    assert found.seeds == (2, 2, 2)


@pytest.mark.long
def test_stored_results_are_restored_as_runs_that_others_can_be_added_to(small):
    names = ["auto", "MPVR"]
    tuning.tune("gdro_synthetic", names)
    tuning.repeat("gdro_synthetic", names, 1)
    collect.collect()
    stored = {path.name: pd.read_parquet(path) for path in (small / "results").glob("*.parquet")}
    shutil.rmtree(small / "cache")
    restore.restore()
    tuning.tune("gdro_synthetic", names)  # its searches have ended
    collect.collect()
    for file, before in stored.items():
        after = pd.read_parquet(small / "results" / file)
        columns = list(before.columns)
        order = [c for c in columns if before[c].dtype != float]
        pd.testing.assert_frame_equal(
            before.sort_values(order, ignore_index=True), after[columns].sort_values(order, ignore_index=True)
        )
    # Opened again, a search knows the values of settings without a curve, and runs all at which it is told to start.
    (small / "cache" / "gdro_synthetic" / "ended.json").write_text('["auto"]')
    known = {tuple(json.loads(setting)) for setting in stored["paper_tuning.parquet"]["setting"]}
    files = set(small.rglob("*__0.parquet"))
    tuning.tune("gdro_synthetic", names, [{}, {"MPVR": {"average": (-5, 0, 3)}}])
    new = {runs.setting_of(path) for path in set(small.rglob("*__0.parquet")) - files}
    assert (-5, 0, 3) in new
    assert not known & new
    # A run that was restored without an output that is now chosen is made again.
    path = runs.place_of("gdro_synthetic", "MPVR", tuning.chosen("gdro_synthetic")["MPVR"]["average"], 0)
    points = pd.read_parquet(path)
    points[points["output"] != "average"].assign(wall=np.nan).to_parquet(path, index=False)
    tuning.repeat("gdro_synthetic", names, 1)
    assert "average" in set(pd.read_parquet(path)["output"])
    tuning.repeat("gdro_synthetic", names, 2)
    collect.collect()
    assert len(pd.read_parquet(small / "results" / "paper_best.parquet")) == 2
    assert set(pd.read_parquet(small / "results" / "paper_gdro_synthetic.parquet")["seed"]) == {0, 1}


def test_runs_of_an_idle_machine_are_the_clock_of_all_seeds(small, monkeypatch):
    tuning.tune("gdro_synthetic", ["auto"])
    tuning.repeat("gdro_synthetic", ["auto"], 2)
    others = iter([1e9, 1e3, 1e9, 0.0])  # seconds of other processes in each try

    def pair_of_readings():
        while True:
            yield time.process_time()
            yield time.process_time() + next(others)

    readings = pair_of_readings()
    monkeypatch.setattr(timings, "_busy", lambda: next(readings))
    timings.measure(["gdro_synthetic"])
    noisy = pd.read_parquet(small / "cache" / timings.TIMINGS)
    assert set(noisy["tries"]) == {2}
    assert (noisy["others"] > timings.QUIET).all()
    collect.collect()
    own = analysis.Panel("gdro_synthetic")
    assert not own.timed
    timings.measure(["gdro_synthetic"])
    timings.measure(["gdro_synthetic"])  # there is a quiet run, so no other is made
    timed = pd.read_parquet(small / "cache" / timings.TIMINGS)
    assert len(timed) == len(noisy)
    collect.collect()
    own = analysis.Panel("gdro_synthetic")
    assert own.timed == {("auto", "best")}
    run = own.curves["auto", "best"][0]
    np.testing.assert_allclose(run["seconds"], timed["seconds"], rtol=1e-5)
    last = timed.iloc[-1]
    beyond = timings.clock(timed, "gdro_synthetic", "auto", "[]", np.array([2 * last["multiples"]]))
    assert beyond == pytest.approx(2 * last["seconds"])


@pytest.mark.long
def test_the_shapes_that_the_page_states_are_those_of_the_data():
    for name in ("gdro_synthetic", "mero_synthetic"):
        train = SETUPS[name].make(0).train
        assert SETUPS[name].shape == (len(np.unique(train.groups)), *train.X.shape)
    sizes = {SETUPS[name].shape[1] // setups.N_GROUPS for name in ("gdro_synthetic", "gdro_4000")}
    assert sizes == set(radius.SIZES)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gdro_census", "gdro_cifar", "mero_cifar"])
def test_the_shapes_of_real_data_are_as_stated(name):
    try:
        train = SETUPS[name].make(0).train
    except (SystemExit, FileNotFoundError) as error:
        pytest.skip(str(error))
    assert SETUPS[name].shape == (len(np.unique(train.groups)), *train.X.shape)


def test_blocks_of_steps_are_the_steps_of_tsas_first_stage():
    rng = np.random.default_rng(0)
    X, y, groups = rng.normal(size=(90, 7)), rng.integers(0, 4, size=90), np.repeat([0, 1, 2], 30)
    data = gd.GroupedData.from_arrays(X, y, groups)
    found = []
    for stage in (GroupModels, GroupModelsInBlocks):
        oracle = Oracle(gd.Problem(data, gd.losses.Softmax(4), gd.domains.L2Domain(radius=1.5)))
        start, rng = oracle.problem.centre(), np.random.default_rng(3)
        models = stage(300.0, 7.0).models(oracle, start, rng)  # long steps, most of them projected
        found.append((models, oracle.counters))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-9, atol=1e-12)
    assert found[0][1] == found[1][1]


def made_up_runs(name, method, outputs, setting, seeds):
    """Keep a made-up run of each seed, as chosen."""
    value = {"multiples": 40.0, "train": 0.7, "test": 0.7, "gap": 0.1, "seconds": 1.0, "cpu": 1.0}
    points = pd.DataFrame([{"output": output, **value} for output in outputs])
    points = points.assign(status="budget", load_start=0.0, load_end=0.0, wall=1.0)
    for seed in seeds:
        path = runs.place_of(name, method, setting, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        points.to_parquet(path)
    for output in outputs:
        tuning._choose(name, method, output, setting)


def rows_stored(small, file, *columns):
    stored = pd.read_parquet(small / "results" / f"paper_{file}.parquet")
    return set(stored[list(columns)].itertuples(index=False, name=None))


def test_collecting_a_few_runs_keeps_all_that_is_stored(small):
    name, both = "gdro_synthetic", ("average", "snapshot")
    made_up_runs(name, "auto", ("best",), (), [0, 1])
    made_up_runs(name, "MPVR", both, (6, 0, 0), [0, 1])
    bounds = pd.DataFrame({"lower": 0.6, "upper": 0.6, "reference": np.zeros(M)})
    for seed in (0, 1):
        bounds.to_parquet(small / "cache" / name / f"optimum__{seed}.parquet")
    collect.collect()
    kept = {("curves", *row) for row in rows_stored(small, name, "method", "output", "seed")}
    assert len(kept) == 6
    shutil.rmtree(small / "cache")
    made_up_runs(name, "SMD", ("average", "last"), (1, 1), [0])  # without our default among the methods
    made_up_runs(name, "MPVR", both, (6.5, 0, 0), [0])  # a setting with fewer seeds than the stored one
    made_up_runs("mero_census", "TSA", ("average",), (1, 0, 0, 0), [0])
    collect.collect()
    found = {("curves", *row) for row in rows_stored(small, name, "method", "output", "seed")}
    assert found == kept | {("curves", "SMD", "average", 0), ("curves", "SMD", "last", 0)}
    assert ("MPVR", "[6.5, 0, 0]") not in rows_stored(small, name, "method", "setting")
    assert rows_stored(small, "best", "setup", "seed") == {(name, 0), (name, 1)}
    tried = rows_stored(small, "tuning", "method", "setting", "seed")
    assert {("MPVR", "[6, 0, 0]", 0), ("MPVR", "[6, 0, 0]", 1), ("MPVR", "[6.5, 0, 0]", 0)} <= tried
    assert rows_stored(small, "mero_census", "method", "seed") == {("TSA", 0)}
    made_up_runs(name, "MPVR", both, (6.5, 0, 0), [1])
    collect.collect()
    assert ("MPVR", "[6.5, 0, 0]") in rows_stored(small, name, "method", "setting")


def test_runs_of_a_forgotten_method_are_replaced_all_together(small, monkeypatch):
    name, both = "gdro_synthetic", ("average", "snapshot")
    made_up_runs(name, "SMD", ("average", "last"), (1, 1), [0, 1])
    made_up_runs(name, "MPVR", both, (6, 0, 0), [0, 1])
    made_up_runs(name, "MPVR", both, (5.5, 0, 0), [0, 1])
    bounds = pd.DataFrame({"lower": 0.6, "upper": 0.6, "reference": np.zeros(M)})
    bounds.to_parquet(small / "cache" / name / "optimum__0.parquet")
    collect.collect()
    shutil.rmtree(small / "cache")
    restore.restore()
    assert "MPVR" in tuning.names_in(name, tuning.ENDED)
    assert tuning.names_in(name, tuning.REFINED) == []  # of two tuning seeds and three settings, not all were run
    monkeypatch.setattr(sys, "argv", ["paper", "forget", name, "--methods", "MPVR"])
    __main__.main()
    assert tuning.names_in(name, tuning.ENDED) == ["SMD"]
    assert not list(runs.place_of(name, "MPVR", (), 0).parent.glob("*.parquet"))
    assert set(pd.read_parquet(small / "cache" / name / tuning.TRIED)["method"]) == {"SMD"}
    made_up_runs(name, "MPVR", both, (5, 0, 0), [0])  # the same setting, with a seed still to be run
    stored = pd.read_parquet(small / "results" / "paper_tuning.parquet")
    collect.collect()
    pd.testing.assert_frame_equal(
        *(rows.sort_values([*rows.columns[:5]], ignore_index=True)
          for rows in (stored, pd.read_parquet(small / "results" / "paper_tuning.parquet")))
    )  # fmt: skip
    made_up_runs(name, "MPVR", both, (5, 0, 0), [1])
    collect.collect()
    assert {("SMD", "[1, 1]"), ("MPVR", "[5, 0, 0]")} == rows_stored(small, "tuning", "method", "setting")
    assert {("MPVR", 0), ("MPVR", 1)} < rows_stored(small, name, "method", "seed")


def test_a_search_counts_as_ended_once_all_its_settings_have_all_tuning_seeds(small, monkeypatch):
    name, both = "gdro_synthetic", ("average", "snapshot")
    monkeypatch.setitem(SETUPS, name, replace(SETUPS[name], n_tuning=2))
    bounds = pd.DataFrame({"lower": 0.6, "upper": 0.6, "reference": np.zeros(M)})
    for step, seeds in ((5.5, [0, 1]), (6.5, [0]), (6, [0, 1])):
        made_up_runs(name, "MPVR", both, (step, 0, 0), seeds)
    bounds.to_parquet(small / "cache" / name / "optimum__0.parquet")

    def refined():
        collect.collect()
        kept = small / "cache" / name
        kept.rename(small / "kept")
        restore.restore()
        analysis.panel.cache_clear()
        own = analysis.Panel(name)
        finer = {tables.has_finer_steps(own, ("MPVR", output)) for output in both}
        found = tuning.names_in(name, tuning.REFINED)
        shutil.rmtree(kept)
        (small / "kept").rename(kept)
        return found, finer

    assert refined() == ([], {False})
    made_up_runs(name, "MPVR", both, (6.5, 0, 0), [1])
    made_up_runs(name, "MPVR", both, (6, 0, 0), [0])
    assert refined() == (["MPVR"], {True})


@pytest.mark.parametrize("curves", [{AUTO: [[1.01, 1.0]]}, {RIVAL: [[1.02, 1.3]]}])
def test_figures_are_drawn_of_whatever_methods_there_are(monkeypatch, tmp_path, curves):
    own = stored_panel(monkeypatch, tmp_path, curves)
    own.curves = {curve: {s: run.assign(gap=0.1) for s, run in found.items()} for curve, found in own.curves.items()}
    monkeypatch.setattr(figures, "panel", lambda _: own)
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    figures.draw_setup("gdro_census")
    assert list(tmp_path.glob("paper_gdro_census.*g"))


def test_the_final_setting_is_the_best_over_all_tuning_seeds_and_none_that_diverges_on_one(small, monkeypatch):
    """Seed 0 alone prefers a step at the edge of stability."""
    monkeypatch.setitem(SETUPS, "gdro_synthetic", replace(SETUPS["gdro_synthetic"], n_tuning=3))
    seen = []

    def run(setup_name, name, setting, seed):
        seen.append((setting, seed))
        step = setting[0]
        value = 1.0 if step > 6 else 0.6 + 10.0 ** (-1 - step)
        if step == 6 and seed == 2:
            value = 1.0
        return pd.DataFrame(
            {"output": ["average"], "multiples": [40.0], "train": [value], "status": ["budget"], "wall": [1.0]}
        )

    monkeypatch.setattr(tuning, "stored_run", run)
    monkeypatch.setattr(tuning, "ranked", lambda *_: [(6, 0, 0), (5, 0, 0), (4, 0, 0), (3, 0, 0)])
    best = optimum.Optimum(0.6, 0.6)
    monkeypatch.setattr(tuning, "prepared", lambda *_: SimpleNamespace(best=best))
    (small / "cache" / "gdro_synthetic").mkdir(parents=True)
    monkeypatch.setitem(METHODS, "MPVR", replace(METHODS["MPVR"], outputs=("average",)))
    tuning.refine("gdro_synthetic", "MPVR")
    assert tuning.chosen("gdro_synthetic")["MPVR"]["average"] == (5.5, 0, 0)
    assert {seed for _, seed in seen} == {0, 1, 2}
    assert tuning.over_seeds([1e-3, 2e-3, np.inf]) == tuning.over_seeds([1e-3, 2e-3, 2e-2]) == np.inf
    assert tuning.over_seeds([1e-3, 4e-3]) == pytest.approx(2e-3)


def test_a_figure_is_resumed_and_drawn_outside_of_the_results(small, monkeypatch):
    monkeypatch.delenv("GROUPDRO_CIFAR", raising=False)
    name, out = "gdro_synthetic", small / "out"
    methods = {"SMD": ("average", "last"), "MPVR": ("average",), "ALEG of the paper": ("snapshot",), "auto": ("best",)}
    for method, outputs in methods.items():
        made_up_runs(name, method, outputs, METHODS[method].start, [0, 1])
    bounds = pd.DataFrame({"lower": [0.6], "upper": 0.6, "reference": 0.0})
    for seed in (0, 1):
        bounds.to_parquet(small / "cache" / name / f"optimum__{seed}.parquet")
    collect.collect()
    analysis.panel.cache_clear()
    stored = {path: path.read_bytes() for path in (small / "results").iterdir()}
    tasks = again._tasks(name, tuple(methods), quick=False)
    assert [(task.method, task.seed) for task in tasks] == [(method, seed) for method in methods for seed in (0, 1)]
    for task in tasks:  # as if they had been run before an interrupt
        place = again._place(task, out / "runs")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(runs.place_of(name, task.method, task.setting, task.seed), place)
    again.figure("figure1", False, out)
    analysis.panel.cache_clear()
    assert {path.name for path in out.glob("*.png")} == {"figure1.png", "figure1_with_ours.png"}
    assert stored == {path: path.read_bytes() for path in (small / "results").iterdir()}


def test_a_quick_set_up_has_a_tenth_of_the_images_and_all_test_rows(monkeypatch):
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(100), 20))
    part = Part(np.arange(2000.0)[:, None], y, y // 5)
    monkeypatch.setitem(SETUPS, "mero_cifar", replace(SETUPS["mero_cifar"], make=lambda _: Split(part, part)))
    quick = setups.setup_of("mero_cifar" + setups.QUICK)
    split = quick.make(0)
    assert quick.seeds == 1
    assert (np.bincount(split.train.y) == 2).all()
    np.testing.assert_array_equal(y[split.train.X[:, 0].astype(int)], split.train.y)
    assert split.test is part


def test_the_complexity_table_is_measured_in_any_folder_and_resumed(tmp_path, monkeypatch):
    calls = []

    def counted(method, constants, m, n, seed, gaps):
        calls.append(method)
        return [m * n / eps for eps in gaps]

    monkeypatch.setattr(complexity, "evaluations", counted)
    path = tmp_path / "table1.parquet"
    limits = {"groups": (4, 8, 16), "sizes": (25, 50), "finest": 4e-2, "methods": ("ALEG", "SMD")}
    rows = complexity.measure(path, path, seeds=1, **limits)
    assert len(calls) == 2 * 2 * (3 + 2 + 1)
    assert complexity.exponent(rows[(rows["axis"] == "m") & (rows["method"] == "ALEG")], "m")[0] == pytest.approx(1.0)
    complexity.measure(path, path, seeds=1, **limits)
    assert len(calls) == 2 * 2 * (3 + 2 + 1)


def tuned_rows(counts, family="random", m=tuned.M, n=tuned.N, output="pair"):
    """Return rows as they are stored: by method and exponent, then gap, the evaluations of each seed."""
    return pd.DataFrame([
        {"family": family, "method": method, "m": m, "n": n, "seed": seed, "exponent": exponent, "output": output,
         "eps": eps, "evaluations": value}
        for (method, exponent), gaps in counts.items() for eps, values in gaps.items()
        for seed, value in enumerate(values)
    ])  # fmt: skip


def test_a_factor_is_the_best_over_all_seeds_and_reaches_the_gap_on_each():
    rows = tuned_rows({
        ("ALEG", 8): {0.1: [100.0, 400.0]}, ("ALEG", 10): {0.1: [150.0, 150.0]}, ("ALEG", 12): {0.1: [50.0, np.nan]},
        ("MPVR", 10): {0.1: [300.0, 300.0]},
    })  # fmt: skip
    found = tuned.best(rows).set_index("method")
    assert found.loc["ALEG", ["evaluations", "factor"]].tolist() == pytest.approx([150.0, 32.0])
    assert tuned.against(found.reset_index(), "MPVR")["ratio"].tolist() == pytest.approx([2.0])
    assert tuned.best(rows[rows["exponent"] == 12]).empty


def test_aleg_and_smd_cross_where_they_need_as_many_evaluations():
    gaps = (0.1, 0.01, 0.001)
    rows = tuned_rows(
        {("ALEG", 10): {eps: [100 / eps] for eps in gaps}, ("SMD", 2): {eps: [10 / eps**1.5] for eps in gaps}}
    )
    assert tuned.crossing(tuned.best(rows), "random", "pair", tuned.N) == pytest.approx(0.01)
    never = tuned_rows({("ALEG", 10): {0.1: [9.0]}, ("SMD", 2): {0.1: [3.0]}})
    assert np.isnan(tuned.crossing(tuned.best(never), "random", "pair", tuned.N))
    unreached = tuned_rows({("ALEG", 10): {0.1: [3.0], 0.01: [4.0]}, ("SMD", 2): {0.1: [9.0], 0.01: [np.nan]}})
    assert tuned.crossing(tuned.best(unreached), "random", "pair", tuned.N) == np.inf


def test_local_slopes_are_those_between_neighbours():
    m = np.array([4.0, 8.0, 32.0])
    np.testing.assert_allclose(tuned.local_slopes(m, m**1.5), 1.5)
    assert tuned.slope(m, m**0.5)[0] == pytest.approx(0.5)


def test_tuned_steps_are_measured_until_no_neighbour_is_better_and_resumed(tmp_path, monkeypatch):
    calls = []

    def counted(family, method, m, n, seed, exponent, most, *_):
        calls.append(exponent)
        return {key: m * n * (2.0 + (exponent - 13) ** 2) / key[1] for key in most}

    monkeypatch.setattr(tuned, "counts", counted)
    path = tmp_path / "tuned.parquet"
    limits = {"seeds": 2, "groups": (4, 8), "sizes": (25,), "families": ("random",)}
    rows = tuned.measure(path, path, **limits)
    found = tuned.best(rows[rows["exponent"] > 0])
    assert set(found["exponent"]) == {13}
    assert {12, 13, 14} <= set(rows["exponent"])
    assert set(rows[rows["exponent"] == 0]["m"]) == {4, 8}
    before = len(calls)
    tuned.measure(path, path, **limits)
    assert len(calls) == before


def test_opposed_groups_pull_in_opposite_directions_with_nearly_linear_losses():
    given = tuned.opposed(6, 2000, 0)  # so many rows that the right labels are the more frequent ones in every group
    X, y, groups = given.data.rows.X, given.data.y, np.repeat(np.arange(6), 2000)
    pulls = np.array([(y[groups == g][:, None] * X[groups == g]).mean(axis=0) for g in range(6)])
    for k in range(3):
        cosine = pulls[k] @ pulls[k + 3] / np.linalg.norm(pulls[k]) / np.linalg.norm(pulls[k + 3])
        assert cosine == pytest.approx(-1.0)
    constants = given.constants(2.0, 3.0)
    assert constants.smoothness * 3.0 < 0.1 * constants.lipschitz
