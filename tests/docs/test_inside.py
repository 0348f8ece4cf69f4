"""The map of the source and the list of the API are complete."""

import re
from pathlib import Path

import pytest

import groupdro
from groupdro import certificate, datasets, distributed
from tests.docs.pages import DOCS

SOURCE = Path(groupdro.__file__).parent


def test_the_map_of_the_source_is_that_of_the_tree():
    section = (DOCS / "inside.md").read_text().partition("## Map of the source")[2]
    drawn = re.findall(r"^\| `([\w/]+(?:\.py|/))` \|", section, re.MULTILINE)
    assert len(drawn) == len(set(drawn)), "a module is on the map twice"
    files = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py")]
    there = {str(path) for path in files if path.name != "__init__.py"}
    there |= {f"{path.parent}/" for path in files if path.name == "__init__.py" and path.parent != Path(".")}
    assert not there - set(drawn), f"not on the map of docs/inside.md: {sorted(there - set(drawn))}"
    assert not set(drawn) - there, (
        f"on the map of docs/inside.md, but not in src/groupdro: {sorted(set(drawn) - there)}"
    )


def test_the_outline_of_a_fit_names_modules_that_exist():
    outline = (DOCS / "inside.md").read_text().partition("```text\n")[2].partition("```")[0]
    named = set(re.findall(r"\b[\w/]+\.py\b", outline))
    assert len(named) >= 5
    assert {name for name in named if not (SOURCE / name).exists()} == set()


def test_every_public_name_has_a_page():
    listed = set(re.findall(r"^   ([\w.]+)$", (DOCS / "api.rst").read_text(), re.MULTILINE))
    modules = {"certificate": certificate, "datasets": datasets, "distributed": distributed}
    public = set(groupdro.__all__) - set(modules)
    public |= {f"{name}.{inner}" for name, module in modules.items() for inner in module.__all__}
    assert not public - listed, f"not in docs/api.rst: {sorted(public - listed)}"


@pytest.mark.parametrize("name", re.findall(r"^   ([\w.]+)$", (DOCS / "api.rst").read_text(), re.MULTILINE))
def test_a_name_of_the_list_exists_and_is_documented(name):
    found = groupdro
    for part in name.split("."):
        found = getattr(found, part)
    assert found.__doc__
