"""What the README and the first page say beyond their code, which is run with that of the other pages."""

import json
import re

import pytest

from tests.docs.pages import DOCS, ROOT, load_script

README, INDEX = ROOT / "README.md", DOCS / "index.md"


def _words(path):
    return " ".join(path.read_text().split())


@pytest.mark.parametrize("page", [README, INDEX], ids=lambda path: path.stem)
def test_what_to_expect_is_what_held_out_data_showed(page):
    shown = _words(DOCS / "held_out.md")  # whose numbers are compared with the stored runs
    trees = re.search(r"smallest worst risk of all models on (\d+ of 13)", shown)[1]
    gains = re.search(r"help significantly on (\d+)\.", shown)[1]
    assert "no significant harm to the worst group on any of the 13" in shown
    text = _words(page)
    assert f"on {trees} public problems they had the best worst group" in text
    assert f"chose a robust model with a significant gain on {gains} of 13 problems, and did the worst group no" in text


def test_both_have_the_same_table():
    tables = [re.search(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE)[0] for page in (README, INDEX)]
    assert tables[0] == tables[1]


def test_the_figure_of_the_first_page_is_that_of_the_stored_runs(monkeypatch):
    pytest.importorskip("matplotlib")
    drawing = load_script("tools", "draw_figures.py")
    runs = json.loads((ROOT / "benchmarks" / "results" / "last_layers.json").read_text())["runs"]
    assert sum(run["problem"] == drawing.PROBLEM for run in runs) == 5
    assert "Means over five networks" in _words(INDEX)
    labels = []
    monkeypatch.setattr(drawing, "save", lambda figure, name: labels.extend(_labels(figure)))
    drawing.draw_last_layer()
    pytest.importorskip("matplotlib.pyplot").close("all")  # the figure would stay open for tests that follow
    drawn = re.findall(r"<!-- (\d+) -->", (DOCS / "images" / "last_layer.svg").read_text())
    assert [label for label in labels if label] == drawn[-len(labels) :]


def _labels(figure):
    return [text.get_text() for text in figure.axes[0].texts]
