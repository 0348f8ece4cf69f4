"""Charts of the HTML pages. Positions are percentages of the width, so that text keeps its size on any screen."""

from collections.abc import Callable
from typing import Any

import numpy as np

from groupdro.evaluation.drawing import bounds_window, drawn_gaps, heaviest_groups
from groupdro.evaluation.report import GroupReport
from groupdro.utils.text import objective_name, percent
from groupdro.utils.types import Floats

__all__ = ["change_chart", "decimals_of", "fixed", "risk_chart", "run_charts", "weight_chart"]

Namer = Callable[[Any], str]

_MOST_GROUPS = 30  # most groups in a chart; the table has all of them
_HEIGHT = 100.0  # height and width of a graph in its own units


def risk_chart(report: GroupReport, worst: int, name: Namer, *, regret: bool) -> str:
    """Draw each group's risk with its interval, worst first, and the average of all rows.

    Parameters
    ----------
    report : GroupReport
        The table.
    worst : int
        Index of the group to highlight.
    name : callable
        Returns the name of a group in HTML.
    regret : bool
        Whether the worst group is the one with the largest excess risk.

    Returns
    -------
    str
        A `figure` element.
    """
    c = report.columns
    shown = [k for k in range(len(c["group"])) if not np.isnan(c["risk"][k])][:_MOST_GROUPS]
    ends = [x for k in shown for x in (c["risk"][k], c["risk_low"][k], c["risk_high"][k]) if not np.isnan(x)]
    ticks = _ticks(0.0, max(*ends, report.overall["risk"]))
    top = max(ticks[-1], *ends) or 1.0
    decimals = decimals_of([top])
    mean = 100 * report.overall["risk"] / top
    rows = []
    for k in shown:
        low, high = c["risk_low"][k], c["risk_high"][k]
        span = ""
        if not np.isnan(low):
            span = f'<i class="span" style="left:{100 * low / top:.2f}%;width:{100 * (high - low) / top:.2f}%"></i>'
        plot = f'<i class="line"></i><i class="mean" style="left:{mean:.2f}%"></i>{span}'
        plot += f'<i class="dot" style="left:{100 * c["risk"][k] / top:.2f}%"></i>'
        rows.append(_row(name(c["group"][k]), plot, fixed(c["risk"][k], decimals), worst=k == worst))
    scale = "".join(f'<span style="left:{100 * tick / top:.2f}%">{_short(tick)}</span>' for tick in ticks)
    left = len(c["group"]) - len(shown)
    mean_risk = fixed(report.overall["risk"], decimals)
    caption = f"Average loss with simultaneous {percent(report.confidence)} intervals; dashed: {mean_risk} "
    caption += "over all rows."
    caption += " The group with the largest excess risk is highlighted." if regret else ""
    caption += f" {left} more groups are in the table." if left else ""
    return _figure("Risk of each group", [*rows, f'<div class="scale">{scale}</div>'], caption)


def weight_chart(model: Any, name: Namer) -> str:
    """Draw the weights of the groups in the certificate, by descending weight."""
    q, names = model.group_weights_, model.groups_.tolist()
    heaviest = heaviest_groups(q, _MOST_GROUPS)
    rows = []
    for k in heaviest:
        plot = f'<i class="track"></i><i class="bar" style="width:{100 * q[k] / q.max():.2f}%"></i>'
        rows.append(_row(name(names[k]), plot, f"{q[k]:.3f}", worst=names[k] == model.worst_group_))
    share = q[heaviest].sum()
    carry = "all weight" if share > 0.9995 else f"{share:.1%} of the weight"
    caption = (
        f"{len(rows)} of {len(names)} groups carry {carry} in the certificate: to do better on the worst of them, a "
        "model would have to do worse on another. The other groups do better and do not bind."
        if len(rows) > 1
        else f"One of {len(names)} groups carries {carry} in the certificate: it alone decides."
    )
    return _figure("Weights of the groups", rows, caption)


