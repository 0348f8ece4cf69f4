"""Numbers of the README and of the first page beyond their code, which is run with that of the other pages."""

import json
import re
import tomllib

import pytest

from tests.docs.pages import DOCS, ROOT, load_script

README = ROOT / "README.md"


def test_the_counts_of_problems_are_those_of_held_out_data():
    models, tables = (pytest.importorskip(f"benchmarks.held_out.{name}") for name in ("models", "tables"))
    compared = tables.compare(tables.read(tables.STORED), tables.read(tables.SIZES))
    best = sum(one.least_worst == models.TREES for one in compared.values())
    chosen = len(tables.names_by_verdict(compared, models.CHOSEN, "worst", "below"))
    shown = re.findall(r"(\d+) of (\d+)", README.read_text().partition("## When it helps")[2].partition("\n## ")[0])
    assert shown == [(str(best), str(len(compared))), (str(chosen), str(len(compared)))]


def test_the_figure_of_the_first_page_is_that_of_the_stored_runs(monkeypatch):
    pytest.importorskip("matplotlib")
    drawing = load_script("tools", "draw_figures.py")
    runs = json.loads((ROOT / "benchmarks" / "results" / "last_layers.json").read_text())["runs"]
    assert sum(run["problem"] == drawing.PROBLEM for run in runs) == 5
    labels = []
    monkeypatch.setattr(drawing, "save", lambda figure, name: labels.extend(_labels(figure)))
    drawing.draw_last_layer()
    pytest.importorskip("matplotlib.pyplot").close("all")  # the figure would stay open for tests that follow
    drawn = re.findall(r"<!-- (\d+) -->", (DOCS / "images" / "last_layer.svg").read_text())
    assert [label for label in labels if label] == drawn[-len(labels) :]


def _labels(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_the_coverage_is_the_stored_one_and_ci_accepts_no_less():
    total = int((ROOT / "benchmarks" / "results" / "coverage.txt").read_text())
    assert f"coverage-{total}%25-" in README.read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["coverage"]["report"]["fail_under"] == total - 1
