"""The stored comparison of last layers without labels agrees with its runs, and the program runs."""

import json
import re

import numpy as np
import pytest
from scipy import stats

from tests.docs.pages import ROOT

pytest.importorskip("torch")
pytest.importorskip("pandas")
tables = pytest.importorskip("benchmarks.last_layers.no_labels_tables", reason="needs the folders of the repository")

RESULTS = ROOT / "benchmarks" / "results"


def check_page(folder):
    """Compare the accuracies, differences and ratios of the page with the runs."""
    runs = json.loads((folder / "no_labels.json").read_text())["runs"]
    page = (folder / "no_labels.md").read_text()
    blocks = [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        for block in re.findall(r"(?:^\|.*\|\n)+", page, re.MULTILINE)
    ]

    def of(problem, flipped, method, key):
        own = [run for run in runs if run["problem"] == problem and run["flipped"] == flipped]
        return np.array([run["methods"][method][key] for run in sorted(own, key=lambda run: run["seed"])])

    levels = sorted({run["flipped"] for run in runs})
    assert len(blocks) == 2 * len(levels) + 1
    for level, accuracy, changes in zip(levels, blocks[:-1:2], blocks[1:-1:2], strict=True):
        problems = accuracy[0][1:]
        assert accuracy[0] == ["layer", *problems]
        for method, *cells in accuracy[2:]:
            for problem, cell in zip(problems, cells, strict=True):
                means = [100 * of(problem, level, method, key).mean() for key in ("worst", "average")]
                assert [float(number) for number in re.findall(r"[\d.]+", cell)] == pytest.approx(means, abs=0.051)
        for pair, where, *cells in changes[2:]:
            one, other = pair.split(", less ")
            key = {"worst group": "worst", "all rows": "average"}[where]
            for problem, cell in zip(problems, cells, strict=True):
                change = 100 * (of(problem, level, one, key) - of(problem, level, other, key))
                stated = [float(number) for number in re.findall(r"[-+][\d.]+", cell)]
                expected = [change.mean()]
                if len(change) > 1:
                    expected += [*stats.ttest_1samp(change, 0).confidence_interval(0.95)]
                assert stated == pytest.approx(expected, abs=0.051)
    for method, *cells in blocks[-1][2:]:
        for problem, cell in zip(blocks[-1][0][1:], cells, strict=True):
            ratio = of(problem, 0.0, method, "seconds").mean() / of(problem, 0.0, "plain refit", "seconds").mean()
            assert float(cell) == pytest.approx(ratio, abs=0.051)


def test_every_number_of_the_page_is_that_of_the_runs():
    check_page(RESULTS)


def test_published_reweighting_leaves_the_network_alone():
    import torch
    from benchmarks.last_layers import no_labels
    from benchmarks.last_layers.problems import made_up
    from benchmarks.last_layers.refitting import freeze
    from benchmarks.last_layers.training import make_network

    torch.manual_seed(0)
    problem = made_up(0)
    task = no_labels.Task(freeze(make_network(problem.train), problem), 0.0, 0)
    before = {name: value.clone() for name, value in task.head.state_dict().items()}
    found = no_labels.published_reweighting(task, (4.0, 0.0, 0.01, 100))
    assert found["seconds"] > 0
    assert 0 <= found["worst"] <= found["average"] <= 1
    assert all(torch.equal(value, before[name]) for name, value in task.head.state_dict().items())


@pytest.mark.long
def test_the_program_runs_resumes_and_agrees_with_its_page(tmp_path, capsys):
    from benchmarks.last_layers.no_labels import main

    arguments = ["--quick", "--seeds", "1", "--cache", str(tmp_path), "--results", str(tmp_path)]
    main(arguments)
    assert "made up | 0 | 0.15" in capsys.readouterr().out
    check_page(tmp_path)
    stored = (tmp_path / "no_labels.json").read_bytes()
    main(arguments)
    assert capsys.readouterr().out == ""
    assert (tmp_path / "no_labels.json").read_bytes() == stored
