"""Tables of `no_labels`: means over seeds, paired differences with t intervals, and CPU seconds."""

from typing import Any

import numpy as np

from benchmarks.last_layers.tables import Difference, markdown, t_interval

OURS, BY_CLASS = "no labels", "no labels, chosen by the worst class"
PLAIN = "plain refit"
AFR = "AFR, as for Waterbirds", "AFR, as for CelebA"
ALL = "all labels"

Runs = list[dict[str, Any]]


def values(runs: Runs, problem: str, flipped: float, method: str, key: str = "worst") -> np.ndarray:
    """Return a number of all seeds of a problem, in order; in percent if it is an accuracy."""
    own = [run for run in runs if run["problem"] == problem and run["flipped"] == flipped]
    found = np.array([run["methods"][method][key] for run in sorted(own, key=lambda run: run["seed"])])
    return found if key == "seconds" else 100 * found


def paired(runs: Runs, problem: str, flipped: float, method: str, against: str, key: str = "worst") -> Difference:
    """Return the difference of two methods, paired over seeds."""
    return t_interval(values(runs, problem, flipped, method, key) - values(runs, problem, flipped, against, key))


def render(runs: Runs) -> str:
    """Return the page."""
    problems = list(dict.fromkeys(run["problem"] for run in runs))
    text = "# Last layers without group labels\n\n"
    counts = "; ".join(f"{name}: {len(values(runs, name, 0.0, PLAIN))}" for name in problems)
    text += (
        "Accuracy of the worst group on test rows in percent, with that of all test rows in parentheses: means over\n"
        f"seeds ({counts}). Labels per group are a number of rows in all, divided by the number of groups.\n"
        "What is compared, and how, is in `benchmarks/last_layers/no_labels.py`; `no_labels.json` has every run.\n\n"
        "Read with care: constants of ours (see `unlabelled.py` and `few_labels.py`) were set on networks of seeds 0\n"
        "and 1 of most problems, whose test images are the same for all seeds.\n"
    )
    for flipped in sorted({run["flipped"] for run in runs}):
        own = [name for name in problems if len(values(runs, name, flipped, PLAIN))]
        first = next(run for run in runs if run["flipped"] == flipped)
        heading = f"{flipped:.0%} of labels flipped" if flipped else "Labels as they are"
        marker = f"{flipped:.0%} flipped" if flipped else "labels as they are"
        text += f"\n## {heading}\n\n<!-- {marker} -->\n\n"
        rows = [
            [method, *(_cell(runs, name, flipped, method) for name in own)] for method in _ordered(first["methods"])
        ]
        text += markdown(["layer", *own], rows)
        text += "\n<!-- differences -->\n\nDifferences in points, paired over seeds, with 95% t intervals:\n\n"
        pairs = [
            (OURS, PLAIN), *((OURS, one) for one in AFR), ("30 per group, proposed", "30 per group, random"),
            ("30 per group, proposed", PLAIN), ("30 per group, proposed", ALL),
        ]  # fmt: skip
        text += markdown(
            ["", "of", *own],
            [
                [f"{one}, less {other}", where, *(str(paired(runs, name, flipped, one, other, key)) for name in own)]
                for one, other in pairs
                for where, key in (("worst group", "worst"), ("all rows", "average"))
            ],
        )
    text += "\n## CPU seconds over those of one plain refit\n\n"
    methods = _ordered(next(run for run in runs if not run["flipped"])["methods"])
    text += markdown(
        ["layer", *problems],
        [
            [method, *(f"{seconds_ratio(runs, name, method):.1f}" for name in problems)]
            for method in methods
            if method != "network"
        ],
    )
    return text


def _ordered(methods: dict[str, Any]) -> list[str]:
    """Return the rows of a table: first those without labels."""
    first = [name for name in ("network", PLAIN, *AFR, OURS, BY_CLASS) if name in methods]
    return first + [name for name in methods if name not in first]


def seconds_ratio(runs: Runs, problem: str, method: str) -> float:
    """Return mean seconds over those of the plain refit."""
    own, plain = (values(runs, problem, 0.0, one, "seconds").mean() for one in (method, PLAIN))
    return float(own / plain)


def _cell(runs: Runs, problem: str, flipped: float, method: str) -> str:
    worst, average = (values(runs, problem, flipped, method, key).mean() for key in ("worst", "average"))
    return f"{worst:.1f} ({average:.1f})"
