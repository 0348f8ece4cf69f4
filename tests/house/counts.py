"""Counts on the syntax tree of the package that a simpler structure brings down.

python -m tests.house.counts             of this tree
python -m tests.house.counts SRC         of another source directory
python -m tests.house.counts --places    with the file and line of each
"""

import argparse
import ast
import io
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.house.environment import SOURCE
from tests.house.syntax import Module, class_tests, last_name, read_package, subclasses

__all__ = ["COUNTS", "INFORMATION", "LONG", "MOST_PARAMETERS", "code_lines"]

MOST_PARAMETERS = 12  # of a kernel
LONG = 400  # lines of a module

_ROW_FLAGS = {"is_sparse", "is_dense", "is_mapped", "compilable", "mapped"}
_SPARSE_TESTS = {"issparse", "isspmatrix", "isspmatrix_csr", "isspmatrix_csc"}
_SPARSE_ATTRIBUTES = {"todense", "toarray", "tocsr", "tocsc", "nnz", "indptr", "indices"}
_DOMAIN_ATTRIBUTES = {"radius", "penalty"}
_ROW_CAPABILITIES = {"combinable", "copyable", "sparse"}
_COUNTER_FIELDS = {"grad_evals", "grad_evals_paper", "row_reads", "counting"}
_COMPILERS = {"compiled", "compiled_fast", "njit", "jit"}

Places = list[str]


def _places(module: Module, nodes: Iterable[ast.AST]) -> Places:
    """Return file, line and text of nodes in the order of lines."""
    text, lines = module.source.splitlines(), sorted(node.lineno for node in nodes)  # type: ignore[attr-defined]
    return [f"{module.path}:{line}: {text[line - 1].strip()}" for line in lines]


def _shared(modules: list[Module]) -> dict[str, set[str]]:
    """Return what the constants of all modules stand for, which other modules may import."""
    return {
        name: names for module in modules for name, names in module.stands_for.items() if name.lstrip("_")[:1].isupper()
    }


def _asks_for_attribute(node: ast.AST, attributes: set[str]) -> bool:
    """Return whether a call is hasattr, or getattr with a default, of one of some attributes."""
    if not isinstance(node, ast.Call) or last_name(node.func) not in ("hasattr", "getattr"):
        return False
    least = 2 if last_name(node.func) == "hasattr" else 3
    name = node.args[1] if len(node.args) >= least else None
    return isinstance(name, ast.Constant) and name.value in attributes


# ---------------------------------------------------------------------- the counts


def row_tests(modules: list[Module]) -> Places:
    """Tests of how rows are stored, outside data/ and kernels/."""

    def asks(node: ast.AST) -> bool:
        flag = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in _ROW_FLAGS
        sparse = isinstance(node, ast.Call) and last_name(node.func) in _SPARSE_TESTS
        return flag or sparse or _asks_for_attribute(node, _SPARSE_ATTRIBUTES)

    found, shared = Places(), _shared(modules)
    for module in modules:
        if module.package not in ("data", "kernels"):
            tests = class_tests(module, lambda name: name.endswith("Rows"), {"rows", "stored"}, shared)
            found += _places(module, [*tests, *filter(asks, ast.walk(module.tree))])
    return found


def domain_tests(modules: list[Module]) -> Places:
    """Tests for a kind of domain or set of weights, outside the file that defines it."""
    found, shared, kinds = Places(), _shared(modules), subclasses(modules, {"Domain", "WeightSet"})
    for module in modules:
        away = {name for name, files in kinds.items() if module.path not in files}
        # Whoever compares the type of a domain asks for its kind, but for those that define kinds.
        instances = {"domain", "weight_set"} if away == set(kinds) else set()
        tests = class_tests(module, away.__contains__, instances, shared)
        guesses = [node for node in ast.walk(module.tree) if _asks_for_attribute(node, _DOMAIN_ATTRIBUTES)]
        found += _places(module, [*tests, *guesses])
    return found


def domain_reads(modules: list[Module]) -> Places:
    """Reads of a domain's radius or penalty in solvers/."""
    found = Places()
    for module in modules:
        if module.package == "solvers":
            domains = {name for name, names in module.stands_for.items() if "domain" in names} | {"domain"}
            reads = [node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)]
            reads = [node for node in reads if node.attr in _DOMAIN_ATTRIBUTES and last_name(node.value) in domains]
            found += _places(module, reads)
    return found


