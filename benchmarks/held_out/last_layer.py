"""Whether the cross-validated choice leaves plain training where it should: a network's last layer, and bank by job."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.held_out import problems
from benchmarks.held_out.intervals import CONFIDENCE
from benchmarks.held_out.models import CHOSEN, Part, linear, losses_of, search
from benchmarks.held_out.splits import FEWEST, parts
from benchmarks.held_out.tables import SIZES, STORED, compare, read
from benchmarks.held_out.writing import markdown, write
from groupdro import GroupStratifiedKFold
from groupdro.data.grouping import read_groups
from groupdro.evaluation.inference import Intervals, falls_of_worst, simultaneous_intervals
from groupdro.evaluation.resampling import resample

SEEDS = range(5)
N_FOLDS = 10
N_BOOTSTRAP = 2000
_GROUPS = np.array([f"{label}, {corner}" for label in ("T-shirt or pullover", "shirt or coat")
                    for corner in ("left", "right")])  # fmt: skip
_KINDS = "plain", "chosen", "for gain", "GDRO"
_HEADER = f"""\
# Where plain training should be left

The embeddings of the Fashion-MNIST example (five networks as in `benchmarks/last_layer.py`; groups are label and
corner, 6,000 rows to fit the last layer, 4,000 official test rows), and the bank table by job, every row of which
is held out once, in ten folds. "Chosen": `GroupDROClassifierCV` at its defaults on the training part; "for gain":
the same with `prefer="gain"` and `mean_budget=1`; against plain training and GDRO with the penalty that it finds
for plain training. Risk is the held-out log loss of each model's worst group; "gain" is how much it falls against
plain training, with intervals for all models together (`falls_of_worst`). "Change" is that of the group which is
worst under plain training, with paired intervals for all groups together (`simultaneous_intervals`); "better" and
"worse" count the groups whose interval excludes zero. All intervals are at {CONFIDENCE:.0%}, of groups of at least
{FEWEST} held-out rows. Accuracies are those of each model's worst group.

"""


def embeddings() -> Iterator[tuple[str, Part, Part]]:
    """Yield the embeddings of each network: rows for its last layer, and test rows."""
    import torch
    from threadpoolctl import threadpool_limits

    from benchmarks import last_layer as network

    torch.set_num_threads(1)
    for seed in SEEDS:
        with threadpool_limits(1):
            rows, layer, test = network.make_rows(seed)
            body, _ = network.train_network(rows, seed)
            both = [network.embed(body, part) for part in (layer, test)]
        train, held_out = (Part(part.X, part.y, _GROUPS[part.groups], True) for part in both)
        yield f"last layer, network {seed}", train, held_out


Folds = Iterator[tuple[Part, Part]]


def networks() -> Iterator[tuple[str, Folds]]:
    for name, train, held_out in embeddings():
        yield name, iter([(train, held_out)])


def bank() -> Iterator[tuple[str, Folds]]:
    table = problems.bank()
    folds = GroupStratifiedKFold(N_FOLDS, random_state=0).split(np.zeros((table.n_rows, 1)), table.y, table.groups)
    yield f"bank: job, {N_FOLDS} folds", (parts(table, *rows) for rows in folds)


def measure(name: str, folds: Folds) -> list[Any]:
    """Return a line of the table: what was chosen, and how the worst group fares on held-out rows."""
    robustness, losses, right, groups = [], [], [], []
    for train, held_out in folds:
        careful, bold = search(train), search(train, prefer="gain", mean_budget=1.0)
        alpha = careful.plain_alpha_
        models = [
            linear(train, alpha, robustness=0.0), careful.best_estimator_, bold.best_estimator_, linear(train, alpha)
        ]  # fmt: skip
        robustness.append((careful.robustness_, bold.robustness_))
        losses.append(np.column_stack([losses_of(model, held_out) for model in models]))
        right.append(np.column_stack([model.predict(held_out.X) == held_out.y for model in models]))
        groups.append(held_out.groups)
    grouping = read_groups(np.concatenate(groups), sum(map(len, groups)))
    risks = resample(np.vstack(losses), grouping, n_bootstrap=N_BOOTSTRAP, seed=0)
    judged = risks.sizes >= FEWEST
    worst = int(np.argmax(np.where(judged, risks.means[:, 0], -np.inf)))
    both = simultaneous_intervals(risks, CONFIDENCE, kind=1, against=0, groups=judged)
    falls = falls_of_worst(risks, CONFIDENCE, against=0, groups=judged)
    means = [np.vstack(right)[grouping.rows_of(i)].mean(axis=0) for i in np.flatnonzero(judged)]
    return [
        name,
        *(" ".join(f"{value:g}" for value in np.unique(part)) for part in zip(*robustness, strict=True)),
        *(f"{value:.3f}" for value in risks.means[judged].max(axis=0)),
        *(_interval(falls, k) for k in range(1, len(_KINDS))),
        grouping.names[worst],
        _interval(both, worst),
        int((both.high < 0).sum()),
        int((both.low > 0).sum()),
        *(f"{value:.1%}" for value in np.min(means, axis=0)),
    ]


def _interval(found: Intervals, place: int) -> str:
    return f"{found.estimates[place]:+.3f} ({found.low[place]:+.3f} to {found.high[place]:+.3f})"


def last_layer() -> None:
    rows = []
    for source in (networks, bank):
        for name, folds in source():
            rows.append(measure(name, folds))
            print(rows[-1], flush=True)
    columns = ["data", "robustness, chosen", "robustness, for gain", *(f"worst risk, {kind}" for kind in _KINDS),
               *(f"gain, {kind}" for kind in _KINDS[1:]), "worst group, plain", "change, chosen", "better", "worse",
               *(f"worst accuracy, {kind}" for kind in _KINDS)]  # fmt: skip
    write("last_layer", f"{_HEADER}{markdown(columns, rows)}\n{_all_splits()}\n")


def _all_splits() -> str:
    """Say what the ten splits of `tables` found on bank."""
    name = "bank: job"
    one = compare(read(STORED), read(SIZES))[name]
    difference = one.difference(CHOSEN, "worst")
    return (
        f"On the ten splits of the bank table the choice left plain training {one.departures} times. Its worst risk is "
        f"{difference.mean:+.4f} ({difference.low:+.4f} to {difference.high:+.4f}) from plain training's, by the "
        f"intervals of `tables`: {difference.verdict}."
    )
