import ast
import re
from pathlib import Path

import pytest

import groupdro

# From the top, which everything below may import, to the bottom. A name stands for a module or for a whole package.
LAYERS = (
    "kernels",
    "utils",
    "version",
    "datasets",
    "data",
    "distributed",
    "store",
    "geometry",
    "losses",
    "problem",
    "domains",
    "weight_sets",
    "oracle",
    "certificate",
    "run",
    "solvers",
    "evaluation",
    "discovery",
    "plots",
    "estimators",
    "compare",
    "torch",
    "cli",
)
ORDER = {name: place for place, name in enumerate(LAYERS)}
ROOT = Path(groupdro.__file__).parent


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("groupdro", *path.relative_to(ROOT).with_suffix("").parts)
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def place_of(module):
    package, _, rest = module.partition(".")
    return rest.split(".")[0] or package


def is_module(name):
    path = ROOT.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imported_modules(source, module, is_package):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*above, *base.split(".")]).rstrip(".")
            inner = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if is_module(name) else base for name in inner]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "groupdro")


def faults(source, module, is_package=False):
    own = place_of(module)
    if own == "groupdro":
        return []
    found = []
    for line, name in imported_modules(source, module, is_package):
        other = place_of(name)
        if own == other:
            continue
        if other not in ORDER or ORDER[other] > ORDER[own]:
            found.append(f"line {line}: {module} imports {name}, but '{own}' may not import from '{other}'")
    return found


def test_the_package_was_found():
    assert {place_of(name) for name, _ in modules()} >= {"groupdro", "kernels", "data", "problem", "solvers"}


def test_every_module_imports_only_from_layers_above():
    found = []
    for module, path in modules():
        place = place_of(module)
        assert place in {"groupdro", *ORDER}, (
            f"{module} has no layer: place '{place}' in the table LAYERS of this file and of CONTRIBUTING.md."
        )
        found += faults(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
    assert not found, "\n".join(found)


def test_every_layer_of_the_table_exists():
    assert {place_of(name) for name, _ in modules()} >= set(ORDER)


def test_the_guide_for_contributors_has_the_same_layers():
    guide = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = guide.partition("## Where things live")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([\w/.]+)` \|", table, re.MULTILINE)
    assert named == [f"{name}.py" if (ROOT / f"{name}.py").exists() else f"{name}/" for name in LAYERS]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("groupdro.kernels.groups", "from groupdro.data import Draw"),
        ("groupdro.kernels.groups", "from groupdro import datasets"),
        ("groupdro.utils.threads", "import groupdro.data"),
        ("groupdro.data", "from groupdro.losses import Loss"),
        ("groupdro.losses", "from groupdro import certificate"),
        ("groupdro.problem.linear_model", "from .. import certificate"),
        ("groupdro.geometry", "from groupdro.problem import Problem"),
        ("groupdro.problem.linear_model", "from ..solvers.base import Solver"),
        ("groupdro.losses", "def f():\n    from groupdro.certificate import Certificate"),
        ("groupdro.geometry", "if TYPE_CHECKING:\n    from groupdro.solvers import Solver"),
        ("groupdro.problem.problem", "from groupdro.oracle import Oracle"),
        ("groupdro.oracle.oracle", "from groupdro.certificate import Certificate"),
        ("groupdro.certificate", "from groupdro.run.result import Result"),
        ("groupdro.run.solver", "from groupdro import Problem"),
        ("groupdro.run.solver", "import groupdro"),
        ("groupdro.run.solver", "from groupdro.not_in_the_table import x"),
        ("groupdro.datasets", "from groupdro.data.rows import read_rows"),
        ("groupdro.problem.problem", "from groupdro.domains import L2Domain"),
        ("groupdro.domains", "from groupdro.solvers import ALEG"),
        ("groupdro.evaluation.report", "from groupdro.plots import GroupMetricDisplay"),
    ],
)
def test_the_check_finds_a_forbidden_import(module, source):
    assert len(faults(source, module)) == 1


def test_the_check_resolves_relative_imports_of_a_package():
    assert faults("from .domains import Domain\nfrom ..data import Draw", "groupdro.problem", is_package=True) == []
    assert len(faults("from ..solvers import Solver", "groupdro.problem", is_package=True)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("groupdro", "from groupdro.solvers import solve"),
        ("groupdro.kernels.groups", "import math, numba\nfrom groupdro.kernels.compile import compiled"),
        ("groupdro.data", "from groupdro.data.rows import read_rows\nfrom groupdro.data.grouping import read_groups"),
        ("groupdro.losses", "from groupdro.kernels import losses as kernels"),
        ("groupdro.certificate", "from groupdro.certificate.rounding import bound\nfrom groupdro import datasets"),
        ("groupdro.run.solver", "from groupdro.geometry import Entropy\nfrom .result import Result"),
    ],
)
def test_the_check_allows_imports_from_above_and_from_the_same_package(module, source):
    assert faults(source, module) == []
