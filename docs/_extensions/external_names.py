"""Links from the code of the gallery to the documentation of other packages, without asking the network.

Packages publish inventories of their pages, which a build would have to fetch. The names that the examples use are few,
and the addresses of their pages follow a rule in every package, so an inventory of just these names is written when the
build begins.
"""

import ast
import importlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["names_in", "setup", "write_inventories"]

EXAMPLES = Path(__file__).parents[2] / "examples"
#: Address of each package's documentation, and the page of a name in it.
SITES = {
    "matplotlib": ("https://matplotlib.org/stable/", "api/_as_gen/{}.html"),
    "numpy": ("https://numpy.org/doc/stable/", "reference/generated/{}.html"),
    "pandas": ("https://pandas.pydata.org/docs/", "reference/api/{}.html"),
    "scipy": ("https://docs.scipy.org/doc/scipy/", "reference/generated/{}.html"),
    "sklearn": ("https://scikit-learn.org/stable/", "modules/generated/{}.html"),
    "torch": ("https://docs.pytorch.org/docs/stable/", "generated/{}.html"),
}
#: Names that have no page of their own.
ELSEWHERE = {
    "numpy.float32": "reference/arrays.scalars.html",
    "numpy.random.default_rng": "reference/random/generator.html",
    "torch.utils.data.DataLoader": "data.html",
    "torch.utils.data.TensorDataset": "data.html",
}
_HEADER = (
    "# Sphinx inventory version 2\n# Project: {}\n# Version: \n# The remainder of this file is compressed using zlib.\n"
)


def names_in(source: str) -> set[str]:
    """Return the full names that a program takes from the packages above: what it imports, and attributes of that."""
    tree, meaning = ast.parse(source), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            meaning |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            meaning |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    found = set(meaning.values())
    for node in ast.walk(tree):
        path = _path(node)
        if path and path[0] in meaning:
            found.add(".".join([meaning[path[0]], *path[1:]]))
    return {name for name in found if name.split(".")[0] in SITES and "." in name}


def _path(node: ast.AST) -> list[str]:
    """Return the parts of a dotted name, or nothing if it is an attribute of something else."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = _path(node.value) if isinstance(node, ast.Attribute) else []
    return [*before, node.attr] if before else []


def _entries(names: set[str]) -> Iterator[str]:
    """Give the lines of an inventory for the names that are functions or classes."""
    for name in sorted(names):
        module, _, attribute = name.rpartition(".")
        try:
            subject = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):  # the package is not installed, or this is a method of a result
            continue
        if callable(subject):
            role = "class" if isinstance(subject, type) else "function"
            page = ELSEWHERE.get(name) or SITES[name.split(".")[0]][1].format(name)
            yield f"{name} py:{role} 1 {page}#$ -\n"


def write_inventories(folder: Path) -> dict[str, tuple[str, str]]:
    """Write an inventory per package, and return the mapping that intersphinx takes."""
    folder.mkdir(parents=True, exist_ok=True)
    used = {name for example in EXAMPLES.glob("plot_*.py") for name in names_in(example.read_text(encoding="utf-8"))}
    mapping = {}
    for package, (address, _) in SITES.items():
        lines = "".join(_entries({name for name in used if name.startswith(f"{package}.")}))
        if lines:
            file = folder / f"{package}.inv"
            file.write_bytes(_HEADER.format(package).encode() + zlib.compress(lines.encode()))
            mapping[package] = (address, str(file))
    return mapping


def _configure(app: Any, config: Any) -> None:
    config.intersphinx_mapping = write_inventories(Path(app.doctreedir) / "inventories")


def setup(app: Any) -> dict[str, bool]:
    """Write the inventories before intersphinx reads its mapping."""
    app.connect("config-inited", _configure, priority=100)
    return {"parallel_read_safe": True}
