"""Pages of reports, comparisons and found groups: whole, escaped, and with the numbers of the results."""

import html
import re
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from groupdro import Predictions, compare, find_groups, group_report
from groupdro.losses import Quantile

HOSTILE = '<script>alert("1")</script>'
VOID = {"meta", "br"}
RNG = np.random.default_rng(0)
N = 3000
RISK = RNG.normal(size=N)
SITE = RNG.choice(["north", "south", HOSTILE], N)
P = 1 / (1 + np.exp(-RISK))
Y = (RNG.random(N) < np.where(SITE == "south", P**3, P)).astype(int)
COLUMNS = pd.DataFrame({"site": SITE, "age": RNG.integers(18, 90, N)})


class Reader(HTMLParser):
    """Reads a page, checks that elements are closed in order, and keeps elements and text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.text = [], [], ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def report():
    metrics = ["log_loss", "roc_auc", "actual_over_expected"]
    return group_report(Predictions(probability=P), y=Y, groups=COLUMNS["site"], metrics=metrics, n_bootstrap=100)


def comparison():
    models = {HOSTILE: Predictions(probability=P), "slow": Predictions(probability=1 / (1 + np.exp(0.3 * RISK)))}
    return compare(y=Y, groups=COLUMNS["site"], models=models, metrics=["log_loss", "roc_auc"], n_bootstrap=100)


def found(metrics="miscalibration"):
    return find_groups(Predictions(probability=P), y=Y, columns=COLUMNS, metrics=metrics, n_bootstrap=100)


@pytest.mark.parametrize("make", [report, comparison, found, lambda: found("brier")])
def test_a_page_is_whole_and_escaped_and_asks_for_nothing(make, tmp_path):
    result = make()
    path = result.to_html(tmp_path / "page.html", title=HOSTILE, about=f"About {HOSTILE}.")
    page = path.read_text()
    reader = Reader(page)
    tags = {tag for tag, _ in reader.elements}
    assert not tags & {"script", "img", "link", "iframe", "object", "embed", "base", "form", "a"}
    assert not any(
        {"src", "href", "onload", "onclick", "onerror"} & set(attributes) for _, attributes in reader.elements
    )
    references = [attributes["xlink:href"] for _, attributes in reader.elements if "xlink:href" in attributes]
    assert all(target.startswith("#") for target in [*references, *re.findall(r"url\(([^)]*)", page)])
    assert "@import" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert reader.text.count(HOSTILE) >= 2
    message = result.verdict if hasattr(result, "verdict") else result.message
    assert f'<p class="lead">{html.escape(message)}</p>' in page
    assert "$" not in re.sub(r"<style.*?</style>|<svg.*?</svg>", "", page, flags=re.DOTALL)
    assert "nan" not in re.sub(r"<style.*?</style>|<svg.*?</svg>", "", page, flags=re.DOTALL).lower()
    # On a phone each cell has the head of its column.
    cells = [attributes for tag, attributes in reader.elements if tag == "td"]
    assert all(attributes.get("data-label") for attributes in cells)
    assert bool(cells) == bool(len(getattr(result, "rules", "x")))


def rows(page):
    """Return the rows of all tables as text."""
    return [re.sub(r"<.*?>", " ", row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]


def test_the_page_of_a_comparison_has_every_model_and_the_changes_of_each_group(tmp_path):
    result = comparison()
    page = result.to_html(tmp_path / "page.html").read_text()
    for k, name in enumerate(result.columns["model"]):
        row = next(row for row in rows(page) if row.strip().startswith(html.escape(name)))
        for metric in ("log_loss", "roc_auc"):
            for kind in ("mean", "worst"):
                assert f"{result.columns[f'{kind}_{metric}'][k]:.3g}" in row
    for k, name in enumerate(result.differences["group"]):
        row = [row for row in rows(page) if row.strip().startswith(html.escape(name))][-1]
        for key in ("difference", "low", "high"):
            assert f"{result.differences[key][k]:.3g}" in row
        if name == "north":
            assert "clearly worse" in row
    assert page.count("<svg") == 2
    assert html.escape(result.evidence) in page


def test_the_page_of_found_groups_has_their_numbers_and_how_they_were_searched(tmp_path):
    result = found()
    assert len(result)
    page = result.to_html(tmp_path / "page.html").read_text()
    for k, name in enumerate(result.columns["group"]):
        row = next(row for row in rows(page) if row.strip().startswith(html.escape(name.split(" & ")[0])))
        for key in ("inside", "difference", "at_least"):
            assert f"{result.columns[key][k]:.3g}" in row
        assert str(result.columns["rows"][k]) in row
    assert f"{result.n_conditions} conditions" in page
    assert "predicted too high" in page


def test_figures_say_how_to_read_them():
    display = report().plot()
    words = display.figure_._suptitle.get_text()
    assert "smaller is better" in words
    assert "95%" in words
    assert display.ax_.get_ylabel() == "site"
    plt.close(display.figure_)
    display = report().plot(metric="actual_over_expected")
    dotted = [line.get_xdata()[0] for line in display.ax_.lines if line.get_linestyle() == ":"]
    assert dotted == [1.0]
    assert "better" not in display.figure_._suptitle.get_text()
    plt.close(display.figure_)


def test_a_dotted_line_shows_the_level_of_a_quantile():
    y = RISK + np.random.default_rng(1).normal(size=N)
    metrics = ["risk", "share_below"]
    result = group_report(
        Predictions(RISK + 1.0), y=y, groups=SITE, loss=Quantile(0.8), metrics=metrics, n_bootstrap=50
    )
    display = result.plot(metric="share_below")
    assert [line.get_xdata()[0] for line in display.ax_.lines if line.get_linestyle() == ":"] == [0.8]
    plt.close(display.figure_)


def test_conditions_of_found_groups_are_not_cut_in_the_middle():
    display = found().plot()
    labels = " ".join(text.get_text() for text in display.ax_.get_yticklabels())
    assert "site = south" in labels
    plt.close(display.figure_)
