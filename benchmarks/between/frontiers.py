"""Certified frontiers of real problems: what they cost, what they offer, and what is left of it on held-out rows."""

import warnings
from dataclasses import replace
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import groupdro as gd
from benchmarks import real_data
from benchmarks.between import problems
from benchmarks.between.problems import ALPHA, Problem, estimator, halves, profile, some_rows, without_ones
from benchmarks.between.tables import RESULTS, best_times, markdown, write

NAMES = {
    "heart": lambda: without_ones(real_data.heart()),
    "bank": lambda: without_ones(real_data.bank()),
    "adult": lambda: without_ones(real_data.adult()),
    "bike": lambda: without_ones(problems.bike_with_hours()),
    "census": problems.kdd_census,
    "diabetes_age": lambda: without_ones(real_data.diabetes()),
    "diabetes_specialty": lambda: without_ones(problems.diabetes_by_specialty()),
}
DRAWN = "bank"
_HEADER = f"""\
# Certified frontiers

`robustness_frontier` to 0.1% with alpha={ALPHA:g} on 70% of the rows. "Times a fit" is its time as a multiple of one
fit with `robustness=1` to the same 1e-6, both the best of two or more in turns; "times solving" is relative to
`gd.solve` alone, which leaves the slack of the tolerance unspent.

"""
_MODELS = """
## Models

Average and worst risk on the training rows, with the penalty, each followed by what no model with the same other value
can be below; then both on held-out rows, without the penalty.

"""


def frontiers() -> None:
    warnings.simplefilter("ignore")
    costs: list[list[Any]] = []
    models: list[list[Any]] = []
    for name, make in NAMES.items():
        train, held_out = halves(make())
        frontier = _measure(train, costs)
        _describe(frontier, train, held_out, models, name)
        print(costs[-1], flush=True)
    columns = ["problem", "rows", "columns", "groups", "fits", "points", "enclosure", "passes", "passes of a fit",
               "times a fit", "times solving"]  # fmt: skip
    kinds = ["problem", "model", "average", "at least", "worst", "at least", "average held out", "worst held out"]
    write("frontiers", _HEADER + markdown(columns, costs) + _MODELS + markdown(kinds, models))


def _measure(train: Problem, costs: list[list[Any]]) -> Any:
    """Compute the frontier of a problem, and add a line of what it cost."""
    few = some_rows(train, 500)
    estimator(train).fit(few.X, few.y, groups=few.groups)  # compiles
    worst, found = estimator(train), {}

    def frontier() -> None:
        found["frontier"] = gd.robustness_frontier(train.X, train.y, train.groups, estimator=estimator(train))

    times = best_times(
        {
            "fit": lambda: worst.fit(train.X, train.y, groups=train.groups),
            "solve": lambda: gd.solve(problems.group_risk(train), tol=1e-6),
            "frontier": frontier,
        },
        rounds=5,
        seconds=15.0,
    )
    made = found["frontier"]
    costs.append([
        train.name, *train.X.shape, len(set(train.groups)), made.n_fits, len(made.robustness), f"{made.enclosure:.2e}",
        f"{made.n_passes:.0f}", f"{worst.n_passes_:.0f}", f"{times['frontier'] / times['fit']:.2f}",
        f"{times['frontier'] / times['solve']:.2f}",
    ])  # fmt: skip
    return made


def _trees(problem: Problem) -> Any:
    kind = HistGradientBoostingRegressor if problem.task == "regression" else HistGradientBoostingClassifier
    dense = FunctionTransformer(lambda X: X.toarray() if hasattr(X, "toarray") else X, accept_sparse=True)
    return make_pipeline(dense, kind(random_state=0))


def _describe(frontier: Any, train: Problem, held_out: Problem, models: list[list[Any]], name: str) -> None:
    """Add a line for every model worth one, and draw the frontier if a page shows it."""
    chosen = {"mean within 1%": frontier.least_worst(0.01), "worst within 1%": frontier.least_mean(0.01)}
    ends = frontier.models
    for label, one in {"plain": ends[0], **chosen, "worst group alone": ends[-1]}.items():
        values = one.mean, one.mean_lower, one.worst, one.worst_lower, *profile(one.model, held_out)
        models.append([train.name, label, *(f"{value:.5f}" for value in values)])
    balanced = estimator(train, robustness=0.0, average="groups").fit(train.X, train.y, groups=train.groups)
    mean, worst = (value + frontier.penalty_of(balanced) for value in profile(balanced, train))
    trees = _trees(train).fit(train.X, train.y)
    cells = (f"{mean:.5f}", "", f"{worst:.5f}", "", *(f"{value:.5f}" for value in profile(balanced, held_out)))
    models.append([train.name, "balanced", *cells])
    models.append([train.name, "boosted trees", *[""] * 4, *(f"{value:.5f}" for value in profile(trees, held_out))])
    if name == DRAWN:
        draw(frontier, chosen, balanced, trees, train, held_out, name)


def draw(
    frontier: Any, chosen: dict[str, Any], balanced: Any, trees: Any, train: Problem, held_out: Problem, name: str
) -> None:
    """Draw training rows on the left, held-out rows on the right."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(11.0, 4.4), layout="constrained")
        rows = [(half.X, half.y, half.groups) for half in (train, held_out)]
        others = {"balanced training": balanced}
        gd.plots.FrontierDisplay.from_frontier(frontier, chosen=chosen, models=others, training=rows[0], ax=left)
        others["boosted trees"] = trees
        gd.plots.FrontierDisplay.from_frontier(frontier, chosen=chosen, models=others, held_out=rows[1], ax=right)
        figure.suptitle(train.name)
        figure.savefig(RESULTS / f"frontier_{name}.svg", metadata={"Date": None})
        plt.close(figure)


def only(name: str) -> tuple[Any, Problem, Problem]:
    """Return one frontier with its rows, for a look by hand."""
    train, held_out = halves(NAMES[name]())
    return gd.robustness_frontier(train.X, train.y, train.groups, estimator=estimator(train)), train, replace(held_out)
