"""How results are written, and where they are."""

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.between.tables import RESULTS, markdown

__all__ = ["CACHE", "RESULTS", "in_parts", "markdown", "signed", "stored", "write"]

PART = 100  # data sets of a simulation that are one file in the cache
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
    return re.sub(r"[^0-9a-zA-Z.]+", "_", "-".join(map(str, setting)))


def in_parts(
    folder: Path, n_sets: dict[tuple[Any, ...], int], simulate: Callable[[tuple[Any, ...], int, int], Any]
) -> dict[tuple[Any, ...], Any]:
    """Return the mean over simulated data sets of each setting, in parts of which each is a file in the cache.

    Parts of all settings come in turns, so that more data sets can be added to what is there.
    """
    found: dict[tuple[Any, ...], list[Any]] = {setting: [] for setting in n_sets}
    for part in range(max(n_sets.values()) // PART):
        for setting in (one for one, n in n_sets.items() if part < n // PART):
            begun = time.perf_counter()
            path = folder / f"{file_name(setting)}-{part}.json"
            found[setting].append(stored(path, lambda setting=setting, part=part: simulate(setting, PART, part)))
            print(setting, part, found[setting][-1], f"{time.perf_counter() - begun:.0f} s", flush=True)
    return {setting: _mean_of(parts) for setting, parts in found.items()}


def _mean_of(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {key: _mean_of([part[key] for part in parts if key in part]) for key in parts[0]}
    return np.mean(parts, axis=0).tolist()


def signed(value: float) -> str:
    return f"{value:+.4f}"


def several(names: Sequence[Any]) -> str:
    """Return names in a sentence; "none" where there are none."""
    texts = [str(name) for name in names]
    return "none" if not texts else texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
