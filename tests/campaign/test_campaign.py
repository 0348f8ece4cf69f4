"""A fixed small part of the campaign; `python -m tests.campaign` runs all of it."""

import pytest

for _needed in ("click", "pyarrow", "torch"):
    pytest.importorskip(_needed)

from tests.campaign.checks import CHECKS  # noqa: E402

#: What other tests of the gate hold on a smaller scale already.
LONG = (
    "bad arguments", "bad fits", "Ctrl-C", "poor places", "real data", "same bits", "threads and batches",
    "fits in workers", "steady memory", "ties", "certificates", "killed while writing",
    "six requirements", "skewed losses",
)  # fmt: skip


@pytest.mark.parametrize(
    "check",
    [pytest.param(check, id=check.name, marks=[pytest.mark.long] if check.name in LONG else []) for check in CHECKS],
)
def test_every_promise_holds_on_a_small_part(check):
    tally = check.run(check.ci, 0, 1)
    assert tally.tried >= check.ci
    assert not tally.failures, "\n".join(tally.failures)
