"""Real tables: whether groups that were found fail on other rows too, and whether a repair helps."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge

import groupdro as gd
from benchmarks.find_groups.chance import overlap
from benchmarks.find_groups.writing import markdown, write
from benchmarks.held_out.problems import TABLES, Table, design
from groupdro.evaluation.models import row_losses

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
    lines = []
    for key, place in PLANTED.items():
        for seed in range(n):
            table = TABLES[key]()
            inside = np.logical_and.reduce([table.frame[column].to_numpy() == value for column, value in place])
            right = np.random.default_rng(seed).random(table.n_rows) < 0.9
            shortcut = np.where(right ^ inside, table.y, 1 - table.y)
            lines.append(_repaired(key, table, seed, shortcut=shortcut, inside=inside))
    for key in UNPLANTED:
        lines += [_repaired(key, TABLES[key](), seed) for seed in range(n)]
    columns = ["table", "seed", "groups", "overlap", "recommended", "gain of the worst group", "cost over all rows"]
    write(
        "shortcuts",
        "# Repairs\n\nA column that agrees with the label on 90% of the rows, and on 10% of those in one part of the "
        "table (bank: cellular in November; adult: married and in craft and repair); and tables without such a column. "
        "40% of the rows fit a plain linear model, 30% are searched, both fit the repair, and 30% judge it: `compare` "
        "with the groups that were found. Overlap of a found group with the planted one. Gain and cost of the "
        "recommended model compared with plain training, with 95% confidence intervals.\n\n"
        + markdown([*columns, "harmed groups"], lines),
    )


def _repaired(
    key: str, table: Table, seed: int, *, shortcut: np.ndarray | None = None, inside: np.ndarray | None = None
) -> list[Any]:
    train, search, test = parts_of(table, (0.4, 0.3, 0.3), seed)
    X, frame = design(table, train), table.frame
    if shortcut is not None:
        X, frame = np.column_stack([X, 2.0 * shortcut - 1.0]), frame.assign(shortcut=shortcut)
    kind = gd.GroupDROClassifier if table.classes else gd.GroupDRORegressor
    one = np.zeros(len(train))
    plain = kind(robustness=0.0, alpha=1e-3).fit(X[train], table.y[train], groups=one)
    found = gd.find_groups(plain, X[search], table.y[search], columns=frame.iloc[search], random_state=seed)
    name = f"{key}{'' if shortcut is None else ', planted'}"
    if not len(found):
        return [name, seed, 0, "", "nothing to repair", "", "", ""]
    fitted = np.sort(np.concatenate([train, search]))
    comparison = gd.compare(
        X[fitted],
        table.y[fitted],
        found.grouping(frame.iloc[fitted]),
        estimator=kind(alpha=1e-3),
        held_out=(X[test], table.y[test], found.grouping(frame.iloc[test])),
        cv=None,
        random_state=seed,
    )
    change = comparison.changes[comparison.recommended]
    members = found.groups(frame).to_numpy().T[: len(found)]
    best = "" if inside is None else f"{max(overlap(one, inside) for one in members):.2f}"
    gain, cost = (f"{e:+.3f} ({min(a, b):+.3f} to {max(a, b):+.3f})" for e, a, b in (change.gain, change.cost))
    return [name, seed, len(found), best, comparison.recommended, gain, cost, len(change.harmed)]
