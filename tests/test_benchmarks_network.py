"""The model of epochs on a network: messages are those of the real exchange, times those of hand-worked cases."""

import json

import numpy as np
import pytest
from benchmarks import network, network_model
from benchmarks.network_model import BURST, Exchange, Link, exchange_seconds, fit_costs, model_epochs, rounds

from tests.distributed.test_exchange import together

FREE = Exchange(seconds=0.0, seconds_per_byte=0.0, cpu=0.0, cpu_per_byte=0.0)


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
    assert exchange_seconds(8_000_000, 2, link, cores=2) == pytest.approx(expected)
    assert exchange_seconds(800, 2, link, cores=2) == pytest.approx(2e-3)  # within the burst


@pytest.mark.parametrize(("workers", "expected"), [(2, 5e-3), (4, 6e-3), (8, 12e-3)])
def test_workers_without_a_core_of_their_own_wait_for_one(workers, expected):
    costs = Exchange(seconds=1e-3, seconds_per_byte=4e-9, cpu=1e-3, cpu_per_byte=2e-9)
    assert exchange_seconds(10**6, workers, Link(1e12, 0.0, costs), cores=2) == pytest.approx(expected)


def test_a_relay_has_one_core_only():
    costs = Exchange(0.0, 0.0, 0.0, 0.0, relay_cpu=1e-5, relay_cpu_per_byte=1e-9)
    assert exchange_seconds(10**6, 8, Link(1e12, 0.0, costs), cores=2) == pytest.approx(8 * 1.01e-3)


def test_costs_are_found_again_in_the_all_reduces_that_they_predict():
    costs = Exchange(1e-4, 1e-9, 5e-5, 8e-10, 2e-5, 3e-10)
    delay = network.PROBE_DELAY
    probe = {}
    for n in network_model.SIZES:
        sent = rounds(n, 2)
        probe[str(n)] = {
            "seconds": sum(costs.seconds + costs.seconds_per_byte * b + 2 * delay for b in sent),
            "cpu": sum(costs.cpu + costs.cpu_per_byte * b for b in sent),
            "relay_cpu": sum(2 * (costs.relay_cpu + costs.relay_cpu_per_byte * b) for b in sent),
        }
    found = fit_costs(network_model.without_delay(probe, delay))
    # The bytes of the shortest message count as fixed.
    assert found.seconds == pytest.approx(costs.seconds, rel=0.01)
    assert found.seconds_per_byte == pytest.approx(costs.seconds_per_byte, rel=1e-6)
    assert found.cpu_per_byte == pytest.approx(costs.cpu_per_byte, rel=1e-6)
    assert found.relay_cpu == pytest.approx(costs.relay_cpu, rel=0.01)
    assert found.relay_cpu_per_byte == pytest.approx(costs.relay_cpu_per_byte, rel=1e-6)


def test_an_epoch_is_its_computing_and_its_all_reduces():
    link = Link(rate=1e12, delay=1e-3, costs=FREE)
    computing = {"cpu_of_busiest_core": [0.5, 0.5, 9.0], "calls": [{"220": 100}, {"220": 100}, {}]}
    found = model_epochs(computing, 4, link, cores=2)
    assert found["modelled_seconds"] == pytest.approx(0.5 + 100 * 2 * 2e-3)
    assert found["modelled_bytes"] == 100 * 2 * 8 * 220


def test_the_busiest_core_computes_for_all_of_its_workers():
    def worker(cpu):
        return {kind: [{"cpu": cpu, "calls": {"3": 2}}] for kind in network.SOLVERS}

    found = network.computing_of([worker(cpu) for cpu in (1.0, 2.0, 4.0, 8.0)], cores=2)
    assert found["sparse"] == {"cpu_of_busiest_core": [10.0], "calls": [{"3": 2}]}
    assert network.computing_of([worker(1.0), worker(3.0)], cores=2)["dense"]["cpu_of_busiest_core"] == [3.0]


def test_extrapolation_divides_passes_and_repeats_the_rest():
    calibration = {"veth": {"costs": dict(vars(FREE))}}
    for p in network.WORKERS:
        alone = 1.2 / p + 0.1  # CPU seconds of a worker
        sparse = {"cpu_of_busiest_core": [alone * max(1, p / 2)], "calls": [{}]}
        calibration[f"{p} workers"] = {"sparse": sparse}
    stored = json.loads(json.dumps({"cores": 2, "rows": 200_000, "calibration": calibration}))
    found = network.extrapolate(stored)
    assert found["cpu_seconds_repeated"] == pytest.approx(0.1)
    assert found["cpu_seconds_per_entry"] == pytest.approx(1.2 / (200_000 * 30))
    assert found["epochs"][0]["modelled_seconds"] == pytest.approx(1e11 * 1.2 / 6e6 / 64 + 0.1)
    assert "modelled, not measured" in found["note"]


def test_stored_floats_have_four_digits_and_counts_all_of_theirs():
    assert network.rounded({"a": [1.23456e-5, 123456], "b": "1.23456"}) == {"a": [1.235e-5, 123456], "b": "1.23456"}
