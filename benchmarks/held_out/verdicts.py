"""What `compare` recommends on training data with boosted trees among the models, and what that is worth elsewhere."""

import json
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

import groupdro as gd
from benchmarks.held_out import problems
from benchmarks.held_out.intervals import CONFIDENCE, Difference, corrected_interval
from benchmarks.held_out.models import TREES, Part
from benchmarks.held_out.splits import FEWEST, parts, split
from benchmarks.held_out.writing import CACHE, RESULTS, markdown, several, signed, stored, write
from groupdro.data.grouping import read_groups
from groupdro.evaluation.inference import falls_of_worst
from groupdro.evaluation.outputs import row_losses
from groupdro.evaluation.resampling import resample

STORED = RESULTS / "held_out_verdicts.json"
PLAIN, LIGHTGBM = "ERM", "LightGBM"
KINDS = ("worst", "mean")
N_SPLITS, N_BOOTSTRAP = 5, 1000
MOST_ROWS, MOST_NUMBERS = 12_000, 1_200_000  # of a table, so that a comparison takes less than a minute

HEADER = f"""\
# What `compare` recommends, on rows that it never saw

{N_SPLITS} random splits of each of the 13 problems of [held_out_tables.md](held_out_tables.md), of at most
{MOST_ROWS:,} rows and {MOST_NUMBERS:,} numbers each. `compare` gets 70% of the rows, at its defaults, with
HistGradientBoosting and LightGBM (both at their defaults) as `models=`. What it recommends is then fitted on the same
70% and judged on the other 30%, against the baseline, which is plain training (ERM). Risk is the log loss, or half the
squared error of a target of variance 1: the worst of the groups with at least {FEWEST} held-out rows, and the average
over all rows. "Always trees" is HistGradientBoosting without a question.

"""


def candidates(classes: bool, seed: int) -> dict[str, Any]:
    """Return the models of other libraries."""
    trees, lightgbm = (
        (HistGradientBoostingClassifier, LGBMClassifier) if classes else (HistGradientBoostingRegressor, LGBMRegressor)
    )
    return {
        TREES: trees(random_state=seed),
        LIGHTGBM: lightgbm(random_state=seed, verbose=-1, n_jobs=1),
    }


def refitted(model: Any, train: Part) -> Any:
    """Return the same model fitted on all training rows."""
    model = clone(model)
    if not type(model).__module__.startswith("groupdro"):
        return model.fit(train.X, train.y)
    searches = isinstance(model, gd.GroupDROClassifierCV | gd.GroupDRORegressorCV)
    more = {"cluster": train.units} if searches and train.units is not None else {}
    return model.fit(train.X, train.y, groups=train.groups, **more)


def run_split(table: problems.Table, seed: int) -> dict[str, Any]:
    """Compare on the training rows of one split, and judge the recommended model on the other rows."""
    begun = time.perf_counter()
    train, held_out = parts(table, *split(table, seed))
    estimator = gd.GroupDROClassifier() if table.classes else gd.GroupDRORegressor()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = gd.compare(
            train.X, train.y, train.groups, estimator=estimator, models=candidates(table.classes, seed),
            cluster=train.units, random_state=seed,
        )  # fmt: skip
        asked = dict.fromkeys([PLAIN, found.recommended, TREES, LIGHTGBM])
        models = {name: refitted(found.models[name], train) for name in asked}
    loss = "log" if table.classes else "squared"
    losses = np.stack([row_losses(model, held_out.X, held_out.y, loss) for model in models.values()], axis=1)
    return {
        "split": seed,
        "rows": table.n_rows,
        "n_train": len(train.y),
        "n_held_out": len(held_out.y),
        "recommended": found.recommended,
        "verdict": found.verdict,
        "notes": {name: change.note for name, change in found.changes.items() if change.note},
        "seconds": time.perf_counter() - begun,
        "models": judge(losses, list(models), held_out, seed),
    }


def judge(losses: np.ndarray, names: list[str], held_out: Part, seed: int) -> dict[str, Any]:
    """Return both risks of each model, and what is gained on plain training, with paired intervals."""
    grouping = read_groups(held_out.groups, len(held_out.y))
    everyone = read_groups(np.zeros(len(held_out.y), dtype=int), len(held_out.y))
    how = {"n_bootstrap": N_BOOTSTRAP, "seed": seed, "clusters": held_out.units}
    by_group, overall = resample(losses, grouping, **how), resample(losses, everyone, **how)
    judged = grouping.sizes >= FEWEST
    found = {}
    for k, name in enumerate(names):
        values: dict[str, Any] = {}
        for kind, resampled, groups in (("worst", by_group, judged), ("mean", overall, np.ones(1, dtype=bool))):
            pair = resampled.only(np.array([0, k]))
            falls = falls_of_worst(pair, CONFIDENCE, against=0, groups=groups)
            values[kind] = float(pair.means[groups, 1].max())
            values[f"{kind}_gain"] = [float(end[1]) for end in (falls.estimates, falls.low, falls.high)]
        found[name] = values
    return found


def run_table(key: str, cache: Path, n_splits: int = N_SPLITS) -> list[dict[str, Any]]:
    """Return what all splits of a table found; each is a file in the cache, and what is there is not fitted again."""

    def run(seed: int) -> dict[str, Any]:
        table = fewer_rows(problems.TABLES[key]())
        done = {"table": table.name, **run_split(table, seed)}
        print(f"{table.name}, split {seed}: {done['seconds']:.1f} s, {done['verdict']}", flush=True)
        return done

    return [stored(cache / "verdicts" / key / f"{seed}.json", partial(run, seed)) for seed in range(n_splits)]


