"""The drawing of the layers and the table of stored results agree with the repository."""

import importlib.util
import re
import xml.etree.ElementTree as ET

from tests import test_layers
from tests.docs.pages import DOCS, ROOT

RESULTS = ROOT / "benchmarks" / "results"


def load_script():
    spec = importlib.util.spec_from_file_location("draw_architecture", DOCS / "draw_architecture.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_stored_drawing_is_that_of_the_imports_of_today():
    script = load_script()
    stored = script.DRAWING.read_text(encoding="utf-8")
    assert stored == script.draw(), "run `python docs/draw_architecture.py`"
    names = {text.text for text in ET.fromstring(stored).iter("{http://www.w3.org/2000/svg}text")}
    assert set(test_layers.LAYERS) <= names


def test_the_drawing_sees_the_imports_that_the_test_of_layers_sees():
    found = {name: set() for name in test_layers.LAYERS}
    for module, path in test_layers.modules():
        own = test_layers.place_of(module)
        source = path.read_text(encoding="utf-8")
        for _, name in test_layers.imported_modules(source, module, path.name == "__init__.py"):
            if own in found and test_layers.place_of(name) != own:
                found[own].add(test_layers.place_of(name))
    assert load_script().imports() == found


def test_arrows_that_follow_from_others_are_left_out():
    script = load_script()
    graph = {"a": set(), "b": {"a"}, "c": {"a", "b"}}
    assert script.reduced(graph) == {"a": set(), "b": {"a"}, "c": {"b"}}
    assert script.levels(graph) == {"a": 0, "b": 1, "c": 2}
    rows, arrows = script.arranged({"a": set(), "b": {"a"}, "c": {"b"}, "d": {"c", "a"}})
    assert [len(row) for row in rows] == [1, 2, 2, 1]  # the arrow from d to a has a place in both rows between
    assert ["d", "d>a>2", "d>a>1", "a"] in arrows


def test_the_number_of_layers_is_right():
    assert f"stack of {len(test_layers.LAYERS)} layers" in (DOCS / "architecture.md").read_text()


def test_every_stored_result_is_on_the_page_with_its_command():
    page = (DOCS / "reproducing.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w.-]+)`", row.split("|")[1])}
    assert named == {path.name for path in RESULTS.iterdir()}
    commands = re.findall(r"python -m (benchmarks[\w.]*)", page)
    assert commands
    for module in commands:
        place = ROOT.joinpath(*module.split("."))
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module


def test_decisions_are_dated_and_name_what_they_rest_on():
    page = (DOCS / "decisions.md").read_text()
    records = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    assert len(records) >= 6
    for record in records:
        title = record.splitlines()[0]
        assert re.search(r"^\*20\d\d-\d\d-\d\d\.\*", record, re.MULTILINE), title
        for part in ("**Decision.**", "**Evidence.**", "**Cost.**"):
            assert part in record, f"{title} lacks {part}"
