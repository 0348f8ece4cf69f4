"""The public address stands in pyproject.toml and CITATION.cff only, and the index shows a README whose links work."""

import io
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser

import pytest

from groupdro.version import __version__
from tests.docs.pages import without_fences
from tests.packaging.first_time import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
URLS = PROJECT["project"]["urls"]
TARGET = re.compile(r"\]\(<?([^)\s>]+)|\b(?:src|srcset|href)=\"([^\"]+)\"")


@pytest.fixture(scope="module")
def page(built):
    """Return the long description of the wheel: the page of the package index."""
    with zipfile.ZipFile(built[0]) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith("METADATA")]
        about = Parser().parsestr(wheel.read(name).decode())
    assert about["Description-Content-Type"] == "text/markdown"
    return about.get_payload()


def targets(text):
    return [a or b for a, b in TARGET.findall(without_fences(text))]


def test_all_addresses_begin_with_one_of_two():
    assert URLS["Source"] == URLS["Homepage"]
    sites = URLS["Homepage"], URLS["Documentation"]
    assert all(url.startswith(sites) for url in URLS.values())
    owner, name = URLS["Homepage"].removeprefix("https://github.com/").split("/")
    assert URLS["Documentation"] == f"https://{owner}.github.io/{name}"
    last = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"][-1]
    assert last == {"pattern": r"\$REPOSITORY", "replacement": URLS["Homepage"]}


def test_the_citation_has_the_version_and_the_address():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in citation
    assert f'\nrepository-code: "{URLS["Homepage"]}"\n' in citation
    assert f'\nurl: "{URLS["Documentation"]}"\n' in citation


def test_no_other_file_has_the_address():
    texts = (".md", ".py", ".toml", ".yml", ".cff", ".rst", ".txt")
    folders = [ROOT / name for name in ("src", "docs", "examples", "benchmarks", ".github", "changelog.d")]
    files = [*ROOT.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]
    marks = tuple(url.removeprefix("https://").encode() for url in (URLS["Homepage"], URLS["Documentation"]))
    built = ROOT / "docs" / "_build"
    found = {
        path.name
        for path in files
        if path.suffix in texts and path.is_file() and not path.is_relative_to(built)
        if path.name != "RELEASING.md"  # which says how to replace it
        if any(mark in path.read_bytes() for mark in marks)
    }
    assert found == {"pyproject.toml", "CITATION.cff"}


def test_links_and_images_of_the_index_page_are_absolute(page):
    readme, shown = targets((ROOT / "README.md").read_text()), targets(page)
    assert len(readme) == len(shown) > 5
    for before, after in zip(readme, shown, strict=True):
        if re.match("[a-z]+:|#", before):
            assert after == before
        else:
            kind = "raw" if before.endswith((".png", ".svg")) else "blob"
            assert after == f"{URLS['Homepage']}/{kind}/v{__version__}/{before}"
            assert (ROOT / before.partition("#")[0]).exists()


def test_the_index_can_show_the_page(page):
    from readme_renderer import markdown

    warnings = io.StringIO()
    shown = markdown.render(page, stream=warnings)
    assert shown, warnings.getvalue()
    assert shown.count("<img") == len(re.findall(r"!\[|<img", without_fences(page)))
    assert "<table>" in shown
    assert "$REPOSITORY" not in shown
    assert "HFPR" not in shown


def test_twine_finds_nothing_to_complain_about(built):
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_other_name_of_the_project_is_left(page):
    assert not re.search(r"\]\((?!https?://|#|mailto:)", without_fences(page))
