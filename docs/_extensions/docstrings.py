"""Docstrings as they read in a terminal, made fit for reStructuredText.

The package's docstrings write formulas plainly: indented, with bars for absolute values, names that end in underscores.
Here indented formulas become literal blocks, and characters that would be markup are escaped.
"""

import inspect
import re
from typing import Any

__all__ = ["setup"]

_CODE = re.compile(r"(``.+?``|`[^`]+`)")
_HEADING = re.compile(r"-{3,}\s*$")


def _mark_formulas(app: Any, what: str, name: str, subject: Any, options: Any, lines: list[str]) -> None:
    """Make indented paragraphs of the text before the first section literal."""
    del app, what, name, subject, options
    marked: list[str] = []
    for place, line in enumerate(lines):
        if _HEADING.match(lines[place + 1] if place + 1 < len(lines) else ""):
            marked += lines[place:]
            break
        begins = line.startswith("  ") and place > 0 and not lines[place - 1].strip()
        if begins and not _inside_literal(marked):
            marked += ["::", ""]
        marked.append(line)
    lines[:] = marked


def _inside_literal(lines: list[str]) -> bool:
    last = next((line for line in reversed(lines) if line.strip()), "")
    return last.startswith("  ") or last.endswith("::")


def _escape(app: Any, what: str, name: str, subject: Any, options: Any, lines: list[str]) -> None:
    """Escape bars and last underscores outside code."""
    del app, what, name, subject, options
    literal = False
    for place, line in enumerate(lines):
        if line.strip() and not line.startswith(" "):
            literal = line.rstrip().endswith("::")
        if not literal and not line.lstrip().startswith(("..", ">>>", "...")):
            parts = _CODE.split(line)
            parts[::2] = [re.sub(r"\\?\||(?<=[a-z])_(?![\w`])", _escaped, part) for part in parts[::2]]
            lines[place] = "".join(parts)


def _escaped(found: re.Match[str]) -> str:
    return "\\" + found[0][-1]


def _only_our_own(app: Any, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what a class inherits from elsewhere, such as scikit-learn, whose own pages describe it."""
    del app, what, name, options
    function = member.fget if isinstance(member, property) else inspect.unwrap(getattr(member, "__func__", member))
    module = getattr(function, "__module__", None)
    if not skip and isinstance(module, str) and module.split(".")[0] != "groupdro":
        return True
    return None


def setup(app: Any) -> dict[str, bool]:
    """Connect the functions above: formulas before numpydoc reads the text, escapes after it."""
    app.connect("autodoc-process-docstring", _mark_formulas, priority=100)
    app.connect("autodoc-process-docstring", _escape, priority=900)
    app.connect("autodoc-skip-member", _only_our_own)
    return {"parallel_read_safe": True}
