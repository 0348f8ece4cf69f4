"""How results are written, and where they are."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.between.tables import RESULTS, best_times, markdown

__all__ = ["CACHE", "RESULTS", "best_times", "file_name", "markdown", "signed", "stored", "write"]

CACHE = Path(__file__).parents[1] / ".cache" / "held_out"


def write(name: str, text: str) -> None:
    """Write a result and print it."""
    (RESULTS / f"held_out_{name}.md").write_text(text)
    print(text, flush=True)


def stored(path: Path, compute: Callable[[], Any]) -> Any:
    """Return what a JSON file in the cache holds; computed and written if there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(compute(), indent=1))
        partial.replace(path)  # a file that is there is whole
    return json.loads(path.read_text())


def file_name(setting: tuple[Any, ...]) -> str:
    """Return a name for the file of a setting in the cache."""
    return re.sub(r"[^0-9a-zA-Z.]+", "_", "-".join(map(str, setting))) + ".json"


def signed(value: float) -> str:
    return f"{value:+.4f}"


def several(names: Sequence[Any]) -> str:
    """Return names in a sentence; "none" where there are none."""
    texts = [str(name) for name in names]
    return "none" if not texts else texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