def row_capabilities(modules: list[Module]) -> Places:
    """Reads of what rows say they can do, outside of data/: questions about a kind in other words."""
    found = Places()
    for module in modules:
        if module.package not in ("data", "kernels"):
            reads = [node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)]
            found += _places(module, [n for n in reads if n.attr in _ROW_CAPABILITIES and last_name(n.value) == "rows"])
    return found


def workers_in_solvers(modules: list[Module]) -> Places:
    """Mentions of n_workers in solvers/."""

    def mentions(node: ast.AST) -> bool:
        names = last_name(node), getattr(node, "arg", None), getattr(node, "value", None)
        return any(isinstance(name, str) and name == "n_workers" for name in names)

    solvers = [module for module in modules if module.package == "solvers"]
    return [place for module in solvers for place in _places(module, filter(mentions, ast.walk(module.tree)))]


def counting(modules: list[Module]) -> Places:
    """Calls that count what is asked of the data, outside problem/."""
    found = Places()
    for module in modules:
        if module.package != "problem":
            nodes = list(ast.walk(module.tree))
            made = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
            made = [node for node in made if last_name(node.value.func) == "Counters"]  # type: ignore[attr-defined]
            counters = {"counters"} | {last_name(target) for node in made for target in node.targets}
            found += _places(module, [node for node in nodes if _counts(node, counters)])
    return found


def _counts(node: ast.AST, counters: set[str]) -> bool:
    """Return whether a node calls or sets counters, which have these names."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("merge", "suspended"):
            return True
        if isinstance(node.func, ast.Attribute) and node.func.attr == "add":
            return last_name(node.func.value) in counters
        return last_name(node.func) == "setattr" and bool(node.args) and last_name(node.args[0]) in counters
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr == "counters" or (node.attr in _COUNTER_FIELDS and last_name(node.value) in counters)
    return False


def long_kernels(modules: list[Module]) -> Places:
    """Kernels with more than 12 parameters."""
    found = []
    for module in modules:
        for node in ast.walk(module.tree):
            if module.package == "kernels" and isinstance(node, ast.FunctionDef):
                decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
                given = node.args
                parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
                n_parameters = sum(parameter is not None for parameter in parameters)
                if _COMPILERS & set(map(last_name, decorators)) and n_parameters > MOST_PARAMETERS:
                    found.append(f"{module.path}:{node.lineno}: {node.name} has {n_parameters} parameters")
    return found


def long_modules(modules: list[Module]) -> Places:
    """Modules of more than 400 lines."""
    lines = {module.path: len(module.source.splitlines()) for module in modules}
    return [f"{path}:{n}: {n} lines" for path, n in lines.items() if n > LONG]


def code_lines(source: str) -> int:
    """Return the lines of a module that are neither blank, nor a comment, nor part of a docstring."""
    lines: set[int] = set()
    blank = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    }  # fmt: skip
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in blank:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


COUNTS: dict[str, Callable[[list[Module]], Places]] = {
    "tests of row classes outside data/ and kernels/": row_tests,
    "tests of domains and weight sets": domain_tests,
    "n_workers in solvers/": workers_in_solvers,
    "counting calls outside problem/": counting,
    f"kernels with more than {MOST_PARAMETERS} parameters": long_kernels,
    f"modules of more than {LONG} lines": long_modules,
}
#: Counts that have no limit.
INFORMATION: dict[str, Callable[[list[Module]], Places]] = {
    "reads of a domain's radius or penalty in solvers/": domain_reads,
    "capabilities that rows are asked for outside data/": row_capabilities,
}


def _lines(modules: list[Module], *, places: bool) -> Iterator[str]:
    for name, find in {**COUNTS, **INFORMATION}.items():
        found = find(modules)
        yield f"{len(found):7,}  {name}"
        if places:
            yield from (f"             {place}" for place in found)
    by_package: dict[str, int] = {}
    for module in modules:
        package = module.path.split("/")[0] if "/" in module.path else "."
        by_package[package] = by_package.get(package, 0) + code_lines(module.source)
    yield f"{sum(by_package.values()):7,}  lines of code"
    if places:
        yield from (f"             {package}: {lines:,}" for package, lines in sorted(by_package.items()))


def main() -> None:
    """Print the counts of a source directory."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.counts", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("src", nargs="?", type=Path, default=SOURCE, help="source directory that holds groupdro")
    parser.add_argument("--places", action="store_true", help="file and line of each")
    given = parser.parse_args()
    root = given.src / "groupdro" if (given.src / "groupdro").is_dir() else given.src
    modules = read_package(root)
    if not modules:
        parser.error(f"{given.src} has no modules")
    print(*_lines(modules, places=given.places), sep="\n")


if __name__ == "__main__":
    main()
