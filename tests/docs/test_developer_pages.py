"""The table of stored results and that of the campaign agree with the repository."""

import re

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_links import broken
from tests.docs.test_records import section

RESULTS = ROOT / "benchmarks" / "results"


def test_every_stored_result_is_on_the_page_with_its_command():
    page = section("benchmarks.md", "Reproduce the results")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w./-]+)`", row.split("|")[1])}
    assert named == {str(path.relative_to(RESULTS)) for path in RESULTS.rglob("*") if path.is_file()}
    commands = re.findall(r"python -m (benchmarks[\w.]*)", page)
    assert commands
    for module in commands:
        place = ROOT.joinpath(*module.split("."))
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "RELEASING.md", "CHANGELOG.md"])
def test_links_of_files_at_the_root_lead_somewhere(name):
    assert broken(ROOT / name, (ROOT / name).read_text()) == []


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # bad arguments include NumPy's matrices
def test_the_cases_of_the_campaign_are_those_of_its_checks():
    from tests.campaign.checks import CHECKS

    rows = re.findall(r"^\| .*\(`([\w -]+)`\) \| ([\d,]+) \|$", section("developers.md", "Stress tests"), re.MULTILINE)
    assert len(rows) >= 15
    for name, shown in rows:
        own = [check.full for check in CHECKS if check.name == name or check.name.startswith(f"{name}:")]
        assert shown == f"{sum(own):,}", name
