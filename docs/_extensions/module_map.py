"""The map of the source: every module with the first line of its docstring, layer by layer.

The layers are those of CONTRIBUTING.md. A page gets the map in place of the marker ``<!-- module map -->``.
"""

import ast
import re
from pathlib import Path
from typing import Any

__all__ = ["layers", "module_map", "modules", "setup", "summary"]

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "groupdro"
MARKER = "<!-- module map -->"
_ROW = re.compile(r"^\| `([\w/.]+)` \| (.+) \|$", re.MULTILINE)
_CODE = re.compile(r"(`[^`]+`)")


def layers() -> dict[str, str]:
    """Return the layers of CONTRIBUTING.md in order, packages with a slash at the end, and what each holds."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things live")[2].partition("\n## ")[0]
    return dict(_ROW.findall(section))


def modules(layer: str) -> list[Path]:
    """Return the files of a layer in order, each package before its modules; the layer's own file is left out."""
    files = (SOURCE / layer).rglob("*.py") if layer.endswith("/") else ()
    others = [path for path in files if path != SOURCE / layer / "__init__.py"]
    return sorted(others, key=lambda path: path.parent if path.name == "__init__.py" else path)


def summary(path: Path) -> str:
    """Return the first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text()))
    if not text:
        raise ValueError(f"{path} has no docstring, of which the map of the source shows the first line.")
    return text.splitlines()[0]


def module_map() -> str:
    """Return the map as Markdown: what each layer holds, and a table of its modules."""
    lines = []
    for layer, holds in layers().items():
        lines += ["", f"**`{layer}`**: {holds}", ""]
        rows = [f"| `{_name(path)}` | {_escaped(summary(path))} |" for path in modules(layer)]
        lines += ["| module | what it holds |", "|---|---|", *rows] if rows else []
    return "\n".join(lines)


def _name(path: Path) -> str:
    inner = path.relative_to(SOURCE)
    return f"{inner.parent}/" if path.name == "__init__.py" else str(inner)


def _escaped(text: str) -> str:
    """Escape characters outside code that Markdown would read as markup."""
    parts = _CODE.split(text)
    parts[::2] = [re.sub(r"([\\*_|<$\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _add_map(app: Any, page: str, source: list[str]) -> None:
    if MARKER in source[0]:
        app.env.note_dependency(str(ROOT / "CONTRIBUTING.md"), docname=page)
        for path in SOURCE.rglob("*.py"):
            app.env.note_dependency(str(path), docname=page)
        source[0] = source[0].replace(MARKER, module_map())


def setup(app: Any) -> dict[str, bool]:
    """Connect the function above."""
    app.connect("source-read", _add_map)
    return {"parallel_read_safe": True}
