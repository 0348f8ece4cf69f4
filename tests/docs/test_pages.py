"""Every code block of the README and of the documentation does what its page says."""

import gzip
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.docs.pages import (
    DOCS,
    PAGES,
    ROOT,
    Command,
    Fence,
    Python,
    commands,
    environment,
    fences,
    same_words,
)
from tests.timing import HUNG

PARSED = ("json", "toml", "yaml")
#: What stands in a page without being run or parsed: output, formulas, and directives that hold no code of their own.
PLAIN = ("text",)
CODE_DIRECTIVES = ("code", "code-block", "code-cell", "sourcecode", "eval-rst")
#: Commands on public tables, of which tests run a part.
DATA_COMMANDS = ("groupdro convert",)
RUN = ("groupdro", "python", "cat", "head", "ls", "echo")
#: Packages beyond the extra `test` that a page uses.
NEEDS = {
    "metrics.md": ("fairlearn",),
    "scaling.md": ("pyarrow",),
    "command_line.md": ("click", "pyarrow"),
    "last_layer.md": ("torch",),
    "whole_networks.md": ("torch",),
    "conformal.md": ("mapie",),
    "from_r.md": ("click", "pyarrow"),
    "model_card.md": ("skops",),
    "multicalibration.md": ("mcgrad",),
    "tracking.md": ("mlflow", "skops"),
}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

TRAINING = """
import groupdro as gd

with gd.distributed.communicator() as comm:
    assert comm.size == 2
"""

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def of_language(page: Path, *languages: str) -> list[Fence]:
    return [fence for fence in fences(page.read_text()) if fence.language in languages]


# ---------------------------------------------------------------------- running


@pytest.fixture(scope="session")
def python():
    """One process whose forks run the pages."""
    process = Python()
    yield process
    process.close()


