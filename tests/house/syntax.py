"""A package as syntax trees: modules, what their names stand for, and tests of classes."""

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Module", "class_tests", "last_name", "named_classes", "read_package", "subclasses"]

_TESTS = {"isinstance", "issubclass", "check_kind"}


@dataclass
class Module:
    """A module of the package.

    Attributes
    ----------
    path : str
        Its file, relative to the package, with slashes.
    source : str
        Its text.
    tree : Module
        Its syntax tree.
    stands_for : dict
        Names by which it calls others: imported under another name, or assigned, such as a union of classes.
    """

    path: str
    source: str
    tree: ast.Module = field(init=False)
    stands_for: dict[str, set[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.source)
        self.stands_for = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                self.stands_for |= {name.asname: {name.name} for name in node.names if name.asname}
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.stands_for.setdefault(node.targets[0].id, set()).update(_plain_names(node.value))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.stands_for.setdefault(node.target.id, set()).update(_plain_names(node.value))

    @property
    def package(self) -> str:
        """The package within groupdro that the module is in, or its own name."""
        return self.path.split("/")[0].removesuffix(".py")


def read_package(root: Path) -> list[Module]:
    """Read all modules below a directory."""
    found = sorted(root.rglob("*.py"))
    return [Module(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in found]


def last_name(node: ast.AST) -> str:
    """Return the name of a variable or of the attribute that an expression ends in; empty for others."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _plain_names(node: ast.AST) -> set[str]:
    """Return the names in a name, a tuple or a union; empty for any other expression."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return set().union(*map(_plain_names, node.elts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.Add):
        return _plain_names(node.left) | _plain_names(node.right)
    if isinstance(node, ast.Starred):
        return _plain_names(node.value)
    return {last_name(node)} - {""}


def named_classes(node: ast.AST, module: Module, shared: dict[str, set[str]]) -> set[str]:
    """Return the names in an expression, followed through assignments of this module and constants of others."""
    left, seen = list(_plain_names(node)), set[str]()
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += module.stands_for.get(name, shared.get(name, ()))
    return seen


def subclasses(modules: list[Module], bases: set[str]) -> dict[str, set[str]]:
    """Return the classes that inherit from others, however far away, each with the files that define it."""
    defined = [(node, module) for module in modules for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
    found: dict[str, set[str]] = {}
    known: set[str] = set()
    while True:
        for node, module in defined:
            names = {last_name(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases}
            names |= set().union(*(module.stands_for.get(name, set()) for name in names))
            if names & (bases | set(found)):
                found.setdefault(node.name, set()).add(module.path)
        if set(found) == known:
            return found
        known = set(found)


def class_tests(
    module: Module, is_kind: Callable[[str], bool], instances: set[str], shared: dict[str, set[str]]
) -> list[ast.AST]:
    """Return where a module asks for the class of something.

    Parameters
    ----------
    module : Module
        The module.
    is_kind : callable
        Whether a class of this name is one of those in question.
    instances : set of str
        Names of variables and attributes whose type is in question, whatever it is compared with.
    shared : dict
        What constants of other modules stand for.

    Returns
    -------
    list of AST
        A call of isinstance and the like, a comparison of types or of their names, a case of a match, a table by
        class, or an implementation that is registered for a class.
    """

    def named(node: ast.AST | None) -> bool:
        return node is not None and any(map(is_kind, named_classes(node, module, shared)))

    def asks(node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            name, keywords = last_name(node.func), [keyword.value for keyword in node.keywords]
            return (name in _TESTS and any(map(named, [*node.args[1:], *keywords]))) or (
                name == "register" and any(map(named, node.args))
            )
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            return any(named(side) or _names_class(side, is_kind) or _type_of(side) in instances for side in sides)
        if isinstance(node, ast.MatchClass):
            return named(node.cls)
        if isinstance(node, ast.Dict):
            return any(map(named, node.keys))
        if isinstance(node, ast.FunctionDef) and "register" in map(last_name, node.decorator_list):
            return any(named(argument.annotation) for argument in node.args.args[:1])
        return False

    return [node for node in ast.walk(module.tree) if asks(node)]


def _names_class(node: ast.AST, is_kind: Callable[[str], bool]) -> bool:
    """Return whether an expression is the name of a class as a string, or a collection with one."""
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return any(isinstance(p, ast.Constant) and isinstance(p.value, str) and is_kind(p.value) for p in parts)


def _type_of(node: ast.AST) -> str:
    """Return the last name of x in type(x) or x.__class__."""
    if isinstance(node, ast.Call) and last_name(node.func) == "type" and len(node.args) == 1:
        return last_name(node.args[0])
    return last_name(node.value) if isinstance(node, ast.Attribute) and node.attr == "__class__" else ""
