"""Risk on groups that no model was fitted on: a hospital, or some stations, left out."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.held_out import problems
from benchmarks.held_out.models import CHOSEN, MODELS, PLAIN, fit_all, losses_of
from benchmarks.held_out.problems import Table
from benchmarks.held_out.splits import parts
from benchmarks.held_out.writing import markdown, write
from groupdro.data.grouping import read_groups
from groupdro.evaluation.inference import simultaneous_intervals
from groupdro.evaluation.resampling import resample

CONFIDENCE = 0.95
N_BOOTSTRAP = 2000
_PER_FOLD = 3  # stations
_HEADER = """\
# Groups that were not trained on

Models are fitted on some groups and judged on the others: three hospitals and the fourth, nine stations and the other
three. Average log loss, or squared residual of a target of variance 1, on all rows of the unseen groups. The group
cannot be a feature here: the column of an unseen group is zero on all training rows, so that no model learns a
coefficient for it. Numbers are standardised by the training rows. The stations are judged in the same hours that the
others were trained on, which helps models that can recognise an hour by its weather. All linear models have the penalty
that cross-validation on the training groups finds for plain training; only the CV choice may take another. **Bold**
risks differ significantly from plain training's: {confidence:.0%} for the {n} models of a line together, by a bootstrap
of the unseen rows (of whole weeks for the stations) with Bonferroni's correction. This holds for other rows of the same
groups, not for other groups.

"""


class Unseen(NamedTuple):
    """Groups that are left out, and the rows of the rest and of them."""

    name: str
    table: Table
    train: np.ndarray
    held_out: np.ndarray


def heart() -> Iterator[Unseen]:
    """Leave out one hospital after the other."""
    table = problems.heart_without_hospital()
    for hospital in np.unique(table.groups):
        yield _leave_out(table, f"heart: {hospital}", [hospital])


def beijing() -> Iterator[Unseen]:
    """Leave out three stations after three others, in the order of their names."""
    table = problems.beijing(with_station=False)
    stations = np.unique(table.groups)
    for start in range(0, len(stations), _PER_FOLD):
        left_out = stations[start : start + _PER_FOLD].tolist()
        yield _leave_out(table, f"beijing: {', '.join(left_out)}", left_out)


def _leave_out(table: Table, name: str, groups: list[str]) -> Unseen:
    unseen = np.isin(table.groups, groups)
    return Unseen(name, table, np.flatnonzero(~unseen), np.flatnonzero(unseen))


def measure(unseen: Unseen) -> list[str]:
    """Return a line of the table: each model's risk on the unseen groups, and what was chosen."""
    train, held_out = parts(unseen.table, unseen.train, unseen.held_out)
    search, models = fit_all(train, 0)
    losses = np.column_stack([losses_of(models[name], held_out) for name in MODELS])
    alone = read_groups(np.zeros(len(losses), dtype=np.int64), len(losses))
    clusters = None if held_out.units is None else np.unique(held_out.units, return_inverse=True)[1]
    found = resample(losses, alone, n_bootstrap=N_BOOTSTRAP, seed=0, clusters=clusters)
    confidence = 1.0 - (1.0 - CONFIDENCE) / (len(MODELS) - 1)
    cells = []
    for kind, name in enumerate(MODELS):
        text = f"{found.means[0, kind]:.4f}"
        if name != PLAIN and np.any(losses[:, kind] != losses[:, 0]):
            both = simultaneous_intervals(found, confidence, kind=kind, against=0)
            text = f"**{text}**" if both.low[0] > 0 or both.high[0] < 0 else text
        cells.append(text)
    return [unseen.name, f"{len(losses):,}", *cells, f"{search.robustness_:g}"]


def shift() -> None:
    rows = []
    for table in (heart, beijing):
        for unseen in table():
            rows.append(measure(unseen))
            print(rows[-1], flush=True)
    columns = ["unseen", "rows", *MODELS, f"robustness, {CHOSEN}"]
    text = _HEADER.format(confidence=CONFIDENCE, n=len(MODELS) - 1)
    write("shift", text + markdown(columns, rows))
