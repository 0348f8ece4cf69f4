"""The checks of repeated answers fail where answers differ."""

import itertools

import numpy as np
import pytest

import groupdro as gd
from tests.campaign import part_same_answer
from tests.campaign.part_same_answer import (
    agree,
    compare_bits,
    compare_fits,
    digests,
    fit_one,
    guarded,
    in_threads,
    judge_memory,
    memory,
    start,
    threads_and_batches,
)

# The frame changes seldom, and these start many processes.
pytestmark = pytest.mark.long


def test_runs_that_differ_are_found(monkeypatch):
    honest, calls = gd.solve, itertools.count()
    monkeypatch.setattr(part_same_answer, "SOLVERS", {name: part_same_answer.SOLVERS[name] for name in ("aleg", "sqp")})
    assert compare_bits([digests(0), digests(0)]).failures == []
    monkeypatch.setattr(gd, "solve", lambda *a, seed, **more: honest(*a, seed=seed + next(calls), **more))
    failures = compare_bits([digests(0), digests(0)]).failures
    assert len(failures) == 3  # of ALEG on every kind of rows; SQP draws nothing
    assert all("aleg" in failure for failure in failures)


def test_the_last_bit_counts():
    assert part_same_answer.digest_of([1.0]) != part_same_answer.digest_of([np.nextafter(1.0, 2.0)])


@pytest.mark.parametrize(
    ("bounds", "word"),
    [
        ([1.0, 1.0005, 0.0], "not converged"),
        ([1.0015, 1.0018, 1.0], "above an upper bound"),
        ([0.9, 1.01, 1.0], "differ by more"),
    ],
)
def test_values_that_disagree_are_found(bounds, word):
    assert agree({"1": [0.9995, 1.0, 1.0], "2": [0.9996, 1.0001, 1.0]}, "problem").failures == []
    assert word in " ".join(agree({"1": [0.9995, 1.0, 1.0], "2": bounds}, "problem").failures)


def test_a_batch_that_leads_elsewhere_is_found(monkeypatch):
    honest = gd.solve
    monkeypatch.setattr(part_same_answer, "start", lambda *a, **k: {})
    monkeypatch.setattr(gd, "solve", lambda p, s, **more: honest(p, s, **{**more, "max_passes": 3}))
    assert "not converged" in threads_and_batches(1, 0, 1).failures[0]


def test_fits_that_differ_or_fail_are_found(monkeypatch):
    assert compare_fits(range(4), {"alone": lambda numbers: [fit_one(k) for k in numbers]}).failures == []
    other = {"elsewhere": lambda numbers: [fit_one(k + 1) for k in numbers], "nowhere": lambda numbers: 1 / 0}
    tally = compare_fits(range(4), other)
    assert len(tally.failures) == 5
    assert "ZeroDivisionError" in tally.failures[-1]


def test_what_is_raised_in_a_thread_is_found(monkeypatch):
    def fail(number):
        raise RuntimeError(f"no model {number}")

    monkeypatch.setattr(part_same_answer, "_fit", fail)
    assert in_threads([7, 8], 2) == ["RuntimeError: no model 7", "RuntimeError: no model 8"]


def test_memory_that_grows_is_found():
    kept = []
    assert judge_memory(memory(0, 30, 10, lambda number: number), 30).failures == []
    leak = memory(0, 30, 10, lambda number: kept.append(np.ones(400_000)))
    assert "grew" in judge_memory(leak, 30).failures[0]


def test_a_process_that_breaks_down_is_a_failure():
    with pytest.raises(RuntimeError, match="ended with"):
        start("certified", "no number")
    assert "RuntimeError" in guarded(lambda *a: start("certified", "no number"))(1, 0, 1).failures[0]
