"""Real tables: whether groups that were found fail on other rows too, and whether a repair helps."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge

import groupdro as gd
from benchmarks.find_groups.chance import overlap
from benchmarks.find_groups.writing import markdown, write
from benchmarks.held_out.problems import TABLES, Table, design
from groupdro.data.grouping import Grouping
from groupdro.evaluation.inference import falls_of_worst, simultaneous_intervals
from groupdro.evaluation.outputs import row_losses
from groupdro.evaluation.resampling import resample

PLANTED = {
    "bank": [("month", "nov"), ("contact", "cellular")],
    "adult": [("marital-status", "Married-civ-spouse"), ("occupation", "Craft-repair")],
}
UNPLANTED = "german", "compas", "wine", "credit", "adult"


def parts_of(table: Table, shares: tuple[float, ...], seed: int, *, by_time: bool = False) -> Iterator[np.ndarray]:
    """Yield disjoint parts of the rows: random ones, or in the order of the table. Units stay together."""
    units = np.arange(table.n_rows) if table.units is None else table.units
    order = np.unique(units) if by_time else np.random.default_rng(seed).permutation(np.unique(units))
    ends = (np.cumsum(shares) * len(order)).round().astype(int)
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        yield np.flatnonzero(np.isin(units, order[begin:end]))


def problems(n: int) -> None:
    """Search on a part of the rows, and judge what was found on another one."""
    lines, held, above, total = [], 0, 0, 0
    for key, make in TABLES.items():
        table = make()
        by_time = table.units is not None
        for seed in range(1 if by_time else n):
            train, search, fresh = parts_of(table, (0.34, 0.33, 0.33), seed, by_time=by_time)
            X = design(table, train)
            for name, model in _models(table.classes):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about convergence: any model will do
                    model.fit(X[train], table.y[train])
                loss = "log" if table.classes else "squared"
                units = None if table.units is None else table.units[search]
                found = gd.find_groups(
                    model, X[search], table.y[search], columns=table.frame.iloc[search], loss=loss, cluster=units
                )
                losses = row_losses(model, X[fresh], table.y[fresh], loss)
                members = found.groups(table.frame.iloc[fresh]).to_numpy()
                for k in range(len(found)):
                    inside, outside = losses[members[:, k]].mean(), losses[~members[:, k]].mean()
                    bound = found.columns["at_least"][k]
                    total, above, held = total + 1, above + (inside > outside), held + (inside - outside >= bound)
                    if k == 0 and seed == 0:
                        lines.append(
                            [
                                key,
                                "time" if by_time else "random",
                                name,
                                len(found),
                                found.columns["group"][0],
                                f"{found.columns['inside'][0]:.3f} / {found.columns['outside'][0]:.3f}",
                                f"{bound:.3f}",
                                f"{inside:.3f} / {outside:.3f}",
                            ]
                        )
                if not len(found) and seed == 0:
                    lines.append([key, "time" if by_time else "random", name, 0, "", "", "", ""])
    columns = ["table", "split", "model", "groups", "clearest", "loss inside / outside", "worse by at least"]
    write(
        "problems",
        "# Groups found in real tables\n\nA third of the rows fits the model, a third is searched and judged by "
        "`find_groups`, and a third shows whether the groups are worse there too. Log loss, or half the squared "
        "residual of a target of variance 1. The parts are random; of bike and beijing, they are consecutive. "
        f"{n} random split{'s' if n > 1 else ''} per table; the table shows the first.\n\n"
        f"Of {total} groups that were found, {above} ({above / total:.0%}) have a larger loss than the other rows on "
        f"rows that were not used, and {held} ({held / total:.0%}) by at least the lower bound.\n\n"
        + markdown([*columns, "on rows not used"], lines),
    )


def _models(classes: bool) -> list[tuple[str, Any]]:
    if classes:
        return [
            ("boosted trees", HistGradientBoostingClassifier(random_state=0)),
            ("logistic", LogisticRegression(max_iter=300)),
        ]
    return [("boosted trees", HistGradientBoostingRegressor(random_state=0)), ("ridge", Ridge())]


def shortcuts(n: int) -> None:
    """Plant a misleading column, find where it misleads, repair, and judge on untouched rows."""
    planted, others = [], []
    for key, place in PLANTED.items():
        for seed in range(n):
            table = TABLES[key]()
            inside = np.logical_and.reduce([table.frame[column].to_numpy() == value for column, value in place])
            right = np.random.default_rng(seed).random(table.n_rows) < 0.9
            shortcut = np.where(right ^ inside, table.y, 1 - table.y)
            for described in (False, True):
                repair = repaired(table, seed, shortcut=shortcut, described=described)
                name = f"{key}{', with the column' if described else ''}"
                planted.append([name, seed, *planted_cells(repair, inside)])
    for key in UNPLANTED:
        others += [[key, seed, *cells(repaired(TABLES[key](), seed))] for seed in range(n)]
    changed = [row for row in others if row[4]]
    better, worse = (sum(significant(row[4]) == sign for row in changed) for sign in (-1, 1))
    first, then = ["table", "seed", "groups"], ["worst group", "all rows", "groups that pay significantly"]
    write(
        "shortcuts",
        "# Repairs\n\n35% of the rows fit a plain linear model, and `find_groups` searches 25%. Both fit the repair, "
        "and 20% choose it: `compare` with the groups that were found. The last 20% judge: changes of the log loss (or "
        "half the squared residual of a target of variance 1) by the recommended model compared with plain training, "
        "negative if it is better, with 95% confidence intervals.\n\n"
        "**Planted shortcuts.** One more column agrees with the label on 90% of the rows, and on 10% of those in one "
        "part of the table (bank: cellular in November; adult: married and in craft and repair). The describing "
        "columns are those of the table; where it says so, the misleading column is one of them. Overlap "
        "(intersection over union) of the planted part with the found group that fits best, and the share of that "
        "group's rows that are in the planted part.\n\n"
        + markdown([*first, "overlap", "planted rows", "recommended", "in the planted part", *then], planted)
        + f"\n**Tables without a planted shortcut.** In {len(changed)} of {len(others)} runs, another model than plain "
        "training is recommended. The loss of its "
        f"worst group is significantly smaller on the untouched rows in {better} of them, and significantly larger in "
        f"{worse}.\n\n" + markdown([*first, "recommended", *then], others),
    )


@dataclass(frozen=True, eq=False)
class Repair:
    """What was found in a table, what `compare` recommends, and the losses of plain training and of that model.

    `members` has the rows of each found group in the whole table, `test` the untouched rows, `losses` two columns.
    """

    recommended: str
    members: list[np.ndarray]
    test: np.ndarray
    losses: np.ndarray
    grouping: Grouping


def repaired(
    table: Table,
    seed: int,
    *,
    shortcut: np.ndarray | None = None,
    described: bool = False,
) -> Repair:
    """Find groups on a part of the rows, repair the model, and judge it on rows that neither has seen."""
    train, search, choose, test = parts_of(table, (0.35, 0.25, 0.2, 0.2), seed)
    X, frame = design(table, train), table.frame
    if shortcut is not None:
        X = np.column_stack([X, 2.0 * shortcut - 1.0])
        frame = frame.assign(shortcut=shortcut) if described else frame
    kind = gd.GroupDROClassifier if table.classes else gd.GroupDRORegressor
    plain = kind(robustness=0.0, alpha=1e-3).fit(X[train], table.y[train], groups=np.zeros(len(train)))
    found = gd.find_groups(plain, X[search], table.y[search], columns=frame.iloc[search], random_state=seed)
    fitted = np.sort(np.concatenate([train, search]))
    comparison = gd.compare(
        X[fitted],
        table.y[fitted],
        found.grouping(frame.iloc[fitted]),
        estimator=kind(alpha=1e-3),
        held_out=(X[choose], table.y[choose], found.grouping(frame.iloc[choose])),
        cv=None,
        random_state=seed,
    )
    models = [comparison.models[name] for name in ("ERM", comparison.recommended)]
    loss = "log" if table.classes else "squared"
    losses = np.stack([row_losses(model, X[test], table.y[test], loss) for model in models], axis=1)
    members = [*found.groups(frame).to_numpy().T[: len(found)]]
    return Repair(comparison.recommended, members, test, losses, found.grouping(frame.iloc[test]))


def cells(repair: Repair) -> list[Any]:
    """Return the changes by the recommended model on the untouched rows."""
    n = len(repair.members)
    if not n or repair.recommended == "ERM":
        return [n, "plain training" if n else "nothing to repair", "", "", ""]
    resampled = resample(repair.losses, repair.grouping, n_bootstrap=1000, seed=0)
    large = repair.grouping.sizes >= 30
    fall = falls_of_worst(resampled, 0.95, against=0, groups=large)
    each = simultaneous_intervals(resampled, 0.95, kind=1, against=0, groups=large)
    worse = [
        f"{repair.grouping.names[k]}: {each.estimates[k]:+.3f} from {resampled.means[k, 0]:.3f}"
        for k in np.flatnonzero(each.low > 0)
    ]
    worst = f"{-fall.estimates[1]:+.3f} ({-fall.high[1]:+.3f} to {-fall.low[1]:+.3f})"
    return [n, repair.recommended, worst, change(repair.losses), "; ".join(worse) or "none"]


def planted_cells(repair: Repair, inside: np.ndarray) -> list[Any]:
    """Return the same with what was found of the planted part, and the change there."""
    n, recommended, *more = cells(repair)
    best = max(repair.members, key=lambda one: overlap(one, inside), default=np.zeros(len(inside), dtype=bool))
    share = f"{inside[best].mean():.0%}" if n else ""
    there = change(repair.losses[inside[repair.test]])
    return [n, f"{overlap(best, inside):.2f}", share, recommended, there, *more]


def significant(text: str) -> int:
    """Return the sign of a written change, 0 if its interval contains 0."""
    low, high = (float(end) for end in text.partition("(")[2].rstrip(")").split(" to "))
    return int(low > 0) - int(high < 0)


def change(losses: np.ndarray) -> str:
    """Return the mean difference of two columns with its 95% confidence interval."""
    differences = losses[:, 1] - losses[:, 0]
    mean, half = differences.mean(), 1.96 * differences.std(ddof=1) / np.sqrt(len(differences))
    return f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"
