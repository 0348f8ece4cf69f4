"""What the runs show: means over seeds, and paired differences with t intervals."""

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
NETWORK = "the network"
SUBSAMPLE = "group-balanced refit"
REWEIGHTING = "deep feature reweighting, as published"
WIDER = "deep feature reweighting, C up to 100"
ONLINE = "whole network, Sagawa's group DRO"
LOSS = "whole network, GroupDROLoss"
OURS = {
    f"retrain_last_layer, robustness {robustness}{', L1' if l1_ratio else ''}": (robustness, l1_ratio)
    for l1_ratio in (0.0, 1.0)
    for robustness in (1.0, 0.5, "cv")
}
RIVALS = NETWORK, SUBSAMPLE, REWEIGHTING, WIDER, ONLINE
METHODS = *RIVALS, LOSS, *OURS
SLOW = NETWORK, ONLINE, LOSS  # whose seconds are those of training a whole network

_HEADER = """\
# Last layers of small networks

Worst-group accuracy on test rows in percent, with the accuracy on all test rows in parentheses; means over seeds
({seeds}). Seconds are CPU seconds of the process, which has one thread: of training for whole networks, of reading the
features, choosing and fitting for last layers, whose network was trained before. What is compared, and how, is in
`benchmarks/last_layers`; every run is in `last_layers.json`. "Over" marks calls that were given up after so many
CPU seconds, of which only the first seed was tried; "not run" is what the run was ended before.

Read with care: how `alpha="cv"` chooses was calibrated on Fashion-MNIST test images of other networks, so ours is not
untuned on those two problems. How `robustness="cv"` judges rare groups was changed after its failure on the first seed,
and how the search for an L1 penalty ends after one on superclasses.
Epochs were set after a look at test accuracies of another seed, which has the same test images. CPU seconds of the same
training varied by half with the load of the machine. Sagawa's training draws groups alike, `GroupDROLoss` has plain
batches.

"""
_BETWEEN = """
Differences are in points of worst-group accuracy, paired over seeds, with 95% t intervals where there are at least two
seeds; none allows for the number of comparisons. The best rival is the one with the best mean on the same test rows,
which favours it.

"""


class Difference(NamedTuple):
    """The mean of paired differences, and the ends of its t interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if np.isnan(self.low):
            return f"{self.mean:+.1f}"
        return f"{self.mean:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


Runs = list[dict[str, Any]]


def values(runs: Runs, problem: str, method: str, key: str) -> np.ndarray:
    """Return a number of all seeds that have all methods."""
    own = [run for run in runs if run["problem"] == problem]
    return np.array([run["methods"][method][key] for run in sorted(own, key=lambda run: run["seed"])])


def ran(runs: Runs, problem: str, method: str) -> bool:
    """Return whether a method has numbers of every seed of a problem."""
    return all("worst" in run["methods"].get(method, {}) for run in runs if run["problem"] == problem)


def given_up(runs: Runs, problem: str, method: str) -> float | None:
    """Return after how many seconds a method was given up on a problem, or None."""
    found = [run["methods"].get(method, {}).get("given_up_after") for run in runs if run["problem"] == problem]
    return next((seconds for seconds in found if seconds is not None), None)


def finished(runs: Runs, problem: str) -> list[str]:
    """Return our variants that have results."""
    return [method for method in OURS if ran(runs, problem, method)]


def paired(runs: Runs, problem: str, method: str, against: str) -> Difference:
    """Return by how many points the worst group is better off."""
    both = [100 * values(runs, problem, one, "worst") for one in (method, against)]
    return t_interval(both[0] - both[1])


def t_interval(change: np.ndarray) -> Difference:
    """Return the mean of differences, with its t interval if there are at least two."""
    if len(change) < 2:
        return Difference(float(change.mean()), np.nan, np.nan)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(change) - 1) * change.std(ddof=1) / np.sqrt(len(change))
    return Difference(float(change.mean()), float(change.mean() - half), float(change.mean() + half))


def best_rival(runs: Runs, problem: str) -> str:
    some = [method for method in RIVALS if ran(runs, problem, method)]
    return max(some, key=lambda method: values(runs, problem, method, "worst").mean())


def rivals_of(runs: Runs, problem: str) -> list[str]:
    """Return the best rival and deep feature reweighting."""
    return [one for one in dict.fromkeys((best_rival(runs, problem), REWEIGHTING)) if ran(runs, problem, one)]


def render(runs: Runs) -> str:
    """Return the page."""
    problems = list(dict.fromkeys(run["problem"] for run in runs))
    seeds = "; ".join(f"{problem}: {len(values(runs, problem, NETWORK, 'worst'))}" for problem in problems)
    accuracy, seconds = (
        [[method, *(show(runs, problem, method) for problem in problems)] for method in METHODS]
        for show in (_accuracy, _seconds)
    )
    changes = [
        [method, problem, against, str(paired(runs, problem, method, against)), _ratio(runs, problem, method, against)]
        for problem in problems
        for method in finished(runs, problem)
        for against in rivals_of(runs, problem)
    ]
    return (
        _HEADER.format(seeds=seeds)
        + verdict(runs, problems)
        + markdown(["method", *problems], accuracy)
        + "\nCPU seconds:\n\n"
        + markdown(["method", *problems], seconds)
        + _BETWEEN
        + markdown(["method", "problem", "against", "difference", "share of its seconds"], changes)
    )


def verdict(runs: Runs, problems: list[str]) -> str:
    """Say where we lose, then where we win."""
    lines = []
    for word, wins in (("Significantly below", False), ("Significantly above", True)):
        for label, rival in (("the best rival", None), ("deep feature reweighting as published", REWEIGHTING)):
            found = []
            for problem in problems:
                for method in finished(runs, problem) if ran(runs, problem, rival or NETWORK) else []:
                    change = paired(runs, problem, method, rival or best_rival(runs, problem))
                    if (change.low > 0) if wins else (change.high < 0):
                        found.append(f"{method.removeprefix('retrain_last_layer, ')} on {problem} ({change.mean:+.1f})")
            lines.append(f"- {word} {label}: {'; '.join(found) if found else 'nowhere'}.")
    few = [problem for problem in problems if len(values(runs, problem, NETWORK, "worst")) < 2]
    if few:
        lines.append(f"- Of {'; '.join(few)} there is only one seed, from which nothing significant can be told.")
    return "`retrain_last_layer`, of its six variants on each problem:\n\n" + "\n".join(lines) + "\n\n"


def _accuracy(runs: Runs, problem: str, method: str) -> str:
    if not ran(runs, problem, method):
        return "" if given_up(runs, problem, method) else "not run"
    worst, average = (100 * values(runs, problem, method, key).mean() for key in ("worst", "average"))
    return f"{worst:.1f} ({average:.1f})"


def _seconds(runs: Runs, problem: str, method: str) -> str:
    limit = given_up(runs, problem, method)
    if limit is not None:
        return f"over {limit:g}"
    if not ran(runs, problem, method):
        return "not run"
    return f"{values(runs, problem, method, 'seconds').mean():.2f}"


def _ratio(runs: Runs, problem: str, method: str, against: str) -> str:
    own, other = (values(runs, problem, one, "seconds").mean() for one in (method, against))
    return f"{own / other:.2f}"


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