@pytest.fixture
def folder(tmp_path):
    """Where a page's code runs: with the files that pages name, and the small programs that they show."""
    for snippet in (DOCS / "snippets").glob("*.py"):
        shutil.copy(snippet, tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    if "GROUPDRO_DATA" in os.environ:
        tables = Path(os.environ["GROUPDRO_DATA"]) / "tabular"
        _cut(tables / "adult.csv.gz", tmp_path / "adult.csv")
        _cut(tables / "bike_sharing.csv.gz", tmp_path / "bike.csv")
        _cut(tables / "bike_sharing.csv.gz", tmp_path / "bike_sharing.csv.gz")
        for half in ("train", "test"):
            _cut(tables / "adult.csv.gz", tmp_path / f"adult_{half}.csv", last_cell=half)
    return tmp_path


def _cut(source: Path, target: Path, last_cell: str | None = None) -> None:
    """Write about 2,000 rows of a table, from all of it; with `last_cell`, rows that end in it, without that column."""
    with gzip.open(source, "rt") as file:
        header, *lines = file.read().splitlines()
    if last_cell is not None:
        lines = [line.removesuffix(f",{last_cell}") for line in lines if line.endswith(f",{last_cell}")]
        header = header.rpartition(",")[0]
    text = "\n".join([header, *lines[:: max(1, len(lines) // 2000)], ""])
    target.write_bytes(gzip.compress(text.encode()) if target.suffix == ".gz" else text.encode())


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name) for page in PAGES if of_language(page, "python", "console")],
)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page, folder, python):
    for module in NEEDS.get(page.name, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    blocks = of_language(page, "python", "text", "console")
    shell = [command.text for block in blocks if block.language == "console" for command in commands(block.text)]
    if re.search(r"\b(adult|bike)\w*\.csv", " ".join(shell)) and not (folder / "adult.csv").exists():
        pytest.skip("GROUPDRO_DATA is not set")
    printed = {}
    with python.page(folder) as run:
        for block in blocks:
            where = f"{page.name}, line {block.line}"
            if block.language == "python":
                _save(block.text, folder)
                printed[block] = run(where, block.text)
            elif block.language == "console":
                for command in commands(block.text):
                    _run(command, folder, where)
            elif block.follows in printed:
                told = printed[block.follows]
                assert same_words(told, block.text), f"{where} shows\n{block.text}\n\nbut this was printed:\n{told}"


def _save(code: str, folder: Path) -> None:
    """Write a block that begins with the name of a file to that file, for commands that run it."""
    named = re.match(r"# ([\w-]+\.py)\b", code)
    if named:
        (folder / named[1]).write_text(code)


def _run(command: Command, folder: Path, where: str) -> None:
    if command.text.startswith("pip install "):
        return  # its extras are checked below
    program = command.text.split()[0]
    assert program in RUN, f"{where}: nobody knows how to try {command.text!r}; the commands that are run are {RUN}."
    done = subprocess.run(
        command.text,
        shell=True,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HUNG,
        check=False,
    )
    told = f"{where}: {command.text!r} ended with {done.returncode}, not {command.code}\n{done.stdout}{done.stderr}"
    assert done.returncode == command.code, told
    if command.text.startswith("groupdro ") and command.shown and not (command.text.startswith(DATA_COMMANDS)):
        printed = done.stdout + done.stderr
        assert same_words(printed, command.shown), f"{where} shows\n{command.shown}\n\nbut this was printed:\n{printed}"


# ---------------------------------------------------------------------- what is not run


@every_page
def test_no_block_escapes(page):
    for fence in fences(page.read_text()):
        where, directive = f"{page.name}, line {fence.line}", re.match(r"\{([\w:-]+)\}", fence.language)
        if directive:
            assert directive[1] not in CODE_DIRECTIVES, f"{where}: write a fence of a language instead, which is run."
        elif fence.language in PARSED:
            _parse(fence)
        else:
            assert fence.language in ("python", "console", *PLAIN), (
                f"{where}: a block of {fence.language or 'no language'!r} is neither run nor parsed. Use python, "
                f"console (lines that begin with '$ '), text, or one of {PARSED}."
            )


def _parse(fence: Fence) -> None:
    if fence.language == "toml":
        tomllib.loads(fence.text)
    elif fence.language == "json":
        json.loads(fence.text)
    else:
        pytest.importorskip("yaml").safe_load(fence.text)


@every_page
def test_extras_that_a_page_installs_exist(page):
    for extras in re.findall(r"(?:groupdro|\"\.|'\.)\[([\w,\s-]+)\]", page.read_text()):
        for extra in extras.split(","):
            assert extra.strip() in EXTRAS, (
                f"{page.name} names the extra {extra!r}, but there are only {sorted(EXTRAS)}"
            )


# ---------------------------------------------------------------------- the checks themselves


def test_fences_are_found_inside_directives_and_know_what_they_follow():
    page = "```python\nprint(1)\n```\n\n```text\n1\n```\n\nText.\n\n````{tab-item} x\n```console\n$ ls\n```\n````\n"
    found = fences(page)
    assert [(fence.language, fence.line) for fence in found] == [
        ("python", 1), ("text", 5), ("{tab-item} x", 11), ("console", 12),
    ]  # fmt: skip
    assert found[1].follows == found[0]
    assert found[2].follows is None


@pytest.mark.parametrize(
    ("printed", "shown", "same"),
    [
        ("risk 0.67321, (n=40)", "risk 0.6730, (n=40)", True),
        ("risk 0.67321, (n=40)", "risk 0.6830, (n=40)", False),
        ("risk 0.67321, (n=40)", "risk 0.6732, (n=41)", False),
        ("risk 0.67", "loss 0.67", False),
        ("a b", "a b c", False),
        ("gap 5.01e-07", "gap 5.0e-07", True),
        ("gap 5.01e-07", "gap 5.0e-06", False),
    ],
)
def test_numbers_are_compared_to_three_digits_and_words_exactly(printed, shown, same):
    assert same_words(printed, shown) is same


def test_a_block_that_fails_is_told_by_its_page_and_line(tmp_path, python):
    with python.page(tmp_path) as run:
        with pytest.raises(AssertionError, match=r"start\.md, line 7(.|\n)*ZeroDivisionError"):
            run("start.md, line 7", "1 / 0")
        with pytest.raises(AssertionError, match="UserWarning: careful"):
            run("start.md, line 9", "import warnings; warnings.warn('careful')")


def test_a_page_starts_anew_even_after_one_that_ended_its_process(tmp_path, python):
    with python.page(tmp_path) as run:
        run("start.md, line 1", "seen = 1")
        with pytest.raises(AssertionError, match="process ended"):
            run("start.md, line 2", "import os; os._exit(1)")
    with python.page(tmp_path) as run:
        assert run("start.md, line 3", "import os; print('seen' in globals(), os.getcwd())") == f"False {tmp_path}\n"
