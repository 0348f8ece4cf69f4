"""Phrases that read as if translated do not come back in pages, examples, docstrings, comments and messages."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT

TEXTS = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").glob("*.txt")))
MODULES = (*sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "examples").glob("*.py")))
#: Each phrase with a sentence that has it, and one that says the same in plain English.
PHRASES = {
    r"\b(an?|one) (entry|label|number|column) a (row|group|column|class)\b": (
        "Pass a label a row.",
        "Pass one label per row.",
    ),
    r"\b(a|one) (row|fit|pass|step) a (group|step|row)\b": ("The table has a row a group.", "One row per group."),
    # "Is no longer" and comparisons such as "is no worse than" are idiomatic.
    r"(?<!there )\bis no (?!longer\b|(more|less|fewer|worse|better|larger|smaller|further)\b)[a-z]+\b": (
        "The colour is no feature.",
        "There is no gap, the bound is no larger than that, and it is no longer needed.",
    ),
    r"^Tell whether\b": ("Tell whether the fit converged.", "Return whether the fit converged."),
    r"\bwhich is said\b": ("No minimiser exists, which is said.", "No minimiser exists, and the fit says so."),
    r"\bmended\b": ("The failures were mended.", "The failures were fixed, and the rules were amended."),
    r"\brows that were given\b": ("It holds for the rows that were given.", "It holds for the training data."),
    r"\binterval of the fall\b": ("The interval of the fall is wide.", "The interval of the improvement is wide."),
    r"\bmost seconds\b": ("Most seconds; None for any.", "Time limit in seconds; None for no limit."),
}


def in_one_line(text: str) -> str:
    """Join lines, without the marks at the beginning of comments and quotations."""
    return re.sub(r"\s*\n[\s>#]*", " ", text.strip())


def prose_of(source: str) -> Iterator[str]:
    """Yield docstrings and other strings of a module, and comments, those of consecutive lines together."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    block, last = "", -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield block
                block = ""
            block, last = f"{block}\n{token.string}", token.start[0]
    yield block


def phrases_in(text: str) -> list[str]:
    """Return what is found of the phrases in a text, each with the words around it."""
    line = in_one_line(text)
    return [
        line[max(0, match.start() - 40) : match.end() + 40]
        for phrase in PHRASES
        for match in re.finditer(phrase, line, re.IGNORECASE)
    ]


def phrases_in_module(source: str) -> list[str]:
    """Return what is found of the phrases in the prose of a module."""
    return [found for text in prose_of(source) for found in phrases_in(text)]


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_text_reads_as_plain_english(file: Path):
    assert not phrases_in(file.read_text())


def test_modules_read_as_plain_english():
    assert len(MODULES) > 200
    found = {file.relative_to(ROOT): phrases_in_module(file.read_text()) for file in MODULES}
    assert not {str(name): phrases for name, phrases in found.items() if phrases}


@pytest.mark.parametrize("phrase", PHRASES)
def test_each_phrase_is_found(phrase):
    bad, good = PHRASES[phrase]
    assert phrases_in(bad) == [bad]
    assert phrases_in(good) == []


@pytest.mark.parametrize(
    "source",
    [
        '"""A module.\n\nThe colour is no\nfeature.\n"""',
        'def f():\n    """Do.\n\n    The colour\n    is no feature.\n    """',
        'raise ValueError(f"{name} is no feature.")',
        'message = "The colour " "is no feature."',
        "x = 1  # the colour is no feature",
        "# The colour is\n# no feature.",
    ],
)
def test_a_phrase_is_found_wherever_it_stands(source):
    assert phrases_in_module(source)


def test_a_phrase_is_found_across_the_lines_of_a_page():
    assert phrases_in("> It concerns **the rows that\n> were given**.")
