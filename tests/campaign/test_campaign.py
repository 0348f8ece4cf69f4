"""A fixed small part of the campaign; `python -m tests.campaign` runs all of it."""

import pytest

from tests.campaign.checks import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_promise_holds_on_a_small_part(check):
    tally = check.run(check.ci, 0, 1)
    assert tally.tried >= check.ci
    assert not tally.failures, "\n".join(tally.failures)
