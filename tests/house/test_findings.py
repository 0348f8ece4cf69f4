"""What a field test found wrong is right; `python -m tests.house.findings` prints the same as a table."""

import pytest

from tests.house.findings import FINDINGS, try_again

LONG = ("S1", "S2", "S3")  # simulations


@pytest.mark.parametrize(
    "finding", [pytest.param(one, id=one.id, marks=[pytest.mark.long] if one.id in LONG else []) for one in FINDINGS]
)
def test_what_was_found_wrong_is_right(finding):
    if finding.id.startswith("L"):
        pytest.importorskip("torch")
    observed, right = try_again(finding)
    assert right, f"{finding.text}: {observed}"
