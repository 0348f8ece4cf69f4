"""Draw which layer of the package imports which, from the imports themselves.

    python docs/tools/draw_architecture.py            writes docs/images/architecture.svg
    python docs/tools/draw_architecture.py --check    exits with 1 where the stored drawing is another one

A layer is a package or module directly under `src/groupdro`, in the order of CONTRIBUTING.md. An arrow leads from a
layer to one that it imports; arrows that follow from others are left out. Nothing but the standard library is needed.
"""

import ast
import re
import sys
from html import escape
from itertools import pairwise
from pathlib import Path

__all__ = ["draw", "imports", "main"]

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "groupdro"
DRAWING = Path(__file__).parents[1] / "images" / "architecture.svg"

#: Kinds of layers, with the colour of their outline.
KINDS = {
    "what users call": (
        "#D55E00",
        (
            "cli",
            "torch",
            "compare",
            "estimators",
            "plots",
            "discovery",
            "evaluation",
            "losses",
            "domains",
            "weight_sets",
        ),
    ),
    "problems, solvers and bounds": ("#0072B2", ("solvers", "run", "certificate", "oracle", "problem", "geometry")),
    "rows": ("#009E73", ("store", "distributed", "data", "datasets")),
    "ground": ("#6E6E6E", ("kernels", "utils", "version")),
}
WIDTH, ROW, BOX, HEIGHT, TOP = 920, 72, 116, 34, 56
SWEEPS = 12  # over the rows, to put layers near to those that they are linked with

Graph = dict[str, set[str]]


def layers() -> dict[str, str]:
    """Return the layers of CONTRIBUTING.md in order, and what each holds."""
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where things live")[2]
    rows = re.findall(r"^\| `([\w/.]+)` \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE)
    return {name.rstrip("/").removesuffix(".py"): holds for name, holds in rows}


def imports() -> Graph:
    """Return which layers each layer imports, at the top of its modules or inside of functions."""
    found: Graph = {name: set() for name in layers()}
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if own not in found:  # the package itself
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "groupdro":
                inner = node.module.split(".")[1:2] or [alias.name for alias in node.names]
                found[own].update(name for name in inner if name in found and name != own)
    return found


def reduced(graph: Graph) -> Graph:
    """Leave out arrows that follow from others."""
    reached: Graph = {}
    for name in graph:  # in order, so that what a layer imports comes before it
        reached[name] = graph[name].union(*(reached[other] for other in graph[name]))
    return {
        name: {other for other in others if not any(other in reached[third] for third in others)}
        for name, others in graph.items()
    }


def levels(graph: Graph) -> dict[str, int]:
    """Return how many layers lie under each."""
    found: dict[str, int] = {}
    for name, others in graph.items():
        found[name] = 1 + max((found[other] for other in others), default=-1)
    return found


def arranged(graph: Graph) -> tuple[list[list[str]], list[list[str]]]:
    """Return rows of layers from the lowest, and each arrow as the points it passes, one per row.

    An arrow over several rows has a place of its own in each row between, so that it does not cross a layer.
    """
    level = levels(graph)
    rows: list[list[str]] = [[] for _ in range(1 + max(level.values()))]
    for name in graph:
        rows[level[name]].append(name)
    arrows = []
    for name, others in graph.items():
        for other in sorted(others):
            between = [f"{name}>{other}>{height}" for height in range(level[name] - 1, level[other], -1)]
            for height, place in zip(range(level[name] - 1, level[other], -1), between, strict=True):
                rows[height].append(place)
            arrows.append([name, *between, other])
    near: dict[str, set[str]] = {place: set() for row in rows for place in row}
    for arrow in arrows:
        for one, other in pairwise(arrow):
            near[one].add(other)
            near[other].add(one)
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            where = {place: _x(line, k) for line in rows for k, place in enumerate(line)}
            middle = {place: sum(where[other] for other in near[place]) / max(1, len(near[place])) for place in row}
            row.sort(key=lambda place: (round(middle[place], 6), place))
    return rows, arrows


def _x(row: list[str], place: int) -> float:
    return WIDTH * (place + 1) / (len(row) + 1)


def draw() -> str:
    """Return the drawing as SVG, the same for the same imports."""
    graph, holds = imports(), layers()
    rows, arrows = arranged(reduced(graph))
    height = TOP + ROW * len(rows)
    at = {
        place: (round(_x(row, k)), height - ROW // 2 - ROW * level)
        for level, row in enumerate(rows)
        for k, place in enumerate(row)
    }
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="14">',
        "<title>Layers of groupdro and what they import</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#808080"/></marker></defs>',
    ]
    for k, (kind, (colour, _)) in enumerate(KINDS.items()):
        x = 16 + k * (WIDTH - 16) // len(KINDS)
        out.append(
            f'<rect x="{x}" y="14" width="14" height="14" rx="3" fill="#FFFFFF" stroke="{colour}" stroke-width="2"/>'
        )
        out.append(f'<text x="{x + 20}" y="26" font-size="12" fill="#808080">{escape(kind)}</text>')
    for arrow in arrows:
        out.append(f'<path d="{_curve([at[place] for place in arrow])}" {_LINE}/>')
    colours = {name: colour for colour, names in KINDS.values() for name in names}
    for name in graph:
        x, y = at[name]
        out.append(
            f"<g><title>{escape(name)}: {escape(holds[name])}</title>"
            f'<rect x="{x - BOX // 2}" y="{y - HEIGHT // 2}" width="{BOX}" height="{HEIGHT}" rx="6" fill="#FFFFFF" '
            f'stroke="{colours[name]}" stroke-width="2"/>'
            f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="#202020">{escape(name)}</text></g>'
        )
    return "\n".join([*out, "</svg>", ""])


_LINE = 'fill="none" stroke="#808080" stroke-width="1.4" marker-end="url(#tip)"'


def _curve(points: list[tuple[int, int]]) -> str:
    """Return a smooth line from the lower edge of the first layer to the upper edge of the last."""
    (x, y), half = points[0], HEIGHT // 2
    points = [(x, y + half), *points[1:-1], (points[-1][0], points[-1][1] - half)]
    parts = [f"M{points[0][0]} {points[0][1]}"]
    for (x1, y1), (x2, y2) in pairwise(points):
        bend = (y2 - y1) // 2
        parts.append(f"C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}")
    return " ".join(parts)


def main(arguments: list[str]) -> int:
    """Write the drawing, or compare it with the stored one."""
    drawing = draw()
    if arguments == ["--check"]:
        return int(DRAWING.read_text(encoding="utf-8") != drawing)
    DRAWING.write_text(drawing, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
