"""The model of epochs on a network: messages are those of the real exchange, times those of hand-worked cases."""

import json
from dataclasses import replace

import numpy as np
import pytest
from benchmarks import network, network_model
from benchmarks.network_model import BURST, Exchange, Link, exchange_seconds, fit_costs, model_epochs, rounds

from tests.distributed.test_exchange import together

FREE = Exchange(seconds=0.0, seconds_per_byte=0.0)


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
@pytest.mark.parametrize("n", [1, 220, 30_000, 30_001, 2**17, 100_003])
def test_rounds_are_those_of_the_real_exchange(workers, n):
    _, communicators = together(workers, lambda comm: comm.allreduce(np.ones(n)))
    for communicator in communicators:
        sent = [8 * numbers for _, numbers, _ in communicator.messages]
        assert len(sent) == len(rounds(n, workers))
        # Halves of an odd number differ by one.
        assert np.abs(np.array(sent) - rounds(n, workers)).max() <= 8
    total = sum(communicator.bytes_sent for communicator in communicators)
    assert total == pytest.approx(workers * sum(rounds(n, workers)), rel=1e-3)


def test_a_round_on_a_slow_network_takes_its_bytes_over_the_rate_and_two_delays():
    link = Link(rate=1e9, delay=1e-3, costs=FREE)
    with_headers = 8_000_000 * 9014 / 8948
    expected = 2e-3 + 8 * (with_headers - BURST) / 1e9
    assert exchange_seconds(8_000_000, link) == pytest.approx(expected)
    assert exchange_seconds(800, link) == pytest.approx(2e-3)  # within the burst


def test_where_the_network_is_fast_the_processors_limit_the_bytes():
    costs = Exchange(seconds=1e-3, seconds_per_byte=4e-9)
    assert exchange_seconds(10**6, Link(1e12, 0.0, costs)) == pytest.approx(5e-3)
    slow = Link(1e9, 0.0, costs)
    assert exchange_seconds(10**6, slow) == pytest.approx(1e-3 + exchange_seconds(10**6, replace(slow, costs=FREE)))


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("delay", [0.0, network.PROBE_DELAY])
def test_costs_are_found_again_in_the_all_reduces_that_they_predict(workers, delay):
    costs = Exchange(1e-4, 1e-9)
    link = Link(np.inf, delay, costs)
    probe = {str(n): {"seconds": network_model.allreduce_seconds(n, workers, link)} for n in network_model.SIZES}
    found = fit_costs(probe, workers, delay)
    # The bytes of the shortest message count as fixed.
    assert found.seconds == pytest.approx(costs.seconds, rel=0.01)
    assert found.seconds_per_byte == pytest.approx(costs.seconds_per_byte, rel=1e-6)


def test_an_epoch_is_its_computing_and_its_all_reduces():
    link = Link(rate=1e12, delay=1e-3, costs=FREE)
    computing = {"cpu_of_busiest_core": [0.5, 0.5, 9.0], "calls": [{"220": 100}, {"220": 100}, {}]}
    found = model_epochs(computing, 4, link)
    assert found["modelled_seconds"] == pytest.approx(0.5 + 100 * 2 * 2e-3)
    assert found["modelled_bytes"] == 100 * 2 * 8 * 220


def test_the_busiest_core_computes_for_all_of_its_workers():
    def worker(cpu):
        return {kind: [{"cpu": cpu, "calls": {"3": 2}}] for kind in network.SOLVERS}

    found = network.computing_of([worker(cpu) for cpu in (1.0, 2.0, 4.0, 8.0)], cores=2)
    assert found["sparse"] == {"cpu_of_busiest_core": [10.0], "calls": [{"3": 2}]}
    assert network.computing_of([worker(1.0), worker(3.0)], cores=2)["dense"]["cpu_of_busiest_core"] == [3.0]


def test_extrapolation_divides_passes_and_repeats_the_rest():
    calibration = {}
    for p in network.WORKERS:
        alone = 1.2 / p + 0.1  # CPU seconds of a worker
        sparse = {"cpu_of_busiest_core": [alone * max(1, p / 2)], "calls": [{}]}
        calibration[f"{p} workers, veth"] = {"costs": dict(vars(FREE)), "computing": {"sparse": sparse}}
    stored = json.loads(json.dumps({"cores": 2, "rows": 200_000, "calibration": calibration}))
    found = network.extrapolate(stored)
    assert found["cpu_seconds_repeated"] == pytest.approx(0.1)
    assert found["cpu_seconds_per_entry"] == pytest.approx(1.2 / (200_000 * 30))
    assert found["epochs"][0]["modelled_seconds"] == pytest.approx(1e11 * 1.2 / 6e6 / 64 + 0.1)
    assert "modelled, not measured" in found["note"]


def test_epochs_are_modelled_by_the_calibration_of_their_network():
    computing = {kind: {"cpu_of_busiest_core": [0.5], "calls": [{"64": 10}]} for kind in network.SOLVERS}
    calibration = {
        "4 workers, veth": {"costs": {"seconds": 1e-3, "seconds_per_byte": 0.0}, "computing": computing},
        "4 workers, relay": {"costs": {"seconds": 2e-3, "seconds_per_byte": 0.0}},
    }
    for delay, expected in ((0.0, 0.5 + 10 * 2 * 1e-3), (1.0, 0.5 + 10 * 2 * 4e-3)):
        at = {"problem": "dense", "workers": 4, "gigabits_per_second": 1.0, "milliseconds_one_way": delay}
        at["measured_seconds"] = 0.5
        network.add_model({"calibration": calibration}, at)
        assert at["modelled_seconds"] == pytest.approx(expected)
        assert at["modelled_over_measured"] == pytest.approx(expected / 0.5)


def test_stored_floats_have_four_digits_and_counts_all_of_theirs():
    assert network.rounded({"a": [1.23456e-5, 123456], "b": "1.23456"}) == {"a": [1.235e-5, 123456], "b": "1.23456"}
