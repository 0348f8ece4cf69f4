"""Model of the seconds of an epoch on a network; `benchmarks.network` calibrates it and compares it with measurements.

An epoch takes the CPU seconds of the busiest core, plus its all-reduces. Rounds follow from the algorithm: log2(p)
exchanges of all n numbers, or 2 log2(p) exchanges of n/2, n/4, ... numbers if there are many. In a round, all workers
exchange b bytes in pairs at the same time, which takes two delays and the longest of

- an exchange alone: a fixed time, plus b bytes at the rate of the network or at that of the processor if it is lower;
- the CPU seconds of all messages, of workers and relay, divided by the cores;
- the CPU seconds of the relay, which is a single thread.

There are two delays because gloo sends nothing before the receiver has announced that it is ready.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from groupdro.distributed.exchange import PeerCommunicator

__all__ = [
    "BURST", "MTU", "SIZES", "Exchange", "Link", "allreduce_seconds", "exchange_seconds", "fit_costs", "model_epochs",
    "rounds", "without_delay",
]  # fmt: skip

TRIPS = 2  # of an exchange by gloo: the receiver's announcement, and the message
BURST = 2**18  # bytes that a token bucket lets pass at once; at 10 Gbit/s, it bridges 0.2 ms until its timer fires
MTU = 9000
_FRAME = MTU + 14  # bytes with the header of Ethernet
_HEADERS = 66  # bytes of Ethernet, IP and TCP per frame
SIZES = {64: 200, 10_000: 100, 1_000_000: 12}  # numbers of the all-reduces that are timed alone: repetitions


@dataclass(frozen=True)
class Exchange:
    """Costs of an exchange between two workers, fixed and per byte that each of them sends; CPU seconds per message."""

    seconds: float
    seconds_per_byte: float
    cpu: float
    cpu_per_byte: float
    relay_cpu: float = 0.0
    relay_cpu_per_byte: float = 0.0


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


def exchange_seconds(n_bytes: int, n_workers: int, link: Link, cores: int) -> float:
    """Return the time of a round in which all workers exchange messages in pairs."""
    costs = link.costs
    on_wire = 8 * max(0.0, n_bytes * _FRAME / (_FRAME - _HEADERS) - BURST) / link.rate
    alone = costs.seconds + max(on_wire, costs.seconds_per_byte * n_bytes)
    of_worker = costs.cpu + costs.cpu_per_byte * n_bytes
    of_relay = costs.relay_cpu + costs.relay_cpu_per_byte * n_bytes
    return TRIPS * link.delay + max(alone, n_workers * (of_worker + of_relay) / cores, n_workers * of_relay)


def allreduce_seconds(n_numbers: int, n_workers: int, link: Link, cores: int) -> float:
    """Return the time of an all-reduce."""
    return sum(exchange_seconds(n_bytes, n_workers, link, cores) for n_bytes in rounds(n_numbers, n_workers))


def model_epochs(computing: dict[str, Any], n_workers: int, link: Link, cores: int) -> dict[str, float]:
    """Return medians over the epochs: modelled seconds, their parts, and the bytes that a worker sends."""
    parts = []
    for cpu, calls in zip(computing["cpu_of_busiest_core"], computing["calls"], strict=True):
        count = {int(n): times for n, times in calls.items()}
        messages = sum(times * allreduce_seconds(n, n_workers, link, cores) for n, times in count.items())
        sent = sum(times * sum(rounds(n, n_workers)) for n, times in count.items())
        parts.append((cpu + messages, cpu, messages, sent))
    names = ("modelled_seconds", "modelled_computing", "modelled_messages", "modelled_bytes")
    return dict(zip(names, np.median(parts, axis=0).tolist(), strict=True))


def fit_costs(probe: dict[str, dict[str, float]]) -> Exchange:
    """Return the costs from all-reduces of two workers: of the fewest numbers, in a round, and of the most, in two."""
    shortest, longest = min(SIZES), max(SIZES)
    [b_short], (b_long, _) = rounds(shortest, 2), rounds(longest, 2)

    def line(of: Callable[[dict[str, float]], float]) -> tuple[float, float]:
        fixed = of(probe[str(shortest)])
        return fixed, max(0.0, of(probe[str(longest)]) / 2 - fixed) / (b_long - b_short)

    return Exchange(*line(lambda at: at["seconds"]), *line(lambda at: at["cpu"]), *line(lambda at: at["relay_cpu"] / 2))


def without_delay(probe: dict[str, dict[str, float]], delay: float) -> dict[str, dict[str, float]]:
    """Return a probe without the delays of its exchanges."""
    return {n: at | {"seconds": at["seconds"] - len(rounds(int(n), 2)) * TRIPS * delay} for n, at in probe.items()}
