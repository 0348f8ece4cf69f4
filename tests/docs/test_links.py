"""Every link inside the documentation leads to something that exists."""

import re
import zlib
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, load_script, without_fences

FILES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("recipes/*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
)
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
DIRECTIVE = re.compile(r"^\s*(?:```+|:::+)\{(?:literalinclude|include|figure|image)\}\s+(\S+)", re.MULTILINE)
CARD = re.compile(r"^:link: (\S+)\n:link-type: doc", re.MULTILINE)
#: Inline code that names a file of the repository.
NAMED = re.compile(r"`((?:src|tests|docs|benchmarks|examples|changelog\.d)/[\w./-]*)`")

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))


def source_of(place: Path) -> Path:
    """Return the file that a page of the site is made of: a gallery's page is made of an example."""
    if place.parent == DOCS / "auto_examples" and place.suffix == ".rst":
        name = "GALLERY_HEADER.rst" if place.stem == "index" else f"{place.stem}.py"
        return ROOT / "examples" / name
    return place


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them, and its explicit ones."""
    text = without_fences(text)
    titles = re.findall(r"^#+\s+(.*?)\s*#*$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
    return made | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


def anchors_of(place: Path) -> set[str]:
    """Return the anchors of a file and of what it includes."""
    text = place.read_text()
    found = anchors(text)
    for included in re.findall(r"^```\{include\} (\S+)", text, re.MULTILINE):
        found |= anchors((place.parent / included).read_text())
    return found


def broken(file: Path, text: str) -> list[str]:
    """Return the links of a text that lead nowhere."""
    found = []
    for target in (*LINK.findall(without_fences(text)), *DIRECTIVE.findall(text)):
        if re.match(r"[a-z]+:", target):
            continue  # another site
        path, _, anchor = target.partition("#")
        place = source_of((file.parent / path).resolve()) if path else file
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors_of(place)):
            found.append(target)
    cards = [name for name in CARD.findall(text) if not source_of(file.parent / f"{name}.md").exists()]
    return found + [name for name in cards if not source_of(file.parent / f"{name}.rst").exists()]


@every_file
def test_links_lead_somewhere(file):
    assert broken(file, file.read_text()) == []


@every_file
def test_files_that_are_named_exist(file):
    missing = [name for name in NAMED.findall(file.read_text()) if not source_of(ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[a](scaling.md) [b](scaling.md#cost) ![c](images/last_layer.svg)", []),
        ("[a](nowhere.md)", ["nowhere.md"]),
        ("[a](scaling.md#nowhere)", ["scaling.md#nowhere"]),
        ("![a](images/nowhere.png)", ["images/nowhere.png"]),
        ("[a](auto_examples/plot_nothing_of_the_kind.rst)", ["auto_examples/plot_nothing_of_the_kind.rst"]),
        ("[a](https://example.org/nowhere)", []),
        ("# One\n\n[a](#one) [b](#two)", ["#two"]),
        ("```text\n[a](nowhere.md)\n```", []),
        ("```{literalinclude} nowhere.py\n```", ["nowhere.py"]),
        (":link: nowhere\n:link-type: doc", ["nowhere"]),
    ],
)
def test_the_check_finds_broken_links(tmp_path, text, wrong):
    file = DOCS / "index.md"
    if "#one" in text:
        file = tmp_path / "page.md"
        file.write_text(text)
    assert broken(file, text) == wrong


def test_names_of_other_packages_are_found_and_have_pages(tmp_path):
    external = load_script("_extensions", "external_names.py")
    source = (
        "import numpy as np\nfrom sklearn.svm import SVC as S\nimport groupdro as gd\nx = np.linalg.norm(S().y) + gd.a"
    )
    assert external.names_in(source) == {"numpy.linalg", "numpy.linalg.norm", "sklearn.svm.SVC"}
    mapping = external.write_inventories(tmp_path)
    for package, (address, file) in mapping.items():
        assert address.startswith("https://")
        assert address.endswith("/")
        lines = zlib.decompress(Path(file).read_bytes().split(b"\n", 4)[4]).decode().splitlines()
        for name, role, _, page, _ in map(str.split, lines):
            assert name.startswith(f"{package}.")
            assert role in ("py:class", "py:function")
            assert page.endswith(".html#$")  # the name itself is the place on the page
    assert {"numpy", "sklearn", "matplotlib", "pandas"} <= set(mapping)


def test_the_switcher_has_this_version():
    from groupdro import __version__

    entries = load_script("_extensions", "versions.py").entries()
    listed = {entry["version"]: entry for entry in entries}
    assert ("dev" if "dev" in __version__ else __version__) in listed
    assert [entry["version"] for entry in entries if entry.get("preferred")] == [entries[0]["version"]]
    assert listed["dev"]["url"].endswith("/dev/")
