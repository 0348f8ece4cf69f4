"""Tables of the evaluations with tuned steps, as lines of Markdown, and what they say of the root of m."""

import numpy as np
import pandas as pd

from benchmarks.paper.complexity import AXES
from benchmarks.paper.store import RESULTS
from benchmarks.paper.tables import number, rows_of
from benchmarks.paper.tuned import (
    FAMILIES,
    FILE,
    OUTPUTS,
    M,
    N,
    against,
    best,
    crossing,
    local_slopes,
    slope,
    targets,
)

__all__ = ["crossing_table", "factor_table", "local_table", "ratio_table", "root_of_m", "stored", "untuned_table"]

#: How the rows of a table are called.
GAP = {"pair": "best pair", "average": "average"}
EPS = FAMILIES["random"][1]  # the gap at which slopes in m and n are taken, as with the theorem's step
PREDICTED = 0.5  # the slope in m of MPVR's evaluations over ALEG's, by the theorems


def stored(path: str = FILE) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the best evaluations of tuned factors, and the rows of the theorem's own step."""
    rows = pd.read_parquet(RESULTS / path)
    return best(rows[rows["exponent"] > 0]), rows[rows["exponent"] == 0]


def _slope_cell(x: np.ndarray, y: np.ndarray) -> str:
    if len(x) < 3:
        return "too few points"
    found, half = slope(x, y)
    return f"{found:.2f}" if np.isnan(half) else f"{found:.2f} ± {half:.2f}"


def ratio_table(found: pd.DataFrame) -> str:
    """Return MPVR's evaluations over ALEG's for growing m, each with its best factor, and the slope in m."""
    ratios = against(found, "MPVR")
    ratios = ratios[ratios["n"] == N]
    sizes, rows = sorted(ratios["m"].unique()), []
    for family in FAMILIES:
        for output, gap in targets(family):
            own = ratios[(ratios["family"] == family) & (ratios["output"] == output) & (ratios["eps"] == gap)]
            own = own.set_index("m")["ratio"].sort_index()
            if not len(own):
                continue
            cells = [f"{own[m]:.2f}" if m in own.index else "" for m in sizes]
            rows.append(
                [family, GAP[output], f"{gap:g}", *cells, _slope_cell(own.index.to_numpy(float), own.to_numpy())]
            )
    return rows_of(["family", "gap of the", "eps", *(f"m = {m}" for m in sizes), "slope in m"], rows)


def factor_table(found: pd.DataFrame) -> str:
    """Return the best factors of the theorem's step for growing m, and their slopes in m."""
    own, rows = found[found["n"] == N], []
    sizes = sorted(own["m"].unique())
    for family, gaps in FAMILIES.items():
        for output, gap in (("pair", gaps[3]), ("pair", gaps[-1]), ("average", gaps[3])):
            for method in ("ALEG", "MPVR"):
                part = own[(own["family"] == family) & (own["output"] == output) & (own["eps"] == gap)
                           & (own["method"] == method)].set_index("m")["factor"].sort_index()  # fmt: skip
                if len(part) < 3:
                    continue
                cells = [number(part[m]) if m in part.index else "" for m in sizes]
                cell = _slope_cell(part.index.to_numpy(float), part.to_numpy())
                rows.append([family, GAP[output], f"{gap:g}", method, *cells, cell])
    return rows_of(["family", "gap of the", "eps", "method", *(f"m = {m}" for m in sizes), "slope in m"], rows)


def local_table(found: pd.DataFrame, untuned: pd.DataFrame) -> str:
    """Return slopes between neighbouring points, with the theorem's step and with tuned ones.

    `untuned` has the evaluations of complexity.py, of the best pair on the random family.
    """
    rows = []
    for axis in AXES:
        for method in ("ALEG", "MPVR", "SMD"):
            own = untuned[(untuned["axis"] == axis) & (untuned["method"] == method) & (untuned["constants"] == "paper")]
            x = 1 / own["eps"] if axis == "1/eps" else own[axis]
            whole = own["evaluations"].groupby(x).agg(lambda v: np.exp(np.log(v).mean(skipna=False))).dropna()
            rows += _local_row(method, axis, "theorem's", "best pair", whole)
            for output in OUTPUTS:
                part = found[(found["family"] == "random") & (found["output"] == output) & (found["method"] == method)]
                if axis == "m":
                    part = part[(part["n"] == N) & (part["eps"] == EPS)].set_index("m")["evaluations"]
                elif axis == "n":
                    part = part[(part["m"] == M) & (part["eps"] == EPS)].set_index("n")["evaluations"]
                else:
                    part = part[(part["m"] == M) & (part["n"] == N)]
                    part = part.set_index(1 / part["eps"])["evaluations"]
                rows += _local_row(method, axis, "tuned", GAP[output], part.sort_index())
    return rows_of(["method", "in", "step", "gap of the", "from", "to", "local slopes"], rows)


