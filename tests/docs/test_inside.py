"""The map of the source and the list of the API agree with the package."""

import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import groupdro
from tests.docs.pages import DOCS, ROOT, load_script

pytest.importorskip("torch")

import groupdro.torch

SOURCE = Path(groupdro.__file__).parent
INSIDE = (DOCS / "inside.md").read_text()
MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


def test_the_map_of_the_source_has_every_module_once():
    extension = load_script("_extensions", "module_map.py")
    drawn = re.findall(r"^(?:\| |\*\*)`([\w/]+(?:\.py|/))`", extension.module_map(), re.MULTILINE)
    there = [f"{path.parent}/" if path.name == "__init__.py" else str(path) for path in MODULES if path.parts[1:]]
    there += [path.name for path in MODULES if not path.parts[1:] and path.name != "__init__.py"]
    assert sorted(drawn) == sorted(there)
    assert extension.MARKER in INSIDE


def test_a_module_without_a_docstring_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"empty\.py has no docstring"):
        load_script("_extensions", "module_map.py").summary(tmp_path / "empty.py")


def test_every_module_that_the_page_names_exists():
    named = set(re.findall(r"\b[\w/]+\.py\b", INSIDE))
    assert named
    assert {name for name in named if not (SOURCE / name).exists() and not (ROOT / name).exists()} == set()


def test_every_public_name_has_a_page():
    listed = set(re.findall(r"^   ([\w.]+)$", (DOCS / "api.rst").read_text(), re.MULTILINE))
    named = (getattr(groupdro, name) for name in groupdro.__all__)
    modules = {module.__name__.split(".")[1]: module for module in (*named, groupdro.torch) if inspect.ismodule(module)}
    assert set(modules) >= {"losses", "domains", "weight_sets", "plots", "solvers", "certificate", "torch"}
    public = set(groupdro.__all__) - set(modules)
    public |= {f"{name}.{inner}" for name, module in modules.items() for inner in module.__all__}
    public -= {"solvers.solve"}  # listed by its shorter name
    assert not public - listed, f"not in docs/api.rst: {sorted(public - listed)}"


def test_every_name_of_the_list_exists_and_is_documented():
    names = re.findall(r"^   ([\w.]+)$", (DOCS / "api.rst").read_text(), re.MULTILINE)
    assert names
    for name in names:
        assert pkgutil.resolve_name(f"groupdro.{name}").__doc__, name
