"""The stored times of auto beside single solvers are those that their table and the documentation tell."""

import json
import re

import pytest
from benchmarks import auto_grid

from tests.docs.pages import ROOT, quoted

RESULTS = ROOT / "benchmarks" / "results"
STORED = json.loads((RESULTS / "auto_grid.json").read_text())


def test_the_table_is_made_of_what_is_stored():
    assert (RESULTS / "auto_grid.md").read_text() == auto_grid.table(STORED)
    assert set(STORED["problems"]) == set(auto_grid.PROBLEMS)


@pytest.mark.parametrize("name", auto_grid.PROBLEMS)
def test_auto_converged_at_every_tolerance(name):
    assert all(cell["converged"] for cell in STORED["problems"][name]["auto"].values())


def test_a_page_quotes_the_table():
    lines = (RESULTS / "auto_grid.md").read_text()
    assert quoted(*re.search(r"median ([\d.]+), 90% at most ([\d.]+), largest (\d+\.\d+)", lines).groups())


@pytest.mark.long
def test_a_small_problem_can_be_measured(monkeypatch, capsys):
    monkeypatch.setitem(auto_grid.PROBLEMS, "small", lambda: auto_grid.group_slopes(5, 20, 3))
    found = auto_grid.measure("small")
    assert set(found["single"]) >= {"newton", "lbfgs", "aleg"}
    assert set(found["auto"]) == {f"{tol:g}" for tol in auto_grid.TOLERANCES}
    assert "small" in capsys.readouterr().out
