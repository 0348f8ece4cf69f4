"""Draw the figures of the README and of the tutorials.

    python docs/tools/draw_figures.py [NAME ...]

The figures of a page are those that its own code draws, so that a reader gets the same. That of last layers is drawn
from `benchmarks/results/last_layers.json`. Without names all are drawn.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

DOCS = Path(__file__).parents[1]
IMAGES = DOCS / "images"
FIGURES = {  # of each page, in the order in which it draws them
    "../README": ["first_fit"],
    "tutorial_table": ["tutorial_hours", "tutorial_frontier"],
    "tutorial_last_layer": ["tutorial_last_layer"],
    "tutorial_large": ["tutorial_large"],
    "tutorial_find_groups": ["tutorial_find_groups"],
    "tutorial_counts": ["tutorial_counts"],
    "../examples/plot_claims.py": ["claims"],
}
LAST_LAYER = "last_layer"
PROBLEM = "Fashion-MNIST, patch 95%"
GROUPS = ["T-shirt,\npatch left", "T-shirt,\npatch right", "shirt,\npatch left", "shirt,\npatch right"]
METHODS = {
    "the network": ("network as trained", "0.65"),
    "retrain_last_layer, robustness 0.5": ("last layer, blend", "#56B4E9"),
    "retrain_last_layer, robustness 1.0": ("last layer, worst group", "#0072B2"),
}


def run_page(name: str) -> None:
    """Run the code of a page or an example in an empty folder, and keep the figures that it draws."""
    if name.endswith(".py"):
        code = [(DOCS / name).read_text()]
    else:
        code = re.findall(r"^```python\n(.*?)^```", (DOCS / f"{name}.md").read_text(), re.DOTALL | re.MULTILINE)
    namespace: dict[str, object] = {"__name__": "__main__"}
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block in code:
                if not block.startswith("# train.py"):
                    exec(compile(block, name, "exec"), namespace)
        finally:
            os.chdir(home)
    figures = [plt.figure(number) for number in plt.get_fignums()]
    for figure, image in zip(figures, FIGURES[name], strict=True):
        save(figure, image)


def draw_last_layer() -> None:
    """Draw the test accuracy of each group, the mean over networks, under three last layers."""
    stored = json.loads((DOCS.parent / "benchmarks" / "results" / "last_layers.json").read_text())
    runs = [run["methods"] for run in stored["runs"] if run["problem"] == PROBLEM]
    figure, ax = plt.subplots(figsize=(8, 3.2), layout="constrained")
    for k, (method, (label, colour)) in enumerate(METHODS.items()):
        accuracy = 100 * np.mean([run[method]["groups"] for run in runs], axis=0)
        bars = ax.bar(np.arange(4) + 0.27 * (k - 1), accuracy, 0.25, label=label, color=colour)
        ax.bar_label(bars, fmt="%.0f", fontsize=8, padding=1)
    ax.set_xticks(np.arange(4), GROUPS)
    ax.set_ylabel("test accuracy in percent")
    ax.set_ylim(0, 112)
    ax.legend(ncols=3, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.17))
    ax.spines[["top", "right"]].set_visible(False)
    save(figure, LAST_LAYER)


def save(figure: plt.Figure, name: str) -> None:
    """Write a figure, the same bytes for the same drawing."""
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "groupdro"
    mpl.rcParams["svg.fonttype"] = "path"
    known = {**{name: lambda name=name: run_page(name) for name in FIGURES}, LAST_LAYER: draw_last_layer}
    for name in sys.argv[1:] or known:
        known[name]()
