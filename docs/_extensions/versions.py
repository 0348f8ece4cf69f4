"""The list of versions that readers can switch between.

It is made of `docs/versions.json` and the public address in `pyproject.toml`, and is part of every build, so that the
switcher works wherever the site is served.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

__all__ = ["entries", "setup"]

DOCS = Path(__file__).parents[1]


def entries() -> list[dict[str, Any]]:
    """Return the versions with their addresses, as the theme reads them."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    site = project["urls"]["Documentation"]
    listed = json.loads((DOCS / "versions.json").read_text(encoding="utf-8"))
    return [{"url": f"{site}/{one.pop('folder')}", **one} for one in listed]


def _write(app: Any, failure: Exception | None) -> None:
    if failure is None and app.builder.format == "html":
        (Path(app.outdir) / "_static" / "switcher.json").write_text(json.dumps(entries(), indent=1))


def setup(app: Any) -> dict[str, bool]:
    """Write the list when a build has finished."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True}
