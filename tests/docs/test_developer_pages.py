"""The drawing of the layers and the table of stored results agree with the repository."""

import re
import xml.etree.ElementTree as ET

import pytest

from tests import test_layers
from tests.docs.pages import ROOT, load_script
from tests.docs.test_links import broken
from tests.docs.test_records import section

RESULTS = ROOT / "benchmarks" / "results"


def test_the_stored_drawing_is_that_of_the_imports_of_today():
    script = load_script("tools", "draw_architecture.py")
    stored = script.DRAWING.read_text(encoding="utf-8")
    assert stored == script.draw(), "run `python docs/tools/draw_architecture.py`"
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
    assert load_script("tools", "draw_architecture.py").imports() == found


def test_arrows_that_follow_from_others_are_left_out():
    script = load_script("tools", "draw_architecture.py")
    graph = {"a": set(), "b": {"a"}, "c": {"a", "b"}}
    assert script.reduced(graph) == {"a": set(), "b": {"a"}, "c": {"b"}}
    assert script.levels(graph) == {"a": 0, "b": 1, "c": 2}
    rows, arrows = script.arranged({"a": set(), "b": {"a"}, "c": {"b"}, "d": {"c", "a"}})
    assert [len(row) for row in rows] == [1, 2, 2, 1]  # the arrow from d to a has a place in both rows between
    assert ["d", "d>a>2", "d>a>1", "a"] in arrows


def test_every_stored_result_is_on_the_page_with_its_command():
    page = section("benchmarks.md", "Reproduce the results")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w./-]+)`", row.split("|")[1])}
    assert named == {str(path.relative_to(RESULTS)) for path in RESULTS.rglob("*") if path.is_file()}
    commands = re.findall(r"python -m (benchmarks[\w.]*)", page)
    assert commands
    for module in commands:
        place = ROOT.joinpath(*module.split("."))
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "RELEASING.md", "CHANGELOG.md"])
def test_links_of_files_at_the_root_lead_somewhere(name):
    assert broken(ROOT / name, (ROOT / name).read_text()) == []


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # bad arguments include NumPy's matrices
def test_the_cases_of_the_campaign_are_those_of_its_checks():
    from tests.campaign.checks import CHECKS

    rows = re.findall(r"^\| .*\(`([\w -]+)`\) \| ([\d,]+) \|$", section("developers.md", "Stress tests"), re.MULTILINE)
    assert len(rows) >= 15
    for name, shown in rows:
        own = [check.full for check in CHECKS if check.name == name or check.name.startswith(f"{name}:")]
        assert shown == f"{sum(own):,}", name
