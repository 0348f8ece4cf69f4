"""The stored comparison of last layers agrees with its runs, and the program runs."""

import itertools
import json
import re

import numpy as np
import pytest
from scipy import stats

from tests.docs.pages import ROOT

pytest.importorskip("torch")
pytest.importorskip("pandas")
tables = pytest.importorskip("benchmarks.last_layers.tables", reason="needs the folders of the repository")

RESULTS = ROOT / "benchmarks" / "results"


def read(folder):
    """Return the runs by problem and method, each a list over seeds, and the page with its tables."""
    by_method, seeds = {}, {}
    for run in json.loads((folder / "last_layers.json").read_text())["runs"]:
        seeds.setdefault(run["problem"], []).append(run["seed"])
        for method, numbers in run["methods"].items():
            by_method.setdefault((run["problem"], method), []).append(numbers)
    page = (folder / "last_layers.md").read_text()
    found = [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        for block in re.findall(r"(?:^\|.*\|\n)+", page, re.MULTILINE)
    ]
    return by_method, seeds, page, found


def _interval(change):
    if len(change) < 2:
        return np.nan, np.nan
    found = stats.ttest_1samp(change, 0).confidence_interval(0.95)
    return found.low, found.high


def check_page(folder):
    """Compare every number of the page with the runs."""
    runs, seeds, page, (accuracy, seconds, changes) = read(folder)
    problems = list(seeds)
    for problem, own in seeds.items():
        assert sorted(own) == list(range(len(own)))
        assert f"{problem}: {len(own)}" in page

    def numbers(problem, method, key):
        return np.array([one[key] for one in runs[problem, method]])

    for table, shown in (
        (accuracy, lambda *of: [100 * numbers(*of, key).mean() for key in ("worst", "average")]),
        (seconds, lambda *of: [numbers(*of, "seconds").mean()]),
    ):
        assert table[0] == ["method", *problems]
        assert [row[0] for row in table[2:]] == list(tables.METHODS)
        for method, *cells in table[2:]:
            for problem, cell in zip(problems, cells, strict=True):
                if (problem, method) not in runs:
                    assert cell == "not run"
                    continue
                if "given_up_after" in runs[problem, method][0]:
                    assert all(one == runs[problem, method][0] for one in runs[problem, method])
                    limit = runs[problem, method][0]["given_up_after"]
                    assert cell == ("" if table is accuracy else f"over {limit:g}")
                    continue
                digits = len(cell.split()[0].partition(".")[2])
                stated = [float(number) for number in re.findall(r"[\d.]+", cell)]
                assert stated == pytest.approx(shown(problem, method), abs=0.51 * 10.0**-digits)

    expected, verdicts = [], {}
    for problem in problems:
        for method in tables.OURS:
            if "worst" not in runs.get((problem, method), [{}])[0]:
                continue
            rivals = [rival for rival in tables.RIVALS if (problem, rival) in runs]
            best = max(rivals, key=lambda rival: numbers(problem, rival, "worst").mean())
            for label, against in (("best", best), ("reweighting", tables.REWEIGHTING)):
                if (problem, against) not in runs:
                    continue
                change = 100 * (numbers(problem, method, "worst") - numbers(problem, against, "worst"))
                low, high = _interval(change)
                row = [change.mean(), *([low, high] if len(change) > 1 else [])]
                share = numbers(problem, method, "seconds").mean() / numbers(problem, against, "seconds").mean()
                if label == "best" or against != best:
                    expected.append((method, problem, against, row, share))
                for sign, end in (("below", -high), ("above", low)):
                    verdicts.setdefault((sign, label), []).extend([(method, problem)] * bool(end > 0))
    assert len(changes) - 2 == len(expected)
    for (*names, cell, shown_share), (method, problem, against, row, share) in zip(changes[2:], expected, strict=True):
        assert names == [method, problem, against]
        assert [float(number) for number in re.findall(r"[-+][\d.]+", cell)] == pytest.approx(row, abs=0.051)
        assert float(shown_share) == pytest.approx(share, abs=0.0051)
    lines = [line for line in page.splitlines() if line.startswith("- Significantly")]
    assert len(lines) == len(verdicts) == 4
    for (sign, label), found in verdicts.items():
        (line,) = [line for line in lines if f" {sign} " in line and label in line]
        assert line.count(" on ") == len(found)
        for method, problem in found:
            assert f"{method.removeprefix('retrain_last_layer, ')} on {problem} (" in line
        assert ("nowhere" in line) == (not found)


def test_every_number_of_the_page_is_that_of_the_runs():
    check_page(RESULTS)


def test_online_group_dro_is_the_published_rule():
    """A group that a batch lacks counts as a loss of zero, and thereby loses weight."""
    import torch
    from benchmarks.last_layers.training import STEP, OnlineGroupDRO

    criterion = OnlineGroupDRO(3)
    outputs, y, groups = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 0, 2])
    loss = criterion(outputs, y, groups)
    grown = np.exp(STEP * np.log(2.0) * np.array([1.0, 0.0, 1.0]))
    np.testing.assert_allclose(criterion.weights, grown / grown.sum(), rtol=1e-6)
    assert float(loss) == pytest.approx(np.log(2.0) * float(criterion.weights[[0, 2]].sum()), rel=1e-6)


def test_subsamples_have_as_many_rows_of_every_group():
    from benchmarks.last_layers.problems import Rows
    from benchmarks.last_layers.refitting import balanced

    groups = np.repeat([0, 1, 3], [5, 2, 9])
    part = balanced(Rows(np.arange(16.0)[:, None], groups // 2, groups), np.random.default_rng(0))
    assert np.bincount(part.groups).tolist() == [2, 2, 0, 2]
    assert np.array_equal(groups[part.X[:, 0].astype(int)], part.groups)


def test_a_call_that_takes_too_long_is_given_up():
    from benchmarks.last_layers.refitting import at_most

    with at_most(60.0):
        pass
    with pytest.raises(TimeoutError), at_most(0.05):
        all(one > 0 for one in itertools.repeat(1))


@pytest.mark.long
def test_the_program_runs_and_resumes(tmp_path, capsys):
    from benchmarks.last_layers.__main__ import main

    arguments = ["--quick", "--seeds", "2", "--cache", str(tmp_path), "--results", str(tmp_path)]
    main(arguments)
    check_page(tmp_path)
    first = (tmp_path / "last_layers.json").read_bytes()
    capsys.readouterr()
    main(arguments)
    assert (tmp_path / "last_layers.json").read_bytes() == first
    assert capsys.readouterr().out == ""


def test_ours_are_rarely_worse_than_the_best_rival_and_take_more_time():
    runs = json.loads((RESULTS / "last_layers.json").read_text())["runs"]
    seeds = [run["problem"] for run in runs]
    whole = [problem for problem in dict.fromkeys(seeds) if seeds.count(problem) == 5]
    assert len(whole) == 4

    worse = {robustness: [] for robustness in (1.0, "cv", 0.5)}
    for problem in whole:
        theirs = tables.values(runs, problem, tables.REWEIGHTING, "seconds").mean()
        for method, (robustness, _) in tables.OURS.items():
            if tables.paired(runs, problem, method, tables.best_rival(runs, problem)).high < 0:
                worse[robustness].append(problem)
            assert tables.values(runs, problem, method, "seconds").mean() > theirs
    assert worse == {1.0: [], "cv": [], 0.5: 2 * ["Fashion-MNIST, patch 99%"]}