def change_chart(what: str, changes: dict[str, tuple[float, float, float]], recommended: str, caption: str) -> str:
    """Draw the changes of each model from plain training, with intervals. Left of the dashed zero is better.

    Parameters
    ----------
    what : str
        Name of the quantity.
    changes : dict of str to tuple of float
        Change and both ends of its interval, by the model's name in HTML.
    recommended : str
        The model to highlight.
    caption : str
        The line below the chart.

    Returns
    -------
    str
        A `figure` element.
    """
    ends = np.array([*changes.values(), (0.0, 0.0, 0.0)])
    ticks = _ticks(float(ends.min()), float(ends.max()))
    low, high = min(ticks[0], float(ends.min())), max(ticks[-1], float(ends.max()))
    width = (high - low) or 1.0
    decimals = decimals_of([high, low], 3)
    rows = []
    for name, (change, least, most) in changes.items():
        at = [100 * (value - low) / width for value in (0.0, least, most, change)]
        plot = f'<i class="line"></i><i class="mean" style="left:{at[0]:.2f}%"></i>'
        plot += f'<i class="span" style="left:{at[1]:.2f}%;width:{at[2] - at[1]:.2f}%"></i>'
        plot += f'<i class="dot" style="left:{at[3]:.2f}%"></i>'
        rows.append(_row(name, plot, fixed(change, decimals), worst=name == recommended))
    scale = "".join(f'<span style="left:{100 * (tick - low) / width:.2f}%">{_short(tick)}</span>' for tick in ticks)
    return _figure(what, [*rows, f'<div class="scale">{scale}</div>'], caption)


def _row(name: str, plot: str, number: str, *, worst: bool) -> str:
    kind = " worst" if worst else ""
    return (
        f'<div class="name{kind}">{name}</div><div class="plot{kind}">{plot}</div><div class="num{kind}">{number}</div>'
    )


