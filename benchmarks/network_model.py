"""Model of the seconds of an epoch on a network; `benchmarks.network` calibrates it and compares it with measurements.

An epoch takes the CPU seconds of the busiest core, and its all-reduces. Their rounds follow from the algorithm: log2(p)
exchanges of all n numbers, or 2 log2(p) exchanges of n/2, n/4, ... numbers if there are many. A round, in which
all workers exchange b bytes in pairs at the same time, takes two delays and a fixed time, plus b bytes at the rate of
the network or, if it is lower, at that of the processors. There are two delays because gloo sends nothing before the
receiver has announced that it is ready.

The fixed time and the rate of the processors depend on the number of workers, because workers share cores. They are
calibrated for each number on networks without a limit on the rate.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from groupdro.distributed.exchange import PeerCommunicator

__all__ = [
    "BURST", "MTU", "SIZES", "Exchange", "Link", "allreduce_seconds", "exchange_seconds", "fit_costs", "model_epochs",
    "rounds",
]  # fmt: skip

TRIPS = 2  # of an exchange by gloo: the receiver's announcement, and the message
BURST = 2**18  # bytes that a token bucket lets pass at once; at 10 Gbit/s, it bridges 0.2 ms until its timer fires
MTU = 9000
_FRAME = MTU + 14  # bytes with the header of Ethernet
_HEADERS = 66  # bytes of Ethernet, IP and TCP per frame
SIZES = {64: 200, 10_000: 100, 1_000_000: 12}  # numbers of the all-reduces that are timed alone: repetitions


@dataclass(frozen=True)
class Exchange:
    """Seconds of a round of exchanges: a fixed part, and a part for every byte that a worker sends."""

    seconds: float
    seconds_per_byte: float


@dataclass(frozen=True)
class Link:
    """A network: bits per second, seconds one way, and the costs of an exchange when nothing else limits it."""

    rate: float
    delay: float
    costs: Exchange


def rounds(n_numbers: int, n_workers: int) -> list[int]:
    """Return the bytes that a worker sends in each round of an all-reduce; workers are a power of two."""
    doublings = n_workers.bit_length() - 1
    if n_numbers <= PeerCommunicator.doubling_limit:
        return [8 * n_numbers] * doublings
    halves = [8 * n_numbers // 2**k for k in range(1, doublings + 1)]
    return halves + halves[::-1]


def exchange_seconds(n_bytes: int, link: Link) -> float:
    """Return the time of a round in which all workers exchange messages in pairs."""
    on_wire = 8 * max(0.0, n_bytes * _FRAME / (_FRAME - _HEADERS) - BURST) / link.rate
    return TRIPS * link.delay + link.costs.seconds + max(on_wire, link.costs.seconds_per_byte * n_bytes)


def allreduce_seconds(n_numbers: int, n_workers: int, link: Link) -> float:
    """Return the time of an all-reduce."""
    return sum(exchange_seconds(n_bytes, link) for n_bytes in rounds(n_numbers, n_workers))


def model_epochs(computing: dict[str, Any], n_workers: int, link: Link) -> dict[str, float]:
    """Return medians over the epochs: modelled seconds, their parts, and the bytes that a worker sends."""
    parts = []
    for cpu, calls in zip(computing["cpu_of_busiest_core"], computing["calls"], strict=True):
        count = {int(n): times for n, times in calls.items()}
        messages = sum(times * allreduce_seconds(n, n_workers, link) for n, times in count.items())
        sent = sum(times * sum(rounds(n, n_workers)) for n, times in count.items())
        parts.append((cpu + messages, cpu, messages, sent))
    names = ("modelled_seconds", "modelled_computing", "modelled_messages", "modelled_bytes")
    return dict(zip(names, np.median(parts, axis=0).tolist(), strict=True))


def fit_costs(probe: dict[str, dict[str, float]], n_workers: int, delay: float) -> Exchange:
    """Return the costs from all-reduces of the fewest and of the most numbers on a network that limits no rate."""
    (n_short, short), (n_long, long) = ((n, probe[str(n)]["seconds"]) for n in (min(SIZES), max(SIZES)))
    few, many = rounds(n_short, n_workers), rounds(n_long, n_workers)
    short, long = short / len(few), long / len(many)  # of a round
    per_byte = (long - short) / (sum(many) / len(many) - sum(few) / len(few))
    return Exchange(max(0.0, short - TRIPS * delay), max(0.0, per_byte))
