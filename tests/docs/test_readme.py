"""Numbers and the figure of the README and of the first page, whose code is run with that of the other pages."""

import json
import re
from collections import Counter

import pytest

from tests.docs.pages import DOCS, ROOT, load_script, numbers

README, INDEX = ROOT / "README.md", DOCS / "index.md"


@pytest.mark.parametrize("page", [README, INDEX], ids=lambda path: path.stem)
def test_what_to_expect_is_what_held_out_data_showed(page):
    models, tables = (pytest.importorskip(f"benchmarks.held_out.{name}") for name in ("models", "tables"))
    compared = tables.compare(tables.read(tables.STORED), tables.read(tables.SIZES))
    best = sum(one.least_worst == models.TREES for one in compared.values())
    gains, harm = (tables.names_by_verdict(compared, models.CHOSEN, "worst", verdict) for verdict in ("below", "above"))
    assert not harm
    table = re.search(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE)[0]
    assert not Counter([str(best), str(len(gains)), *2 * [str(len(compared))]]) - Counter(numbers(table))


def test_both_have_the_same_table():
    tables = [re.search(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE)[0] for page in (README, INDEX)]
    assert tables[0] == tables[1]


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
