"""How results are written."""

from benchmarks.between.tables import RESULTS, markdown

__all__ = ["markdown", "write"]


def write(name: str, text: str) -> None:
    """Write a result and print it."""
    (RESULTS / "find_groups").mkdir(exist_ok=True)
    (RESULTS / "find_groups" / f"{name}.md").write_text(text)
    print(text, flush=True)