def _figure(label: str, rows: list[str], caption: str) -> str:
    return (
        f'<figure role="img" aria-label="{label}"><div class="rows">{"".join(rows)}</div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


# ---------------------------------------------------------------------- the run


def run_charts(model: Any) -> str:
    """Draw the bounds of a fit and their gap against the passes over the data."""
    rows = np.array([(row.passes, row.upper, row.lower) for row in model.trace_]).reshape(-1, 3)
    passes, upper, lower = rows[np.isfinite(rows).all(axis=1)].T
    if len(passes) < 2 or not passes[-1] > 0:
        return ""
    title = f"{objective_name(model).capitalize()} during the fit"
    return _bounds_chart(title, passes, upper, lower) + _gap_chart(passes, upper, lower, float(model.tol))


def _bounds_chart(title: str, passes: Floats, upper: Floats, lower: Floats) -> str:
    bottom, top = bounds_window(upper, lower)
    x = passes / passes[-1]
    # Clip values far outside the frame, so that coordinates stay moderate.
    up, low = (np.clip((bound - bottom) / (top - bottom), -50.0, 50.0) for bound in (upper, lower))
    band = " ".join(_points(x, up) + _points(x[::-1], low[::-1]))
    drawn = f'<polygon class="band" points="{band}"/>{_curve(x, up, "up-curve")}{_curve(x, low, "low-curve")}'
    ticks = [tick for tick in _ticks(bottom, top) if bottom <= tick <= top]
    marks = [((tick - bottom) / (top - bottom), _short(tick)) for tick in ticks]
    keys = '<span><i class="key up-key"></i>this model</span><span><i class="key low-key"></i>no model is below</span>'
    return _graph(title, drawn, marks, passes[-1], keys)


def _gap_chart(passes: Floats, upper: Floats, lower: Floats, tol: float) -> str:
    """Draw the certified gap on a logarithmic scale."""
    goal = tol * abs(upper[-1])
    logs, aim = np.log10(drawn_gaps(upper, lower)), np.log10(goal) if goal > 0 else np.nan
    bottom = float(np.floor(np.nanmin([logs.min(), aim])))
    top = float(max(np.ceil(logs.max()), bottom + 1))
    drawn, keys = _curve(passes / passes[-1], (logs - bottom) / (top - bottom), "gap-curve"), ""
    if np.isfinite(aim):
        at = _HEIGHT * (1 - (aim - bottom) / (top - bottom))
        drawn = f'<line class="goal" x1="0" x2="100" y1="{at:.2f}" y2="{at:.2f}"/>{drawn}'
        keys = '<span><i class="key goal-key"></i>tolerance</span>'
    powers = range(int(bottom), int(top) + 1, max(1, round((top - bottom) / 5)))
    marks = [((k - bottom) / (top - bottom), f"10<sup>{k:d}</sup>".replace("-", "\u2212")) for k in powers]
    return _graph("Certified gap", drawn, marks, passes[-1], keys)


def _points(x: Floats, y: Floats) -> list[str]:
    return [f"{100 * a:.2f},{_HEIGHT * (1 - b):.2f}" for a, b in zip(x, y, strict=True)]


def _curve(x: Floats, y: Floats, kind: str) -> str:
    return f'<polyline class="curve {kind}" points="{" ".join(_points(x, y))}"/>'


def _graph(title: str, drawn: str, marks: list[tuple[float, str]], passes: float, keys: str) -> str:
    """Put a drawing of 100 x 100 units between axes whose labels are text on the page."""
    lines = "".join(
        f'<line class="grid" x1="0" x2="100" y1="{_HEIGHT * (1 - y):.2f}" y2="{_HEIGHT * (1 - y):.2f}"/>'
        for y, _ in marks
    )
    ys = "".join(f'<span style="top:{100 * (1 - y):.2f}%">{text}</span>' for y, text in marks)
    widest = max((text for _, text in marks), key=len, default="")
    ticks = [tick for tick in _ticks(0.0, passes)[1:] if tick <= 0.7 * passes]
    xs = "".join(f'<span style="left:{100 * tick / passes:.2f}%">{tick:g}</span>' for tick in ticks)
    return (
        f'<figure><h3>{title}</h3><div class="graph"><div class="ys"><span class="hold">{widest}</span>{ys}</div>'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="{title}">{lines}{drawn}</svg>'
        f'<div class="xs"><span style="left:0">0</span>{xs}<span style="left:100%">{passes:.3g} passes</span></div>'
        f'</div><figcaption class="keys">{keys}</figcaption></figure>'
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers from low to high; the last may lie beyond high."""
    width = max(high - low, 1e-300)
    unit = 10.0 ** np.floor(np.log10(width / 4))
    step = next(unit * times for times in (1, 2, 2.5, 5, 10) if width / (unit * times) <= 5)
    first = int(np.floor(low / step))
    return [float(f"{k * step:.12g}") for k in range(first, int(np.ceil(high / step)) + 1)]


def _short(tick: float) -> str:
    """Return a round number in its shortest form, with spaces between thousands."""
    text = f"{tick:,.10f}".rstrip("0").rstrip(".") if abs(tick) < 1e9 else f"{tick:g}"
    return text.replace(",", "\u202f").replace("-", "\u2212")


def decimals_of(values: list[Any], digits: int = 4) -> int:
    """Return the number of decimals that gives the largest value this many digits."""
    sizes = np.abs(np.array([value for value in values if np.isfinite(value) and value], dtype=float))
    return int(np.clip(digits - 1 - np.floor(np.log10(sizes.max())), 0, 8)) if len(sizes) else 0


def fixed(value: float, decimals: int) -> str:
    """Return a number with this many decimals and spaces between thousands; a dash for NaN."""
    if np.isnan(value):
        return "\u2013"
    return f"{value:,.{decimals}f}".replace(",", "\u202f").replace("-", "\u2212")
