"""How results are written, and where they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.between.tables import RESULTS, best_times, markdown

__all__ = ["CACHE", "RESULTS", "best_times", "markdown", "signed", "write"]

CACHE = Path(__file__).parents[1] / ".cache" / "held_out"


def write(name: str, text: str) -> None:
    """Write a result and print it."""
    (RESULTS / f"held_out_{name}.md").write_text(text)
    print(text, flush=True)


def signed(value: float) -> str:
    return f"{value:+.4f}"


def several(names: Sequence[Any]) -> str:
    """Return names in a sentence; "none" where there are none."""
    texts = [str(name) for name in names]
    return "none" if not texts else texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
