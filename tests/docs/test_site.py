"""The site builds without a warning: every reference, picture and page is there."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, environment
from tests.timing import HUNG

PACKAGES = (
    "sphinx", "pydata_sphinx_theme", "myst_parser", "numpydoc", "sphinx_gallery", "sphinx_design", "sphinx_copybutton",
    "sphinx-mathjax-offline", "towncrier",
)  # fmt: skip
#: What pages include; the rest of the tree is not needed to build them.
PARTS = ("docs", "examples", "benchmarks", "changelog.d", "src")
FILES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml")


@pytest.fixture
def tree(tmp_path):
    """A copy of what the site is made of, so that nothing is written into the tree."""
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    made = shutil.ignore_patterns("_build", "auto_examples", "generated", "__pycache__", "__cache__", "outputs")
    for part in PARTS:
        shutil.copytree(ROOT / part, tmp_path / part, ignore=made)
    for file in FILES:
        shutil.copy(ROOT / file, tmp_path)
    return tmp_path


def build(tree, *options, strict=("-W", "--keep-going", "-n"), patience=HUNG):
    command = [sys.executable, "-m", "sphinx", "-q", *strict, *options, "docs", "html"]
    # A proxy that is not there: a build that asked the network for something would fail.
    offline = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        command,
        cwd=tree,
        env={**environment(), **offline},
        capture_output=True,
        text=True,
        timeout=patience,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return tree / "html"


def test_a_page_is_built_with_the_extensions(tree):
    """Without the pages that it refers to, so that warnings of these are none."""
    others = [page.name for page in (tree / "docs").glob("*.*") if page.stem not in ("conf", "inside")]
    extensions = "myst_parser,sphinx_design,module_map,repository,versions"  # those of the API take longer
    options = {"root_doc": "inside", "exclude_patterns": ",".join(others), "extensions": extensions}
    html = build(tree, *(part for name, value in options.items() for part in ("-D", f"{name}={value}")), strict=())
    shown = re.sub(r"<[^>]+>", "", (html / "inside.html").read_text())
    assert "kernels/prefetch.py" in shown  # of the map, which a marker gives way to
    assert "module map" not in shown
    assert not (html / "api.html").exists()


@pytest.mark.long
def test_the_site_builds_without_running_the_gallery(tree):
    html = build(tree, "-D", "plot_gallery=0")
    landing = (html / "index.html").read_text()
    sidebar = landing.partition('aria-label="Pages"')[2].partition("</nav>")[0]
    for page in PAGES[1:]:
        name = page.relative_to(DOCS).with_suffix(".html")
        assert (html / name).exists(), page.name
        assert f'href="{name}"' in sidebar or page.stem == "index", page.name
    for example in (ROOT / "examples").glob("plot_*.py"):
        assert (html / "auto_examples" / f"{example.stem}.html").exists(), example.name
    assert "gdro_synthetic" in (html / "benchmarks.html").read_text()
    for page, included in {
        "extending": "class WorstFew",  # a snippet
        "inside": "kernels/prefetch.py",  # the map of the source
        "index": "thirteen problems",  # a part of the README
        "changelog": "The first release",
    }.items():
        assert included in re.sub(r"<[^>]+>", "", (html / f"{page}.html").read_text()), page
    assert "module map" not in (html / "inside.html").read_text()  # the marker gave way to the map


@pytest.mark.long
def test_the_site_builds_with_its_gallery(tree):
    for variable in ("GROUPDRO_DATA", "GROUPDRO_CIFAR"):
        if not os.environ.get(variable):
            pytest.skip(f"{variable} is not set")
    html = build(tree, patience=4 * HUNG)
    for example in (ROOT / "examples").glob("plot_*.py"):
        assert list((html / "_images").glob(f"sphx_glr_{example.stem}_*.png")), f"{example.name} draws nothing"
