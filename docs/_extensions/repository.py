"""Pages that are files of the repository: the changelog, the benchmarks' results, the guide for contributors."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["setup"]

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#)([^)\s]+)\)")


def _relink(app: Any, path: Path, page: str, content: list[str]) -> None:
    """Lead links of an included file to pages of the site; name what is no page by its place in the repository."""
    del app
    here = (DOCS / path).resolve().parent

    def lead(found: re.Match[str]) -> str:
        target, _, anchor = found[2].partition("#")
        place = (here / target).resolve()
        if place.is_relative_to(DOCS) and place.suffix in (".md", ".rst"):
            up = "../" * page.count("/")
            return f"[{found[1]}]({up}{place.relative_to(DOCS)}{'#' if anchor else ''}{anchor})"
        return f"`{place.relative_to(ROOT)}`"

    content[0] = _LINK.sub(lead, content[0])


def _add_unreleased(app: Any, page: str, source: list[str]) -> None:
    """Put the fragments of changes that are not released yet at the place of their marker."""
    del app
    if page == "changelog" and any(ROOT.glob("changelog.d/*.*.md")):
        command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next", "--date", "next"]
        draft = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        changes = draft.partition("\n")[2]  # the title of a release that is none yet
        changes = re.sub(r" \(#[\w-]+\)$", "", changes, flags=re.MULTILINE)  # names of fragments, which link nowhere
        source[0] = source[0].replace("<!-- unreleased -->", f"## Not released yet\n{changes}")


def setup(app: Any) -> dict[str, bool]:
    """Connect the functions above."""
    app.connect("include-read", _relink)
    app.connect("source-read", _add_unreleased)
    return {"parallel_read_safe": True}
