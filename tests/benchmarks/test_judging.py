"""The stored coverage of statements about groups, and small parts of the simulations behind it."""

import numpy as np
import pytest
from benchmarks.judging import calibration, differences, metric_frame, spread

from tests.benchmarks.stored import RESULTS, tables


def shares(line, columns):
    return [float(line[column].split("%")[0]) / 100 for column in columns]


def least(n_sets, target=0.93):
    """Return the target less two standard errors."""
    return target - 2 * np.sqrt(target * (1 - target) / n_sets)


def test_the_spread_and_a_new_group_are_covered_on_every_line():
    text = (RESULTS / "judging_spread.md").read_text()
    lines = tables(text)[0]
    assert len(lines) == len(spread.SETTINGS)
    for line in lines:
        assert min(shares(line, ["interval of the spread", "prediction interval"])) >= least(1000), line


def test_the_tables_of_the_page_are_those_of_the_code():
    assert (RESULTS / "judging_spread.md").read_text().endswith(spread.intervals_of_tables())


@pytest.mark.parametrize("setting", [spread.SETTINGS[0], spread.SETTINGS[-1]])
def test_a_few_simulated_spreads(setting):
    found = spread.Found(*spread.simulate(setting, 20))
    assert min(found.spread, found.mean, found.new) > 0.7


def test_calibration_is_covered_on_every_line_with_enough_expected_events():
    lines = tables((RESULTS / "judging_calibration.md").read_text())[0]
    assert len(lines) == len(calibration.SETTINGS)
    for line in lines:
        for name in calibration.TRUTH:
            cell = line[f"{name} 1"]  # the second of two columns of this name
            if cell:
                share, *number = cell.replace("(", "").replace(")", "").split()
                assert float(share.rstrip("%")) / 100 >= least(int(number[0]) if number else 100), line


@pytest.mark.parametrize("kind", metric_frame.KINDS)
def test_a_report_and_metric_frame_take_the_same_rows(kind, monkeypatch):
    pytest.importorskip("fairlearn")
    monkeypatch.setattr(metric_frame, "N_ROWS", 2000)
    monkeypatch.setattr(metric_frame, "N_GROUPS", 3)
    metric_frame.ours(kind, 20)
    metric_frame.metric_frame(kind, 2)


def test_differences_are_covered_on_every_line():
    lines = tables((RESULTS / "judging_differences.md").read_text())[0]
    assert len(lines) == len(differences.SETTINGS)
    for line in lines:
        assert min(shares(line, [name for name, cell in line.items() if "%" in cell])) >= least(100), line


def test_a_few_simulated_differences(monkeypatch):
    monkeypatch.setattr(differences, "LARGE", 20_000)
    monkeypatch.setattr(differences, "N_BOOTSTRAP", 100)
    differences.truth.cache_clear()
    found = differences.simulate(differences.SETTINGS[0], 10)
    differences.truth.cache_clear()
    assert min(holds for holds, _ in found.values()) >= 0.6
    page = differences.document(dict.fromkeys(differences.SETTINGS, found), 10)
    assert page.count("\n| ") == len(differences.SETTINGS) + 2


@pytest.mark.parametrize("rows", calibration.ROWS)
def test_a_few_simulated_calibrations(rows, monkeypatch):
    monkeypatch.setattr(calibration, "N_BOOTSTRAP", 200)
    found = calibration.simulate(calibration.Setting(rows, "common", 300), 10)
    for name in calibration.TRUTH:
        holds, some, silent = found[f"{name}, {20}"]
        assert some == 1
        assert holds >= 0.6
        assert silent <= 0.2
    assert calibration.document(dict.fromkeys(calibration.SETTINGS, found), 10).count("\n| ") == 26
