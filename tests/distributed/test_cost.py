"""The model by which steps are made so large that workers compute most of the time."""

import pytest

from groupdro.distributed import cost
from groupdro.distributed.cost import SHARE, exchange_seconds, rows_per_step


@pytest.mark.parametrize("n_workers", [2, 3, 16, 1024])
@pytest.mark.parametrize("d", [100, 1000, 100_000])
def test_messages_take_their_share_at_the_chosen_rows(n_workers, d):
    rows = rows_per_step(float(d), d + 100, n_workers)
    talk = exchange_seconds(d + 100, n_workers)
    work = cost._SECONDS_PER_STEP + cost._SECONDS_PER_VALUE * rows / n_workers * d
    assert talk / (talk + work) == pytest.approx(SHARE, rel=0.1)


def test_one_worker_needs_no_messages():
    assert exchange_seconds(10**6, 1) == 0.0
    assert rows_per_step(1000.0, 1100, 1) == 1


def test_more_workers_and_sparser_rows_mean_larger_steps():
    assert rows_per_step(1000.0, 1100, 8) > rows_per_step(1000.0, 1100, 2)
    assert rows_per_step(50.0, 10**6, 2) > rows_per_step(1000.0, 10**6, 2)