def fewer_rows(table: problems.Table) -> problems.Table:
    """Return a random part of the rows of a large table."""
    n_rows = min(MOST_ROWS, MOST_NUMBERS // table.n_features)
    if table.n_rows <= n_rows:
        return table
    rows = np.sort(np.random.default_rng(0).choice(table.n_rows, n_rows, replace=False))
    part = table.take(rows)
    return part if part.units is None else replace(part, units=np.unique(part.units, return_inverse=True)[1])


def verdicts(cache: Path = CACHE, only: Sequence[str] = ()) -> None:
    """Run all tables, or some; the document is written once all are there."""
    found = {key: run_table(key, cache) for key in problems.TABLES if not only or key in only}
    if not only:
        STORED.write_text(json.dumps(rounded(found)) + "\n")
        write("verdicts", document(json.loads(STORED.read_text())))


def rounded(found: Any) -> Any:
    """Return the same with six digits of each number, and without texts and times."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items() if key not in ("verdict", "seconds")}
    if isinstance(found, list):
        return [rounded(value) for value in found]
    return float(f"{found:.6g}") if isinstance(found, float) else found


def of(split: dict[str, Any], model: str) -> dict[str, Any]:
    """Return what one model does on a split; the recommended one has no name of its own."""
    return split["models"][split["recommended"] if model == "recommended" else model]


def values(splits: list[dict[str, Any]], model: str, kind: str) -> np.ndarray:
    return np.array([of(one, model)[kind] for one in splits])


def added(splits: list[dict[str, Any]], model: str, kind: str) -> Difference:
    """Return what a model adds to plain training's risk, on average over the splits."""
    found = values(splits, model, kind) - values(splits, PLAIN, kind)
    return corrected_interval(found, splits[0]["n_train"], splits[0]["n_held_out"])


def document(found: dict[str, list[dict[str, Any]]]) -> str:
    return f"{HEADER}{_summary(found)}{_means(found)}{_table(found)}"


def _summary(found: dict[str, list[dict[str, Any]]]) -> str:
    everything = [one for splits in found.values() for one in splits]
    n = len(everything)
    lines = []
    for kind, word in (("worst", "worst group"), ("mean", "average")):
        worse = [one for one in everything if of(one, "recommended")[f"{kind}_gain"][2] < 0]
        better = [one for one in everything if of(one, "recommended")[f"{kind}_gain"][1] > 0]
        tables = sorted({one["table"] for one in worse})
        where = f" ({several(tables)})" if tables else ""
        lines.append(
            f"- Recommended model, {word}: significantly worse than plain training in {len(worse)} of {n} "
            f"splits{where}, significantly better in {len(better)}."
        )
        always = [one for one in everything if of(one, TREES)[f"{kind}_gain"][2] < 0]
        lines.append(f"- Always trees, {word}: significantly worse in {len(always)} of {n} splits.")
    for kind, word in (("worst", "worst group"), ("mean", "average")):
        worse = [splits[0]["table"] for splits in found.values() if added(splits, "recommended", kind).low > 0]
        lines.append(f"- Recommended model, {word}, over the splits of a problem: significantly worse on "
                     f"{len(worse)} of {len(found)}.")  # fmt: skip
    names = Counter(one["recommended"] for one in everything)
    lines.append("- Recommended: " + ", ".join(f"{name} ({count})" for name, count in names.most_common()) + ".")
    noted = Counter(name for one in everything for name in one["notes"])
    lines.append("- Models that could not be judged: " +
                 (", ".join(f"{name} ({count})" for name, count in noted.most_common()) or "none") + ".")  # fmt: skip
    return "\n".join(["## Results\n", *lines, "\n"])


def _means(found: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for model, name in ((PLAIN, "plain training"), ("recommended",) * 2, (TREES, "always trees"), (LIGHTGBM,) * 2):
        means = [np.mean([values(splits, model, kind).mean() for splits in found.values()]) for kind in KINDS]
        shares = [
            np.mean([added(splits, model, kind).mean / values(splits, PLAIN, kind).mean() for splits in found.values()])
            for kind in KINDS
        ]
        rows.append([name, *(f"{mean:.4f}" for mean in means), *(f"{share:+.1%}" for share in shares)])
    columns = ["model", "worst group", "average", "worst group, over plain", "average, over plain"]
    return f"Means over the problems:\n\n{markdown(columns, rows)}\n"


def _table(found: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for splits in found.values():
        cells = []
        for kind in KINDS:
            cells.append(f"{values(splits, PLAIN, kind).mean():.4f}")
            d = added(splits, "recommended", kind)
            cells.append(f"{signed(d.mean)} ({signed(d.low)} to {signed(d.high)})")
            cells.append(signed(added(splits, TREES, kind).mean))
        names = Counter(one["recommended"] for one in splits).most_common()
        said = ", ".join(f"{name} ({count})" for name, count in names)
        rows.append([splits[0]["table"], f"{splits[0]['rows']:,}", said, *cells])
    columns = ["table", "rows", "recommended (splits)", "worst group, plain", "recommended adds", "trees add",
               "average, plain", "recommended adds", "trees add"]  # fmt: skip
    text = f"""\
Intervals are those of Nadeau and Bengio's corrected resampled t over the splits, {CONFIDENCE:.0%} each. The counts
above are of single splits, by a bootstrap of their held-out rows, paired by row (and by day or week, where those are
held out as a whole)."""
    return f"## Problems\n\n{text}\n\n{markdown(columns, rows)}\n"