def _local_row(method: str, axis: str, step: str, gap: str, own: pd.Series) -> list[list[str]]:
    if len(own) < 3:
        return []
    x = own.index.to_numpy(float)
    slopes = ", ".join(f"{v:.2f}" for v in local_slopes(x, own.to_numpy()))
    return [[method, axis, step, gap, f"{x[0]:g}", f"{x[-1]:g}", slopes]]


def untuned_table(rows: pd.DataFrame) -> str:
    """Return the evaluations with the theorem's own step until either gap, and MPVR's over ALEG's."""
    table = []
    for family, gaps in FAMILIES.items():
        for output in OUTPUTS:
            own = rows[(rows["family"] == family) & (rows["output"] == output) & (rows["eps"] == gaps[1])]
            own = own.assign(log=np.log(own["evaluations"]))
            means = np.exp(own.groupby(["method", "m"])["log"].mean()).unstack(0).dropna()
            if not {"ALEG", "MPVR"} <= set(means.columns) or len(means) < 2:
                continue
            for name in ("ALEG", "MPVR"):
                cell = ", ".join(f"{v:.2f}" for v in local_slopes(means.index.to_numpy(float), means[name].to_numpy()))
                table.append([family, GAP[output], f"{gaps[1]:g}", name, *map(number, means[name]), cell])
            ratio = means["MPVR"] / means["ALEG"]
            cell = ", ".join(f"{v:.2f}" for v in local_slopes(means.index.to_numpy(float), ratio.to_numpy()))
            table.append([family, GAP[output], f"{gaps[1]:g}", "MPVR / ALEG", *(f"{v:.2f}" for v in ratio), cell])
    sizes = sorted(rows["m"].unique())
    return rows_of(["family", "gap of the", "eps", "method", *(f"m = {m}" for m in sizes), "local slopes in m"], table)


def crossing_table(found: pd.DataFrame) -> str:
    """Return the gap below which ALEG needs fewer evaluations than SMD, by n, beside what the theorems predict."""
    smd = found[found["method"] == "SMD"]
    sizes, rows = sorted(set.intersection(*(set(smd[smd["family"] == family]["n"]) for family in FAMILIES))), []
    for family in FAMILIES:
        for output in OUTPUTS:
            cells = [crossing(found, family, output, n) for n in sizes]
            words = ["none measured" if np.isnan(v) else "all measured" if np.isinf(v) else number(v) for v in cells]
            rows.append([family, GAP[output], *words])
    rows.append(["", "theorems: sqrt(ln m / n)", *(number(float(np.sqrt(np.log(M) / n))) for n in sizes)])
    return rows_of(["family", "gap of the", *(f"n = {n}" for n in sizes)], rows)


def root_of_m(found: pd.DataFrame) -> str:
    """Return the verdict on the advantage of ALEG over MPVR that grows like the root of m, with tuned steps."""
    ratios, kinds = against(found, "MPVR"), []
    for _, own in ratios[ratios["n"] == N].groupby(["family", "output", "eps"]):
        if len(own) >= 4:
            middle, half = slope(own["m"].to_numpy(float), own["ratio"].to_numpy())
            low, high = middle - half, middle + half
            kinds.append("reproduced" if low <= PREDICTED <= high and low > 0 else "part" if low > 0 else
                         "not" if high < PREDICTED else "undecided")  # fmt: skip
    own = ratios[ratios["n"] == N]["ratio"]
    return (
        f"With tuned steps, MPVR needs {own.min():.2f} to {own.max():.2f} times the evaluations of ALEG. The "
        f"slope of that ratio in m, predicted as {PREDICTED:g}, is reproduced in {kinds.count('reproduced')}, above 0 "
        f"but below the prediction in {kinds.count('part')}, below it and not above 0 in {kinds.count('not')}, and "
        f"undecided in {kinds.count('undecided')} of {len(kinds)} combinations of family, gap and eps."
    )
