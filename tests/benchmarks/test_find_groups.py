import re

import numpy as np
import pytest
from benchmarks.find_groups import chance, real, rivals, simulated
from benchmarks.held_out.problems import Table
from scipy.stats import ttest_rel

from tests.benchmarks.test_held_out import made_up


@pytest.fixture
def written(monkeypatch):
    """Return what the commands write, by name."""
    texts = {}
    for module in (chance, real, rivals):
        monkeypatch.setattr(module, "write", texts.__setitem__)
    return texts


@pytest.mark.parametrize(("name", "share"), [(name, share) for name in chance.PLANTS for share in (0.05, 0.0625)])
def test_planted_groups_have_their_share_of_the_rows_and_their_loss(name, share):
    rows = simulated.planted("exponential", 40_000, 8, 0, conditions=chance.PLANTS[name](share), effect=2.0)
    assert rows.inside.mean() == pytest.approx(share, abs=0.005)
    assert rows.losses[rows.inside].mean() == pytest.approx(2.0, abs=0.1)
    assert rows.losses[~rows.inside].mean() == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("kind", simulated.LOSSES)
def test_losses_without_a_group_have_nothing_to_do_with_the_columns(kind):
    rows = simulated.null(kind, 20_000, 6, seed=0)
    assert not rows.inside.any()
    high = rows.columns["x1"] > 0
    difference = rows.losses[high].mean() - rows.losses[~high].mean()
    assert abs(difference) < 5.0 * rows.losses.std() / np.sqrt(5_000)


def test_chance_is_counted(written):
    chance.nulls(2)
    chance.find_planted(1)
    assert "| all | 2 |" in written["nulls"]
    assert written["planted"].count("| 1 | 0.9") >= 4  # overlaps


def test_parts_of_a_table_are_disjoint_and_keep_units_together():
    table = made_up(units=np.arange(600) // 6)
    parts = [*real.parts_of(table, (0.5, 0.3, 0.2), 0)]
    assert [len(part) for part in parts] == [300, 180, 120]
    assert len(np.unique(np.concatenate(parts))) == 600
    assert not set(table.units[parts[0]]) & set(table.units[parts[1]])
    ordered = [*real.parts_of(table, (0.5, 0.5), 0, by_time=True)]
    assert ordered[0].max() < ordered[1].min()


def test_a_planted_shortcut_is_found_and_repaired():
    table = made_up(8000)
    assert isinstance(table, Table)
    inside = table.groups == "b"
    right = np.random.default_rng(0).random(8000) < 0.95
    shortcut = np.where(right ^ inside, table.y, 1 - table.y)
    repair = real.repaired(table, 0, shortcut=shortcut)
    assert inside[repair.members[0]].all()
    assert repair.recommended != "ERM"
    n_found, best, share, _, there, *_ = real.planted_cells(repair, inside)
    assert n_found == len(repair.members)
    assert 0.3 < float(best) <= 1.0
    assert share == "100%"
    assert there.startswith("-")
    before, after = repair.losses[inside[repair.test]].mean(axis=0)
    assert after < 0.8 * before


def test_repairs_are_tabled(written, monkeypatch):
    table = made_up(6000)
    monkeypatch.setattr(real, "TABLES", {"made up": lambda: table})
    monkeypatch.setattr(real, "PLANTED", {"made up": [("group", "b")]})
    monkeypatch.setattr(real, "UNPLANTED", ("made up",))
    real.shortcuts(1)
    planted, without = written["shortcuts"].split("**Tables without")
    assert planted.count("| made up") == 2
    assert without.count("| made up") == 1


def test_changes_have_the_interval_of_paired_differences():
    losses = np.random.default_rng(0).exponential(size=(400, 2))
    found = real.change(losses)
    mean, low, high = map(float, re.findall(r"[-+]?[0-9.]+", found))
    half = ttest_rel(losses[:, 1], losses[:, 0]).confidence_interval()
    assert (low, high) == pytest.approx((half.low, half.high), abs=2e-3)
    assert mean == pytest.approx((low + high) / 2, abs=1e-3)
    assert [real.significant(text) for text in (found, "-1 (-2 to -0.1)", "+1 (+0.1 to +2)")] == [0, -1, 1]


def test_the_worst_leaf_of_a_tree_is_one_of_its_groups():
    rows = simulated.planted("exponential", 4_000, 8, 0, conditions=[("c1", "=", "r")], effect=3.0)
    (leaf,) = rivals.tree(rows, 0)
    assert rows.losses[leaf].mean() > rows.losses[~leaf].mean()
    assert chance.overlap(rivals.ours(rows, 0)[0], rows.inside) > 0.9
